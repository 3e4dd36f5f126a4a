//! Pulls an image from a registry: token, index, manifest, then each blob by its digest into the cache.

use std::fs;

use anyhow::{Context, Result, ensure};
use fetch::registry::{self, MANIFEST_LIMIT, TOKEN_LIMIT};
use fetch::{Digest, Failure, Options, Patience, Want, blocking};
use sha2::Digest as _;

use super::read::{Pulled, choose, sha256};
use super::reference::Reference;
use super::types::{Index, Manifest};
use crate::host::cache::{Cache, hex};
use crate::host::progress::Step;

/// The most bytes of a layer.
const LAYER_LIMIT: u64 = 4 << 30;

/// Pulls the image that a reference names, for this architecture. Without a digest in it, the reference is trusted to
/// mean whatever the registry says; the digest of what it said is in the result.
///
/// # Errors
/// If the registry refuses, or has no image for the architecture, or a blob is not what its digest says.
pub fn pull(
    cache: &Cache,
    reference: &Reference,
    architecture: &str,
    step: &Step,
) -> Result<Pulled> {
    let mut session = Session::new(reference)?;
    pull_by(&mut session, cache, reference, architecture, step)
        .with_context(|| format!("pulling {reference}"))
}

fn pull_by(
    session: &mut Session,
    cache: &Cache,
    reference: &Reference,
    architecture: &str,
    step: &Step,
) -> Result<Pulled> {
    let mut digest = reference.digest().map(str::to_owned);
    let mut text = session.manifest(&reference.version, digest.as_deref())?;
    if let Ok(index) = serde_json::from_slice::<Index>(&text) {
        let chosen = choose(&index, architecture)?.digest.clone();
        text = session.manifest(&chosen, Some(&chosen))?;
        digest = Some(chosen);
    }
    let manifest: Manifest = serde_json::from_slice(&text).context("reading the manifest")?;
    let digest = digest.unwrap_or_else(|| format!("sha256:{}", hex(&sha2::Sha256::digest(&text))));
    step.total(manifest.layers.iter().map(|layer| layer.size).sum());
    let mut layers = Vec::new();
    for layer in &manifest.layers {
        let digits = sha256(&layer.digest)?;
        let path = cache.object(digits);
        if fs::metadata(&path).is_ok_and(|found| found.len() == layer.size) {
            step.advance(layer.size);
        } else {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            ensure!(
                layer.size <= LAYER_LIMIT,
                "a layer has {} bytes, expected at most {LAYER_LIMIT}",
                layer.size
            );
            let url = session.url(&format!("blobs/{}", layer.digest));
            let digest = Digest::sha256(digits);
            session.authorised(|client, headers| {
                let want = Want {
                    digest,
                    headers,
                    ..Want::new(&url, layer.size)
                };
                client.file(&want, &path, &|bytes| step.advance(bytes))
            })?;
        }
        layers.push((layer.media_type.clone(), path));
    }
    Ok(Pulled { digest, layers })
}

/// A talk with one registry about one repository.
struct Session {
    client: blocking::Client,
    base: String,
    token: Option<String>,
}

impl Session {
    fn new(reference: &Reference) -> Result<Self> {
        Ok(Self {
            client: blocking::Client::new(&Options::default())?,
            base: registry::base(&reference.registry, &reference.repository),
            token: None,
        })
    }

    fn url(&self, below: &str) -> String {
        format!("{}/{below}", self.base)
    }

    fn manifest(&mut self, version: &str, digest: Option<&str>) -> Result<Vec<u8>> {
        let url = self.url(&format!("manifests/{version}"));
        let digest = digest.map(sha256).transpose()?.and_then(Digest::sha256);
        self.authorised(|client, mut headers| {
            headers.push(("Accept".to_owned(), registry::ACCEPT.to_owned()));
            let want = Want {
                digest,
                headers,
                patience: Patience {
                    attempts: Some(3),
                    ..Patience::default()
                },
                ..Want::new(&url, MANIFEST_LIMIT)
            };
            client.bytes(&want, &|_| ())
        })
    }

    /// Asks; if the registry wants a token first, gets one where it says, and asks again.
    fn authorised<T>(
        &mut self,
        ask: impl Fn(&blocking::Client, Vec<(String, String)>) -> Result<T, Failure>,
    ) -> Result<T, anyhow::Error> {
        match ask(&self.client, self.headers()) {
            Err(Failure::Status {
                code: 401,
                challenge: Some(challenge),
                url,
            }) => {
                let token = registry::token_url(&challenge).with_context(|| {
                    format!("{url}: the registry asks for {challenge:?}; only Bearer tokens are known here")
                })?;
                let want = Want::new(&token, TOKEN_LIMIT);
                let answer = self.client.bytes(&want, &|_| ())?;
                let token = registry::token_of(&answer);
                self.token = Some(token.context("the registry's answer holds no token")?);
                Ok(ask(&self.client, self.headers())?)
            }
            other => Ok(other?),
        }
    }

