//! Sources of every scheme, and by a proxy.

use super::*;

/// A TFTP server of one small file, for one request, from before options.
fn tftp(content: &'static [u8]) -> String {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut packet = [0; 512];
        let (_, client) = socket.recv_from(&mut packet).unwrap();
        let data = [&[0, 3, 0, 1], content].concat();
        socket.send_to(&data, client).unwrap();
        socket.recv_from(&mut packet).unwrap();
    });
    format!("tftp://{address}/file")
}

#[test]
fn every_kind_of_source_is_fetched() {
    let blob = b"from a registry";
    let digest = sha256(blob);
    // The fields that image-spec v1.1, manifest.md, requires.
    let manifest = format!(
        r#"{{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {{"mediaType": "application/vnd.oci.empty.v1+json", "size": 2,
                "digest": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"}},
            "layers": [{{"mediaType": "text/plain", "digest": "sha256:{digest}", "size": 15}}]}}"#
    );
    let server = serve(Box::new(move |_, path, stream| match path {
        "/bucket/key" => reply(stream, "200 OK", b"from s3"),
        "/bucket" => reply(stream, "200 OK", b""),
        "/storage/v1/b/bucket/o/key?alt=media" => reply(stream, "200 OK", b"from gs"),
        "/v2/repo/manifests/v1" => reply(stream, "200 OK", manifest.as_bytes()),
        path if path.starts_with("/v2/repo/blobs/sha256:") => reply(stream, "200 OK", blob),
        _ => reply(stream, "404 Not Found", b""),
    }));
    let host = server.base.trim_start_matches("http://");
    let sources = [
        ("s3://bucket/key".to_owned(), "from s3"),
        ("arn:aws:s3:::bucket/key".to_owned(), "from s3"),
        ("gs://bucket/key".to_owned(), "from gs"),
        (format!("oci://{host}/repo:v1"), "from a registry"),
        (tftp(b"from tftp"), "from tftp"),
        ("data:,from%20the%20config".to_owned(), "from the config"),
    ];
    let files = sources.iter().enumerate().map(|(i, (source, content))| {
        let hash = sha256(content.as_bytes());
        format!(
            r#"{{"path": "/{i}", "contents": {{"source": "{source}", "verification": {{"hash": "sha256-{hash}"}}}}}}"#
        )
    });
    let files: Vec<String> = files.collect();
    let text = config(&format!(
        r#", "storage": {{"files": [{}]}}"#,
        files.join(",")
    ));
    let mut settings = settings();
    settings.endpoints = fetch::Endpoints {
        ec2: server.base.clone(),
        compute: server.base.clone(),
        azure: server.base.clone(),
        s3: Some(server.base.clone()),
        gs: server.base.clone(),
        ..fetch::Endpoints::default()
    };
    let user = Some(text_of("user", &text));
    let fetched = gathered_with(&settings, Metadata::default(), None, user).unwrap();
    for (file, (source, content)) in fetched.files.iter().zip(&sources) {
        assert_eq!(
            file.contents.as_ref().and_then(Content::in_memory),
            Some(content.as_bytes()),
            "{source}"
        );
    }
}

#[test]
fn the_proxy_of_a_config_counts_for_what_is_fetched_after_it() {
    let proxy = serve(Box::new(|_, path, stream| {
        reply(stream, "200 OK", format!("proxied {path}").as_bytes());
    }));
    let here = serve(Box::new(|_, _, stream| {
        reply(stream, "200 OK", b"straight")
    }));
    let text = format!(
        r#"{{"ignition": {{"version": "3.5.0", "proxy": {{"httpProxy": "{}", "noProxy": ["127.0.0.0/8"]}}}},
            "storage": {{"files": [
                {{"path": "/a", "contents": {{"source": "http://far.example/a"}}}},
                {{"path": "/b", "contents": {{"source": "{}/b"}}}}]}}}}"#,
        proxy.base, here.base
    );
    let fetched = gathered(None, Some(text_of("user", &text))).unwrap();
    assert_eq!(
        fetched.files[0]
            .contents
            .as_ref()
            .and_then(Content::in_memory),
        Some(b"proxied http://far.example/a".as_slice())
    );
    assert_eq!(
        fetched.files[1]
            .contents
            .as_ref()
            .and_then(Content::in_memory),
        Some(b"straight".as_slice())
    );
}
