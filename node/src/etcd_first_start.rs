//! A member of etcd whose first start was cut off, which is begun anew.
//!
//! etcd makes its write-ahead log with the member's identity, and writes the first entries some milliseconds later, on a slow disk
//! more. Between the two a power cut leaves a log without entries. etcd takes such a member for one that ran, finds no voter in the
//! log, and waits for ever without a word (<https://github.com/etcd-io/etcd/issues/12578>). Nothing is lost with it: a member
//! acknowledges no entry and gives no vote before its log has it.
//!
//! A log is frames, each a length and a record in protocol buffers (etcd's `server/storage/wal`: `encoder.go`, `walpb/record.proto`,
//! `wal.go`), then zeros up to its end.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use crate::bolt;

/// What etcd makes in its data folder, and the log, snapshots, the backend and the first file of the log in that.
const MEMBER: &str = "member";
const LOG: &str = "wal";
const SNAPSHOTS: &str = "snap";
const BACKEND: &str = "db";
const FIRST: &str = "0000000000000000-0000000000000000.wal";
/// A member on its way out.
const UNSTARTED: &str = "member.unstarted";
/// The buckets of the backend of which one has a key as soon as a member has applied an entry.
const APPLIED: [&str; 2] = ["key", "members"];
/// A backend of more bytes was written by something. etcd makes it with 16 MiB, of which it uses 20 KiB.
const MADE: u64 = 32 << 20;
/// The types of records that the head of a log has: the member's identity, a checksum, and that there is no snapshot.
const METADATA: u8 = 1;
const CHECKSUM: u8 = 4;
const SNAPSHOT: u8 = 5;
/// The record of no snapshot: term and index are 0.
const NO_SNAPSHOT: [u8; 4] = [0x08, 0, 0x10, 0];
/// Bytes of a log that are read at once; its head has less than a hundred.
const CHUNK: usize = 1 << 16;

/// Removes the member in etcd's data folder if it never began; says whether it did. A member that runs is left alone.
///
/// # Errors
/// If its files cannot be read or removed.
pub(crate) fn remove_unstarted(folder: &Path) -> Result<bool> {
    let (member, aside) = (folder.join(MEMBER), folder.join(UNSTARTED));
    // Of a boot that was cut off while it removed one.
    remove(&aside)?;
    let Some(log) = only_log(&member.join(LOG))? else {
        return Ok(false);
    };
    let about = || format!("reading {}", log.display());
    let mut options = File::options();
    let mut file = options
        .read(true)
        .write(true)
        .open(&log)
        .with_context(about)?;
    // Held until the member is removed.
    let is_free = lock(&file).with_context(|| format!("locking {}", log.display()))?;
    if !is_free || !has_only_a_head(&mut file).with_context(about)? || has_data(&member)? {
        return Ok(false);
    }
    let about = || format!("removing {}", member.display());
    fs::rename(&member, &aside).with_context(about)?;
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.with_context(about)?;
    remove(&aside)?;
    Ok(true)
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// The names in a folder; none if it is not there.
fn names(folder: &Path) -> Result<Vec<PathBuf>> {
    let about = || format!("reading {}", folder.display());
    match fs::read_dir(folder) {
        Ok(entries) => entries
            .map(|entry| Ok(entry.with_context(about)?.path()))
            .collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(about),
    }
}

/// The log's first file, if it has no other.
fn only_log(folder: &Path) -> Result<Option<PathBuf>> {
    let names = names(folder)?;
    let mut logs = names
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "wal"));
    let first = logs.next().filter(|path| path.ends_with(FIRST));
    Ok(first.filter(|_| logs.next().is_none()))
}

/// Locks a file of the log as etcd does (`client/pkg/fileutil/lock_linux.go`); false if etcd has it.
fn lock(file: &File) -> io::Result<bool> {
    let whole = libc::flock {
        l_type: i16::try_from(libc::F_WRLCK).unwrap_or_default(),
        l_whence: i16::try_from(libc::SEEK_SET).unwrap_or_default(),
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    match fcntl(file, FcntlArg::F_OFD_SETLK(&whole)) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether snapshots or the backend have anything: a log that somebody began anew beside them is no reason to lose them.
fn has_data(member: &Path) -> Result<bool> {
    let folder = member.join(SNAPSHOTS);
    let db = folder.join(BACKEND);
    let names = names(&folder)?;
    if names.iter().any(|path| *path != db) {
        return Ok(true);
    }
    if names.is_empty() {
        return Ok(false);
    }
    let about = || format!("reading {}", db.display());
    if fs::metadata(&db).with_context(about)?.len() > MADE {
        return Ok(true);
    }
    let backend = bolt::read(&fs::read(&db).with_context(about)?).with_context(about)?;
    let mut applied = APPLIED.iter().filter_map(|name| backend.bucket(name));
    Ok(applied.any(|bucket| !bucket.items.is_empty()))
}

/// Whether a log has what etcd makes it with, and nothing behind it.
fn has_only_a_head(file: &mut File) -> io::Result<bool> {
    let mut bytes = Vec::with_capacity(CHUNK);
    let mut next = |bytes: &mut Vec<u8>| {
        bytes.clear();
        file.by_ref().take(CHUNK as u64).read_to_end(bytes)
    };
    next(&mut bytes)?;
    let Some(mut from) = head(&bytes) else {
        return Ok(false);
    };
    while !bytes.is_empty() {
        if bytes[from..].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        next(&mut bytes)?;
        from = 0;
    }
    Ok(true)
}

/// The bytes up to the first frame's length of 0, if the frames before it are those of a whole head and no others.
fn head(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut kinds = Vec::new();
    loop {
        let length = u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?);
        if length == 0 {
            break;
        }
        // With the highest bit the lowest three of the same byte are the number of bytes of padding.
        let padding = if length >> 63 == 1 {
            (length >> 56) & 7
        } else {
            0
        };
        let (from, size) = (at + 8, usize::try_from(length & ((1 << 56) - 1)).ok()?);
        let record = bytes.get(from..from.checked_add(size)?)?;
        // The field 1 of a record, a number, is its type.
        let (&[tag, kind], rest) = record.split_first_chunk()?;
        let is_known = match kind {
            METADATA | CHECKSUM => true,
            SNAPSHOT => rest.ends_with(&NO_SNAPSHOT),
            _ => false,
        };
        if tag != 0x08 || !is_known {
            return None;
        }
        kinds.push(kind);
        at = from + size + usize::try_from(padding).ok()?;
    }
    (kinds == [CHECKSUM, METADATA, SNAPSHOT]).then_some(at)
}

#[cfg(test)]
mod tests;