    fn headers(&self) -> Vec<(String, String)> {
        self.token
            .iter()
            .map(|token| ("Authorization".to_owned(), format!("Bearer {token}")))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::path::Path;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::host::progress::{self, Progress};
    use crate::layer::Entry;
    use crate::oci;

    /// A registry on loopback that wants a token first, and serves what `files` has.
    fn registry(files: Vec<(String, Vec<u8>)>) -> (String, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (base, seen) = (format!("http://{host}"), asked.clone());
        let files = Arc::new(files);
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let (files, base, seen) = (files.clone(), base.clone(), seen.clone());
                // A client may open connections that it does not use at once.
                std::thread::spawn(move || {
                    let mut connection = connection.unwrap();
                    let mut request = Vec::new();
                    let mut piece = [0; 4096];
                    while !request.ends_with(b"\r\n\r\n") {
                        let n = connection.read(&mut piece).unwrap();
                        if n == 0 {
                            return;
                        }
                        request.extend_from_slice(&piece[..n]);
                    }
                    let request = String::from_utf8(request).unwrap();
                    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
                    seen.lock().unwrap().push(path.clone());
                    let lower = request.to_lowercase();
                    let allowed = lower.contains("authorization: bearer t0ken");
                    let (head, body) = if path.starts_with("/token?") {
                        ("200 OK".to_owned(), br#"{"token":"t0ken"}"#.to_vec())
                    } else if !allowed {
                        let challenge = format!(
                            "401 Unauthorized\r\nWWW-Authenticate: Bearer realm=\"{base}/token\",service=\"s\",scope=\"repository:k:pull\""
                        );
                        (challenge, Vec::new())
                    } else if let Some((_, body)) = files.iter().find(|(name, _)| *name == path) {
                        ("200 OK".to_owned(), body.clone())
                    } else {
                        ("404 Not Found".to_owned(), Vec::new())
                    };
                    let head = format!(
                        "HTTP/1.1 {head}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                        body.len()
                    );
                    connection.write_all(head.as_bytes()).unwrap();
                    connection.write_all(&body).unwrap();
                });
            }
        });
        (host, asked)
    }

    /// An image of ours as a registry has it: documents and blobs by their paths, the index by the tag `v1`.
    fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
        let entries = [
            Entry::directory("/usr", 0o755),
            Entry::file("/usr/kubelet", 0o755, "program"),
        ];
        let image = oci::Image {
            name: "r.example/k:v1".to_owned(),
            architecture: "amd64".to_owned(),
            run: oci::RunConfig::default(),
            layers: vec![oci::layer(&entries, 7, &folder.join("layer")).unwrap()],
        };
        let layout = folder.join("layout");
        oci::write_layout(&layout, &[image], 7).unwrap();
        let index = fs::read(layout.join("index.json")).unwrap();
        let mut files = vec![("/v2/k/manifests/v1".to_owned(), index)];
        for blob in fs::read_dir(layout.join("blobs/sha256")).unwrap() {
            let blob = blob.unwrap();
            let digest = format!("sha256:{}", blob.file_name().to_str().unwrap());
            let bytes = fs::read(blob.path()).unwrap();
            files.push((format!("/v2/k/manifests/{digest}"), bytes.clone()));
            files.push((format!("/v2/k/blobs/{digest}"), bytes));
        }
        files
    }

    fn step() -> Step {
        Progress::new(progress::Kind::Quiet).step("pull")
    }

    #[test]
    fn an_image_is_pulled_with_one_token() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache")).unwrap();
        let (host, asked) = registry(files(folder.path()));
        let reference: Reference = format!("{host}/k:v1").parse().unwrap();
        let pulled = pull(&cache, &reference, "amd64", &step()).unwrap();
        let program = folder.path().join("program");
        pulled
            .extract_file(&["usr/kubelet"], 100, &program)
            .unwrap();
        assert_eq!(fs::read_to_string(program).unwrap(), "program");
        let tokens = |asked: &[String]| asked.iter().filter(|p| p.starts_with("/token?")).count();
        assert_eq!(tokens(&asked.lock().unwrap()), 1);
        // By the digest that the first answer had, the same image; its layer is in the cache.
        let again = pull(&cache, &reference.at(&pulled.digest), "amd64", &step()).unwrap();
        assert_eq!(again.digest, pulled.digest);
        let asked = asked.lock().unwrap().clone();
        let blobs = asked.iter().filter(|p| p.contains("/blobs/")).count();
        assert_eq!(blobs, 1, "{asked:?}");
        assert!(pull(&cache, &reference, "arm64", &step()).is_err());
    }

    #[test]
    fn a_manifest_that_is_not_the_pinned_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache")).unwrap();
        let mut files = files(folder.path());
        let digest = format!("sha256:{}", "a".repeat(64));
        let index = files[0].1.clone();
        files.push((format!("/v2/k/manifests/{digest}"), index));
        let (host, _) = registry(files);
        let reference: Reference = format!("{host}/k@{digest}").parse().unwrap();
        let error = format!(
            "{:#}",
            pull(&cache, &reference, "amd64", &step()).unwrap_err()
        );
        assert!(error.contains("not the expected one"), "{error}");
    }
}
