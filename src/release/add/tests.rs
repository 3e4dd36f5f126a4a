//! `add` against servers on loopback that answer as the publishers document, and with each fault.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use super::*;
use crate::host::cache::Cache;
use crate::host::progress::{self, Progress};
use crate::host::session::Session;
use crate::release::ARCHITECTURES;

/// An answer: status line, body, and how many bytes more than it has the header promises.
type Answer = (&'static str, Vec<u8>, usize);

/// A server of checksums, and of the registry's indexes.
struct Server {
    bases: Bases,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(files: HashMap<String, Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (files, seen) = (Arc::new(files), asked.clone());
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let (files, seen) = (files.clone(), seen.clone());
                std::thread::spawn(move || {
                    let mut connection = connection.unwrap();
                    let mut request = Vec::new();
                    let mut piece = [0; 1024];
                    while !request.ends_with(b"\r\n\r\n") {
                        let n = connection.read(&mut piece).unwrap();
                        if n == 0 {
                            return;
                        }
                        request.extend_from_slice(&piece[..n]);
                    }
                    let request = String::from_utf8(request).unwrap();
                    let path = request.split(' ').nth(1).unwrap().to_owned();
                    let none = ("404 Not Found", Vec::new(), 0);
                    let (status, body, more) = files.get(&path).unwrap_or(&none);
                    seen.lock().unwrap().push(path);
                    let length = body.len() + more;
                    let head = format!(
                        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
                    );
                    connection.write_all(head.as_bytes()).unwrap();
                    // A client that refuses the answer closes the connection early.
                    drop(connection.write_all(body));
                });
            }
        });
        let bases = Bases {
            release: format!("http://{host}/release/"),
            github: format!("http://{host}/github"),
            registry: host,
        };
        Self { bases, asked }
    }

    fn add(&self, version: &str) -> Result<Release, String> {
        let request = Request {
            version: version.to_owned(),
            architectures: ARCHITECTURES.map(str::to_owned).to_vec(),
            go_sum: None,
            published: true,
        };
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache")).unwrap();
        let session = Session::new(cache, Progress::new(progress::Kind::Quiet));
        let step = session.progress.step("release");
        add(&session, &request, &self.bases, &step).map_err(|error| format!("{error:#}"))
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// The digits that a program's name stands for here.
fn digits(text: &str) -> String {
    HEXLOWER.encode(&sha2::Sha256::digest(text))
}

fn index(name: &str, architectures: &[&str]) -> Vec<u8> {
    let manifests: Vec<_> = architectures
        .iter()
        .map(|architecture| {
            serde_json::json!({
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": format!("sha256:{}", digits(&format!("{name} {architecture}"))),
                "size": 7,
                "platform": { "architecture": architecture, "os": "linux" },
            })
        })
        .collect();
    let index = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": manifests,
    });
    serde_json::to_vec(&index).unwrap()
}

fn good(body: impl Into<Vec<u8>>) -> Answer {
    ("200 OK", body.into(), 0)
}

/// All that the publishers have of 1.36.3: checksums of digits alone and in the form of `sha256sum`, and each image's index by
/// its tag and by its digest.
fn published() -> HashMap<String, Answer> {
    let implied = Implied::of("1.36.3").unwrap();
    let mut files = HashMap::new();
    for architecture in ARCHITECTURES {
        for file in implied.files(architecture) {
            let path = file
                .url
                .replace("{release}", "/release")
                .replace("{github}", "/github");
            let name = file.url.rsplit('/').next().unwrap();
            let digits = digits(&file.url);
            let text = match file.path {
                "" => digits,
                _ => format!("{digits}  {name}\n"),
            };
            files.insert(format!("{path}.sha256"), good(text));
        }
    }
    for (name, repository, tag) in implied.images() {
        let index = index(name, &ARCHITECTURES);
        let digest = HEXLOWER.encode(&sha2::Sha256::digest(&index));
        for version in [tag, format!("sha256:{digest}")] {
            files.insert(
                format!("/v2/{repository}/manifests/{version}"),
                good(index.clone()),
            );
        }
    }
    files
}

