//! Unpacks a layer of an OCI image into a folder, and nowhere else.
//!
//! <https://github.com/opencontainers/image-spec/blob/v1.1.1/layer.md>. An image is somebody else's input although its digest is
//! right: no name leads out of the folder or through a link, no device is made, no file gives other rights. Everything belongs
//! to root: the kubelet's container has no other user. Extended attributes are not kept.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use tar::{Archive, Entry, EntryType};

/// The prefix of a name that removes another one.
const WHITEOUT: &[u8] = b".wh.";
/// The name that removes all that lower layers have in its folder.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Unpacks a layer over those below it. `open` gives its tar stream from the start; of a layer that is not the lowest it is read
/// twice, since what it removes is removed first. `room` is how many bytes may still be written.
///
/// # Errors
/// Names the entry that is refused or cannot be written.
pub(crate) fn unpack<R: Read>(
    open: impl Fn() -> Result<R>,
    root: &Path,
    is_lowest: bool,
    room: &mut u64,
) -> Result<()> {
    if !is_lowest {
        for entry in Archive::new(open()?).entries()? {
            let entry = entry.context("reading the tar stream")?;
            let path = plain(&entry.path_bytes())?;
            remove(root, &path).with_context(|| named(&path))?;
        }
    }
    for entry in Archive::new(open()?).entries()? {
        let mut entry = entry.context("reading the tar stream")?;
        let path = plain(&entry.path_bytes())?;
        let name = path.file_name().unwrap_or_default();
        if !name.as_bytes().starts_with(WHITEOUT) {
            put(root, &path, &mut entry, room).with_context(|| named(&path))?;
        }
    }
    Ok(())
}

fn named(path: &Path) -> String {
    format!("the layer's entry {}", path.display())
}

/// A path inside the folder, without a leading slash; empty for the folder itself.
fn plain(bytes: &[u8]) -> Result<PathBuf> {
    let path = PathBuf::from(std::ffi::OsString::from_vec(bytes.to_vec()));
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(part) => plain.push(part),
            Component::ParentDir | Component::Prefix(_) => bail!(
                "the layer's entry {} leads out of the image",
                path.display()
            ),
        }
    }
    ensure!(!bytes.contains(&0), "a name with a zero byte in it");
    Ok(plain)
}

/// The place of a path, whose folders are made if they are absent. None of them may be a link: it could lead anywhere.
fn place(root: &Path, path: &Path) -> Result<PathBuf> {
    let mut at = root.to_owned();
    for part in path.parent().into_iter().flat_map(Path::components) {
        at.push(part);
        match fs::symlink_metadata(&at) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => bail!(
                "it leads through {}, which is not a folder",
                shown(root, &at)
            ),
            Err(error) if error.kind() == ErrorKind::NotFound => make_folder(&at, 0o755)?,
            Err(error) => return Err(error).with_context(|| shown(root, &at)),
        }
    }
    Ok(root.join(path))
}

fn shown(root: &Path, path: &Path) -> String {
    let inside = path.strip_prefix(root).unwrap_or(path);
    format!("/{}", inside.display())
}

/// Removes what a whiteout names in the layers below; does nothing for other entries.
fn remove(root: &Path, path: &Path) -> Result<()> {
    let name = path.file_name().unwrap_or_default().as_bytes();
    let Some(gone) = name.strip_prefix(WHITEOUT) else {
        return Ok(());
    };
    let folder = place(root, path)?;
    let folder = folder.parent().unwrap_or(root);
    if name == OPAQUE {
        for entry in fs::read_dir(folder)? {
            clear(&entry?.path())?;
        }
        return Ok(());
    }
    let gone = Path::new(std::ffi::OsStr::from_bytes(gone));
    let is_name = matches!(
        gone.components().collect::<Vec<_>>()[..],
        [Component::Normal(_)]
    );
    ensure!(is_name, "it removes no name");
    clear(&folder.join(gone))
}

/// Removes a file, a link or a folder with its content, if it exists.
fn clear(path: &Path) -> Result<()> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    match found.is_dir() {
        true => fs::remove_dir_all(path)?,
        false => fs::remove_file(path)?,
    }
    Ok(())
}

