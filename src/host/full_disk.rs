//! Full disks: what is free in a folder, and the error of a write that a full file system or a quota refused, with the folder's name.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::Error;
use nix::errno::Errno;
use nix::sys::statvfs::statvfs;

use super::progress::bytes;

/// How the C library words `ENOSPC` and `EDQUOT`: of a program in a sandbox there is no other word.
const WORDS: [&str; 2] = ["No space left on device", "Disk quota exceeded"];
/// The context that [`explain`] adds, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Full(String);

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Full {}

/// A folder that is written to.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// What it is.
    pub name: &'static str,
    /// Its path, which need not be there yet.
    pub folder: &'a Path,
    /// What to do if it is full.
    pub remedy: &'static str,
}

impl<'a> Place<'a> {
    /// The folder of the cache.
    #[must_use]
    pub const fn cache(folder: &'a Path) -> Self {
        Self {
            name: "cache folder",
            folder,
            remedy: "set SLIPWAY_CACHE, or --cache, to a folder on a larger disk, or free some by `slipway cache prune`",
        }
    }

    /// The folder of the images.
    #[must_use]
    pub const fn output(folder: &'a Path) -> Self {
        Self {
            name: "output folder",
            folder,
            remedy: "give a folder on a larger disk with --output, or remove images that nobody needs",
        }
    }
}

/// The space of a file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Its number among the mounted ones.
    pub device: u64,
    /// What is free for this user.
    pub free: u64,
    /// All of it.
    pub size: u64,
}

impl Space {
    /// The space where a folder is, or will be made.
    ///
    /// # Errors
    /// If the file system does not tell.
    pub fn of(folder: &Path) -> io::Result<Self> {
        let absolute = std::path::absolute(folder)?;
        let mut above = absolute.ancestors();
        let there = above.find(|path| path.exists()).unwrap_or(&absolute);
        let stat = statvfs(there)?;
        // ramfs, and some of FUSE's, count nothing.
        if stat.blocks() == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self {
            device: std::fs::metadata(there)?.dev(),
            free: stat.blocks_available() * stat.fragment_size(),
            size: stat.blocks() * stat.fragment_size(),
        })
    }
}

/// Whether an error is that of a full file system, or of a quota.
#[must_use]
pub fn is_full(error: &Error) -> bool {
    error.chain().any(|cause| {
        let of_io = cause.downcast_ref::<io::Error>().is_some_and(|error| {
            let kinds = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
            kinds.contains(&error.kind())
        });
        let of_call = cause.downcast_ref::<Errno>();
        let of_call = of_call.is_some_and(|error| matches!(error, Errno::ENOSPC | Errno::EDQUOT));
        let said = || {
            let text = cause.to_string();
            WORDS.iter().any(|words| text.contains(words))
        };
        of_io || of_call || said()
    })
}

/// Adds to the error of a full file system which of these folders has how much free, and what to do. `what` was being written, as
/// `the step rootfs, of which 12 MiB were written`. Call it before what is unfinished is removed. Other errors, and those that were explained already, stay
/// as they are.
#[must_use]
pub fn explain(error: Error, what: &str, places: &[Place<'_>]) -> Error {
    if !is_full(&error) || error.downcast_ref::<Full>().is_some() {
        return error;
    }
    let mut known: Vec<(&Place<'_>, Space)> = places
        .iter()
        .filter_map(|place| Some((place, Space::of(place.folder).ok()?)))
        .collect();
    known.sort_by_key(|(_, space)| space.free);
    let told: Vec<String> = known
        .iter()
        .map(|(place, space)| {
            let (free, size) = (bytes(space.free), bytes(space.size));
            // Whole, since who reads a log is in another folder.
            let folder = std::path::absolute(place.folder);
            let folder = folder.as_deref().unwrap_or(place.folder).display();
            format!("the {} {folder} has {free} of {size} free", place.name)
        })
        .collect();
    let remedy = known.first().map(|(place, _)| place.remedy);
    let remedy = remedy.map_or(String::new(), |remedy| format!("; {remedy}"));
    error.context(Full(format!(
        "no space is left for {what}: {}{remedy}",
        told.join(", ")
    )))
}

#[cfg(test)]
mod tests;
