//! Keys of S3 with the segments `.` and `..`: they are signed and requested as they are.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

use super::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

/// Whether a request is signed with the key `SECRET`, calculated as S3 does, from the path as it came over the wire.
fn is_signed(request: &Request) -> bool {
    let Some(authorization) = request.header("authorization") else {
        return false;
    };
    let field = |name: &str| {
        let mut fields = authorization.split([',', ' ']);
        fields.find_map(|field| field.strip_prefix(name)).unwrap()
    };
    let (names, scope) = (field("SignedHeaders="), field("Credential="));
    let scope = scope.split_once('/').unwrap().1;
    let headers: String = names
        .split(';')
        .map(|name| format!("{name}:{}\n", request.header(name).unwrap()))
        .collect();
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    let content = request.header("x-amz-content-sha256").unwrap();
    let method = &request.method;
    let canonical = format!("{method}\n{path}\n{query}\n{headers}\n{names}\n{content}");
    let digest = hex(&Sha256::digest(canonical));
    let time = request.header("x-amz-date").unwrap();
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{digest}");
    let key = scope
        .split('/')
        .fold(b"AWS4SECRET".to_vec(), |key, part| mac(&key, part));
    hex(&mac(&key, &text)) == field("Signature=")
}

/// S3 with one object for each of these keys, whose content is the key, for signed requests; the first request for each is
/// refused as too many.
fn bucket(keys: &'static [&'static str]) -> (String, Log) {
    let slow = Mutex::new(Vec::new());
    serve(move |request| {
        if request.method == "HEAD" {
            let region = vec![("x-amz-bucket-region", "eu-west-1".to_owned())];
            return ("200 OK", region, Vec::new());
        }
        if !is_signed(request) {
            return status("403 Forbidden");
        }
        let mut slow = slow.lock().unwrap();
        if !slow.contains(&request.path) {
            slow.push(request.path.clone());
            return status("503 Slow Down");
        }
        let path = request.path.split('?').next().unwrap();
        match keys.iter().find(|key| path == format!("/bucket/{key}")) {
            Some(key) => ok(key.as_bytes()),
            None => status("404 Not Found"),
        }
    })
}

#[test]
fn a_key_with_dots_is_the_object_that_is_fetched() {
    let keys = &["a/../k", "./k", "k", "a/%20b/../.."];
    let ((s3, log), (ec2, _)) = (bucket(keys), serve(ec2));
    for (url, key) in [
        ("s3://bucket/a/../k", "a/../k"),
        ("s3://bucket/a/%2E%2e/k", "a/../k"),
        ("s3://bucket/./k", "./k"),
        ("s3://bucket/k", "k"),
        ("arn:aws:s3:::bucket/a/ b/../..", "a/%20b/../.."),
        ("s3://bucket/a/../k?versionId=7", "a/../k"),
    ] {
        let content = fetch(with_s3(&s3, Some(&ec2)), url).unwrap();
        assert_eq!(String::from_utf8(content).unwrap(), key, "{url}");
    }
    let log = log.lock().unwrap();
    let versions = log
        .iter()
        .filter(|r| r.path == "/bucket/a/../k?versionId=7");
    assert_eq!(versions.count(), 2);
    drop(log);
    // Another one is not found in its place.
    let failure = fetch(with_s3(&s3, Some(&ec2)), "s3://bucket/b/../k").unwrap_err();
    assert!(failure.is_gone(), "{failure}");
}

#[test]
fn a_redirect_from_such_a_key_is_not_followed() {
    let (s3, log) = serve(|request| {
        let host = request.header("host").unwrap();
        let location = format!("http://{host}/bucket/elsewhere");
        (
            "307 Temporary Redirect",
            vec![("Location", location)],
            Vec::new(),
        )
    });
    let url = "arn:aws:s3:us-west-2:123456789012:accesspoint/point/object/a/../b";
    let failure = fetch(with_s3(&s3, None), url).unwrap_err();
    assert!(
        matches!(failure, Failure::Status { code: 307, .. }),
        "{failure}"
    );
    assert_eq!(log.lock().unwrap().len(), 1);
}

#[test]
fn such_a_key_is_fetched_through_a_proxy_s_tunnel() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = listener.local_addr().unwrap();
    let heads = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let answers = [
            "HTTP/1.1 200 Connection established\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood",
        ];
        answers.map(|answer| {
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") {
                connection.read_exact(&mut byte).unwrap();
                head.extend_from_slice(&byte);
            }
            connection.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(head).unwrap()
        })
    });
    let options = Options {
        proxy: Some(Proxy {
            http: Some(format!("http://me:word@{proxy}")),
            ..Proxy::default()
        }),
        ..with_s3("s3.example", None)
    };
    let url = "arn:aws:s3:us-west-2:123456789012:accesspoint/point/object/a/../b";
    assert_eq!(fetch(options, url).unwrap(), b"good");
    let [tunnel, request] = heads.join().unwrap();
    assert!(
        tunnel.starts_with("CONNECT s3.example:80 HTTP/1.1\r\n"),
        "{tunnel}"
    );
    // `me:word` in base64.
    assert!(tunnel.contains("Basic bWU6d29yZA=="), "{tunnel}");
    let first = "GET /point-123456789012/a/../b HTTP/1.1\r\n";
    assert!(request.starts_with(first), "{request}");
    assert!(
        request.to_lowercase().contains("\r\nhost: s3.example\r\n"),
        "{request}"
    );
}
