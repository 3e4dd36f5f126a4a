//! A registry that requires a token, and one that sends wrong content.

use super::*;
use sha2::Digest as _;

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
