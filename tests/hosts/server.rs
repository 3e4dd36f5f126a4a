//! A server on loopback that answers every request with one status, and records them: a mirror or a proxy, with or without TLS.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

/// The answer of a server that has nothing.
const NOT_FOUND: &str = "404 Not Found";

/// The server; it ends with the test's process.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    scheme: &'static str,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::saying(NOT_FOUND)
    }

    /// A server without TLS that answers with this status.
    pub(crate) fn saying(status: &'static str) -> Self {
        Self::with("http", move |stream, asked| answer(stream, asked, status))
    }

    /// A server by TLS with a certificate for 127.0.0.1; gives also its authority of this name, PEM.
    pub(crate) fn by_tls(name: &str) -> (Self, String) {
        Self::by_tls_saying(name, NOT_FOUND.to_owned())
    }

    /// The same, which redirects every request to this URL.
    pub(crate) fn by_tls_to(name: &str, url: &str) -> (Self, String) {
        Self::by_tls_saying(name, format!("302 Found\r\nLocation: {url}"))
    }

    /// A server by TLS that answers with this status and what follows it.
    fn by_tls_saying(name: &str, status: String) -> (Self, String) {
        let mut authority = rcgen::CertificateParams::default();
        authority
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = authority.self_signed(&key).unwrap().pem();
        let issuer = rcgen::Issuer::new(authority, key);
        let own = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(["127.0.0.1".to_owned()])
            .unwrap()
            .signed_by(&own, &issuer)
            .unwrap();
        let chain = vec![CertificateDer::from(certificate.der().to_vec())];
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(own.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let config = Arc::new(config);
        let server = Self::with("https", move |stream, asked| {
            let session = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            answer(rustls::StreamOwned::new(session, stream), asked, &status);
        });
        (server, pem)
    }

    fn with(
        scheme: &'static str,
        serve: impl Fn(std::net::TcpStream, &Mutex<Vec<String>>) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serve(stream, &record);
            }
        });
        Self {
            address,
            scheme,
            asked,
        }
    }

    /// Its URL as a mirror of Debian.
    pub(crate) fn url(&self) -> String {
        format!("{}://{}/debian", self.scheme, self.address)
    }

    /// The first lines of all requests.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// Answers one request. A client that hangs up, as it does for a certificate that it does not trust, is none.
fn answer(mut stream: impl Read + Write, asked: &Mutex<Vec<String>>, status: &str) {
    let mut lines = BufReader::new(&mut stream).lines();
    let Some(Ok(first)) = lines.next() else {
        return;
    };
    while let Some(Ok(line)) = lines.next() {
        if line.is_empty() {
            break;
        }
    }
    asked.lock().unwrap().push(first);
    let said = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    // The client may be gone.
    stream
        .write_all(said.as_bytes())
        .and_then(|()| stream.flush())
        .ok();
}
