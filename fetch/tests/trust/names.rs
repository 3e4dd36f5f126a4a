//! Servers by name: a registry's token service is where the registry says, but not at a metadata service or on this machine.

use std::net::SocketAddr;
use std::sync::Mutex;

use super::*;

/// The headers of all requests.
pub(crate) type Log = Arc<Mutex<Vec<String>>>;

pub(crate) const NAMED: &[u8] = include_bytes!("../data/named.pem");

/// Status line and further headers, content.
pub(crate) type Answer = (String, String);

pub(crate) fn ok(content: &str) -> Answer {
    ("200 OK".to_owned(), content.to_owned())
}

pub(crate) fn status(line: &str) -> Answer {
    (line.to_owned(), String::new())
}

/// Answers every request by https with the certificate `named`; returns the port and the requests.
pub(crate) fn serve_named(answer: impl Fn(&str) -> Answer + Send + Sync + 'static) -> (u16, Log) {
    let config = tls(pair!("named"));
    serve_all(answer, move |tcp| {
        let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
        Box::new(StreamOwned::new(connection, tcp))
    })
}

/// As [`serve_named`], by plain http.
pub(crate) fn serve_plain(answer: impl Fn(&str) -> Answer + Send + Sync + 'static) -> (u16, Log) {
    serve_all(answer, |tcp| Box::new(tcp))
}

trait Stream: std::io::Read + std::io::Write {}
impl<T: std::io::Read + std::io::Write> Stream for T {}

fn serve_all(
    answer: impl Fn(&str) -> Answer + Send + Sync + 'static,
    open: impl Fn(std::net::TcpStream) -> Box<dyn Stream> + Send + 'static,
) -> (u16, Log) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let log: Log = Arc::default();
    let seen = Arc::clone(&log);
    std::thread::spawn(move || {
        for tcp in listener.incoming() {
            let mut stream = open(tcp.unwrap());
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                head.extend_from_slice(&byte);
            }
            let head = String::from_utf8(head).unwrap();
            if head.is_empty() {
                continue;
            }
            seen.lock().unwrap().push(head.clone());
            let (line, content) = answer(&head);
            let length = content.len();
            let text = format!(
                "HTTP/1.1 {line}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{content}"
            );
            // The client may have closed the connection already.
            drop(stream.write_all(text.as_bytes()));
        }
    });
    (port, log)
}

/// A client that finds these names on loopback and trusts the certificate `named`.
pub(crate) fn options(names: &[&str]) -> Options {
    let here = SocketAddr::from(([127, 0, 0, 1], 0));
    Options {
        ca_bundle: Some(NAMED.to_vec()),
        hosts: names
            .iter()
            .map(|name| ((*name).to_owned(), vec![here]))
            .collect(),
        ..Options::default()
    }
}

pub(crate) fn get(options: &Options, want: Want<'_>) -> Result<Vec<u8>, Failure> {
    let want = Want {
        patience: Patience {
            attempts: Some(3),
            first_wait: std::time::Duration::from_millis(10),
            ..Patience::default()
        },
        ..want
    };
    blocking::Client::new(options)
        .unwrap()
        .bytes(&want, &|_| (), &|_| ())
}

/// SHA-256 of `good`.
const GOOD: &str = "770e607624d689265ca6c44884d0807d9b054d23c473c106c72be9de08b7376c";

/// The registry `registry.example` with one artifact, which sends for a token to the address that `realm` makes of its port.
fn registry(realm: impl Fn(&str) -> String + Send + Sync + 'static) -> u16 {
    let manifest = format!(
        r#"{{"schemaVersion":2,"config":{{"mediaType":"application/vnd.oci.empty.v1+json","digest":"sha256:{GOOD}","size":2}},
            "layers":[{{"mediaType":"text/plain","digest":"sha256:{GOOD}","size":4}}]}}"#
    );
    let (port, _) = serve_named(move |head| {
        let path = head.split(' ').nth(1).unwrap();
        let host = head.lines().find_map(|line| line.strip_prefix("host: "));
        let port = host.unwrap().rsplit_once(':').unwrap().1;
        if path.starts_with("/token") {
            return ok(r#"{"token":"T0KEN"}"#);
        }
        if path.starts_with("/elsewhere") {
            return status(&format!("302 Found\r\nLocation: {}", realm("0")));
        }
        if !head.contains("authorization: Bearer T0KEN\r\n") {
            let realm = realm(port);
            return status(&format!(
                "401 Unauthorized\r\nWWW-Authenticate: Bearer realm=\"{realm}\",service=\"reg\""
            ));
        }
        match path {
            "/v2/node/configs/manifests/v1" => ok(&manifest),
            _ => ok("good"),
        }
    });
    port
}

#[test]
fn a_registry_s_own_token_service_is_asked_wherever_the_registry_is() {
    let port = registry(|port| format!("https://registry.example:{port}/token"));
    let url = format!("oci://registry.example:{port}/node/configs:v1");
    let options = options(&["registry.example"]);
    assert_eq!(get(&options, Want::new(&url, 100)).unwrap(), b"good");
}

#[test]
fn a_token_service_whose_name_leads_to_this_machine_is_not_asked() {
    let (here, log) = serve_named(|_| ok(r#"{"token":"T0KEN"}"#));
    // By its name, by another one's redirect, and by its address.
    let by_name = registry(move |_| format!("https://localhost:{here}/token"));
    let redirected = registry(move |port| match port {
        "0" => format!("https://localhost:{here}/token"),
        port => format!("https://registry.example:{port}/elsewhere"),
    });
    let by_address = registry(move |_| format!("https://127.0.0.1:{here}/token"));
    let options = options(&["registry.example"]);
    for port in [by_name, redirected, by_address] {
        let url = format!("oci://registry.example:{port}/node/configs:v1");
        let failure = get(&options, Want::new(&url, 100)).unwrap_err();
        assert!(matches!(failure, Failure::Refused { .. }), "{failure}");
        let text = failure.to_string();
        assert!(text.contains("the registry's token service "), "{text}");
        let mut repository =
            fetch::Repository::new(&format!("registry.example:{port}"), "node/configs");
        let client = blocking::Client::new(&options).unwrap();
        let failure = client.document(&mut repository, "v1").unwrap_err();
        assert!(matches!(failure, Failure::Refused { .. }), "{failure}");
    }
    assert_eq!(log.lock().unwrap().len(), 0);
    // The same service answers whom the user sends there.
    let url = format!("https://localhost:{here}/token");
    assert!(get(&options, Want::new(&url, 100)).is_ok());
    assert_eq!(log.lock().unwrap().len(), 1);
}
