//! Reads an archive's suites from the mirror: signature, then indexes by digest, then packages.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::Path;
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use fetch::{Digest, Want, blocking};

use super::mirror::{ARCHIVE, Mirrors, SECURITY_ARCHIVE};
use super::packages::{self, Pool};
use super::pinned::LockedPackage;
use super::release::{IndexFile, Release};
use super::signature::Keyring;
use crate::host::cache::Cache;
use crate::host::progress::Step;

/// Size limit of an `InRelease` file, bytes; Debian's has 140 KB.
const RELEASE_LIMIT: u64 = 16 << 20;
/// Size limit of an index, packed or unpacked, bytes.
const INDEX_LIMIT: u64 = 1 << 30;

/// A suite of an archive, such as `trixie-updates` of `debian`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suite {
    /// The archive's name in the lock.
    pub archive: &'static str,
    /// The suite's name.
    pub name: String,
    /// Whether its packages are taken only on request.
    pub backports: bool,
}

/// The suites of a release: the release itself, its updates, its security updates, and its backports on request.
#[must_use]
pub fn suites(release: &str, with_backports: bool) -> Vec<Suite> {
    let suite = |archive, name: String, backports| Suite {
        archive,
        name,
        backports,
    };
    let mut all = vec![suite(ARCHIVE, release.to_owned(), false)];
    // Rolling suites contain their updates.
    if matches!(release, "sid" | "unstable") {
        return all;
    }
    all.push(suite(ARCHIVE, format!("{release}-updates"), false));
    all.push(suite(
        SECURITY_ARCHIVE,
        format!("{release}-security"),
        false,
    ));
    if with_backports {
        all.push(suite(ARCHIVE, format!("{release}-backports"), true));
    }
    all
}

/// The archives, suites and components to read.
#[derive(Clone, Debug)]
pub struct Request<'r> {
    /// Base URLs of the archives.
    pub mirrors: &'r Mirrors,
    /// The suites.
    pub suites: &'r [Suite],
    /// Components, such as `main`.
    pub components: &'r [String],
    /// Debian's name of the architecture.
    pub architecture: &'r str,
    /// The trusted keys.
    pub keyring: &'r Keyring,
    /// The time, seconds since 1970.
    pub now: u64,
}

/// The suites that were read.
#[derive(Debug)]
pub struct Archive {
    /// The requested suites, each with the content of its signed file.
    pub suites: Vec<(Suite, Release)>,
    /// Texts of the `Packages` files, each with the index of its suite.
    texts: Vec<(usize, String)>,
    /// Digests of the packages that the suites do not have any more.
    gone: BTreeSet<String>,
}

