//! Machines and servers that stand for real ones in tests.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use cluster::discovery::{Refusal, pinned};
use data_encoding::BASE64URL_NOPAD;
use image::paths::{CLUSTER, HOSTNAME, RUN_ETCD_GATE, RUN_MANIFEST};
use linux::world::{Clock, World};
use rcgen::{CertificateParams, DistinguishedName, DnType, Issuer, KeyPair};
use ring::hmac;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::discover::{INFO, KUBELET, NODE, VERSION};
use crate::{apply, control_plane, object};

/// A machine whose image brings Kubernetes, with this cluster object.
pub(crate) fn machine(root: &Path, object: &str) -> World {
    let world = World::below(root, Clock::Real);
    put(&world.in_initrd(HOSTNAME), "Node1\n");
    put(&world.in_run(RUN_ETCD_GATE), "{\"required\": true}");
    let mut manifest: serde_json::Value = serde_json::from_str(include_str!(
        "../../image/tests/golden/contract-2/manifest.json"
    ))
    .unwrap();
    let images = ["kube-apiserver", "etcd"].map(|name| {
        let image = format!("slipway.local/{name}:3.5.16-0");
        (name.to_owned(), image.into())
    });
    manifest["kubernetes"]["images"] = images.into_iter().collect::<serde_json::Map<_, _>>().into();
    put(&world.in_run(RUN_MANIFEST), &manifest.to_string());
    put(&world.in_initrd(CLUSTER), object);
    put(&world.proc.join("self/mountinfo"), "");
    world
}

pub(crate) fn put(file: &Path, text: &str) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

/// A request that a server took.
#[derive(Debug)]
pub(crate) struct Request {
    /// Method and path.
    pub(crate) line: String,
    /// The header `Content-Type`.
    pub(crate) kind: String,
    pub(crate) body: String,
    /// The header `Authorization`.
    pub(crate) authorization: String,
}

/// The status of an answer that never comes: the server closes the connection.
pub(crate) const CLOSED: u16 = 0;

/// A server on loopback; `answer` gives the status and the body of each request, or [`CLOSED`]. Returns its URL.
pub(crate) fn server(
    mut answer: impl FnMut(&Request) -> (u16, String) + Send + 'static,
) -> (String, Receiver<Request>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, requests) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let Some(request) = taken(&mut stream) else {
                continue;
            };
            let (status, body) = answer(&request);
            let head = format!(
                "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            // Before the answer: who has that looks for the request at once.
            let is_heard = sender.send(request).is_ok();
            if status != CLOSED {
                let answer = head + &body;
                stream.get_mut().write_all(answer.as_bytes()).unwrap();
            }
            if !is_heard {
                return;
            }
        }
    });
    (url, requests)
}

/// What a server does with a request.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It answers with this status and body.
    Full(u16, String),
    /// It is cut in the middle of this body.
    Half(String),
    /// It says nothing, and holds the connection.
    Nothing,
}

/// Answers by TLS on a listener; `answer` gives the server's certificate and key, PEM, and then what it does with each
/// request. A client that does not trust the certificate makes no request.
pub(crate) fn serve_by_tls(
    listener: TcpListener,
    mut certificate: impl FnMut() -> (String, String) + Send + 'static,
    mut answer: impl FnMut(&Request) -> Answer + Send + 'static,
) -> Receiver<Request> {
    let (sender, requests) = channel();
    thread::spawn(move || {
        let mut held = Vec::new();
        for stream in listener.incoming() {
            let connection = ServerConnection::new(tls(&certificate())).unwrap();
            let mut stream = BufReader::new(StreamOwned::new(connection, stream.unwrap()));
            let Some(request) = taken(&mut stream) else {
                continue;
            };
            let (status, body, sent) = match answer(&request) {
                Answer::Full(status, body) => (status, body.clone(), body),
                Answer::Half(body) => (200, body.clone(), body[..body.len() / 2].to_owned()),
                Answer::Nothing => {
                    held.push(stream);
                    drop(sender.send(request));
                    continue;
                }
            };
            // Before the answer: who has that looks for the request at once.
            let is_heard = sender.send(request).is_ok();
            let length = body.len();
            let head = format!(
                "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
            );
            let tls = stream.get_mut();
            let written = tls.write_all((head + &sent).as_bytes());
            tls.conn.send_close_notify();
            // A client may hang up in the middle of a long answer.
            drop(written.and_then(|()| tls.flush()));
            if !is_heard {
                return;
            }
        }
    });
    requests
}

