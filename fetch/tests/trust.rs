//! Downloads by https from a real server on loopback: which certificates are trusted.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;

use fetch::{Digest, Failure, Options, Patience, Want, blocking};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A pair that `data/make.sh` made.
macro_rules! pair {
    ($name:literal) => {
        (
            include_bytes!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/data/",
                $name,
                ".pem"
            ))
            .as_slice(),
            include_bytes!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/data/",
                $name,
                ".key"
            ))
            .as_slice(),
        )
    };
}

#[path = "trust/blobs.rs"]
mod blobs;
#[path = "trust/names.rs"]
mod names;

const OTHER: &[u8] = include_bytes!("data/other.pem");

/// Answers one request by https with this certificate and key; returns its address.
fn serve(pair: (&'static [u8], &'static [u8])) -> String {
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ngood";
    answer_by_https(pair, answer.to_owned())
}

fn answer_by_https(pair: (&'static [u8], &'static [u8]), answer: String) -> String {
    serve_by_https(pair, move |_| answer)
}

/// Answers one request, whose header `answer` gets.
fn serve_by_https(
    pair: (&'static [u8], &'static [u8]),
    answer: impl FnOnce(&str) -> String + Send + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let config = tls(pair);
    std::thread::spawn(move || {
        let (tcp, _) = listener.accept().unwrap();
        let connection = ServerConnection::new(config).unwrap();
        let mut stream = StreamOwned::new(connection, tcp);
        let mut request = Vec::new();
        let mut piece = [0; 1024];
        // A client that does not trust the certificate ends the handshake: the read fails.
        while let Ok(n @ 1..) = stream.read(&mut piece) {
            request.extend_from_slice(&piece[..n]);
            if request.ends_with(b"\r\n\r\n") {
                let answer = answer(std::str::from_utf8(&request).unwrap());
                stream.write_all(answer.as_bytes()).unwrap();
                return;
            }
        }
    });
    url
}

fn tls((certificate, key): (&[u8], &[u8])) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(certificate).unwrap()],
            PrivateKeyDer::from_pem_slice(key).unwrap(),
        );
    Arc::new(config.unwrap())
}

fn fetch(url: &str, roots: &[u8]) -> Result<Vec<u8>, Failure> {
    fetch_verified(url, roots, None)
}

fn fetch_verified(url: &str, roots: &[u8], digest: Option<Digest>) -> Result<Vec<u8>, Failure> {
    fetch_as(Options::default(), url, roots, digest)
}

fn fetch_as(
    options: Options,
    url: &str,
    roots: &[u8],
    digest: Option<Digest>,
) -> Result<Vec<u8>, Failure> {
    let options = Options {
        ca_bundle: Some(roots.to_vec()),
        ..options
    };
    let mut want = Want::new(url, 100);
    want.digest = digest;
    want.patience = Patience {
        attempts: Some(1),
        ..Patience::default()
    };
    blocking::Client::new(&options)
        .unwrap()
        .bytes(&want, &|_| (), &|_| ())
}

#[test]
fn a_server_whose_certificate_is_a_root_is_believed() {
    let server = pair!("server");
    assert_eq!(fetch(&serve(server), server.0).unwrap(), b"good");
    // The same certificate in a bundle with another one.
    let bundle = [OTHER, server.0].concat();
    assert_eq!(fetch(&serve(server), &bundle).unwrap(), b"good");
}

#[test]
fn a_path_that_no_url_can_hold_goes_to_a_trusted_server_only() {
    let server = pair!("server");
    let object = "arn:aws:s3:us-west-2:123456789012:accesspoint/point/object/a/../b";
    let get = |roots: &[u8]| {
        let s3 = serve_by_https(server, |head| {
            let found = head.starts_with("GET /point-123456789012/a/../b HTTP/1.1\r\n");
            let status = if found { "200 OK" } else { "404 Not Found" };
            format!("HTTP/1.1 {status}\r\nContent-Length: 4\r\nConnection: close\r\n\r\ngood")
        });
        let options = Options {
            ca_bundle: Some(roots.to_vec()),
            endpoints: fetch::Endpoints {
                s3: Some(s3.trim_end_matches('/').to_owned()),
                ..fetch::Endpoints::default()
            },
            ..Options::default()
        };
        let mut want = Want::new(object, 100);
        want.patience.attempts = Some(1);
        blocking::Client::new(&options)
            .unwrap()
            .bytes(&want, &|_| (), &|_| ())
    };
    assert_eq!(get(server.0).unwrap(), b"good");
    let failure = get(OTHER).unwrap_err().to_string();
    assert!(failure.contains("certificate"), "{failure}");
}

