//! Archives of results: a tar stream, compressed by zstd, with the same bytes for the same files. Times are left out: two machines
//! that make the same files make the same archive.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use crate::host::tree;
use crate::layer::stream::{Form, Stream};
use crate::layer::{Entry, Kind};
use crate::store::Object;

/// The time of all files, seconds since 1970: 1980, where the times of FAT and zip begin.
pub(super) const TIME: u64 = 315_532_800;
/// What the cache itself writes into a result's folder.
const OWN: &str = "/.slipway-";
/// The level of compression: results are sent once and fetched often, and a fast one saves more time than a small one.
const LEVEL: i32 = 3;

/// Packs a result's folder into a file; gives the archive's hash and size.
///
/// # Errors
/// If the folder cannot be read, or has what no archive holds: a device, a socket, a name that is not UTF-8.
pub(super) fn pack(folder: &Path, to: &mut File) -> Result<Object> {
    let out = Hashed {
        out: BufWriter::with_capacity(1 << 20, to),
        hash: Sha256::new(),
        size: 0,
    };
    let mut packer = Packer {
        out: Stream::new(zstd::Encoder::new(out, LEVEL)?),
        links: HashMap::new(),
    };
    packer.add("/", folder, &fs::symlink_metadata(folder)?)?;
    for item in tree::walk(folder)? {
        if !item.inside.starts_with(OWN) {
            packer
                .add(&item.inside, &item.path, &item.meta)
                .with_context(|| format!("packing {}", item.inside))?;
        }
    }
    packer.out.end()?;
    let mut out = packer.out.into_inner()?.finish()?;
    out.flush()?;
    Ok(Object {
        sha256: HEXLOWER.encode(&out.hash.finalize()),
        size: out.size,
    })
}

/// A writer that hashes and counts.
struct Hashed<W> {
    out: W,
    hash: Sha256,
    size: u64,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
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
