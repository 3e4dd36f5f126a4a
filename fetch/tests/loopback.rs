//! Downloads from a real server on loopback that breaks off, sends wrong data, stalls and recovers.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fetch::{Digest, Failure, Links, Message, Options, Patience, Want, blocking};

#[path = "loopback/polite.rs"]
mod polite;
#[path = "loopback/slow.rs"]
mod slow;
#[path = "loopback/source_port.rs"]
mod source_port;

/// What the server does with one connection.
#[derive(Clone)]
enum Reply {
    /// Sends these bytes and closes.
    Bytes(Vec<u8>),
    /// Sends these bytes and stays silent until the client leaves.
    Stall(Vec<u8>),
}

fn answer(status: &str, headers: &[(&str, String)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status}\r\nConnection: close\r\n");
    for (name, value) in headers {
        write!(head, "{name}: {value}\r\n").unwrap();
    }
    head.push_str("\r\n");
    let mut all = head.into_bytes();
    all.extend_from_slice(body);
    all
}

fn ok(body: &[u8]) -> Vec<u8> {
    answer(
        "200 OK",
        &[("Content-Length", body.len().to_string())],
        body,
    )
}

/// Serves one reply for each connection; returns the address and the requests as they came.
fn serve(replies: Vec<Reply>) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/pool/x.deb", listener.local_addr().unwrap());
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = requests.clone();
    std::thread::spawn(move || {
        for reply in replies {
            let (mut connection, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            let mut piece = [0; 1024];
            while !is_whole(&request) {
                let n = connection.read(&mut piece).unwrap();
                assert_ne!(n, 0, "the client closed inside its request");
                request.extend_from_slice(&piece[..n]);
            }
            seen.lock()
                .unwrap()
                .push(String::from_utf8(request).unwrap());
            match reply {
                // The client may have closed the connection already, for example because it refuses the header.
                Reply::Bytes(bytes) => drop(connection.write_all(&bytes)),
                Reply::Stall(bytes) => {
                    connection.write_all(&bytes).unwrap();
                    drop(connection.read(&mut piece));
                }
            }
        }
    });
    (url, requests)
}

/// Whether a request is complete: its header, and a body of the length that the header gives.
fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())
        .unwrap_or(0);
    body.len() >= length
}

fn client() -> blocking::Client {
    let options = Options {
        ca_bundle: Some(Vec::new()),
        ..Options::default()
    };
    blocking::Client::new(&options).unwrap()
}

fn impatient(attempts: u32) -> Patience {
    Patience {
        attempts: Some(attempts),
        header_timeout: Duration::from_millis(400),
        idle_timeout: Duration::from_millis(400),
        first_wait: Duration::from_millis(10),
        ..Patience::default()
    }
}

/// A service whose first address answers nothing and whose second one is of version 6. It sees the first as its host.
#[test]
fn a_service_is_reached_by_either_version_of_ip() {
    let listener = TcpListener::bind("[::1]:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let mut request = [0; 1024];
        let count = connection.read(&mut request).unwrap();
        connection.write_all(&ok(b"six")).unwrap();
        String::from_utf8_lossy(&request[..count]).to_lowercase()
    });
    let addresses: [std::net::IpAddr; 2] = ["127.0.0.1", "::1"].map(|ip| ip.parse().unwrap());
    let options = Options {
        ca_bundle: Some(Vec::new()),
        direct: true,
        hosts: vec![(
            "metadata.example".to_owned(),
            addresses.map(|ip| (ip, 0).into()).to_vec(),
        )],
        ..Options::default()
    };
    let client = blocking::Client::new(&options).unwrap();
    let url = format!("http://metadata.example:{port}/x");
    let mut want = Want::new(&url, 1000);
    want.patience.attempts = Some(1);
    assert_eq!(client.bytes(&want, &|_| (), &|_| ()).unwrap(), b"six");
    let request = serving.join().unwrap();
    assert!(
        request.contains(&format!("host: 127.0.0.1:{port}\r\n")),
        "{request}"
    );
}

