//! The files of two roots: both are unpacked, and their trees are walked side by side.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use image::layout::LABEL_ROOT_A;
use serde::Serialize;

use crate::host::cache::remove;
use crate::host::session::Session;
use crate::host::tree::{self, Item};
use crate::inspect::{self, Report};
use crate::install::tools::Tools;

/// Bytes that are compared at once.
const CHUNK: usize = 1 << 16;
/// Without this option fsck.erofs leaves extended attributes out.
const WITH_ATTRIBUTES: &[&str] = &["--xattrs"];

/// A path that the images have otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileChange {
    /// Absolute path in the root.
    pub path: String,
    /// Bytes in the first image; absent if it is not there. A folder has the bytes of the files below it if it is new or gone.
    pub from: Option<u64>,
    /// Bytes in the second image.
    pub to: Option<u64>,
    /// What differs, if both have it: type, content, target, mode, owner, attributes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub what: Vec<&'static str>,
    /// How many paths this stands for.
    #[serde(skip)]
    pub(super) count: usize,
}

/// Compares the roots of two images.
pub(super) fn compare(
    session: &Session,
    tools: &Tools,
    from: (&Path, &Report),
    to: (&Path, &Report),
) -> Result<Vec<FileChange>> {
    let scratch = session.cache.scratch()?;
    let step = session.progress.step("files");
    let mut trees = Vec::new();
    let mut without = None;
    for (name, (path, report)) in [("from", from), ("to", to)] {
        step.note(&format!("unpacking {}", path.display()));
        let about = || format!("unpacking the root of {}", path.display());
        let erofs = copy_root(path, report, scratch.path(), name).with_context(about)?;
        let tree = scratch.path().join(name);
        if let Err(error) = unpack(tools, scratch.path(), name, WITH_ATTRIBUTES) {
            remove(&tree)?;
            unpack(tools, scratch.path(), name, &[]).with_context(about)?;
            without = Some(error);
        }
        fs::remove_file(erofs)?;
        trees.push(tree::walk(&tree)?);
    }
    if let Some(error) = &without {
        session.progress.warn(&format!(
            "extended attributes are not compared: the cache's file system does not take them: {error:#}"
        ));
    }
    step.note("comparing");
    let to = trees.pop().unwrap_or_default();
    let from = trees.pop().unwrap_or_default();
    let changes = changes(&from, &to, without.is_none())?;
    step.made(None);
    Ok(changes)
}

/// Copies the root of an image to a file in `scratch`.
fn copy_root(image: &Path, report: &Report, scratch: &Path, name: &str) -> Result<PathBuf> {
    let disk = report.disk.as_ref();
    let partition = disk.and_then(|disk| {
        let mut all = disk.partitions.iter();
        all.find(|partition| partition.label == LABEL_ROOT_A)
    });
    let partition = partition.with_context(|| {
        format!("it has no partition {LABEL_ROOT_A}; --no-files compares the rest")
    })?;
    let mut disk = inspect::open(image)?;
    disk.seek(SeekFrom::Start(partition.offset))?;
    let path = scratch.join(format!("{name}.erofs"));
    let mut file = File::create(&path)?;
    io::copy(&mut disk.take(partition.size), &mut file).context("copying the partition")?;
    Ok(path)
}

/// Unpacks the copy of a root, into a folder beside it.
fn unpack(tools: &Tools, scratch: &Path, name: &str, options: &[&str]) -> Result<()> {
    tools
        .sandbox()
        .bind(scratch, "/work")
        .command("fsck.erofs")
        .args(options)
        .arg(format!("--extract=/work/{name}"))
        .arg(format!("/work/{name}.erofs"))
        .run()?;
    Ok(())
}

/// The paths that differ, sorted.
fn changes(from: &[Item], to: &[Item], with_attributes: bool) -> Result<Vec<FileChange>> {
    let index = |items: &'_ [Item]| -> BTreeMap<String, Item> {
        let items = items.iter();
        items
            .map(|item| (item.inside.clone(), item.clone()))
            .collect()
    };
    let (old, new) = (index(from), index(to));
    let size = |item: &Item| match item.meta.is_file() {
        true => item.meta.len(),
        false => 0,
    };
    let mut changes = Vec::new();
    for (path, one) in &old {
        let two = new.get(path);
        let what = match two {
            Some(two) => differences(one, two, with_attributes)?,
            None => Vec::new(),
        };
        if two.is_none() || !what.is_empty() {
            changes.push(FileChange {
                path: path.clone(),
                from: Some(size(one)),
                to: two.map(size),
                what,
                count: 1,
            });
        }
    }
    let added = new.iter().filter(|(path, _)| !old.contains_key(*path));
    changes.extend(added.map(|(path, item)| FileChange {
        path: path.clone(),
        from: None,
        to: Some(size(item)),
        what: Vec::new(),
        count: 1,
    }));
    changes.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(changes)
}