const KUBELET: &str = "/release/v1.36.3/bin/linux/amd64/kubelet.sha256";
const ETCD: &str = "/v2/etcd/manifests/3.6.8-0";

#[test]
fn a_release_is_added_with_the_hash_of_every_file_and_image() {
    let server = Server::start(published());
    let entry = server.add("1.36.3").unwrap();
    assert_eq!(entry.mistakes(), Vec::<String>::new());
    assert_eq!((entry.binaries.len(), entry.images.len()), (18, 7));
    let kubelet = &entry.binaries[0];
    assert_eq!(kubelet.url, "{release}/v1.36.3/bin/linux/amd64/kubelet");
    assert_eq!(kubelet.sha256, digits(&kubelet.url));
    let etcd = entry
        .images
        .iter()
        .find(|image| image.name == "etcd")
        .unwrap();
    let of_index = HEXLOWER.encode(&sha2::Sha256::digest(index("etcd", &ARCHITECTURES)));
    assert_eq!(etcd.digest, format!("sha256:{of_index}"));
    // Only checksums and documents are asked for, and no program.
    for path in server.asked() {
        assert!(
            path.ends_with(".sha256") || path.contains("/manifests/"),
            "{path}"
        );
    }
}

#[test]
fn an_unknown_version_is_refused_before_any_request() {
    let server = Server::start(published());
    for version in [
        "1.36",
        "1.99.0",
        "1.31.9",
        "v1.36.3",
        "1.36.3-rc.1",
        "latest",
        "../1.36.3",
    ] {
        let error = server.add(version).unwrap_err();
        assert!(error.contains(version) && error.contains("1.34"), "{error}");
    }
    assert_eq!(server.asked(), Vec::<String>::new());
}

#[test]
fn a_checksum_that_is_missing_or_not_one_adds_nothing() {
    let page = "<html><body>Not what you wanted</body></html>";
    let other = format!("{}  kubeadm\n", digits("x"));
    let empty_file = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let faults: [(&str, Answer, &str); 8] = [
        ("missing", ("404 Not Found", Vec::new(), 0), "404"),
        ("a page", good(page), "a page and not a checksum"),
        ("empty", good(""), "it is empty"),
        (
            "too short",
            good(&digits("x")[1..]),
            "64 hexadecimal digits",
        ),
        ("too long", good(digits("x") + "0"), "64 hexadecimal digits"),
        (
            "cut",
            ("200 OK", digits("x").into_bytes(), 9),
            "kubelet for amd64",
        ),
        (
            "of another file",
            good(other),
            "expected the checksum of kubelet alone",
        ),
        ("of nothing", good(empty_file), "an empty file"),
    ];
    for (what, answer, words) in faults {
        let mut files = published();
        files.insert(KUBELET.to_owned(), answer);
        let error = Server::start(files).add("1.36.3").unwrap_err();
        assert!(
            error.contains(words) && error.contains("kubelet"),
            "{what}: {error}"
        );
    }
}

#[test]
fn an_image_without_its_index_under_its_own_digest_adds_nothing() {
    let index = index("etcd", &ARCHITECTURES);
    let by_digest = format!(
        "/v2/etcd/manifests/sha256:{}",
        HEXLOWER.encode(&sha2::Sha256::digest(&index))
    );
    let manifest = br#"{"schemaVersion":2,"config":{"mediaType":"c","digest":"sha256:0","size":1},"layers":[]}"#;
    let faults: [(&str, Answer, &str); 6] = [
        (ETCD, ("404 Not Found", Vec::new(), 0), "404"),
        (ETCD, good("<html>"), "reading what the registry answers"),
        (ETCD, good(manifest.to_vec()), "one architecture"),
        (ETCD, good(super::tests::index("etcd", &["amd64"])), "arm64"),
        (&by_digest, good("{}"), "digest mismatch"),
        (&by_digest, ("404 Not Found", Vec::new(), 0), "404"),
    ];
    for (path, answer, words) in faults {
        let mut files = published();
        files.insert(path.to_owned(), answer);
        let error = Server::start(files).add("1.36.3").unwrap_err();
        assert!(
            error.contains(words) && error.contains("/etcd:"),
            "{words}: {error}"
        );
    }
}