const BODY: &[u8] = b"The quick brown fox jumps over the lazy dog";
const BODY_SHA256: &str = "d7a8fbb307d7809469ca9abcb0082e4f8d5651e46d3cdb762d02d0bf37c9e592";

fn want(url: &str, attempts: u32) -> Want<'_> {
    let mut want = Want::new(url, 1000).digest(Digest::sha256(BODY_SHA256).unwrap());
    want.patience = impatient(attempts);
    want
}

/// Names and contents.
type Files = Vec<(String, Vec<u8>)>;

/// Fetches to a file; the outcome, what is in the folder afterwards, and the bytes that were counted.
fn fetch_file(want: &Want<'_>) -> (Result<(), Failure>, Files, u64) {
    let folder = tempfile::tempdir().unwrap();
    let counted = Mutex::new(0);
    let outcome = client().file(want, &folder.path().join("x.deb"), &|n| {
        *counted.lock().unwrap() += n
    });
    let mut files: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            (
                path.file_name().unwrap().to_str().unwrap().to_owned(),
                std::fs::read(&path).unwrap(),
            )
        })
        .collect();
    files.sort();
    (outcome, files, counted.into_inner().unwrap())
}

fn whole() -> Files {
    vec![("x.deb".to_owned(), BODY.to_vec())]
}

#[test]
fn a_good_answer_becomes_the_file() {
    let (url, requests) = serve(vec![Reply::Bytes(ok(BODY))]);
    let (outcome, files, counted) = fetch_file(&want(&url, 1));
    outcome.unwrap();
    assert_eq!(files, whole());
    assert_eq!(counted, 43);
    assert!(
        requests.lock().unwrap()[0]
            .to_lowercase()
            .contains("user-agent: slipway/")
    );
}

#[test]
fn a_busy_server_is_asked_again() {
    let busy = Reply::Bytes(answer(
        "503 Service Unavailable",
        &[("Content-Length", "0".to_owned())],
        b"",
    ));
    let (url, requests) = serve(vec![busy.clone(), busy, Reply::Bytes(ok(BODY))]);
    let words = Mutex::new(Vec::new());
    let content = client()
        .bytes(
            &want(&url, 3),
            &|word| words.lock().unwrap().push(word.to_owned()),
            &|_| (),
        )
        .unwrap();
    assert_eq!(content, BODY);
    assert_eq!(requests.lock().unwrap().len(), 3);
    let words = words.into_inner().unwrap();
    assert_eq!(words.len(), 2);
    assert!(
        words[0].contains("503") && words[0].contains("attempt 2"),
        "{words:?}"
    );
}

#[test]
fn a_server_that_stays_busy_is_given_up() {
    let busy = Reply::Bytes(answer(
        "503 Service Unavailable",
        &[("Content-Length", "0".to_owned())],
        b"",
    ));
    let (url, requests) = serve(vec![busy.clone(), busy]);
    let failure = fetch_file(&want(&url, 2)).0.unwrap_err();
    assert!(
        matches!(failure, Failure::Unreachable { attempts: 2, .. }),
        "{failure}"
    );
    assert_eq!(requests.lock().unwrap().len(), 2);
}

#[test]
fn a_truncated_answer_is_resumed() {
    let half = answer(
        "200 OK",
        &[("Content-Length", BODY.len().to_string())],
        &BODY[..20],
    );
    let rest = answer(
        "206 Partial Content",
        &[
            ("Content-Length", "23".to_owned()),
            ("Content-Range", "bytes 20-42/43".to_owned()),
        ],
        &BODY[20..],
    );
    let (url, requests) = serve(vec![Reply::Bytes(half), Reply::Bytes(rest)]);
    let (outcome, files, counted) = fetch_file(&want(&url, 2));
    outcome.unwrap();
    assert_eq!(files, whole());
    assert_eq!(counted, 43, "no byte is told twice");
    assert!(
        requests.lock().unwrap()[1]
            .to_lowercase()
            .contains("range: bytes=20-")
    );
}

