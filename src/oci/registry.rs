//! Pulls an image from a registry: index, manifest, then each blob by its digest into the cache.

use data_encoding::HEXLOWER;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use fetch::oci::{Descriptor, Document};
use fetch::{Failure, Repository, blocking};
use sha2::Digest as _;

use super::read::{Pulled, sha256};
use super::reference::Reference;
use crate::host::atomic_file;
use crate::host::cache::Cache;
use crate::host::progress::Step;
use crate::host::session::Session;

/// Size limit of a layer, bytes.
const LAYER_LIMIT: u64 = 4 << 30;
/// Size limit of a config, bytes.
const CONFIG_LIMIT: u64 = 4 << 20;

/// Pulls the image of a reference, for this architecture. Without a digest in it, the registry's answer for the tag is
/// trusted; its digest is in the result.
///
/// # Errors
/// If the registry refuses, or has no image for the architecture, or a blob does not match its digest.
pub fn pull(
    session: &Session,
    reference: &Reference,
    architecture: &str,
    step: &Step,
) -> Result<Pulled> {
    pull_by(session, reference, architecture, step).with_context(|| format!("pulling {reference}"))
}

fn pull_by(
    session: &Session,
    reference: &Reference,
    architecture: &str,
    step: &Step,
) -> Result<Pulled> {
    let cache = &session.cache;
    let client = blocking::Client::new(&session.fetch_options())?;
    let mut repository = Repository::new(&reference.registry, &reference.repository);
    let mut digest = reference.digest().map(str::to_owned);
    let document_of = |repository: &mut Repository, version: &str| {
        stored_document(cache, version, || client.document(repository, version))
    };
    let mut text = document_of(&mut repository, &reference.version)?;
    let mut document = Document::read(&text).context("reading the manifest")?;
    if let Document::Index(index) = document {
        let chosen = index
            .for_linux(architecture)
            .map_err(anyhow::Error::msg)?
            .digest
            .clone();
        text = document_of(&mut repository, &chosen)?;
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
        let name = sha256(&blob.digest)?;
        let path = cache.object(name);
        if fs::metadata(&path).is_ok_and(|found| found.len() == blob.size) {
            cache.use_object(name);
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

/// A file of an image, below its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// What it is in the image.
    pub what: &'static str,
    /// SHA-256, hexadecimal.
    pub sha256: String,
    /// Size in bytes, if a document names it.
    pub size: Option<u64>,
}

/// The files of the image of a reference with a digest, as far as the documents that the cache has name them. `bring` may put each into
/// the cache first, and says whether it is there.
///
/// # Errors
/// As `bring`, or if a document cannot be read, or has no image for the architecture.
pub fn stored(
    cache: &Cache,
    reference: &Reference,
    architecture: &str,
    bring: &mut dyn FnMut(&Stored) -> Result<bool>,
) -> Result<Vec<Stored>> {
    let mut all = Vec::new();
    let mut next = reference.digest().map(|digest| (digest.to_owned(), None));
    while let Some((digest, size)) = next.take() {
        let object = Stored {
            what: "the manifest",
            sha256: sha256(&digest)?.to_owned(),
            size,
        };
        let here = bring(&object)?;
        let path = cache.object(&object.sha256);
        all.push(object);
        if !here {
            break;
        }
        match Document::read(&fs::read(&path)?).context("reading the manifest")? {
            Document::Index(index) if all.len() == 1 => {
                let chosen = index.for_linux(architecture);
                let chosen = chosen.map_err(anyhow::Error::msg)?;
                next = Some((chosen.digest.clone(), Some(chosen.size)));
            }
            Document::Index(_) => bail!("the index names another index"),
            Document::Manifest(manifest) => {
                let config = std::iter::once(("the config", &manifest.config));
                let layers = manifest.layers.iter().map(|layer| ("a layer", layer));
                for (what, found) in config.chain(layers) {
                    all.push(Stored {
                        what,
                        sha256: sha256(&found.digest)?.to_owned(),
                        size: Some(found.size),
                    });
                }
            }
        }
    }
    Ok(all)
}

/// The index or manifest of a digest from the cache, else from its registry; that of a tag is asked for, since it may be another now.
///
/// # Errors
/// As `ask`, or if the cache cannot be written.
fn stored_document(
    cache: &Cache,
    version: &str,
    ask: impl FnOnce() -> Result<Vec<u8>, Failure>,
) -> Result<Vec<u8>> {
    let Ok(sha256) = sha256(version) else {
        return Ok(ask()?);
    };
    let path = cache.object(sha256);
    let known = fs::read(&path).ok();
    let is_it = |text: &Vec<u8>| HEXLOWER.encode(&sha2::Sha256::digest(text)) == sha256;
    if let Some(text) = known.filter(is_it) {
        cache.use_object(sha256);
        return Ok(text);
    }
    let text = ask()?;
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    atomic_file::write(&path, 0o644, |file| Ok(file.write_all(&text)?))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::path::Path;
    use std::sync::{Arc, Mutex};
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::host::logins::{HostLogins, Surroundings};
    use crate::host::progress::{self, Progress};
    use crate::layer::Entry;
    use crate::oci;

    /// A registry on loopback that requires a token first, and serves `files`.
    fn registry(files: Vec<(String, Vec<u8>)>) -> (String, Arc<Mutex<Vec<String>>>) {
        registry_for(files, "")
    }

    /// The same, whose token service gives tokens to whoever sends this `Authorization`, in lower case; if that is empty, to all.
    fn registry_for(
        files: Vec<(String, Vec<u8>)>,
        wanted: &'static str,
    ) -> (String, Arc<Mutex<Vec<String>>>) {
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
                    let is_known = lower.contains(wanted);
                    let (head, body) = if path.starts_with("/token?") && !is_known {
                        ("401 Unauthorized".to_owned(), Vec::new())
                    } else if path.starts_with("/token?") {
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

    fn session(folder: &Path) -> Session {
        let cache = Cache::at(folder.join("cache")).unwrap();
        Session::new(cache, Progress::new(progress::Kind::Quiet))
    }

    fn step() -> Step {
        Progress::new(progress::Kind::Quiet).step("pull")
    }

    #[test]
    fn an_image_is_pulled_with_one_token() {
        let folder = tempfile::tempdir().unwrap();
        let session = session(folder.path());
        let (host, asked) = registry(files(folder.path()));
        let reference: Reference = format!("{host}/k:v1").parse().unwrap();
        let pulled = pull(&session, &reference, "amd64", &step()).unwrap();
        let program = folder.path().join("program");
        pulled
            .extract_file(&["usr/kubelet"], 100, &program)
            .unwrap();
        assert_eq!(fs::read_to_string(program).unwrap(), "program");
        let tokens = |asked: &[String]| asked.iter().filter(|p| p.starts_with("/token?")).count();
        assert_eq!(tokens(&asked.lock().unwrap()), 1);
        // The digest of the first answer selects the same image; its layer and config are in the cache.
        let again = pull(&session, &reference.at(&pulled.digest), "amd64", &step()).unwrap();
        assert_eq!(again.digest, pulled.digest);
        let asked = asked.lock().unwrap().clone();
        let blobs = asked.iter().filter(|p| p.contains("/blobs/")).count();
        assert_eq!(blobs, 2, "{asked:?}");
        assert!(pull(&session, &reference, "arm64", &step()).is_err());
    }

    /// The longest unused of the cache is removed first.
    #[test]
    fn a_layer_that_is_here_counts_as_used() {
        let folder = tempfile::tempdir().unwrap();
        let session = session(folder.path());
        let (host, _) = registry(files(folder.path()));
        let reference: Reference = format!("{host}/k:v1").parse().unwrap();
        let pulled = pull(&session, &reference, "amd64", &step()).unwrap();
        let (_, layer) = &pulled.layers[0];
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        fs::File::open(layer).unwrap().set_modified(old).unwrap();
        pull(&session, &reference, "amd64", &step()).unwrap();
        let used = fs::metadata(layer).unwrap().modified().unwrap();
        assert!(used > old + Duration::from_secs(1_000), "{used:?}");
    }

    /// The whole way of a private registry: 401, a token by Basic, index, manifest and blobs; the password is docker's.
    #[test]
    fn an_image_of_a_private_registry_is_pulled_with_dockers_login() {
        let folder = tempfile::tempdir().unwrap();
        // `joe:word` and `joe:wrong` in base64.
        let wanted = "authorization: basic am9londvcmq=";
        let (host, asked) = registry_for(files(folder.path()), wanted);
        let config = folder.path().join("config.json");
        let with = |auth: &str| {
            let text = format!("{{\"auths\": {{\"{host}\": {{\"auth\": \"{auth}\"}}}}}}");
            fs::write(&config, text).unwrap();
            let mut session = session(folder.path());
            session.logins = Arc::new(HostLogins::of(Surroundings::with_docker(folder.path())));
            session
        };
        let reference: Reference = format!("{host}/k:v1").parse().unwrap();
        let refused = pull(&with("am9lOndyb25n"), &reference, "amd64", &step());
        let refused = format!("{:#}", refused.unwrap_err());
        let expected = format!("come from {}", config.display());
        assert!(
            refused.contains("401 Unauthorized") && refused.contains(&expected),
            "{refused}"
        );
        for secret in ["wrong", "am9lOndyb25n"] {
            assert!(!refused.contains(secret), "{refused}");
        }
        let none = r#"{"auths": {"other.example": {"auth": "am9lOndvcmQ="}}}"#;
        let session = with("");
        fs::write(&config, none).unwrap();
        let refused = pull(&session, &reference, "amd64", &step()).unwrap_err();
        let refused = format!("{refused:#}");
        assert!(
            refused.contains(&format!("no login of http://{host} is known")),
            "{refused}"
        );
        asked.lock().unwrap().clear();
        let pulled = pull(&with("am9lOndvcmQ="), &reference, "amd64", &step()).unwrap();
        assert_eq!(pulled.layers.len(), 1);
        let asked = asked.lock().unwrap();
        let tokens = asked.iter().filter(|path| path.starts_with("/token?"));
        assert_eq!(tokens.count(), 1, "{asked:?}");
        assert_eq!(
            asked.iter().filter(|path| path.contains("/blobs/")).count(),
            2
        );
    }

    #[test]
    fn a_manifest_that_is_not_the_pinned_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let session = session(folder.path());
        let mut files = files(folder.path());
        let digest = format!("sha256:{}", "a".repeat(64));
        let index = files[0].1.clone();
        files.push((format!("/v2/k/manifests/{digest}"), index));
        let (host, _) = registry(files);
        let reference: Reference = format!("{host}/k@{digest}").parse().unwrap();
        let error = format!(
            "{:#}",
            pull(&session, &reference, "amd64", &step()).unwrap_err()
        );
        assert!(error.contains("digest mismatch"), "{error}");
    }
}
