//! A store: files by their hashes and small notes by their names, in a folder, a bucket of S3 or a repository of a registry.
//!
//! Layout below the store's address: `ab/abcd…` files by SHA-256 · `notes/NAME` notes. In a registry a file is a blob, and a note is
//! the manifest under the tag NAME, whose layers are the files that it names: what no manifest names, a registry collects.

mod folder;
mod registry;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use data_encoding::HEXLOWER;
use fetch::{Bucket, Content, Digest, Failure, Pace, Parts, Patience, Stop, Want, blocking};
use sha2::{Digest as _, Sha256};

use crate::debian::files::{Files, SCHEME, by_hash, is_gone};
use crate::host::interrupt::Interrupt;

use registry::Registry;

/// Size limit of a note, bytes.
const NOTE_LIMIT: u64 = 64 << 10;
/// The slowest transfer that a build waits for, bytes in a second; below it a step is made as fast as it is fetched.
const SLOWEST: u64 = 512 << 10;

/// A file of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// SHA-256, hexadecimal.
    pub sha256: String,
    /// Size in bytes.
    pub size: u64,
}

/// How long a store is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Haste {
    /// As for every download: what is asked for is needed.
    Patient,
    /// What is asked for can be made: a store that is dead or slow costs seconds.
    Hasty,
}

/// A store, with its connections. Use one for each thread.
#[derive(Debug)]
pub struct Store {
    place: Place,
    client: blocking::Client,
    files: Files,
    haste: Haste,
    interrupt: Interrupt,
}

#[derive(Debug)]
enum Place {
    Folder(PathBuf),
    /// What somebody copied to a server, which is only read.
    Url(String),
    Bucket(Bucket),
    Registry(Box<Registry>),
}

impl Store {
    /// Opens the store at `oci://HOST/REPOSITORY`, `s3://BUCKET/PREFIX`, `file:///FOLDER`, or, to read it, at a URL of a server. No
    /// request is made. `options` has the credentials.
    ///
    /// # Errors
    /// If it is none of these.
    pub fn open(url: &str, options: &fetch::Options, haste: Haste) -> Result<Self> {
        let about = || format!("the store {}", fetch::shown(url));
        let trimmed = url.trim_end_matches('/');
        let place = match trimmed.split_once("://") {
            Some(("file", path)) if path.starts_with('/') => Place::Folder(path.into()),
            Some(("oci", rest)) => {
                let registry = Registry::parse(rest).map_err(anyhow::Error::msg);
                Place::Registry(Box::new(registry.with_context(about)?))
            }
            Some(("s3", _)) => {
                let bucket = Bucket::parse(trimmed).map_err(anyhow::Error::msg);
                Place::Bucket(bucket.with_context(about)?)
            }
            Some(("http" | "https" | "gs", _)) => Place::Url(trimmed.to_owned()),
            _ => bail!(
                "{}: expected oci://HOST/REPOSITORY, s3://BUCKET/PREFIX or file:///FOLDER",
                about()
            ),
        };
        Ok(Self {
            place,
            client: blocking::Client::new(options)?,
            files: Files::new(options)?,
            haste,
            interrupt: Interrupt::default(),
        })
    }

    /// The same, whose uploads in parts are taken back if the user interrupts the program, which waits for that.
    #[must_use]
    pub fn ended_by(mut self, interrupt: &Interrupt) -> Self {
        self.interrupt = interrupt.clone();
        self
    }