#[test]
fn a_server_without_ranges_is_read_from_the_start() {
    let half = answer(
        "200 OK",
        &[("Content-Length", BODY.len().to_string())],
        &BODY[..20],
    );
    let (url, _) = serve(vec![Reply::Bytes(half), Reply::Bytes(ok(BODY))]);
    let (outcome, files, counted) = fetch_file(&want(&url, 2));
    outcome.unwrap();
    assert_eq!(files, whole());
    assert_eq!(counted, 43);
}

#[test]
fn a_file_that_changed_between_two_answers_is_read_anew() {
    let old = answer(
        "200 OK",
        &[("Content-Length", BODY.len().to_string())],
        &[b'x'; 20],
    );
    let rest = answer(
        "206 Partial Content",
        &[
            ("Content-Length", "23".to_owned()),
            ("Content-Range", "bytes 20-42/43".to_owned()),
        ],
        &BODY[20..],
    );
    let (url, requests) = serve(vec![
        Reply::Bytes(old),
        Reply::Bytes(rest),
        Reply::Bytes(ok(BODY)),
    ]);
    let (outcome, files, _) = fetch_file(&want(&url, 3));
    outcome.unwrap();
    assert_eq!(files, whole());
    assert!(
        !requests.lock().unwrap()[2]
            .to_lowercase()
            .contains("range:")
    );
}

#[test]
fn wrong_bytes_are_refused_at_once_and_leave_nothing() {
    let (url, requests) = serve(vec![Reply::Bytes(ok(b"something else"))]);
    let (outcome, files, _) = fetch_file(&want(&url, 5));
    let failure = outcome.unwrap_err();
    let Failure::Digest {
        expected, found, ..
    } = &failure
    else {
        panic!("{failure}")
    };
    assert_eq!(expected.to_string(), BODY_SHA256);
    assert_eq!(**found, expected.of_same_kind(b"something else"));
    assert_eq!(files, vec![]);
    assert_eq!(requests.lock().unwrap().len(), 1);
}

#[test]
fn what_is_too_large_is_refused_announced_or_not() {
    let large = vec![0; 2000];
    for reply in [ok(&large), answer("200 OK", &[], &large)] {
        let (url, _) = serve(vec![Reply::Bytes(reply)]);
        let (outcome, files, _) = fetch_file(&want(&url, 5));
        let failure = outcome.unwrap_err();
        assert!(
            matches!(failure, Failure::TooLarge { limit: 1000, .. }),
            "{failure}"
        );
        assert_eq!(files, vec![]);
    }
}

#[test]
fn what_is_not_there_is_not_asked_for_again() {
    let (url, requests) = serve(vec![Reply::Bytes(answer("404 Not Found", &[], b"no"))]);
    let failure = fetch_file(&want(&url, 5)).0.unwrap_err();
    assert!(failure.is_gone(), "{failure}");
    assert!(failure.to_string().contains("404 Not Found"));
    assert_eq!(requests.lock().unwrap().len(), 1);
}

#[test]
fn a_stalling_answer_is_left_and_resumed() {
    let half = answer(
        "200 OK",
        &[("Content-Length", BODY.len().to_string())],
        &BODY[..20],
    );
    let rest = answer(
        "206 Partial Content",
        &[
            ("Content-Length", "23".to_owned()),
            ("Content-Range", "bytes 20-42/43".to_owned()),
        ],
        &BODY[20..],
    );
    let (url, _) = serve(vec![Reply::Stall(half), Reply::Bytes(rest)]);
    let begin = Instant::now();
    let (outcome, files, _) = fetch_file(&want(&url, 2));
    outcome.unwrap();
    assert_eq!(files, whole());
    assert!(begin.elapsed() < Duration::from_secs(4));
}

#[test]
fn a_silent_server_is_given_up() {
    let (url, _) = serve(vec![Reply::Stall(Vec::new())]);
    let failure = fetch_file(&want(&url, 1)).0.unwrap_err();
    assert!(
        failure.to_string().contains("no answer for 0.4 s"),
        "{failure}"
    );
}

