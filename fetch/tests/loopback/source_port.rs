//! Requests from a chosen source port: a server that answers with the client's port.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::ops::RangeInclusive;

use fetch::{Failure, Patience, Want};

/// Ports that the kernel gives to no other connection.
const PORTS: RangeInclusive<u16> = 21_000..=21_999;

/// Answers `connections` requests: `/port` with the client's port, anything else with a redirect there.
fn serve(at: &str, connections: usize) -> String {
    let listener = TcpListener::bind(at).unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let own = host.clone();
    std::thread::spawn(move || {
        for _ in 0..connections {
            let (mut connection, client) = listener.accept().unwrap();
            let mut head = Vec::new();
            let mut piece = [0; 1024];
            while !super::is_whole(&head) {
                let n = connection.read(&mut piece).unwrap();
                head.extend_from_slice(&piece[..n]);
            }
            let head = String::from_utf8(head).unwrap().to_lowercase();
            assert!(head.contains(&format!("\r\nhost: {own}\r\n")), "{head}");
            assert!(head.contains("\r\nx-who: me\r\n") || head.starts_with("get /port "));
            let answer = match head.starts_with("get /port?a=b ") || head.starts_with("get /port ")
            {
                true => super::ok(client.port().to_string().as_bytes()),
                false => super::answer("302 Found", &[("Location", "/port".to_owned())], b""),
            };
            connection.write_all(&answer).unwrap();
        }
    });
    host
}

fn get(url: &str, ports: RangeInclusive<u16>) -> Result<u16, Failure> {
    let want = Want {
        headers: vec![("X-Who".to_owned(), "me".to_owned())],
        source_ports: Some(ports),
        patience: Patience {
            attempts: Some(1),
            ..Patience::default()
        },
        ..Want::new(url, 99)
    };
    let body = super::client().bytes(&want, &|_| (), &|_| ())?;
    Ok(String::from_utf8(body).unwrap().parse().unwrap())
}

#[test]
fn the_server_is_asked_from_one_of_the_ports() {
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let host = serve(at, 3);
        for _ in 0..3 {
            let port = get(&format!("http://{host}/port?a=b"), PORTS).unwrap();
            assert!(PORTS.contains(&port), "{port}");
        }
    }
}

#[test]
fn a_port_that_is_taken_is_passed_over() {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let taken = listener.local_addr().unwrap().port();
    let host = serve("127.0.0.1:0", 1);
    let url = format!("http://{host}/port?a=b");
    let failure = get(&url, taken..=taken).unwrap_err().to_string();
    let expected = format!("from a port of {taken}..={taken}: ");
    assert!(failure.contains(&expected), "{failure}");
    let port = get(&url, taken..=taken + 20).unwrap();
    assert!(port > taken && port <= taken + 20, "{port}");
}

#[test]
fn a_redirected_request_comes_from_any_port() {
    let host = serve("127.0.0.1:0", 2);
    let port = get(&format!("http://{host}/moved"), PORTS).unwrap();
    assert!(!PORTS.contains(&port), "{port}");
}

#[test]
fn only_plain_http_has_a_source_port() {
    for url in ["https://127.0.0.1/x", "tftp://127.0.0.1/x"] {
        let failure = get(url, PORTS).unwrap_err();
        assert!(matches!(failure, Failure::Address { .. }), "{failure}");
    }
}
