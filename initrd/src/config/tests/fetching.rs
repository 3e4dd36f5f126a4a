//! What a config refers to: fetched, verified, refused by name.

use super::*;

#[test]
fn cut_answers_and_overload_are_survived() {
    let body = vec![b'x'; 100_000];
    let sent = body.clone();
    let server = serve(Box::new(move |count, _, stream| match count {
        0 => reply(stream, "503 Service Unavailable", b""),
        1 => reply(stream, "429 Too Many Requests", b""),
        2 => reply(stream, "408 Request Timeout", b""),
        3 => {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", sent.len());
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&sent[..40_000]).unwrap();
        }
        _ => reply(stream, "200 OK", &sent),
    }));
    let contents = format!(
        r#"{{"source": "{}/x", "verification": {{"hash": "sha256-{}"}}}}"#,
        server.base,
        sha256(&body)
    );
    let fetched = gathered(None, Some(text_of("user", &file("/x", &contents)))).unwrap();
    assert_eq!(fetched.files[0].contents, Some(Content::Memory(body)));
}

#[test]
fn timeouts_beyond_the_range_of_the_clock_are_none() {
    let server = serve(Box::new(|_, _, stream| reply(stream, "200 OK", b"x")));
    for seconds in [i64::MAX, 9_000_000_000_000_000_000] {
        let text = format!(
            r#"{{"ignition": {{"version": "3.5.0",
                "timeouts": {{"httpTotal": {seconds}, "httpResponseHeaders": {seconds}}}}},
                "storage": {{"files": [{{"path": "/x", "contents": {{"source": "{}/x"}}}}]}}}}"#,
            server.base
        );
        let fetched = gathered(None, Some(text_of("user", &text))).unwrap();
        let content = fetched.files[0].contents.clone();
        assert_eq!(content, Some(Content::Memory(b"x".to_vec())), "{seconds}");
    }
}

/// A machine with a console, and a watchdog to which each feeding adds a byte.
pub(crate) fn machine(folder: &Path) -> Arc<World> {
    let world = World::below(folder, Clock::Real);
    fs::create_dir_all(&world.dev).unwrap();
    fs::create_dir_all(&world.proc).unwrap();
    for name in ["console", "watchdog0"] {
        fs::write(world.dev.join(name), "").unwrap();
    }
    world.watchdog.want(Duration::from_secs(120));
    world.watchdog.arm(&world.dev, &world.sys).unwrap();
    Arc::new(world)
}

#[test]
fn a_slow_download_feeds_the_watchdog_and_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let world = machine(folder.path());
    let server = serve(Box::new(|_, _, stream| {
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 70\r\n\r\n")
            .unwrap();
        for _ in 0..70 {
            std::thread::sleep(Duration::from_millis(100));
            stream.write_all(b"x").unwrap();
        }
    }));
    let address = format!("{}/slow", server.base);
    let text = file(
        "/slow",
        &format!(r#"{{"source": "{address}?token=SECRET"}}"#),
    );
    let settings = fetch_settings(&world, None);
    let user = Some(text_of("user", &text));
    let fetched = gathered_with(&settings, Metadata::default(), None, user).unwrap();
    assert_eq!(fetched.files[0].contents.as_ref().unwrap().length(), 70);
    // Once when it was armed, then about once a second.
    let fed = fs::metadata(world.dev.join("watchdog0")).unwrap().len();
    assert!((5..=9).contains(&fed), "{fed}");
    let console = fs::read_to_string(world.dev.join("console")).unwrap();
    assert_eq!(console.lines().count(), 1, "{console}");
    let start = format!("slipway: waiting for {address}, ");
    assert!(console.starts_with(&start), "{console}");
    assert!(
        console.ends_with(" bytes so far (5 s, no deadline)\n")
            || console.ends_with(" bytes so far (6 s, no deadline)\n"),
        "{console}"
    );
}