impl Archive {
    /// Reads all suites at once. Index files are kept in the cache by their digest.
    ///
    /// # Errors
    /// Names the suite, the mirror, the setting that names the mirror, and the fault of the answer.
    pub fn read(request: &Request<'_>, cache: &Cache, step: &Step) -> Result<Self> {
        let read: Vec<Result<(Release, Vec<String>)>> = thread::scope(|scope| {
            let threads: Vec<_> = request
                .suites
                .iter()
                .map(|suite| scope.spawn(move || read_suite(request, suite, cache, step)))
                .collect();
            threads
                .into_iter()
                .map(|thread| {
                    thread
                        .join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect()
        });
        let mut archive = Self {
            suites: Vec::new(),
            texts: Vec::new(),
            gone: BTreeSet::new(),
        };
        for (at, (suite, read)) in request.suites.iter().zip(read).enumerate() {
            let (release, texts) = read?;
            archive.suites.push((suite.clone(), release));
            archive
                .texts
                .extend(texts.into_iter().map(|text| (at, text)));
        }
        Ok(archive)
    }

    /// Adds packages that the archive of this name had, and its suites do not have any more.
    ///
    /// # Errors
    /// If the text is no index.
    pub fn add(&mut self, archive: &str, text: String) -> Result<()> {
        let packages = packages::read(&text, 0, false)?;
        let digests = packages.iter().map(|package| package.sha256.to_owned());
        self.gone.extend(digests);
        let mut suites = self.suites.iter();
        let of = suites.position(|(suite, _)| suite.archive == archive && !suite.backports);
        self.texts.push((of.unwrap_or(0), text));
        Ok(())
    }

    /// Whether the suites do not have this package any more.
    #[must_use]
    pub fn is_gone(&self, package: &LockedPackage) -> bool {
        self.gone.contains(&package.sha256)
    }

    /// All packages of all suites.
    ///
    /// # Errors
    /// If an index does not parse.
    pub fn pool(&self) -> Result<Pool<'_>> {
        let mut all = Vec::new();
        for (at, text) in &self.texts {
            let suite = &self.suites[*at].0;
            all.extend(
                packages::read(text, *at, suite.backports)
                    .with_context(|| format!("reading the packages of {}", suite.name))?,
            );
        }
        Ok(Pool::new(all))
    }
}

fn read_suite(
    request: &Request<'_>,
    suite: &Suite,
    cache: &Cache,
    step: &Step,
) -> Result<(Release, Vec<String>)> {
    let (base, from) = request
        .mirrors
        .archive(suite.archive)
        .with_context(|| format!("there is no archive {}", suite.archive))?;
    let suite_base = format!("{base}/dists/{}", suite.name);
    let read = || -> Result<(Release, Vec<String>)> {
        let client = blocking::Client::new(&fetch::Options::default())?;
        let url = format!("{suite_base}/InRelease");
        let message = client.bytes(
            &Want::new(&url, RELEASE_LIMIT),
            &|word| step.note(word),
            &|_| (),
        )?;
        let message = String::from_utf8(message).context("its InRelease is not text")?;
        let release = request
            .keyring
            .signed_text(&message, request.now)
            .and_then(|text| Release::parse(&text))
            .and_then(|release| {
                release.check(&suite.name, request.now)?;
                Ok(release)
            })
            .context("its InRelease is not to be trusted")?;
        let mut texts = Vec::new();
        for component in request.components {
            let index = release.packages(component, request.architecture)?;
            texts.push(index_text(&client, &suite_base, &index, cache, step)?);
        }
        Ok((release, texts))
    };
    read().with_context(|| {
        format!(
            "reading {} from the mirror {base} (set by {from})",
            suite.name
        )
    })
}

fn index_text(
    client: &blocking::Client,
    suite_base: &str,
    index: &IndexFile,
    cache: &Cache,
    step: &Step,
) -> Result<String> {
    let digest = Digest::sha256(&index.sha256)
        .with_context(|| format!("{:?} is not a SHA-256 digest", index.sha256))?;
    ensure!(
        index.size <= INDEX_LIMIT,
        "{} has {} bytes",
        index.path,
        index.size
    );
    let object = cache.object(&index.sha256);
    if let Ok(packed) = std::fs::read(&object)
        && digest.of_same_kind(&packed) == digest
    {
        return unpack(&packed, &index.path);
    }
    if let Some(folder) = object.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    let count = |bytes| step.advance(bytes);
    let fetch = |path: &str| {
        let url = format!("{suite_base}/{path}");
        client.file(&Want::new(&url, index.size).digest(digest), &object, &count)
    };
    // A mirror may announce files by hash and not have them; the plain name is then the same file.
    match fetch(&index.fetch_path) {
        Err(failure) if failure.is_gone() && index.fetch_path != index.path => fetch(&index.path)?,
        outcome => outcome?,
    }
    let packed = std::fs::read(&object).with_context(|| format!("reading {}", object.display()))?;
    unpack(&packed, &index.path)
}

fn unpack(packed: &[u8], path: &str) -> Result<String> {
    let extension = Path::new(path).extension().and_then(|e| e.to_str());
    let mut text = String::new();
    let read = match extension {
        Some("xz") => liblzma::read::XzDecoder::new_multi_decoder(packed)
            .take(INDEX_LIMIT)
            .read_to_string(&mut text),
        Some("gz") => flate2::read::MultiGzDecoder::new(packed)
            .take(INDEX_LIMIT)
            .read_to_string(&mut text),
        None => packed.take(INDEX_LIMIT).read_to_string(&mut text),
        Some(other) => bail!("{path} is packed as {other}, which is not known here"),
    };
    let bytes = read.with_context(|| format!("unpacking {path}"))?;
    ensure!(
        u64::try_from(bytes).is_ok_and(|bytes| bytes < INDEX_LIMIT),
        "{path} unpacks to more than {INDEX_LIMIT} bytes"
    );
    Ok(text)
}

#[cfg(test)]
mod tests;
