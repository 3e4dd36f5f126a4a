//! Layers made from a folder of the host or from a tar archive.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::members::{Member, Members};
use super::{Entry, Kind, Layer, Source};
use crate::code;
use crate::host::cache::{Cache, Key};
use crate::host::tree;

impl Layer {
    /// The content of a folder of the host below `prefix`, owned by root. Only the executable bit of modes is used,
    /// giving 0755 and 0644, so that the umask of the folder's creator has no effect.
    ///
    /// # Errors
    /// If an entry cannot be read, or is neither folder nor file nor link.
    pub fn from_tree(cache: &Cache, folder: &Path, prefix: &str) -> Result<Self> {
        let prefix = prefix.trim_end_matches('/');
        let items = tree::walk(folder)?.into_iter();
        let entries = items
            .map(|item| from_item(item, prefix))
            .collect::<Result<_>>()?;
        Self::new(cache, entries)
    }

    /// The content of a tar archive below `prefix`, with its modes and owners.
    ///
    /// # Errors
    /// If the archive is damaged or contains devices.
    pub fn from_tar(cache: &Cache, tar: &Path, prefix: &str) -> Result<Self> {
        let about = || format!("reading {}", tar.display());
        let prefix = prefix.trim_end_matches('/');
        let mut members = Members::of_file(File::open(tar).with_context(about)?)?;
        let mut entries = Vec::new();
        while let Some(member) = members.next().with_context(about)? {
            if let Some(read) = from_member(member, tar, prefix).with_context(about)? {
                entries.push(read);
            }
        }
        let key = Key::of("tar layer", code::LAYER)
            .big_file(cache, "tar", tar)?
            .text("prefix", prefix);
        Self::with_key(entries, key.finish())
    }
}

/// The entry for an item of a folder of the host, below `prefix`.
fn from_item(item: tree::Item, prefix: &str) -> Result<Entry> {
    let path = format!("{prefix}{}", item.inside);
    let from = item.path;
    Ok(if item.meta.is_dir() {
        Entry::directory(path, 0o755)
    } else if item.meta.is_symlink() {
        let target = fs::read_link(&from)?;
        let Some(target) = target.to_str() else {
            bail!("the target of {} is not UTF-8", from.display());
        };
        Entry::symlink(path, target)
    } else if item.meta.is_file() {
        let executable = item.meta.permissions().mode() & 0o111 != 0;
        Entry::copy(path, if executable { 0o755 } else { 0o644 }, from)
    } else {
        bail!("{} is neither folder nor file nor link", from.display());
    })
}

/// The entry for a member of the archive `tar`, below `prefix`; none for the archive's top. A file's content stays in the archive.
///
/// # Errors
/// If its path leads upwards, or it is a device.
pub(crate) fn from_member(member: Member, tar: &Path, prefix: &str) -> Result<Option<Entry>> {
    let (uid, gid) = (u32::try_from(member.uid)?, u32::try_from(member.gid)?);
    let inside = plain(&member.path)?;
    let path = format!("{prefix}{inside}");
    if path.is_empty() {
        return Ok(None);
    }
    let link = String::from_utf8(member.link)?;
    let kind = member.kind;
    let kind = if kind.is_dir() {
        Kind::Directory
    } else if kind.is_symlink() {
        Kind::Symlink(link)
    } else if kind.is_hard_link() {
        Kind::HardLink(format!("{prefix}{}", plain(link.as_bytes())?))
    } else if kind.is_file() {
        Kind::File(Source::Range {
            file: tar.to_owned(),
            offset: member.offset,
            size: member.size,
        })
    } else {
        bail!("{path} is of type {kind:?}, which an image does not have");
    };
    Ok(Some(Entry {
        path,
        mode: member.mode,
        uid,
        gid,
        kind,
        xattrs: member.xattrs,
    }))
}

/// `./usr/bin/` as `/usr/bin`, the root as an empty text.
///
/// # Errors
/// If it is not UTF-8 or has a `..`.
pub(crate) fn plain(path: &[u8]) -> Result<String> {
    let text = std::str::from_utf8(path).context("a path that is not UTF-8")?;
    let mut plain = String::new();
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." => bail!("the path {text:?} leads upwards"),
            part => {
                plain.push('/');
                plain.push_str(part);
            }
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::stream::{Form, Stream};

    #[test]
    fn a_tar_archive_becomes_a_layer_and_a_folder_too() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache")).unwrap();
        let path = folder.path().join("a.tar");
        let mut file = Entry::file("/d/f", 0o4711, "");
        file.uid = 5;
        file.xattrs = vec![("security.capability".into(), vec![1, 2])];
        let mut stream = Stream::new(File::create(&path).unwrap());
        stream
            .header(&Entry::directory("/", 0o755), Form::Directory, 0)
            .unwrap();
        stream
            .header(&Entry::directory("/d", 0o700), Form::Directory, 0)
            .unwrap();
        stream.header(&file, Form::File(3), 0).unwrap();
        stream.content(&mut &b"abc"[..], 3).unwrap();
        stream
            .header(&Entry::file("/h", 0o4711, ""), Form::HardLink("/d/f"), 0)
            .unwrap();
        stream
            .header(&Entry::symlink("/s", ""), Form::Symlink("../x"), 0)
            .unwrap();
        stream.end().unwrap();
        stream.into_inner().unwrap();
        let layer = Layer::from_tar(&cache, &path, "/p").unwrap();
        let paths: Vec<&str> = layer.entries.iter().map(|e| e.path.as_str()).collect();
        assert_eq!(paths, ["/p", "/p/d", "/p/d/f", "/p/h", "/p/s"]);
        let found = &layer.entries[2];
        assert_eq!(
            (found.mode, found.uid, &found.xattrs),
            (0o4711, 5, &file.xattrs)
        );
        let Kind::File(Source::Range { offset, size, .. }) = found.kind else {
            panic!("no range")
        };
        let bytes = fs::read(&path).unwrap();
        let at = usize::try_from(offset).unwrap();
        assert_eq!((&bytes[at..at + 3], size), (&b"abc"[..], 3));
        assert_eq!(layer.entries[3].kind, Kind::HardLink("/p/d/f".into()));

        let tree = folder.path().join("tree");
        fs::create_dir_all(tree.join("sub")).unwrap();
        fs::write(tree.join("sub/run"), "#!").unwrap();
        fs::set_permissions(tree.join("sub/run"), fs::Permissions::from_mode(0o700)).unwrap();
        let layer = Layer::from_tree(&cache, &tree, "/usr").unwrap();
        let seen: Vec<(&str, u32)> = layer
            .entries
            .iter()
            .map(|e| (e.path.as_str(), e.mode))
            .collect();
        assert_eq!(seen, [("/usr/sub", 0o755), ("/usr/sub/run", 0o755)]);
    }
}
