//! Servers that send `Retry-After`, redirects and entity tags.

use super::*;

fn parts(etag: &str) -> (Reply, Vec<u8>) {
    let mut headers = vec![
        ("Content-Length", "23".to_owned()),
        ("Content-Range", "bytes 20-42/43".to_owned()),
    ];
    let rest = answer("206 Partial Content", &headers, &BODY[20..]);
    headers = vec![("Content-Length", BODY.len().to_string())];
    if !etag.is_empty() {
        headers.push(("ETag", etag.to_owned()));
    }
    (Reply::Bytes(answer("200 OK", &headers, &BODY[..20])), rest)
}

fn without_digest(url: &str) -> Result<Vec<u8>, Failure> {
    let mut want = want(url, 3);
    want.digest = None;
    client().bytes(&want, &|_| (), &|_| ())
}

#[test]
fn without_a_digest_only_content_that_the_server_vouches_for_is_resumed() {
    let (half, rest) = parts("\"v1\"");
    let (url, requests) = serve(vec![half, Reply::Bytes(rest)]);
    assert_eq!(without_digest(&url).unwrap(), BODY);
    let request = requests.lock().unwrap()[1].to_lowercase();
    assert!(request.contains("range: bytes=20-\r\n"), "{request}");
    assert!(request.contains("if-range: \"v1\"\r\n"), "{request}");
    // Without a tag, and with a weak one, the download restarts from the beginning.
    for etag in ["", "W/\"v1\""] {
        let (half, _) = parts(etag);
        let (url, requests) = serve(vec![half, Reply::Bytes(ok(BODY))]);
        assert_eq!(without_digest(&url).unwrap(), BODY);
        let request = requests.lock().unwrap()[1].to_lowercase();
        assert!(!request.contains("range"), "{request}");
    }
}

#[test]
fn content_that_changed_meanwhile_is_read_whole() {
    let (half, _) = parts("\"v1\"");
    let (url, _) = serve(vec![half, Reply::Bytes(ok(b"something new"))]);
    assert_eq!(without_digest(&url).unwrap(), b"something new");
}

#[test]
fn a_server_that_names_a_time_is_not_asked_before() {
    for status in [
        "408 Request Timeout",
        "425 Too Early",
        "429 Too Many Requests",
        "503 Service Unavailable",
    ] {
        let headers = [
            ("Content-Length", "0".to_owned()),
            ("Retry-After", "1".to_owned()),
        ];
        let busy = answer(status, &headers, b"");
        let (url, requests) = serve(vec![Reply::Bytes(busy), Reply::Bytes(ok(BODY))]);
        let begin = Instant::now();
        assert_eq!(
            client().bytes(&want(&url, 2), &|_| (), &|_| ()).unwrap(),
            BODY
        );
        assert!(begin.elapsed() >= Duration::from_secs(1), "{status}");
        assert_eq!(requests.lock().unwrap().len(), 2);
    }
}

#[test]
fn a_time_beyond_the_total_is_not_waited_for() {
    let headers = [
        ("Content-Length", "0".to_owned()),
        ("Retry-After", "60".to_owned()),
    ];
    let (url, _) = serve(vec![Reply::Bytes(answer("503 Busy", &headers, b""))]);
    let mut want = want(&url, 5);
    want.patience.total = Some(Duration::from_secs(2));
    let begin = Instant::now();
    let failure = client().bytes(&want, &|_| (), &|_| ()).unwrap_err();
    assert!(
        matches!(failure, Failure::Unreachable { attempts: 1, .. }),
        "{failure}"
    );
    assert!(begin.elapsed() < Duration::from_secs(2));
}

#[test]
fn further_statuses_are_repeated_when_the_caller_says_so() {
    let gone = Reply::Bytes(answer("404 Not Found", &[], b""));
    let (url, requests) = serve(vec![gone, Reply::Bytes(ok(BODY))]);
    let mut want = want(&url, 2);
    want.repeat = &[404];
    assert_eq!(client().bytes(&want, &|_| (), &|_| ()).unwrap(), BODY);
    assert_eq!(requests.lock().unwrap().len(), 2);
}

#[test]
fn a_redirect_is_followed_without_the_callers_headers() {
    let (there, there_requests) = serve(vec![Reply::Bytes(ok(BODY))]);
    let headers = [("Location", there), ("Content-Length", "0".to_owned())];
    let moved = answer("302 Found", &headers, b"");
    let (url, requests) = serve(vec![Reply::Bytes(moved)]);
    let mut want = want(&url, 1);
    for (name, value) in [("X-Auth", "secret"), ("Accept", "application/json")] {
        want.headers.push((name.to_owned(), value.to_owned()));
    }
    assert_eq!(client().bytes(&want, &|_| (), &|_| ()).unwrap(), BODY);
    let first = requests.lock().unwrap()[0].to_lowercase();
    assert!(first.contains("x-auth: secret") && first.contains("accept: application/json"));
    let second = there_requests.lock().unwrap()[0].to_lowercase();
    assert!(!second.contains("x-auth"), "{second}");
    assert!(second.contains("accept: application/json"), "{second}");
    assert!(second.contains("user-agent: slipway/"), "{second}");
}

#[test]
fn redirects_in_a_circle_end() {
    let headers = [
        ("Location", "/pool/x.deb".to_owned()),
        ("Content-Length", "0".to_owned()),
    ];
    let moved = Reply::Bytes(answer("301 Moved Permanently", &headers, b""));
    let (url, requests) = serve(vec![moved; 20]);
    let failure = client()
        .bytes(&want(&url, 1), &|_| (), &|_| ())
        .unwrap_err();
    assert!(
        failure.to_string().contains("more than 10 times"),
        "{failure}"
    );
    assert_eq!(requests.lock().unwrap().len(), 11);
}

#[test]
fn a_put_without_a_body_says_so() {
    let (url, requests) = serve(vec![Reply::Bytes(ok(b"token"))]);
    let mut want = want(&url, 1);
    want.method = fetch::Method::Put;
    want.digest = None;
    assert_eq!(client().bytes(&want, &|_| (), &|_| ()).unwrap(), b"token");
    let request = requests.lock().unwrap()[0].to_lowercase();
    assert!(
        request.starts_with("put /pool/x.deb http/1.1\r\n"),
        "{request}"
    );
    assert!(request.contains("content-length: 0\r\n"), "{request}");
}
