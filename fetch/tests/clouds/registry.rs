//! A registry that requires a token, and one that sends wrong content.

use fetch::Repository;
use sha2::Digest as _;

use super::*;

fn digest(bytes: &[u8]) -> String {
    let digits: String = sha2::Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256:{digits}")
}

/// Documents and blobs by path, as in a registry with one artifact of two files for each of two architectures; and the
/// digest of its index.
fn artifact() -> (Vec<(String, Vec<u8>)>, String) {
    let (one, two) = (b"one".to_vec(), b"two".to_vec());
    let layer = |bytes: &[u8], title: &str| {
        format!(
            r#"{{"mediaType":"text/plain","digest":"{}","size":{},"annotations":{{"org.opencontainers.image.title":"{title}"}}}}"#,
            digest(bytes),
            bytes.len()
        )
    };
    let manifest = |layers: &[String]| {
        let layers = layers.join(",");
        let empty = digest(b"{}");
        format!(
            r#"{{"schemaVersion":2,"config":{{"mediaType":"application/vnd.oci.empty.v1+json","digest":"{empty}","size":2}},"layers":[{layers}]}}"#
        )
    };
    let both = manifest(&[layer(&one, "a file"), layer(&two, "two.ign")]);
    let single = manifest(&[layer(&two, "two.ign")]);
    let index = format!(
        r#"{{"schemaVersion":2,"manifests":[
            {{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"{}","size":1,"platform":{{"os":"linux","architecture":"mips"}}}},
            {{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"{}","size":1,"platform":{{"os":"linux","architecture":"{}"}}}}]}}"#,
        digest(single.as_bytes()),
        digest(both.as_bytes()),
        if cfg!(target_arch = "aarch64") {
            "arm64"
        } else {
            "amd64"
        }
    );
    let name = digest(index.as_bytes());
    let mut files = vec![
        (
            "/v2/node/configs/manifests/v1".to_owned(),
            index.clone().into_bytes(),
        ),
        (
            format!("/v2/node/configs/manifests/{name}"),
            index.into_bytes(),
        ),
        (
            "/v2/node/configs/manifests/single".to_owned(),
            single.clone().into_bytes(),
        ),
    ];
    for text in [both, single] {
        let name = digest(text.as_bytes());
        files.push((
            format!("/v2/node/configs/manifests/{name}"),
            text.into_bytes(),
        ));
    }
    for blob in [one, two] {
        files.push((format!("/v2/node/configs/blobs/{}", digest(&blob)), blob));
    }
    (files, name)
}