#[test]
fn strangers_wrong_names_and_an_empty_bundle_are_not() {
    let (server, misnamed) = (pair!("server"), pair!("misnamed"));
    for (what, served, roots) in [
        ("a stranger", server, OTHER),
        ("another name", misnamed, misnamed.0),
        ("no root at all", server, b"".as_slice()),
    ] {
        let failure = fetch(&serve(served), roots).unwrap_err();
        let text = failure.to_string();
        assert!(text.contains("certificate"), "{what}: {text}");
    }
}

/// As on a machine without a clock of its own, where it is 1970, or where the battery of the clock is empty.
#[test]
fn a_certificate_of_another_time_is_refused_and_the_clock_is_named() {
    for (pair, why) in [
        (pair!("future"), "not valid yet"),
        (pair!("past"), "certificate expired"),
    ] {
        let text = fetch(&serve(pair), pair.0).unwrap_err().to_string();
        assert!(text.contains(why), "{text}");
        let (_, said) = text.split_once("the machine's clock says ").expect(&text);
        let (clock, _) = said.split_once(": set it").unwrap();
        let clock = httpdate::parse_http_date(clock).unwrap();
        assert!(clock.elapsed().unwrap().as_secs() < 60, "{text}");
    }
    // Another mistake of a certificate is none of the clock's.
    let text = fetch(&serve(pair!("server")), OTHER).unwrap_err();
    assert!(!text.to_string().contains("clock"), "{text}");
}

/// Answers one request by http with a redirect.
fn redirect_to(target: &str) -> String {
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", plain.local_addr().unwrap());
    let answer = format!(
        "HTTP/1.1 301 Moved Permanently\r\nLocation: {target}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    std::thread::spawn(move || {
        let (mut stream, _) = plain.accept().unwrap();
        let mut head = Vec::new();
        let mut piece = [0; 1024];
        while !head.ends_with(b"\r\n\r\n") {
            let n = stream.read(&mut piece).unwrap();
            head.extend_from_slice(&piece[..n]);
        }
        stream.write_all(answer.as_bytes()).unwrap();
    });
    url
}

#[test]
fn http_leads_to_https_and_the_certificate_there_is_verified() {
    let server = pair!("server");
    let url = redirect_to(&serve(server));
    assert_eq!(fetch(&url, server.0).unwrap(), b"good");
    let url = redirect_to(&serve(server));
    let failure = fetch(&url, OTHER).unwrap_err().to_string();
    assert!(failure.contains("certificate"), "{failure}");
}

#[test]
fn a_bundle_that_is_no_pem_is_refused() {
    let options = Options {
        ca_bundle: Some(b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n".to_vec()),
        ..Options::default()
    };
    let error = blocking::Client::new(&options).unwrap_err();
    assert!(format!("{error:#}").contains("bundle"), "{error:#}");
}

#[test]
fn https_leads_to_plain_http_only_where_a_digest_vouches_for_the_content() {
    let server = pair!("server");
    let redirect = || {
        let plain = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = format!("http://{}/", plain.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = plain.accept().unwrap();
            let mut head = Vec::new();
            let mut piece = [0; 1024];
            while !head.ends_with(b"\r\n\r\n") {
                let n = stream.read(&mut piece).unwrap();
                head.extend_from_slice(&piece[..n]);
            }
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ngood";
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let answer = format!(
            "HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        answer_by_https(server, answer)
    };
    let refused = fetch(&redirect(), server.0).unwrap_err();
    assert!(matches!(refused, Failure::Refused { .. }), "{refused}");
    assert!(
        refused.to_string().contains("from https to http"),
        "{refused}"
    );
    let digest =
        Digest::sha256("770e607624d689265ca6c44884d0807d9b054d23c473c106c72be9de08b7376c").unwrap();
    assert_eq!(
        fetch_verified(&redirect(), server.0, Some(digest)).unwrap(),
        b"good"
    );
    // A client may keep to TLS whatever vouches for the content.
    let strict = Options {
        keeps_tls: true,
        ..Options::default()
    };
    let refused = fetch_as(strict, &redirect(), server.0, Some(digest)).unwrap_err();
    assert!(
        refused.to_string().contains("give the URL with http://"),
        "{refused}"
    );
}
