//! Files of an archive: from a server, or from a folder of this host (`file:`).

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Seek as _, Write as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use fetch::{Digest, Failure, Want, blocking};

use super::mirror::server;
use crate::host::atomic_file;
use crate::host::preflight::network;

/// The scheme of folders of this host.
pub const SCHEME: &str = "file://";
/// Bytes that are copied at a time.
const PIECE: usize = 1 << 20;
/// What the error says when a `file:` URL names a file that does not exist.
const NO_FILE: &str = "there is no such file";

/// Reads and fetches files by their URLs.
#[derive(Debug)]
pub struct Files {
    client: blocking::Client,
}

impl Files {
    /// A client with the usual retries; one that is offline reads folders of this host alone.
    ///
    /// # Errors
    /// If the client cannot be made.
    pub fn new(options: &fetch::Options) -> Result<Self> {
        let client = blocking::Client::new(options)?;
        Ok(Self { client })
    }

    /// The content of a file of at most `limit` bytes.
    ///
    /// # Errors
    /// If it is not there, cannot be read, or is larger.
    pub fn bytes(
        &self,
        url: &str,
        limit: u64,
        on_wait: &(dyn Fn(&str) + Sync),
    ) -> Result<Vec<u8>, Failure> {
        match url.strip_prefix(SCHEME) {
            Some(path) => read(url, Path::new(path), limit),
            None => asked(Want::new(url, limit), |want| {
                self.client.bytes(want, on_wait, &|_| ())
            }),
        }
    }

