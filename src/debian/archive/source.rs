//! Reads one suite: its signed list, then its indexes by digest.

use std::io::{Read as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use fetch::{Digest, Failure};

use super::{NoComponents, Request, Suite};
use crate::debian::files::{self, Files};
use crate::debian::release::{IndexFile, Release};
use crate::debian::signature::Keyring;
use crate::debian::third_party::{ThirdParty, is_flat};
use crate::host::atomic_file;
use crate::host::cache::{self, Cache};
use crate::host::progress::Step;

/// Size limit of an `InRelease` file, bytes; Debian's has 140 KB.
const RELEASE_LIMIT: u64 = 16 << 20;
/// Size limit of an index, packed or unpacked, bytes.
const INDEX_LIMIT: u64 = 1 << 30;

/// The context of an index that cannot be had, with a list that the mirror may have replaced.
const OF_THIS_RUN: &str = "its list is the one that another image of this run is made from, and the mirror may have a newer one: run it again";

/// The files that a suite's list may have.
const LIST_FILES: [&str; 3] = ["InRelease", "Release", "Release.gpg"];

/// How many days old a suite of Debian's without `Valid-Until` may be: a stable release has one point release a quarter.
const MAX_AGE: u32 = 400;

/// A suite to read.
pub(super) struct Source<'r> {
    /// The suite.
    pub(super) suite: Suite,
    /// The archive that it is of, if that is not Debian's.
    pub(super) third_party: Option<&'r ThirdParty>,
    /// Base URL of its archive, and the setting that it comes from.
    base: (&'r str, &'r str),
    /// The keys of its archive, if that is not Debian's.
    keyring: Option<Keyring>,
}

/// All suites of a request, Debian's first.
pub(super) fn sources<'r>(request: &Request<'r>) -> Result<Vec<Source<'r>>> {
    let base = |archive: &str| {
        let found = request.mirrors.archive(archive);
        found.with_context(|| format!("there is no archive {archive}"))
    };
    let mut all = Vec::new();
    for suite in request.suites {
        all.push(Source {
            base: base(&suite.archive)?,
            suite: suite.clone(),
            third_party: None,
            keyring: None,
        });
    }
    for archive in request.third_parties {
        for name in &archive.suites {
            let suite = Suite {
                archive: archive.name.clone(),
                name: name.clone(),
                backports: false,
            };
            all.push(Source {
                base: base(&archive.name)?,
                suite,
                third_party: Some(archive),
                keyring: Some(archive.keyring()?),
            });
        }
    }
    Ok(all)
}

impl Source<'_> {
    /// The content of the suite's signed file, and the texts of its indexes.
    ///
    /// # Errors
    /// Names the suite, the mirror and the fault.
    pub(super) fn read(
        &self,
        request: &Request<'_>,
        cache: &Cache,
        step: &Step,
    ) -> Result<(Release, Vec<String>)> {
        let folder = self.folder();
        let read = || -> Result<(Release, Vec<String>)> {
            let files = Files::new(&request.options)?;
            let keyring = self.keyring.as_ref().unwrap_or(request.keyring);
            let mut lists = Lists::new(&files, request.options.offline, cache, step, &folder);
            let (name, text) = signed_list(&mut lists, keyring, request.now)?;
            let release = self.checked(&text, request);
            let release = release.with_context(|| untrusted(name))?;
            let (mut texts, mut missing) = (Vec::new(), Vec::new());
            for index in self.indexes(request, &release)? {
                match index_text(&files, &folder, &index, cache, step) {
                    Ok(text) => texts.push(text),
                    Err(error) if request.options.offline => missing.push(format!("{error:#}")),
                    Err(error) if lists.known.is_some() && is_of_another_list(&error) => {
                        return Err(error.context(OF_THIS_RUN));
                    }
                    Err(error) => return Err(error),
                }
            }
            ensure!(missing.is_empty(), "{}", missing.join("\n  "));
            // Only now: while a mirror is being synced, it may have a list without its indexes. Neither this run nor later ones without
            // requests must be bound to that.
            lists.store()?;
            lists.keep();
            Ok((release, texts))
        };
        read().with_context(|| {
            let name = &self.suite.name;
            let (base, from) = (fetch::shown(self.base.0), self.base.1);
            match self.third_party {
                None => format!("reading {name} from the mirror {base} (set by {from})"),
                Some(archive) => {
                    format!("reading {name} of archive {} from {base}", archive.name)
                }
            }
        })
    }

    /// URL of the folder of the signed list.
    fn folder(&self) -> String {
        let (base, _) = self.base;
        let name = &self.suite.name;
        if !is_flat(name) {
            return format!("{base}/dists/{name}");
        }
        match name.trim_start_matches("./").trim_matches('/') {
            "" => base.to_owned(),
            folder => format!("{base}/{folder}"),
        }
    }

    fn checked(&self, text: &str, request: &Request<'_>) -> Result<Release> {
        let release = Release::parse(text)?;
        // The names of a flat suite say nothing of its folder; an archive beside Debian's may have none.
        let nameless = self.third_party.is_some() && release.names.is_empty();
        if !is_flat(&self.suite.name) && !nameless {
            release.is_suite(&self.suite.name)?;
        }
        // A stored list was current when it was read, and nobody else could have put another in its place.
        if !request.options.offline {
            let of_debian = self.third_party.is_none().then_some(MAX_AGE);
            release.is_current(request.now, request.max_age.or(of_debian))?;
        }
        Ok(release)
    }

    fn indexes(&self, request: &Request<'_>, release: &Release) -> Result<Vec<IndexFile>> {
        if is_flat(&self.suite.name) {
            let index = release.index("");
            return Ok(vec![index.context("it lists no Packages file")?]);
        }
        let components = match self.third_party {
            None => request.components,
            Some(archive) => &archive.components,
        };
        let lists = |component: &&String| {
            let own = release.packages(component, request.architecture);
            own.is_ok()
        };
        let missing = components.iter().filter(|name| !lists(name));
        let missing: Vec<String> = missing.cloned().collect();
        if self.third_party.is_none() && !missing.is_empty() {
            bail!(NoComponents {
                components: missing,
                architecture: request.architecture.to_owned(),
            });
        }
        let mut all = Vec::new();
        for component in components {
            let own = release.packages(component, request.architecture);
            let for_all = match self.third_party.is_some() && release.index_of_all {
                true => release.packages(component, "all").ok(),
                false => None,
            };
            // An archive may have nothing but packages for all architectures.
            match (own, for_all) {
                (Err(error), None) => return Err(error),
                (own, for_all) => all.extend(own.ok().into_iter().chain(for_all)),
            }
        }
        Ok(all)
    }
}