fn put<R: Read>(root: &Path, path: &Path, entry: &mut Entry<'_, R>, room: &mut u64) -> Result<()> {
    let kind = entry.header().entry_type();
    if kind == EntryType::XGlobalHeader {
        return Ok(());
    }
    let mode = entry.header().mode()?;
    let at = place(root, path)?;
    let is_folder = fs::symlink_metadata(&at).is_ok_and(|found| found.is_dir());
    if kind == EntryType::Directory {
        if !is_folder {
            clear(&at)?;
            make_folder(&at, 0o755)?;
        }
        return Ok(fs::set_permissions(
            &at,
            Permissions::from_mode(mode & 0o1777),
        )?);
    }
    ensure!(!path.as_os_str().is_empty(), "the root is not a folder");
    clear(&at)?;
    match kind {
        EntryType::Regular | EntryType::Continuous => {
            let size = entry.size();
            *room = room
                .checked_sub(size)
                .context("the image is larger than is allowed")?;
            file(&at, entry, size, mode & 0o777)
        }
        EntryType::Symlink => {
            let target = entry.link_name_bytes().context("a link without a target")?;
            Ok(symlink(std::ffi::OsStr::from_bytes(&target), &at)?)
        }
        EntryType::Link => {
            let target = entry.link_name_bytes().context("a link without a target")?;
            let target = plain(&target)?;
            let from = place(root, &target)?;
            let is_file = fs::symlink_metadata(&from).is_ok_and(|found| found.is_file());
            ensure!(is_file, "its target /{} is not a file", target.display());
            Ok(fs::hard_link(from, &at)?)
        }
        EntryType::Char | EntryType::Block => bail!("it is a device; expected none in the image"),
        other => bail!("entries of type {other:?} are not expected in the image"),
    }
}

fn make_folder(path: &Path, mode: u32) -> Result<()> {
    let made = DirBuilder::new().mode(mode).create(path);
    made.with_context(|| format!("making the folder {}", path.display()))
}

fn file(path: &Path, content: &mut impl Read, size: u64, mode: u32) -> Result<()> {
    let mut options = File::options();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let written = io::copy(content, &mut file)?;
    ensure!(
        written == size,
        "the stream ends after {written} of {size} bytes"
    );
    Ok(file.set_permissions(Permissions::from_mode(mode))?)
}

#[cfg(test)]
mod tests {
    use tar::{Builder, Header};

    use super::*;