/// What two paths have otherwise. The times of all files are that of the lock.
fn differences(one: &Item, two: &Item, with_attributes: bool) -> Result<Vec<&'static str>> {
    let (old, new) = (&one.meta, &two.meta);
    let kind = |item: &Item| {
        let kind = item.meta.file_type();
        (
            kind.is_file(),
            kind.is_dir(),
            kind.is_symlink(),
            kind.is_fifo(),
        )
    };
    if kind(one) != kind(two) {
        return Ok(vec!["type"]);
    }
    let mut what = Vec::new();
    if old.is_file() && (old.len() != new.len() || !same_bytes(&one.path, &two.path)?) {
        what.push("content");
    }
    if old.is_symlink() && fs::read_link(&one.path)? != fs::read_link(&two.path)? {
        what.push("target");
    }
    if !old.is_symlink() && old.permissions().mode() != new.permissions().mode() {
        what.push("mode");
    }
    if (old.uid(), old.gid()) != (new.uid(), new.gid()) {
        what.push("owner");
    }
    if with_attributes && attributes(&one.path)? != attributes(&two.path)? {
        what.push("attributes");
    }
    Ok(what)
}

/// The extended attributes of a file or folder, but for labels, which the host gives to every file by its own policy. In a user
/// namespace the kernel writes a capability with the namespace's root, and reads it back without.
fn attributes(path: &Path) -> Result<BTreeMap<OsString, Vec<u8>>> {
    let mut found = BTreeMap::new();
    if fs::symlink_metadata(path)?.is_symlink() {
        return Ok(found);
    }
    let about = || format!("reading the extended attributes of {}", path.display());
    let names = match xattr::list(path) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::Unsupported => return Ok(found),
        Err(error) => return Err(error).with_context(about),
    };
    for name in names.filter(|name| name != "security.selinux") {
        if let Some(value) = xattr::get(path, &name).with_context(about)? {
            found.insert(name, value);
        }
    }
    Ok(found)
}

fn same_bytes(one: &Path, two: &Path) -> Result<bool> {
    let about = |path: &Path| format!("reading {}", path.display());
    let mut one_file = File::open(one).with_context(|| about(one))?;
    let mut two_file = File::open(two).with_context(|| about(two))?;
    let (mut left, mut right) = (vec![0; CHUNK], vec![0; CHUNK]);
    loop {
        let count = one_file.read(&mut left).with_context(|| about(one))?;
        if count == 0 {
            return Ok(true);
        }
        let (left, right) = (&left[..count], &mut right[..count]);
        two_file.read_exact(right).with_context(|| about(two))?;
        if left != right {
            return Ok(false);
        }
    }
}

/// The changes for people: a folder that is new or gone stands for all below it.
pub(super) fn summed(changes: &[FileChange]) -> Vec<FileChange> {
    let mut told: Vec<FileChange> = Vec::new();
    for change in changes {
        let whole = |change: &FileChange| (change.from.is_none(), change.to.is_none());
        if let Some(folder) = told.last_mut()
            && change.what.is_empty()
            && whole(folder) == whole(change)
            && change.path.starts_with(&format!("{}/", folder.path))
        {
            folder.count += 1;
            let (from, to) = (
                change.from.unwrap_or_default(),
                change.to.unwrap_or_default(),
            );
            folder.from = folder.from.map(|bytes| bytes + from);
            folder.to = folder.to.map(|bytes| bytes + to);
        } else {
            told.push(change.clone());
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn tree(files: &[(&str, &str, u32)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text, mode) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match text.strip_prefix('>') {
                Some(target) => symlink(target, &path).unwrap(),
                None => {
                    fs::write(&path, text).unwrap();
                    fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).unwrap();
                }
            }
        }
        folder
    }

    #[test]
    fn each_kind_of_difference_is_named_once() {
        let one = tree(&[
            ("same", "a", 0o644),
            ("content", "a", 0o644),
            ("longer", "a", 0o644),
            ("mode", "a", 0o644),
            ("link", ">x", 0),
            ("type", "a", 0o644),
            ("gone/deep/file", "abc", 0o644),
        ]);
        let two = tree(&[
            ("same", "a", 0o644),
            ("content", "b", 0o644),
            ("longer", "aa", 0o644),
            ("mode", "a", 0o755),
            ("link", ">y", 0),
            ("type", ">a", 0),
            ("new", "12345", 0o644),
        ]);
        xattr::set(one.path().join("same"), "user.note", b"a").unwrap();
        for tree in [&one, &two] {
            xattr::set(tree.path().join("mode"), "user.note", b"a").unwrap();
        }
        let walk = |tree: &tempfile::TempDir| tree::walk(tree.path()).unwrap();
        let found = changes(&walk(&one), &walk(&two), true).unwrap();
        let told: Vec<String> = summed(&found).iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "~ /content content",
                "- /gone 3 B, 3 paths",
                "~ /link target",
                "~ /longer content, 1 B → 2 B",
                "~ /mode mode",
                "+ /new 5 B",
                "~ /same attributes",
                "~ /type type, 1 B → 0 B",
            ]
        );
        assert_eq!(found.len(), 10);
        assert!(changes(&walk(&one), &walk(&one), true).unwrap().is_empty());
        // Where they cannot be written, nothing is said of them.
        let found = changes(&walk(&one), &walk(&two), false).unwrap();
        assert_eq!(found.len(), 9);
    }
}