fn tls((certificate, key): &(String, String)) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
        );
    Arc::new(config.unwrap())
}

fn taken(stream: &mut impl std::io::BufRead) -> Option<Request> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        match line.trim_end() {
            "" => break,
            text => lines.push(text.to_owned()),
        }
    }
    let header = |name: &str| {
        let found = lines.iter().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then(|| value.to_owned())
        });
        found.unwrap_or_default()
    };
    let mut body = vec![0; header("content-length").parse().unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    let (line, _) = lines.first()?.rsplit_once(' ')?;
    Some(Request {
        line: line.to_owned(),
        kind: header("content-type"),
        authorization: header("authorization"),
        body: String::from_utf8(body).ok()?,
    })
}

/// A control plane on loopback, of real keys and of the objects that its bring-up applies.
///
/// Its files are in memory: a test's server has it in a thread that does not end, which would leave a folder behind.
pub(crate) struct ControlPlane {
    files: BTreeMap<PathBuf, Vec<u8>>,
    objects: Vec<Value>,
    listener: TcpListener,
}

/// The token that its bootstrap signer has signed with.
pub(crate) const TOKEN: &str = "abcdef.0123456789abcdef";

impl ControlPlane {
    /// A control plane, whose node is `node1`.
    pub(crate) fn new() -> Self {
        Self::with("")
    }

    /// The same with these tables behind its object.
    pub(crate) fn with(tables: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = listener.local_addr().unwrap();
        let root = tempfile::tempdir().unwrap();
        let object = format!(
            "name = \"blue\"\nendpoint = \"{endpoint}\"\ntokens = [\"{TOKEN}\"]\n[node]\naddress = \"10.0.0.7\"\n\
             [api-server]\nsans = [\"127.0.0.1\"]\n{tables}"
        );
        let world = machine(root.path(), &object);
        let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
        control_plane::prepare(&world, &bootstrap, |_| Ok(())).unwrap();
        let objects = apply::objects(&world, &bootstrap).unwrap();
        let files = files(root.path());
        let below = |(path, (_, content)): (PathBuf, (u64, Vec<u8>))| {
            (path.strip_prefix(root.path()).unwrap().to_owned(), content)
        };
        Self {
            files: files.into_iter().map(below).collect(),
            objects,
            listener,
        }
    }

    /// A file of it.
    pub(crate) fn file(&self, path: &str) -> String {
        let content = &self.files[Path::new(path.trim_start_matches('/'))];
        String::from_utf8(content.clone()).unwrap()
    }

    /// The certificate of its API server, and the key.
    pub(crate) fn certificate(&self) -> (String, String) {
        let file = |end: &str| self.file(&format!("/etc/kubernetes/pki/apiserver.{end}"));
        (file("crt"), file("key"))
    }