fn untrusted(name: &str) -> String {
    format!("its {name} is not to be trusted")
}

/// Whether the archive answers that it does not give a file. Stores of objects say 403 for those that they do not have.
fn is_refused(failure: &Failure) -> bool {
    matches!(failure, Failure::Status { .. })
        || files::is_gone(failure)
        || files::is_offline(failure)
}

/// Whether an index is what a mirror with another list answers: it is not there, or has other bytes.
fn is_of_another_list(error: &anyhow::Error) -> bool {
    let failure = error.downcast_ref::<Failure>();
    failure
        .is_some_and(|failure| matches!(failure, Failure::Digest { .. }) || files::is_gone(failure))
}

/// The files of a suite's list: as this run has read them before, else from its archive, or as they were when they were last verified.
struct Lists<'l> {
    files: &'l Files,
    offline: bool,
    cache: &'l Cache,
    step: &'l Step,
    /// URL of the suite's folder.
    folder: &'l str,
    /// What this run has read of the suite before.
    known: Option<cache::ListFiles>,
    fetched: cache::ListFiles,
    /// What was read from the cache's folder.
    stored: cache::ListFiles,
}

impl<'l> Lists<'l> {
    fn new(
        files: &'l Files,
        offline: bool,
        cache: &'l Cache,
        step: &'l Step,
        folder: &'l str,
    ) -> Self {
        Self {
            files,
            offline,
            cache,
            step,
            folder,
            known: cache.verified(folder),
            fetched: Vec::new(),
            stored: Vec::new(),
        }
    }

    fn get(&mut self, name: &str) -> Result<Vec<u8>, Failure> {
        let url = format!("{}/{name}", self.folder);
        if let Some(known) = &self.known {
            // Nothing else of the folder is asked for: a file that appeared since then is of another state.
            let content = known.iter().find(|(known, _)| *known == url);
            let content = content.map(|(_, content)| content.clone());
            return content.ok_or_else(|| absent(&url));
        }
        if self.offline
            && let Ok(content) = std::fs::read(self.cache.list(&url))
        {
            self.stored.push((url, content.clone()));
            return Ok(content);
        }
        let note = |word: &str| self.step.note(word);
        let content = self.files.bytes(&url, RELEASE_LIMIT, &note)?;
        self.fetched.push((url, content.clone()));
        Ok(content)
    }

    /// Writes what was fetched, which is verified now, for later runs without requests; what the suite has no more is removed, as its
    /// `InRelease` would be read first.
    fn store(&self) -> Result<()> {
        if self.fetched.is_empty() {
            return Ok(());
        }
        for name in LIST_FILES {
            let url = format!("{}/{name}", self.folder);
            if !self.fetched.iter().any(|(fetched, _)| *fetched == url) {
                let path = self.cache.list(&url);
                match std::fs::remove_file(&path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(error).with_context(|| format!("removing {}", path.display()));
                    }
                    _ => {}
                }
            }
        }
        for (url, content) in &self.fetched {
            atomic_file::write(&self.cache.list(url), 0o644, |file| {
                Ok(file.write_all(content)?)
            })?;
        }
        Ok(())
    }

    /// Keeps what was read, whose indexes are here now, for the other images of this run.
    fn keep(mut self) {
        if self.known.is_none() {
            self.fetched.append(&mut self.stored);
            self.cache.keep_verified(self.folder, self.fetched);
        }
    }
}