    /// Whether files are not only read, but may be stored.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        !matches!(self.place, Place::Url(_))
    }

    /// Whether it is a folder of this host, which needs no request.
    #[must_use]
    pub fn is_local(&self) -> bool {
        matches!(self.place, Place::Folder(_))
    }

    /// Fetches the file of a SHA-256 to `target`, which is unchanged until size and hash are verified. `most` is the size limit.
    ///
    /// # Errors
    /// [`Failure`], as for every download; [`is_gone`] if the store does not have it.
    pub fn get(
        &mut self,
        sha256: &str,
        most: u64,
        target: &Path,
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Result<(), Failure> {
        let digest = Digest::sha256(sha256).ok_or_else(|| Failure::Address {
            url: sha256.to_owned(),
            why: "expected 64 hexadecimal digits".to_owned(),
        })?;
        let patience = self.haste.of_size(most);
        let url = match &mut self.place {
            Place::Folder(folder) => {
                let url = format!("{SCHEME}{}/{}", folder.display(), by_hash(sha256));
                return self.files.file((&url, most, digest), target, on_bytes);
            }
            Place::Registry(registry) => {
                return registry.get(&self.client, (sha256, most), patience, target, on_bytes);
            }
            Place::Url(base) => format!("{base}/{}", by_hash(sha256)),
            Place::Bucket(bucket) => bucket.url(&by_hash(sha256)),
        };
        let want = Want {
            patience,
            ..Want::new(&url, most).digest(digest)
        };
        self.client.file(&want, target, on_bytes)
    }

    /// Stores a file under its hash; whether it had to be sent.
    ///
    /// # Errors
    /// If it cannot be stored, or its hash is another one, which every kind of store verifies.
    pub fn put(&mut self, object: &Object, file: &Path) -> Result<bool> {
        let Object { sha256, size } = object;
        let patience = self.haste.of_size(*size);
        let name = by_hash(sha256);
        let content = Content::File(file, *size);
        match &mut self.place {
            Place::Folder(folder) => folder::keep(file, &folder.join(name), sha256),
            Place::Url(url) => bail!("{url} is a server's, which is only read"),
            Place::Registry(registry) => registry.put(&self.client, sha256, patience, content),
            Place::Bucket(bucket) => {
                let interrupt = self.interrupt.clone();
                let _guard = (*size > Parts::default().above).then(|| interrupt.guard());
                let bucket = bucket
                    .clone()
                    .with_patience(patience)
                    .with_stop(Stop::when(move || interrupt.requested()));
                self.client.run(async |client| {
                    if bucket.has(client, &name).await? {
                        return Ok(false);
                    }
                    bucket.put(client, &name, sha256, content).await?;
                    Ok(true)
                })
            }
        }
    }

    /// The note of this name; none if there is none.
    ///
    /// # Errors
    /// [`Failure`], as for every download.
    pub fn note(&mut self, name: &str) -> Result<Option<Vec<u8>>, Failure> {
        let patience = self.haste.of_size(0);
        let found = match &mut self.place {
            Place::Registry(registry) => registry.note(&self.client, name, patience),
            Place::Folder(folder) => {
                let url = format!("{SCHEME}{}/notes/{name}", folder.display());
                self.files.bytes(&url, NOTE_LIMIT, &|_| ())
            }
            Place::Url(_) | Place::Bucket(_) => {
                let url = match &self.place {
                    Place::Bucket(bucket) => bucket.url(&format!("notes/{name}")),
                    Place::Url(base) => format!("{base}/notes/{name}"),
                    _ => String::new(),
                };
                let want = Want {
                    patience,
                    ..Want::new(&url, NOTE_LIMIT)
                };
                self.client.bytes(&want, &|_| (), &|_| ())
            }
        };
        match found {
            Ok(text) => Ok(Some(text)),
            Err(failure) if is_gone(&failure) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Stores a note in the place of one of its name. The files that it names have to be there.
    ///
    /// # Errors
    /// If it cannot be stored.
    pub fn put_note(&mut self, name: &str, text: &str, objects: &[Object]) -> Result<()> {
        let patience = self.haste.of_size(0);
        let sha256 = HEXLOWER.encode(&Sha256::digest(text));
        match &mut self.place {
            Place::Folder(folder) => folder::write(&folder.join("notes").join(name), text),
            Place::Url(url) => bail!("{url} is a server's, which is only read"),
            Place::Registry(registry) => {
                registry.put_note(&self.client, (name, text), objects, patience)
            }
            Place::Bucket(bucket) => {
                let bucket = bucket.clone().with_patience(patience);
                let content = Content::Bytes(text.as_bytes());
                let name = format!("notes/{name}");
                self.client
                    .run(async |client| bucket.put(client, &name, &sha256, content).await)?;
                Ok(())
            }
        }
    }
}

impl Haste {
    /// The patience for something of so many bytes.
    fn of_size(self, size: u64) -> Patience {
        match self {
            Self::Patient => Patience {
                attempts: Some(3),
                ..Patience::default()
            },
            Self::Hasty => Patience {
                attempts: Some(2),
                header_timeout: Duration::from_secs(3),
                idle_timeout: Duration::from_secs(5),
                total: Some(Duration::from_secs(7 + size / SLOWEST)),
                slowest: Some(Pace {
                    bytes: 4 * SLOWEST,
                    within: Duration::from_secs(4),
                }),
                ..Patience::default()
            },
        }
    }
}

#[cfg(test)]
mod tests;
