//! Archives of results: a tar stream, compressed by zstd, with the same bytes for the same files. Times are left out: two machines
//! that make the same files make the same archive.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use crate::host::tree::{self, Item};
use crate::layer::stream::{BLOCK, Form, Stream};
use crate::layer::{Entry, Kind};
use crate::store::Object;

/// The time of all files, seconds since 1970: 1980, where the times of FAT and zip begin.
pub(super) const TIME: u64 = 315_532_800;
/// What the cache itself writes into a result's folder.
const OWN: &str = "/.slipway-";
/// The level of compression: results are sent once and fetched often, and a fast one saves more time than a small one.
const LEVEL: i32 = 3;

/// Size limits of a result, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Of its archive.
    pub(super) packed: u64,
    /// Of the tar stream in the archive.
    pub(super) unpacked: u64,
}

/// Packs a result's folder into a file; gives the archive's hash and size.
///
/// # Errors
/// If the folder cannot be read, has what no archive holds (a device, a socket, a name that is not UTF-8), or is larger than the
/// limits.
pub(super) fn pack(folder: &Path, to: &mut File, limits: Limits) -> Result<Object> {
    let mut items = tree::walk(folder)?;
    items.retain(|item| !item.inside.starts_with(OWN));
    // Before any of it is packed.
    let least = least(&items);
    ensure!(
        least <= limits.unpacked,
        "its files have {least} bytes, expected at most {}",
        limits.unpacked
    );
    let out = Hashed {
        out: BufWriter::with_capacity(1 << 20, to),
        hash: Sha256::new(),
        size: 0,
        limit: limits.packed,
    };
    let mut packer = Packer {
        out: Stream::new(zstd::Encoder::new(out, LEVEL)?),
        links: HashMap::new(),
    };
    packer.add("/", folder, &fs::symlink_metadata(folder)?)?;
    for item in items {
        packer
            .add(&item.inside, &item.path, &item.meta)
            .with_context(|| format!("packing {}", item.inside))?;
    }
    packer.out.end()?;
    // Headers, of which nobody knows the size beforehand.
    ensure!(
        packer.out.count() <= limits.unpacked,
        "its tar stream has {} bytes, expected at most {}",
        packer.out.count(),
        limits.unpacked
    );
    let mut out = packer.out.into_inner()?.finish()?;
    out.flush()?;
    Ok(Object {
        sha256: HEXLOWER.encode(&out.hash.finalize()),
        size: out.size,
    })
}

/// The size of the tar stream of these files without extended attributes and long names, bytes.
fn least(items: &[Item]) -> u64 {
    let mut seen = HashSet::new();
    let sizes = items.iter().map(|item| {
        let is_first = item.meta.nlink() == 1 || seen.insert((item.meta.dev(), item.meta.ino()));
        match item.meta.is_file() && is_first {
            true => item.meta.len().next_multiple_of(BLOCK) + BLOCK,
            false => BLOCK,
        }
    });
    sizes.sum()
}

/// A writer that hashes and counts, and writes at most `limit` bytes.
struct Hashed<W> {
    out: W,
    hash: Sha256,
    size: u64,
    limit: u64,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.size + bytes.len() as u64 > self.limit {
            let limit = self.limit;
            return Err(io::Error::other(format!(
                "its archive has more than {limit} bytes"
            )));
        }
        let n = self.out.write(bytes)?;
        self.hash.update(&bytes[..n]);
        self.size += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

struct Packer<W> {
    out: Stream<W>,
    /// Path of the first name of each file with several names.
    links: HashMap<(u64, u64), String>,
}

impl<W: Write> Packer<W> {
    fn add(&mut self, path: &str, full: &Path, meta: &Metadata) -> Result<()> {
        let mut entry = Entry {
            path: path.to_owned(),
            mode: meta.mode() & 0o7777,
            uid: meta.uid(),
            gid: meta.gid(),
            kind: Kind::Directory,
            xattrs: Vec::new(),
        };
        if meta.is_symlink() {
            let target = fs::read_link(full)?;
            let target = target.to_str().context("the target is not UTF-8")?;
            return Ok(self.out.header(&entry, Form::Symlink(target), TIME)?);
        }
        entry.xattrs = attributes(full)?;
        if meta.is_dir() {
            return Ok(self.out.header(&entry, Form::Directory, TIME)?);
        }
        if !meta.is_file() {
            bail!("neither folder nor file nor link");
        }
        if meta.nlink() > 1 {
            let file = (meta.dev(), meta.ino());
            if let Some(first) = self.links.get(&file) {
                return Ok(self.out.header(&entry, Form::HardLink(first), TIME)?);
            }
            self.links.insert(file, entry.path.clone());
        }
        self.out.header(&entry, Form::File(meta.len()), TIME)?;
        Ok(self.out.content(&mut File::open(full)?, meta.len())?)
    }
}

/// Whether an extended attribute is part of a result.
pub(super) fn is_kept(name: &str) -> bool {
    name == "security.capability" || name.starts_with("user.")
}

/// The extended attributes of a file, but those that belong to the host, such as SELinux labels; values in base64.
fn attributes(path: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut found = Vec::new();
    let names = match xattr::list(path) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::Unsupported => return Ok(found),
        Err(error) => return Err(error).context("listing its extended attributes"),
    };
    for name in names {
        let name = name.to_str().context("an attribute's name is not UTF-8")?;
        if is_kept(name)
            && let Some(value) = xattr::get(path, name)?
        {
            // A reader that takes records apart at line feeds must not meet one in a value.
            found.push((name.to_owned(), STANDARD.encode(value).into_bytes()));
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packs a folder with one file; gives the error and the size of what was written.
    fn refused(content: &[u8], size: u64, limits: Limits) -> (String, u64) {
        let place = tempfile::tempdir().unwrap();
        let mut file = File::create(place.path().join("file")).unwrap();
        file.write_all(content).unwrap();
        file.set_len(size).unwrap();
        let mut to = tempfile::tempfile().unwrap();
        let error = pack(place.path(), &mut to, limits).unwrap_err();
        (format!("{error:#}"), to.metadata().unwrap().len())
    }

    #[test]
    fn packing_ends_at_the_limit_of_an_archive() {
        // Hashes are not compressed.
        let content: Vec<u8> = (0..1_u32 << 17)
            .flat_map(|number| Sha256::digest(number.to_le_bytes()))
            .collect();
        let limits = Limits {
            packed: 2 << 20,
            unpacked: u64::MAX,
        };
        let (error, written) = refused(&content, content.len() as u64, limits);
        assert!(
            error.contains("its archive has more than 2097152 bytes"),
            "{error}"
        );
        assert!(written <= 2 << 20, "{written}");
    }

    #[test]
    fn files_that_are_too_large_are_not_packed() {
        let limits = |unpacked| Limits {
            packed: 1 << 20,
            unpacked,
        };
        let (error, written) = refused(b"x", 1 << 36, limits(32 << 30));
        assert!(
            error.contains("its files have 68719477248 bytes"),
            "{error}"
        );
        assert_eq!(written, 0);
        // The two blocks at the end, and the top's header.
        let (error, _) = refused(b"x", 1, limits(1024));
        assert!(error.contains("its tar stream has 2560 bytes"), "{error}");
    }
}