/// The answer for a file that a suite did not have when this run read it.
fn absent(url: &str) -> Failure {
    Failure::Status {
        url: fetch::shown(url),
        code: 404,
        challenge: None,
        note: None,
    }
}

/// The name and the signed text of a suite's list: `InRelease`, or `Release` with `Release.gpg` where there is none.
fn signed_list(
    lists: &mut Lists<'_>,
    keyring: &Keyring,
    now: u64,
) -> Result<(&'static str, String)> {
    let without = match lists.get("InRelease") {
        Ok(message) => {
            let message = String::from_utf8(message).context("its InRelease is not text")?;
            let text = keyring.signed_text(&message, now);
            return Ok(("InRelease", text.with_context(|| untrusted("InRelease"))?));
        }
        Err(failure) if is_refused(&failure) => failure,
        Err(failure) => return Err(failure.into()),
    };
    let text = match lists.get("Release") {
        Ok(text) => text,
        Err(failure) if is_refused(&failure) => return Err(without.into()),
        Err(failure) => return Err(failure.into()),
    };
    let signatures = lists.get("Release.gpg")?;
    keyring
        .signed_apart(&text, &signatures, now)
        .with_context(|| untrusted("Release"))?;
    let text = String::from_utf8(text).context("its Release is not text")?;
    Ok(("Release", text))
}

fn index_text(
    files: &Files,
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
    if let Some(text) = unpacked(index, cache) {
        return Ok(text);
    }
    let object = cache.object(&index.sha256);
    if let Ok(packed) = std::fs::read(&object)
        && digest.of_same_kind(&packed) == digest
    {
        cache.use_object(&index.sha256);
        return unpack_and_keep(&packed, index, cache);
    }
    if let Some(folder) = object.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    let count = |bytes| step.advance(bytes);
    let fetch = |path: &str| {
        let url = format!("{suite_base}/{path}");
        files.file((&url, index.size, digest), &object, &count)
    };
    // A mirror may announce files by hash and not have them; the plain name is then the same file.
    match fetch(&index.fetch_path) {
        Err(failure) if is_refused(&failure) && index.fetch_path != index.path => {
            fetch(&index.path)?
        }
        outcome => outcome?,
    }
    let packed = std::fs::read(&object).with_context(|| format!("reading {}", object.display()))?;
    unpack_and_keep(&packed, index, cache)
}

/// The text of an index that was unpacked before: xz takes ten times as long as reading it does.
fn unpacked(index: &IndexFile, cache: &Cache) -> Option<String> {
    let sha256 = index.text_sha256.as_deref()?;
    let digest = Digest::sha256(sha256)?;
    let text = std::fs::read(cache.object(sha256)).ok()?;
    if digest.of_same_kind(&text) != digest {
        return None;
    }
    cache.use_object(sha256);
    String::from_utf8(text).ok()
}

/// Unpacks an index, and keeps its text for the next time. A disk that is full only costs that.
fn unpack_and_keep(packed: &[u8], index: &IndexFile, cache: &Cache) -> Result<String> {
    let text = unpack(packed, &index.path)?;
    if let Some(sha256) = &index.text_sha256
        && Digest::sha256(sha256)
            .is_some_and(|digest| digest.of_same_kind(text.as_bytes()) == digest)
        && index.sha256 != *sha256
    {
        keep(&text, &cache.object(sha256), cache).ok();
    }
    Ok(text)
}

/// Writes a text that is verified each time it is read, so that it needs no sync.
fn keep(text: &str, object: &Path, cache: &Cache) -> Result<()> {
    let scratch = cache.scratch()?;
    let file = scratch.path().join("text");
    std::fs::write(&file, text)?;
    if let Some(folder) = object.parent() {
        std::fs::create_dir_all(folder)?;
    }
    Ok(std::fs::rename(file, object)?)
}

fn unpack(packed: &[u8], path: &str) -> Result<String> {
    let extension = Path::new(path).extension().and_then(|e| e.to_str());
    let mut content = Vec::new();
    let read = match extension {
        Some("xz") => liblzma::read::XzDecoder::new_multi_decoder(packed)
            .take(INDEX_LIMIT)
            .read_to_end(&mut content),
        Some("gz") => flate2::read::MultiGzDecoder::new(packed)
            .take(INDEX_LIMIT)
            .read_to_end(&mut content),
        None => packed.take(INDEX_LIMIT).read_to_end(&mut content),
        Some(other) => bail!("{path} is packed as {other}, which is not known here"),
    };
    let bytes = read.with_context(|| format!("unpacking {path}"))?;
    ensure!(
        u64::try_from(bytes).is_ok_and(|bytes| bytes < INDEX_LIMIT),
        "{path} unpacks to more than {INDEX_LIMIT} bytes"
    );
    // A vendor's index has its packages' fields as they are, as a maintainer's name in Latin-1; apt takes them too.
    Ok(match String::from_utf8(content) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_with_a_name_in_latin_1_is_read() {
        let text = unpack(b"Package: a\nMaintainer: J\xf6rg\n", "main/Packages").unwrap();
        assert_eq!(text, "Package: a\nMaintainer: J\u{fffd}rg\n");
    }
}
