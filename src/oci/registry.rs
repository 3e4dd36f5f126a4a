//! Pulls an image from a registry: index, manifest, then each blob by its digest into the cache.

use data_encoding::HEXLOWER;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use fetch::oci::{Descriptor, Document};
use fetch::{Options, Repository, blocking};
use sha2::Digest as _;

use super::read::{Pulled, sha256};
use super::reference::Reference;
use crate::host::cache::Cache;
use crate::host::progress::Step;

/// Size limit of a layer, bytes.
const LAYER_LIMIT: u64 = 4 << 30;
/// Size limit of a config, bytes.
const CONFIG_LIMIT: u64 = 4 << 20;
/// The registry of Docker's images, and its host.
const DOCKER: (&str, &str) = ("docker.io", "registry-1.docker.io");

/// Pulls the image of a reference, for this architecture. Without a digest in it, the registry's answer for the tag is
/// trusted; its digest is in the result.
///
/// # Errors
/// If the registry refuses, or has no image for the architecture, or a blob does not match its digest.
pub fn pull(
    cache: &Cache,
    reference: &Reference,
    architecture: &str,
    step: &Step,
) -> Result<Pulled> {
    pull_by(cache, reference, architecture, step).with_context(|| format!("pulling {reference}"))
}

fn pull_by(
    cache: &Cache,
    reference: &Reference,
    architecture: &str,
    step: &Step,
) -> Result<Pulled> {
    let client = blocking::Client::new(&Options::default())?;
    let host = match reference.registry.as_str() {
        name if name == DOCKER.0 => DOCKER.1,
        host => host,
    };
    let mut repository = Repository::new(host, &reference.repository);
    let mut digest = reference.digest().map(str::to_owned);
    let mut text = client.document(&mut repository, &reference.version)?;
    let mut document = Document::read(&text).context("reading the manifest")?;
    if let Document::Index(index) = document {
        let chosen = index
            .for_linux(architecture)
            .map_err(anyhow::Error::msg)?
            .digest
            .clone();
        text = client.document(&mut repository, &chosen)?;
        document = Document::read(&text).context("reading the manifest")?;
        digest = Some(chosen);
    }
    let Document::Manifest(manifest) = document else {
        bail!("the index names another index");
    };
    let digest = digest
        .unwrap_or_else(|| format!("sha256:{}", HEXLOWER.encode(&sha2::Sha256::digest(&text))));
    step.total(manifest.layers.iter().map(|layer| layer.size).sum());
    let mut blob = |blob: &Descriptor, limit: u64| -> Result<(String, PathBuf)> {
        let path = cache.object(sha256(&blob.digest)?);
        if fs::metadata(&path).is_ok_and(|found| found.len() == blob.size) {
            step.advance(blob.size);
        } else {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            ensure!(
                blob.size <= limit,
                "{} has {} bytes, expected at most {limit}",
                blob.digest,
                blob.size
            );
            client.blob(&mut repository, blob, &path, &|bytes| step.advance(bytes))?;
        }
        Ok((blob.media_type.clone(), path))
    };
    let config = blob(&manifest.config, CONFIG_LIMIT)?;
    let layers = manifest.layers.iter();
    let layers = layers.map(|layer| blob(layer, LAYER_LIMIT));
    Ok(Pulled {
        digest,
        layers: layers.collect::<Result<_>>()?,
        config,
    })
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

    /// A registry on loopback that requires a token first, and serves `files`.
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

    /// An image in a registry's form: documents and blobs by their paths, the index by the tag `v1`.
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
        // The digest of the first answer selects the same image; its layer and config are in the cache.
        let again = pull(&cache, &reference.at(&pulled.digest), "amd64", &step()).unwrap();
        assert_eq!(again.digest, pulled.digest);
        let asked = asked.lock().unwrap().clone();
        let blobs = asked.iter().filter(|p| p.contains("/blobs/")).count();
        assert_eq!(blobs, 2, "{asked:?}");
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
        assert!(error.contains("digest mismatch"), "{error}");
    }
}