    /// A certificate of its API server that is of this year alone, and the key.
    pub(crate) fn certificate_of(&self, year: i32) -> (String, String) {
        let named = |name: &str| {
            let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, name);
            params
        };
        let authority = KeyPair::from_pem(&self.file("/etc/kubernetes/pki/ca.key")).unwrap();
        let issuer = Issuer::new(named("kubernetes"), authority);
        let key = KeyPair::generate().unwrap();
        let mut params = named("kube-apiserver");
        params.not_before = rcgen::date_time_ymd(year, 1, 1);
        params.not_after = rcgen::date_time_ymd(year + 1, 1, 1);
        let certificate = params.signed_by(&key, &issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// The pin of its authority.
    pub(crate) fn pin(&self) -> String {
        match pinned(&self.file("/etc/kubernetes/pki/ca.crt"), &[]) {
            Err(Refusal::NotPinned { found, .. }) => found[0].to_string(),
            other => panic!("{other:?}"),
        }
    }

    /// The object of a worker named `node1` that joins it, and whose kubelet asks it without a balancer.
    pub(crate) fn worker(&self) -> String {
        format!(
            "name = \"blue\"\nendpoint = \"{}\"\n[join]\ntoken = \"{TOKEN}\"\nca-hashes = [\"{}\"]\n\
             [balancer]\nenabled = false\n[node]\naddress = \"10.0.0.8\"\n",
            self.listener.local_addr().unwrap(),
            self.pin()
        )
    }

    /// One of its objects by the path in the API; `cluster-info` is signed.
    pub(crate) fn object(&self, path: &str) -> Value {
        match path {
            INFO => self.signed(&self.info()),
            _ => self.applied(path),
        }
    }

    /// The kubeconfig in its `cluster-info`.
    pub(crate) fn info(&self) -> String {
        let map = self.applied(INFO);
        map["data"]["kubeconfig"].as_str().unwrap().to_owned()
    }

    /// `cluster-info` with this kubeconfig, signed as kube-controller-manager's bootstrap signer signs it.
    pub(crate) fn signed(&self, kubeconfig: &str) -> Value {
        let mut map = self.applied(INFO);
        let (id, secret) = TOKEN.split_once('.').unwrap();
        let text = |bytes: &[u8]| BASE64URL_NOPAD.encode(bytes);
        let header = text(format!("{{\"alg\":\"HS256\",\"kid\":\"{id}\"}}").as_bytes());
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let signed = format!("{header}.{}", text(kubeconfig.as_bytes()));
        let signature = text(hmac::sign(&key, signed.as_bytes()).as_ref());
        map["data"]["kubeconfig"] = kubeconfig.into();
        map["data"][format!("jws-kubeconfig-{id}")] = format!("{header}..{signature}").into();
        map
    }

    fn applied(&self, path: &str) -> Value {
        let mut all = self.objects.iter();
        let found = all.find(|object| api::path(object) == path);
        found.unwrap_or_else(|| panic!("no {path}")).clone()
    }

    /// What its API server answers: 401 to a wrong token, 403 to nobody, as by its roles.
    pub(crate) fn answer(&self, request: &Request) -> Answer {
        let status = |code: u16, message: &str| {
            let status =
                json!({"kind": "Status", "status": "Failure", "message": message, "code": code});
            Answer::Full(code, status.to_string())
        };
        let allowed = format!("Bearer {TOKEN}");
        match (request.line.strip_prefix("GET "), &request.authorization) {
            (_, wrong) if !wrong.is_empty() && *wrong != allowed => status(401, "Unauthorized"),
            (Some(INFO), _) => Answer::Full(200, self.object(INFO).to_string()),
            (Some(KUBELET), token) if *token == allowed => {
                Answer::Full(200, self.object(KUBELET).to_string())
            }
            (Some(path), token) if path.starts_with(NODE) && *token == allowed => {
                status(404, "nodes not found")
            }
            (Some(VERSION), _) => Answer::Full(200, json!({"gitVersion": "v1.36.3"}).to_string()),
            _ => status(403, "User \"system:anonymous\" cannot get this resource"),
        }
    }

    /// Where its API server is to answer.
    pub(crate) fn listener(&self) -> TcpListener {
        self.listener.try_clone().unwrap()
    }
}

/// The machine of a worker with this object. Its clock is the test's: waits cost no time.
pub(crate) fn worker(root: &Path, object: &str) -> World {
    machine(root, object);
    put(
        &root.join("run/slipway/etcd-gate.json"),
        "{\"required\": false}",
    );
    World::below(root, Clock::Fake(AtomicI64::new(0)))
}

/// Every file with its inode and its content: an atomic write makes a new inode.
pub(crate) fn files(folder: &Path) -> BTreeMap<PathBuf, (u64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            let inode = path.metadata().unwrap().ino();
            found.insert(path.clone(), (inode, fs::read(&path).unwrap()));
        }
    }
    found
}