#[test]
fn sources_that_do_not_fit_into_memory_together_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let world = machine(folder.path());
    fs::write(world.proc.join("meminfo"), "MemAvailable: 200 kB\n").unwrap();
    let server = serve(Box::new(|_, _, stream| {
        reply(stream, "200 OK", &[b'x'; 60_000])
    }));
    let base = &server.base;
    let one =
        |name: &str| format!(r#"{{"path": "/{name}", "contents": {{"source": "{base}/{name}"}}}}"#);
    let with = |files: &[String]| {
        let text = config(&format!(
            r#", "storage": {{"files": [{}]}}"#,
            files.join(",")
        ));
        let user = Some(text_of("user", &text));
        gathered_with(
            &fetch_settings(&world, None),
            Metadata::default(),
            None,
            user,
        )
    };
    assert_eq!(with(&[one("a")]).unwrap().files.len(), 1);
    let wrong = with(&[one("a"), one("b")]).unwrap_err();
    let text = wrong.to_string();
    assert!(
        wrong.remote && text.contains("/b: what the config names may have 100 KiB together")
            || text.contains("/a: what the config names may have 100 KiB together"),
        "{text}"
    );
    // gzip of 200,000 zeros.
    let packed = ignition::contents::gzip(&[0; 200_000]);
    let server = serve(Box::new(move |_, _, stream| {
        reply(stream, "200 OK", &packed)
    }));
    let text = file(
        "/z",
        &format!(
            r#"{{"source": "{}/z", "compression": "gzip"}}"#,
            server.base
        ),
    );
    let user = Some(text_of("user", &text));
    let wrong = gathered_with(
        &fetch_settings(&world, None),
        Metadata::default(),
        None,
        user,
    );
    let text = wrong.unwrap_err().to_string();
    assert!(text.contains("may have 100 KiB together"), "{text}");
}

#[test]
fn every_failed_source_is_told_with_its_place_and_without_its_secrets() {
    let server = serve(Box::new(|_, path, stream| match path {
        "/wrong" => reply(stream, "200 OK", b"SECRET contents"),
        "/gzip" => reply(stream, "200 OK", b"SECRET no gzip"),
        _ => reply(stream, "404 Not Found", b""),
    }));
    let (base, host) = (&server.base, server.base.trim_start_matches("http://"));
    let text = config(&format!(
        r#", "storage": {{"files": [
          {{"path": "/a", "contents": {{"source": "{base}/wrong", "verification": {{"hash": "sha256-{}"}}}}}},
          {{"path": "/b", "contents": {{"source": "{base}/gzip", "compression": "gzip"}}}},
          {{"path": "/c", "append": [{{"source": "http://u:SECRET@{host}/none?token=SECRET"}}]}},
          {{"path": "/d", "contents": {{"source": "{base}/wrong"}}}}]}}"#,
        "0".repeat(64)
    ));
    let wrong = gathered(None, Some(text_of("user", &text))).unwrap_err();
    let text = wrong.to_string();
    assert!(wrong.remote && !text.contains("SECRET"), "{text}");
    assert!(
        text.contains("$.storage.files.0.contents: the 15 bytes do not have the hash"),
        "{text}"
    );
    assert!(
        text.contains("$.storage.files.1.contents: the data is not a complete gzip stream"),
        "{text}"
    );
    assert!(
        text.contains("$.storage.files.2.append.0.source: fetching"),
        "{text}"
    );
    assert!(text.contains("/none: the server answered 404"), "{text}");
    assert!(!text.contains("files.3"), "{text}");
}

#[test]
fn a_wrong_hash_of_a_data_url_is_final() {
    let hash = format!(
        r#"{{"source": "data:,SECRET", "verification": {{"hash": "sha256-{}"}}}}"#,
        "0".repeat(64)
    );
    let wrong = gathered(None, Some(text_of("user", &file("/a", &hash)))).unwrap_err();
    assert!(
        !wrong.remote && !wrong.to_string().contains("SECRET"),
        "{wrong}"
    );
}