/// A registry that issues a token at its `/token`, valid for `uses` requests.
fn registry(files: Vec<(String, Vec<u8>)>, uses: usize) -> (String, Log) {
    let given = Mutex::new(0);
    let left = Mutex::new(uses);
    serve(move |request| {
        let host = request.header("host").unwrap();
        if request.path.starts_with("/token?") {
            assert_eq!(
                request.path,
                "/token?service=reg&scope=repository:node/configs:pull"
            );
            let mut given = given.lock().unwrap();
            *given += 1;
            *left.lock().unwrap() = uses;
            return ok(format!(r#"{{"token":"t{given}"}}"#).as_bytes());
        }
        let token = format!("Bearer t{}", given.lock().unwrap());
        let mut left = left.lock().unwrap();
        if request.header("authorization") != Some(&token) || *left == 0 {
            let challenge = format!(
                r#"Bearer realm="http://{host}/token",service="reg",scope="repository:node/configs:pull""#
            );
            return (
                "401 Unauthorized",
                vec![("WWW-Authenticate", challenge)],
                Vec::new(),
            );
        }
        *left -= 1;
        match files.iter().find(|(path, _)| *path == request.path) {
            Some((_, bytes)) => ok(bytes),
            None => status("404 Not Found"),
        }
    })
}

#[test]
fn a_layer_is_found_through_index_and_manifest() {
    let (files, index) = artifact();
    let (host, log) = registry(files, 99);
    let repository = format!("oci://{host}/node/configs");
    for (version, content) in [
        (":v1?title=two.ign", "two"),
        (":v1?title=a%20file", "one"),
        (&format!("@{index}?title=a%20file"), "one"),
        (":single", "two"),
    ] {
        let got = fetch(Options::default(), &format!("{repository}{version}")).unwrap();
        assert_eq!(got, content.as_bytes(), "{version}");
    }
    let log = log.lock().unwrap().clone();
    let accepts = log.iter().find(|r| r.path.contains("/manifests/")).unwrap();
    assert!(
        accepts
            .header("accept")
            .unwrap()
            .contains("application/vnd.oci.image.index.v1+json")
    );
    for (version, why) in [
        (":v1", "found 2 of 2"),
        (":v1?title=three", "found 0 of 2"),
        (":v2", "404"),
    ] {
        let failure = fetch(Options::default(), &format!("{repository}{version}")).unwrap_err();
        assert!(failure.to_string().contains(why), "{failure}");
    }
}

#[test]
fn a_token_that_runs_out_is_renewed() {
    let (files, _) = artifact();
    // Good for index and manifest, not for the blob.
    let (host, log) = registry(files, 2);
    let url = format!("oci://{host}/node/configs:v1?title=two.ign");
    // The second token does not suffice either: each is valid for two requests, and three are sent.
    assert!(fetch(Options::default(), &url).is_err());
    let tokens = log
        .lock()
        .unwrap()
        .iter()
        .filter(|r| r.path.starts_with("/token?"))
        .count();
    assert_eq!(tokens, 2);
    let url = format!("oci://{host}/node/configs:single");
    assert_eq!(fetch(Options::default(), &url).unwrap(), b"two");
}

#[test]
fn content_that_is_not_what_its_digest_says_is_refused() {
    let (mut files, index) = artifact();
    for (path, bytes) in &mut files {
        if path.contains("/blobs/") {
            bytes.reverse();
        }
    }
    let (host, _) = registry(files.clone(), 99);
    let failure = fetch(
        Options::default(),
        &format!("oci://{host}/node/configs:single"),
    )
    .unwrap_err();
    assert!(matches!(failure, Failure::Digest { .. }), "{failure}");
    for (path, bytes) in &mut files {
        if path.ends_with(&index) {
            bytes.push(b' ');
        }
    }
    let (host, _) = registry(files, 99);
    let failure = fetch(
        Options::default(),
        &format!("oci://{host}/node/configs@{index}"),
    )
    .unwrap_err();
    assert!(matches!(failure, Failure::Digest { .. }), "{failure}");
}

/// A registry that takes blobs into the repository `a`, from whoever has its token.
fn writable(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> (String, Log) {
    serve(move |request| {
        let host = request.header("host").unwrap();
        if request.path.starts_with("/token?") {
            return ok(br#"{"token":"t"}"#);
        }
        if request.header("authorization") == Some("Bearer t") {
            return answer(request);
        }
        let challenge = format!(
            r#"Bearer realm="http://{host}/token",service="reg",scope="repository:a:pull,push""#
        );
        let challenge = vec![("WWW-Authenticate", challenge)];
        ("401 Unauthorized", challenge, Vec::new())
    })
}

fn client() -> blocking::Client {
    let options = Options {
        ca_bundle: Some(Vec::new()),
        ..Options::default()
    };
    blocking::Client::new(&options).unwrap()
}

/// The registry `distribution` redirects HEAD too where its storage has addresses of its own.
#[test]
fn a_blob_that_a_registry_keeps_elsewhere_is_there_and_the_token_stays() {
    let (store, at_store) = serve(|request| match request.path.as_str() {
        "/there?sig=x" => ok(b"blob"),
        "/locked?sig=x" => (
            "401 Unauthorized",
            vec![("WWW-Authenticate", "Basic realm=\"x\"".to_owned())],
            Vec::new(),
        ),
        _ => status("404 Not Found"),
    });
    let (host, log) = writable(move |request| {
        let blob = request.path.rsplit(':').next().unwrap();
        let location = format!("http://{store}/{blob}?sig=x");
        match request.method.as_str() {
            "HEAD" if blob == "missing" => status("404 Not Found"),
            "HEAD" => (
                "307 Temporary Redirect",
                vec![("Location", location)],
                Vec::new(),
            ),
            _ => status("500 Internal Server Error"),
        }
    });
    let client = client();
    let mut repository = Repository::new(&host, "a");
    let mut has = |blob: &str| {
        let digest = format!("sha256:{blob}");
        client.run(async |client| repository.has_blob(client, &digest).await)
    };
    assert!(has("there").unwrap());
    assert!(!has("missing").unwrap() && !has("collected").unwrap());
    // What the store wants is no challenge of the registry's.
    let failure = has("locked").unwrap_err().to_string();
    assert!(
        failure.contains("/locked: the server answered 401"),
        "{failure}"
    );
    let at_store = at_store.lock().unwrap();
    let seen: Vec<_> = at_store
        .iter()
        .map(|one| (one.method.as_str(), one.header("authorization")))
        .collect();
    assert_eq!(seen, [("HEAD", None); 3]);
    let tokens = log.lock().unwrap();
    let tokens = tokens.iter().filter(|one| one.path.starts_with("/token?"));
    assert_eq!(tokens.count(), 1);
}

/// A build does not wait for minutes for what it can make itself.
#[test]
fn a_silent_token_service_is_waited_for_as_long_as_the_registry() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let service = silent.local_addr().unwrap();
    let (host, _) = serve(move |_| {
        let challenge = format!(r#"Bearer realm="http://{service}/token",service="reg""#);
        let challenge = vec![("WWW-Authenticate", challenge)];
        ("401 Unauthorized", challenge, Vec::new())
    });
    let patience = Patience {
        attempts: Some(2),
        header_timeout: Duration::from_secs(1),
        first_wait: Duration::from_millis(10),
        ..Patience::default()
    };
    let mut repository = Repository::new(&host, "a").with_patience(patience);
    let failure = client().document(&mut repository, "v1").unwrap_err();
    let failure = failure.to_string();
    assert!(
        failure.contains("/token: given up after 2 attempts"),
        "{failure}"
    );
}

#[test]
fn an_upload_that_is_put_off_is_begun_again_once_the_registry_says() {
    let first = Mutex::new(None);
    let (host, log) = writable(move |request| match request.method.as_str() {
        "HEAD" => status("404 Not Found"),
        "POST" => (
            "202 Accepted",
            vec![("Location", "uploads/1?state=x".to_owned())],
            Vec::new(),
        ),
        _ => {
            let mut first = first.lock().unwrap();
            let began = *first.get_or_insert_with(std::time::Instant::now);
            match began.elapsed() < Duration::from_millis(900) {
                true => (
                    "429 Too Many Requests",
                    vec![("Retry-After", "1".to_owned())],
                    Vec::new(),
                ),
                false => status("201 Created"),
            }
        }
    });
    let content = vec![7; 100_000];
    let name = digest(&content);
    let mut repository = Repository::new(&host, "a");
    client()
        .run(async |client| {
            let content = Content::Bytes(&content);
            repository.push_blob(client, &name, content).await
        })
        .unwrap();
    let log = log.lock().unwrap();
    let of = |method: &str| {
        let of_method = log.iter().filter(|one| one.method == method);
        // Those that the registry answered 401 had no token.
        let allowed = of_method.filter(|one| one.header("authorization").is_some());
        allowed.cloned().collect::<Vec<_>>()
    };
    let (begun, sent) = (of("POST"), of("PUT"));
    assert_eq!((begun.len(), sent.len()), (2, 2), "{log:?}");
    for one in sent {
        let digest = name.replace(':', "%3A");
        let path = format!("/v2/a/blobs/uploads/uploads/1?state=x&digest={digest}");
        assert_eq!((one.path, one.body), (path, content.clone()));
    }
}