    /// Writes a file of this size and digest to `target`, which is unchanged until both are verified.
    ///
    /// # Errors
    /// If it is not there, cannot be read, or has another digest.
    pub fn file(
        &self,
        (url, size, digest): (&str, u64, Digest),
        target: &Path,
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Result<(), Failure> {
        let Some(path) = url.strip_prefix(SCHEME) else {
            let want = Want::new(url, size).digest(digest);
            return asked(want, |want| self.client.file(want, target, on_bytes));
        };
        on_bytes(copy((url, size, digest), Path::new(path), target)?);
        Ok(())
    }
}

/// The servers that answered this process, by scheme, host and port.
static ANSWERED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// A request with the usual retries. The first one to a server is tried once before: where it is this host's settings that keep it
/// from being answered, no retry helps, and the error says what to set.
fn asked<T>(
    mut want: Want<'_>,
    request: impl Fn(&Want<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let server = server(want.url).to_owned();
    let known = |set: &BTreeSet<String>| set.contains(&server);
    let answered = || ANSWERED.lock().unwrap_or_else(PoisonError::into_inner);
    if known(&answered()) {
        return request(&want);
    }
    let usual = want.patience;
    want.patience.attempts = Some(1);
    let first = request(&want);
    let (url, why) = match &first {
        Err(Failure::Unreachable { url, why, .. }) => (url.clone(), why.clone()),
        // A proxy's own answer.
        Err(Failure::Status { url, code: 407, .. }) => {
            (url.clone(), "407 Proxy Authentication Required".to_owned())
        }
        _ => {
            answered().insert(server);
            return first;
        }
    };
    if let Some(remedy) = network::remedy(want.url, &why) {
        return Err(unanswered(url, &why, &remedy));
    }
    want.patience = usual;
    request(&want)
}

/// The failure of a server that this host's settings keep from being asked: callers ask for nothing else there.
fn unanswered(url: String, why: &str, remedy: &str) -> Failure {
    Failure::Unreachable {
        url,
        attempts: 1,
        why: format!("{why}; {remedy}"),
    }
}

/// Whether the server, or the folder, does not have the file.
#[must_use]
pub fn is_gone(failure: &Failure) -> bool {
    failure.is_gone() || matches!(failure, Failure::Refused { why, .. } if why == NO_FILE)
}

/// Whether a file was not asked for, because no request is made.
#[must_use]
pub fn is_offline(failure: &Failure) -> bool {
    matches!(failure, Failure::Refused { why, .. } if why == fetch::OFFLINE)
}

/// Whether a file may come from another place, since the asked one does not have it, or was not asked.
#[must_use]
pub fn is_elsewhere(failure: &Failure) -> bool {
    is_gone(failure) || is_offline(failure)
}

/// The path of a file below a folder that has files by their hashes.
#[must_use]
pub fn by_hash(sha256: &str) -> String {
    format!("{}/{sha256}", sha256.get(..2).unwrap_or("xx"))
}

/// The content of a file of this host.
fn read(url: &str, path: &Path, limit: u64) -> Result<Vec<u8>, Failure> {
    let mut content = Vec::new();
    open(url, path)?
        .take(limit.saturating_add(1))
        .read_to_end(&mut content)
        .map_err(|error| refused(url, &error))?;
    within(url, content.len() as u64, limit)?;
    Ok(content)
}

/// Copies a file of this host to `target`, piece by piece: it may have gigabytes. Gives its size in bytes.
fn copy(
    (url, limit, digest): (&str, u64, Digest),
    path: &Path,
    target: &Path,
) -> Result<u64, Failure> {
    let mut from = open(url, path)?.take(limit.saturating_add(1));
    let mut size = 0;
    let written = atomic_file::write(target, 0o644, |file| {
        let mut piece = vec![0; PIECE];
        loop {
            let read = match from.read(&mut piece) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(refused(url, &error).into()),
            };
            file.write_all(&piece[..read])?;
            size += read as u64;
        }
        within(url, size, limit)?;
        file.rewind()?;
        let found = digest.of_reader(file)?;
        if found != digest {
            return Err(Failure::Digest {
                url: url.to_owned(),
                expected: Box::new(digest),
                found: Box::new(found),
            }
            .into());
        }
        Ok(())
    });
    match written {
        Ok(()) => Ok(size),
        Err(error) => Err(error.downcast().unwrap_or_else(|error| disk(target, error))),
    }
}

fn open(url: &str, path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(|error| refused(url, &error))
}

fn refused(url: &str, error: &io::Error) -> Failure {
    Failure::Refused {
        url: url.to_owned(),
        why: match error.kind() {
            ErrorKind::NotFound => NO_FILE.to_owned(),
            _ => error.to_string(),
        },
    }
}

fn within(url: &str, size: u64, limit: u64) -> Result<(), Failure> {
    match size <= limit {
        true => Ok(()),
        false => Err(Failure::TooLarge {
            url: url.to_owned(),
            limit,
        }),
    }
}

/// The failure of a write, of the system's own kind: that a disk is full is said otherwise than other errors.
fn disk(target: &Path, error: anyhow::Error) -> Failure {
    let source = error.downcast::<io::Error>();
    Failure::Disk {
        path: target.to_owned(),
        source: source.unwrap_or_else(|error| io::Error::other(format!("{error:#}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of `content`.
    const SUM: &str = "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73";

    #[test]
    fn a_folder_of_this_host_is_held_to_sizes_and_digests_too() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), "content").unwrap();
        let url = |name: &str| format!("{SCHEME}{}/{name}", folder.path().display());
        let target = folder.path().join("target");
        let files = Files::new(&fetch::Options::default()).unwrap();
        let digest = Digest::sha256(SUM).unwrap();
        let fetch = |name: &str, size| files.file((&url(name), size, digest), &target, &|_| ());
        fetch("a", 7).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"content");
        assert!(is_gone(&fetch("b", 7).unwrap_err()));
        assert!(matches!(fetch("a", 6), Err(Failure::TooLarge { .. })));
        std::fs::write(folder.path().join("a"), "contents").unwrap();
        assert!(matches!(fetch("a", 8), Err(Failure::Digest { .. })));
        assert_eq!(std::fs::read(&target).unwrap(), b"content");
        let below = target.join("below");
        let failure = files.file((&url("a"), 8, digest), &below, &|_| ());
        let Err(Failure::Disk { source, .. }) = failure else {
            panic!("{failure:?}")
        };
        assert_eq!(source.kind(), ErrorKind::NotADirectory, "{source}");
        let no_file = fetch("", 8).unwrap_err();
        assert!(matches!(no_file, Failure::Refused { .. }), "{no_file}");
        let read = files.bytes(&url("a"), 8, &|_| ()).unwrap();
        assert_eq!(read, b"contents");
    }

    /// A lock has hundreds of packages, and the first one that is not answered ends the others.
    #[test]
    fn a_server_that_a_setting_keeps_from_answering_is_unreachable() {
        let url = "http://mirror.example/a.deb".to_owned();
        let failure = unanswered(url, "no answer", "unset http_proxy");
        assert!(
            matches!(failure, Failure::Unreachable { .. }),
            "{failure:?}"
        );
        assert_eq!(
            failure.to_string(),
            "fetching http://mirror.example/a.deb: no answer; unset http_proxy"
        );
    }
}