#[test]
fn all_attempts_together_end_at_the_total() {
    let mut want_for_ever = want("http://127.0.0.1:9/", 1);
    want_for_ever.patience = Patience {
        attempts: None,
        total: Some(Duration::from_millis(600)),
        ..impatient(1)
    };
    let begin = Instant::now();
    let failure = client()
        .bytes(&want_for_ever, &|_| (), &|_| ())
        .unwrap_err();
    assert!(
        matches!(failure, Failure::Unreachable { attempts: 2.., .. }),
        "{failure}"
    );
    assert!(begin.elapsed() < Duration::from_secs(4));
}

#[test]
fn a_file_needs_a_digest_and_an_address_a_known_scheme() {
    let mut no_digest = want("http://127.0.0.1:9/", 1);
    no_digest.digest = None;
    assert!(matches!(
        fetch_file(&no_digest).0,
        Err(Failure::Address { .. })
    ));
    for url in ["ftp://127.0.0.1/x", "x.deb", "http://"] {
        assert!(
            matches!(fetch_file(&want(url, 1)).0, Err(Failure::Address { .. })),
            "{url}"
        );
    }
}

#[test]
fn an_answer_without_content_is_an_empty_file() {
    let (url, requests) = serve(vec![Reply::Bytes(answer("204 No Content", &[], b""))]);
    let got = client().bytes(&Want::new(&url, 10), &|_| (), &|_| ());
    assert_eq!(got.unwrap(), b"");
    assert_eq!(requests.lock().unwrap().len(), 1);
}

#[test]
fn a_message_is_posted_until_it_is_taken() {
    let replies = vec![
        Reply::Bytes(answer("503 Service Unavailable", &[], b"")),
        Reply::Bytes(answer("429 Too Many Requests", &[], b"")),
        Reply::Bytes(answer("410 Gone", &[], b"")),
        Reply::Bytes(b"HTTP/1.1 2".to_vec()),
        Reply::Bytes(answer("204 No Content", &[], b"")),
    ];
    let (url, requests) = serve(replies);
    let total = Duration::from_secs(30);
    let message = Message {
        headers: &[("x-version", "7")],
        repeat: &[410],
        ..Message::json(&url, "{\"step\":1}")
    };
    client().post(&message, total).unwrap();
    let requests = requests.lock().unwrap();
    assert_eq!(requests.len(), 5);
    for request in requests.iter() {
        assert!(request.starts_with("POST /pool/x.deb "), "{request}");
        assert!(
            request.contains("content-type: application/json\r\n"),
            "{request}"
        );
        assert!(request.contains("x-version: 7\r\n"), "{request}");
        assert!(request.ends_with("{\"step\":1}"), "{request}");
    }
}

#[test]
fn a_message_that_is_refused_or_that_nobody_takes_is_given_up() {
    let (url, requests) = serve(vec![Reply::Bytes(answer("403 Forbidden", &[], b""))]);
    let refused = client().post(&Message::json(&url, "{}"), Duration::from_secs(30));
    assert!(
        matches!(refused, Err(Failure::Status { code: 403, .. })),
        "{refused:?}"
    );
    assert_eq!(requests.lock().unwrap().len(), 1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let began = Instant::now();
    let unreached = client().post(&Message::json(&url, "{}"), Duration::from_secs(1));
    assert!(
        matches!(&unreached, Err(Failure::Unreachable { why, .. }) if why.contains("refused")),
        "{unreached:?}"
    );
    assert!(began.elapsed() < Duration::from_secs(5));
}

/// Which link has the trouble is what somebody must know who looks for it.
#[test]
fn each_link_that_led_nowhere_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/?secret", listener.local_addr().unwrap());
    drop(listener);
    let options = Options {
        ca_bundle: Some(Vec::new()),
        links: Links::new(|| vec![None, Some("lo".to_owned())], |_| ()),
        ..Options::default()
    };
    let client = blocking::Client::new(&options).unwrap();
    let failure = client
        .post(&Message::json(&url, "{}"), Duration::from_secs(1))
        .unwrap_err();
    let Failure::Unreachable { why, .. } = failure else {
        panic!("{failure}")
    };
    let (routes, link) = why.split_once("; over lo: ").unwrap();
    for why in [routes, link] {
        assert!(why.contains("refused") && !why.contains("secret"), "{why}");
    }
}
