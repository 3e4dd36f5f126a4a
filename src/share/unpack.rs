//! Unpacks the archive of a result into its folder. It is signed, and still every path is held to the folder: a fault of one machine
//! must not write to another one's files.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, lchown, symlink};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::errno::Errno;
use tar::EntryType;

use super::pack::{TIME, is_kept};

/// Size limit of an unpacked archive, bytes.
pub(super) const LIMIT: u64 = 32 << 30;
/// Bytes that are left out as a hole if all of them are zero.
const HOLE: usize = 64 << 10;
/// The record of an extended attribute in a header.
const ATTRIBUTE: &str = "SCHILY.xattr.";

/// Unpacks an archive that was verified into an empty folder.
///
/// # Errors
/// If it is damaged, a path leads out of the folder, or a file cannot be written.
pub(super) fn unpack(archive: &Path, folder: &Path) -> Result<()> {
    let file = File::open(archive).with_context(|| format!("reading {}", archive.display()))?;
    let mut archive = tar::Archive::new(zstd::Decoder::new(file)?.take(LIMIT));
    let mut unpacked = Unpacked {
        folder,
        folders: HashSet::from([PathBuf::new()]),
        modes: Vec::new(),
    };
    for entry in archive.entries()? {
        let mut entry = entry.context("reading the archive")?;
        let path = entry.path()?.into_owned();
        unpacked
            .add(&mut entry)
            .with_context(|| format!("unpacking {}", path.display()))?;
    }
    unpacked.finish()
}

/// Whether an error of [`unpack`] is one of this host, such as a full disk, a right that it lacks, or a file system without extended
/// attributes, and not one of the archive.
pub(super) fn is_of_host(error: &anyhow::Error) -> bool {
    // A damaged archive has no number of the system, but paths that exist, do not exist, or are not what they have to be.
    let of_archive = |number| {
        matches!(
            Errno::from_raw(number),
            Errno::EEXIST
                | Errno::ENOENT
                | Errno::ENOTDIR
                | Errno::EISDIR
                | Errno::ELOOP
                | Errno::ENAMETOOLONG
        )
    };
    error.chain().any(|cause| {
        let number = cause
            .downcast_ref::<io::Error>()
            .and_then(io::Error::raw_os_error);
        number.is_some_and(|number| !of_archive(number))
    })
}

struct Unpacked<'a> {
    folder: &'a Path,
    /// Folders of the archive, relative to the top.
    folders: HashSet<PathBuf>,
    /// The modes of folders, which are set last: one may forbid its owner to write.
    modes: Vec<(PathBuf, u32)>,
}

impl Unpacked<'_> {
    fn add<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>) -> Result<()> {
        let inside = inside(&entry.path()?)?;
        let above = inside.parent().unwrap_or(Path::new(""));
        ensure!(
            self.folders.contains(above),
            "{} is not a folder before it",
            above.display()
        );
        let path = self.folder.join(&inside);
        let kind = entry.header().entry_type();
        let mode = entry.header().mode()? & 0o7777;
        match kind {
            EntryType::Directory => {
                if inside != Path::new("") {
                    fs::create_dir(&path)?;
                }
                self.modes.push((path.clone(), mode));
                self.folders.insert(inside);
                own(entry, &path)?;
                attributes(entry, &path)?;
            }
            EntryType::Symlink => {
                let target = entry.link_name()?.context("a link without a target")?;
                symlink(target, &path)?;
                own(entry, &path)?;
            }
            EntryType::Link => {
                let target = entry.link_name()?.context("a link without a target")?;
                let target = self::inside(&target)?;
                let above = target.parent().unwrap_or(Path::new(""));
                // Through a link it would be a file of the host.
                ensure!(
                    self.folders.contains(above),
                    "a hard link below {}, which is not a folder before it",
                    above.display()
                );
                let target = self.folder.join(target);
                let meta = fs::symlink_metadata(&target)?;
                ensure!(meta.is_file(), "a hard link to what is not a file");
                fs::hard_link(target, &path)?;
            }
            EntryType::Regular => {
                let mut file = File::options()
                    .write(true)
                    .create_new(true)
                    .mode(0o600)
                    .open(&path)?;
                let size = entry.size();
                copy(entry, &mut file, size)?;
                own(entry, &path)?;
                // After the owner, whose change takes away the bits that give rights, and capabilities.
                file.set_permissions(fs::Permissions::from_mode(mode))?;
                attributes(entry, &path)?;
                file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(TIME))?;
            }
            other => bail!("an entry of the kind {other:?}"),
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        for (path, mode) in self.modes.iter().rev() {
            fs::set_permissions(path, fs::Permissions::from_mode(*mode))?;
        }
        ensure!(!self.modes.is_empty(), "the archive is empty");
        Ok(())
    }
}

/// A path of an archive below the folder.
fn inside(path: &Path) -> Result<PathBuf> {
    let mut inside = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::Normal(part) => inside.push(part),
            _ => bail!("the path {} leads out of the folder", path.display()),
        }
    }
    Ok(inside)
}

/// Copies a file's content; pieces of zeros become holes.
fn copy(from: &mut impl Read, to: &mut File, size: u64) -> Result<()> {
    let mut piece = vec![0; HOLE];
    let mut left = size;
    while left > 0 {
        let want = usize::try_from(left).unwrap_or(HOLE).min(HOLE);
        from.read_exact(&mut piece[..want])
            .context("the archive ends inside a file")?;
        if want == HOLE && piece.iter().all(|byte| *byte == 0) {
            to.seek(SeekFrom::Current(HOLE as i64))?;
        } else {
            to.write_all(&piece[..want])?;
        }
        left -= want as u64;
    }
    Ok(to.set_len(size)?)
}

fn own<R: Read>(entry: &tar::Entry<'_, R>, path: &Path) -> Result<()> {
    let id = |id: u64| u32::try_from(id).context("an owner's number is too large");
    let (uid, gid) = (id(entry.header().uid()?)?, id(entry.header().gid()?)?);
    Ok(lchown(path, Some(uid), Some(gid))?)
}

fn attributes<R: Read>(entry: &mut tar::Entry<'_, R>, path: &Path) -> Result<()> {
    let Some(records) = entry.pax_extensions()? else {
        return Ok(());
    };
    for record in records {
        let record = record?;
        let Some(name) = record.key()?.strip_prefix(ATTRIBUTE) else {
            continue;
        };
        ensure!(is_kept(name), "an extended attribute {name}");
        let value = STANDARD.decode(record.value_bytes())?;
        xattr::set(path, name, &value).with_context(|| format!("setting {name}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