    /// A tar stream of (type, name, content or target, mode).
    fn stream(entries: &[(EntryType, &str, &str, u32)]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (kind, name, text, mode) in entries {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(*mode);
            // Not by its own function, which refuses what is tested here.
            header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
            let is_link = matches!(kind, EntryType::Symlink | EntryType::Link);
            let content = if is_link { "" } else { text };
            if is_link {
                header.as_mut_bytes()[157..157 + text.len()].copy_from_slice(text.as_bytes());
            }
            header.set_size(content.len() as u64);
            header.set_cksum();
            builder.append(&header, content.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn unpacked(root: &Path, layer: &[u8], is_lowest: bool) -> Result<()> {
        unpack(|| Ok(layer), root, is_lowest, &mut 1000)
    }

    use EntryType::{Block, Char, Directory, Fifo, Link, Regular, Symlink};

    #[test]
    fn files_links_and_folders_are_there_without_the_bits_that_give_rights() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let layer = stream(&[
            (Directory, "./", "", 0o755),
            (Directory, "./usr", "", 0o2755),
            (Regular, "/usr/su", "program", 0o4755),
            (Link, "usr/su2", "./usr/su", 0),
            (Symlink, "etc/hosts", "../host/etc/hosts", 0o777),
            (Directory, "tmp", "", 0o1777),
        ]);
        unpacked(root, &layer, true).unwrap();
        let mode = |path: &str| {
            fs::symlink_metadata(root.join(path))
                .unwrap()
                .permissions()
                .mode()
        };
        assert_eq!(mode("usr/su") & 0o7777, 0o755);
        assert_eq!(mode("usr") & 0o7777, 0o755);
        assert_eq!(mode("tmp") & 0o7777, 0o1777);
        assert_eq!(fs::read_to_string(root.join("usr/su2")).unwrap(), "program");
        let link = fs::read_link(root.join("etc/hosts")).unwrap();
        assert_eq!(link, Path::new("../host/etc/hosts"));
    }

    #[test]
    fn an_upper_layer_removes_and_replaces() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let lower = stream(&[
            (Regular, "a/gone", "1", 0o644),
            (Regular, "a/kept", "1", 0o644),
            (Regular, "b/all/gone", "1", 0o644),
            (Regular, "c/link", "1", 0o644),
            (Regular, "d", "1", 0o644),
        ]);
        let upper = stream(&[
            // What it removes is below it, whatever the order.
            (Regular, "a/again", "2", 0o644),
            (Regular, "a/.wh.gone", "", 0o644),
            (Regular, "a/.wh.never", "", 0o644),
            (Regular, "b/new", "2", 0o644),
            (Regular, "b/.wh..wh..opq", "", 0o644),
            (Symlink, "c", "a", 0o777),
            (Directory, "d", "", 0o755),
        ]);
        unpacked(root, &lower, true).unwrap();
        unpacked(root, &upper, false).unwrap();
        let there = |path: &str| fs::symlink_metadata(root.join(path)).is_ok();
        assert!(!there("a/gone") && there("a/kept") && there("a/again"));
        assert!(!there("b/all") && there("b/new"));
        assert!(fs::symlink_metadata(root.join("c")).unwrap().is_symlink());
        assert!(root.join("d").is_dir());
        assert!(!there("a/.wh.gone") && !there("b/.wh..wh..opq"));
    }

    #[test]
    fn nothing_leads_out_of_the_folder() {
        for (entries, expected) in [
            (
                vec![(Regular, "../out", "x", 0o644)],
                "leads out of the image",
            ),
            (
                vec![(Regular, "a/../../out", "x", 0o644)],
                "leads out of the image",
            ),
            (vec![(Link, "l", "../out", 0)], "leads out of the image"),
            (
                vec![(Symlink, "l", "..", 0), (Regular, "l/out", "x", 0o644)],
                "leads through /l, which is not a folder",
            ),
            (
                vec![(Symlink, "l", "/etc", 0), (Link, "x", "l/passwd", 0)],
                "leads through /l",
            ),
            (
                vec![(Symlink, "l", "../out", 0), (Link, "x", "l", 0)],
                "its target /l is not a file",
            ),
            (vec![(Regular, "l/.wh...", "", 0)], "it removes no name"),
            (vec![(Regular, "l/.wh.", "", 0)], "it removes no name"),
            (vec![(Char, "dev/null", "", 0o666)], "it is a device"),
            (vec![(Block, "dev/sda", "", 0o666)], "it is a device"),
            (vec![(Fifo, "f", "", 0o666)], "are not expected"),
            (vec![(Regular, "", "x", 0o644)], "not a folder"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().join("root");
            fs::create_dir(&root).unwrap();
            fs::write(folder.path().join("out"), "untouched").unwrap();
            let error = unpacked(&root, &stream(&entries), false).unwrap_err();
            let error = format!("{error:#}");
            assert!(error.contains(expected), "{entries:?}: {error}");
            let outside = fs::read_to_string(folder.path().join("out")).unwrap();
            assert_eq!(outside, "untouched", "{entries:?}");
        }
    }

    #[test]
    fn a_link_in_a_files_place_is_replaced_and_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::write(folder.path().join("out"), "untouched").unwrap();
        let layer = stream(&[(Symlink, "l", "../out", 0), (Regular, "l", "new", 0o644)]);
        unpacked(&root, &layer, true).unwrap();
        assert_eq!(fs::read_to_string(root.join("l")).unwrap(), "new");
        assert_eq!(
            fs::read_to_string(folder.path().join("out")).unwrap(),
            "untouched"
        );
    }

    #[test]
    fn a_stream_that_is_cut_or_too_large_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let layer = stream(&[(Regular, "a", &"x".repeat(600), 0o644)]);
        let error = unpacked(folder.path(), &layer[..700], true).unwrap_err();
        assert!(format!("{error:#}").contains("entry a"), "{error:#}");
        let large = stream(&[(Regular, "a", &"x".repeat(1001), 0o644)]);
        let error = unpacked(folder.path(), &large, true).unwrap_err();
        assert!(format!("{error:#}").contains("larger than is allowed"));
    }
}