fn volume(name: &str, key: &str) -> String {
    format!(r#"{{"name": "{name}", "device": "/dev/{name}", "keyFile": {key}}}"#)
}

#[test]
fn key_files_come_in_the_order_of_the_volumes_and_are_verified() {
    let text = |hash: &str| {
        let verified =
            format!(r#"{{"source": "data:,SECRET", "verification": {{"hash": "sha256-{hash}"}}}}"#);
        let volumes = [
            volume("a", r#"{"source": "data:,first"}"#),
            r#"{"name": "b", "device": "/dev/b", "clevis": {"tpm2": true}}"#.to_owned(),
            volume("c", &verified),
        ];
        config(&format!(
            r#", "storage": {{"luks": [{}]}}"#,
            volumes.join(",")
        ))
    };
    let right = "0917b13a9091915d54b6336f45909539cce452b3661b21f386418a257883b30a";
    let fetched = gathered(None, Some(text_of("user", &text(right)))).unwrap();
    let keys: Vec<Option<&[u8]>> = fetched
        .keys
        .iter()
        .map(|keys| keys.file.as_deref())
        .collect();
    assert_eq!(keys, [Some(&b"first"[..]), None, Some(&b"SECRET"[..])]);
    let wrong = gathered(None, Some(text_of("user", &text(&"0".repeat(64)))))
        .unwrap_err()
        .to_string();
    assert!(wrong.contains("$.storage.luks.2.keyFile: "), "{wrong}");
    assert!(!wrong.contains("SECRET"), "{wrong}");
}

/// Advertisements in the config are not requested: the volume is bound without a network.
#[test]
fn tang_servers_are_asked_for_the_advertisement_that_a_thumbprint_names() {
    let server = serve(Box::new(|number, _, stream| match number {
        0 => reply(stream, "503 Service Unavailable", b""),
        _ => reply(stream, "200 OK", br#"{"payload": "x"}"#),
    }));
    let base = &server.base;
    let text = config(&format!(
        r#", "storage": {{"luks": [
            {{"name": "a", "device": "/dev/a", "keyFile": {{"source": "data:,first"}}}},
            {{"name": "b", "device": "/dev/b", "clevis": {{"tang": [
                {{"url": "{base}/deep/", "thumbprint": "one"}},
                {{"url": "{base}", "thumbprint": "two", "advertisement": "{{\"payload\": \"own\"}}"}}]}}}}]}}"#
    ));
    let fetched = gathered(None, Some(text_of("user", &text))).unwrap();
    assert_eq!(fetched.keys[0].file.as_deref(), Some(&b"first"[..]));
    assert!(fetched.keys[0].advertisements.is_empty() && fetched.keys[1].file.is_none());
    let advertised = [Some(br#"{"payload": "x"}"#.to_vec()), None];
    assert_eq!(fetched.keys[1].advertisements, advertised);
    let log = server.log.lock().unwrap();
    let paths: Vec<&str> = log.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["/deep/adv/one", "/deep/adv/one"]);
}

#[test]
fn a_pin_that_says_so_brings_the_network_up() {
    for (needs, calls) in [(true, 1), (false, 0)] {
        let text = config(&format!(
            r#", "storage": {{"luks": [{{"name": "a", "device": "/dev/a", "clevis":
                {{"custom": {{"pin": "sss", "config": "{{}}", "needsNetwork": {needs}}}}}}}]}}"#
        ));
        let count = AtomicUsize::new(0);
        let network = || {
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        let user = User {
            place: Some(text_of("user", &text)),
            metadata: Metadata::default(),
        };
        let settings = settings();
        let mut gather = Gather::new(&settings, &network, fetch::Identity::Ec2Role);
        layers::gather_all(
            &mut gather,
            None,
            platform::providers::by_id("aws").unwrap(),
            &user,
        )
        .unwrap();
        assert_eq!(count.load(Ordering::SeqCst), calls);
    }
}

#[test]
fn files_come_at_the_same_time_and_with_their_headers() {
    let server = serve(Box::new(|_, path, stream| {
        std::thread::sleep(Duration::from_millis(200));
        reply(stream, "200 OK", path.as_bytes());
    }));
    let files: Vec<String> = (0..20)
        .map(|i| {
            format!(
                r#"{{"path": "/{i}", "contents": {{"source": "{}/{i}", "httpHeaders":
                    [{{"name": "X-Key", "value": "k{i}"}}, {{"name": "accept", "value": "text/plain"}}]}}}}"#,
                server.base
            )
        })
        .collect();
    let text = config(&format!(
        r#", "storage": {{"files": [{}]}}"#,
        files.join(",")
    ));
    let began = std::time::Instant::now();
    let fetched = gathered(None, Some(text_of("user", &text))).unwrap();
    // Twenty answers of 200 ms one after another would take four seconds.
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    for (i, file) in fetched.files.iter().enumerate() {
        assert_eq!(
            file.contents.as_ref().and_then(Content::in_memory),
            Some(format!("/{i}").as_bytes())
        );
    }
    for (path, head) in server.log.lock().unwrap().iter() {
        let head = head.to_lowercase();
        assert!(
            head.contains(&format!("x-key: k{}\r\n", &path[1..])),
            "{head}"
        );
        assert!(
            head.contains("accept: text/plain\r\n") && !head.contains("vnd.coreos"),
            "{head}"
        );
    }
}
