//! The tree that packages are unpacked into. No path of a package leads out of it.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{Gid, Uid, fchown};

use super::overrides::Stat;

/// Folders of a merged `/usr`, and the links at the top that lead into it.
pub(super) const MERGED: &[(&str, &str)] = &[
    ("bin", "usr/bin"),
    ("sbin", "usr/sbin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib64"),
];
/// How many symbolic links a path may lead through, as on Linux.
const LINKS: usize = 40;
/// Mount points of every tree.
const PLACES: &[(&str, u32)] = &[
    ("proc", 0o555),
    ("sys", 0o555),
    ("dev", 0o755),
    ("run", 0o755),
    ("tmp", 0o1777),
    ("etc", 0o755),
];

/// A folder of a package.
#[derive(Clone, Copy, Debug)]
pub(super) struct Folder {
    /// The first package that has it, in the order of the installation.
    pub(super) package: usize,
    pub(super) rank: usize,
    pub(super) wave: usize,
    /// Its mode and owner, unless it was there before the wave: dpkg leaves those as they are.
    stat: Option<Stat>,
}

/// A tree, shared by the threads that write to it.
#[derive(Debug)]
pub(super) struct Target {
    root: OwnedFd,
    folders: Mutex<BTreeMap<String, Folder>>,
    /// Folders that are new in this wave.
    made: Mutex<HashSet<String>>,
}

impl Target {
    /// Creates the skeleton in `root`, which must be empty or absent: `/usr` is merged before the first package.
    pub(super) fn new(root: &Path) -> Result<Self> {
        fs::create_dir_all(root)?;
        fs::set_permissions(root, Permissions::from_mode(0o755))?;
        for (name, mode) in PLACES {
            make(&root.join(name), *mode)?;
        }
        make(&root.join("usr"), 0o755)?;
        for (link, target) in MERGED {
            make(&root.join(target), 0o755)?;
            std::os::unix::fs::symlink(target, root.join(link))?;
        }
        let made = PLACES.iter().map(|(name, _)| *name);
        let made = made.chain(MERGED.iter().map(|(_, target)| *target));
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_PATH;
        Ok(Self {
            root: openat(AT_FDCWD, root, flags, Mode::empty())?,
            folders: Mutex::default(),
            made: Mutex::new(made.chain(["", "usr"]).map(str::to_owned).collect()),
        })
    }

    /// Opens a folder of the tree; links in the path are followed as if the tree were the root.
    pub(super) fn folder(&self, path: &str) -> nix::Result<OwnedFd> {
        self.open(path, OFlag::O_PATH)
    }

    fn open(&self, path: &str, flags: OFlag) -> nix::Result<OwnedFd> {
        let how = OpenHow::new()
            .flags(OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | flags)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT);
        openat2(&self.root, if path.is_empty() { "." } else { path }, how)
    }

    /// Opens a folder, creating it and its parents if absent.
    pub(super) fn folder_made(&self, path: &str) -> Result<OwnedFd> {
        match self.folder(path) {
            Err(Errno::ENOENT) => {}
            other => return other.with_context(|| format!("opening /{path}")),
        }
        let (parent, name) = split(path);
        let parent = self.folder_made(parent)?;
        {
            // Held while the folder is made: who finds it must find it in the list too.
            let mut made = lock(&self.made);
            match mkdirat(&parent, name, Mode::from_bits_truncate(0o755)) {
                Ok(()) => drop(made.insert(path.to_owned())),
                Err(Errno::EEXIST) => {}
                Err(error) => return Err(error).with_context(|| format!("making /{path}")),
            }
        }
        self.folder(path)
            .with_context(|| format!("opening /{path}"))
    }

    /// The package that has a folder.
    pub(super) fn owner(&self, path: &str) -> Option<Folder> {
        lock(&self.folders).get(path).copied()
    }

    /// Notes the folder of a package, which is there by now; [`Target::finish`] sets its mode and owner.
    pub(super) fn note(
        &self,
        path: &str,
        (package, rank, wave): (usize, usize, usize),
        stat: Stat,
    ) {
        let stat = lock(&self.made).contains(path).then_some(stat);
        let ours = Folder {
            package,
            rank,
            wave,
            stat,
        };
        let mut folders = lock(&self.folders);
        let entry = folders.entry(path.to_owned()).or_insert(ours);
        if rank < entry.rank {
            *entry = ours;
        }
    }

    /// Gives every folder of a wave its mode and owner, deepest first, so that none becomes inaccessible before its
    /// content is done.
    pub(super) fn finish(&self, wave: usize) -> Result<()> {
        let folders = lock(&self.folders);
        let new = folders
            .iter()
            .rev()
            .filter(|(_, folder)| folder.wave == wave);
        for (path, stat) in new.filter_map(|(path, folder)| Some((path, folder.stat?))) {
            let about = || format!("setting the owner of /{path}");
            let opened = self.open(path, OFlag::O_RDONLY).with_context(about)?;
            if (stat.uid, stat.gid) != (0, 0) {
                let owner = (Uid::from_raw(stat.uid), Gid::from_raw(stat.gid));
                fchown(&opened, Some(owner.0), Some(owner.1)).with_context(about)?;
            }
            File::from(opened).set_permissions(Permissions::from_mode(stat.mode))?;
        }
        lock(&self.made).clear();
        Ok(())
    }
}

fn make(path: &Path, mode: u32) -> Result<()> {
    fs::create_dir(path).with_context(|| format!("making {}", path.display()))?;
    Ok(fs::set_permissions(path, Permissions::from_mode(mode))?)
}

/// The path on the host of a file or folder of a tree, without links: they are followed as if the tree were the root, since a script
/// may have made one that leads to the host's files. None if nothing is there.
pub(super) fn real(root: &Path, path: &Path) -> Result<Option<PathBuf>> {
    let reversed = |path: &Path| -> Vec<OsString> {
        let parts = path.components().rev();
        parts.map(|part| part.as_os_str().to_owned()).collect()
    };
    let mut inside = PathBuf::new();
    let mut rest = reversed(path);
    let mut links = 0;
    while let Some(part) = rest.pop() {
        match part.as_encoded_bytes() {
            b"/" => inside.clear(),
            b"." => {}
            b".." => {
                inside.pop();
            }
            _ => {
                let next = inside.join(&part);
                let full = root.join(&next);
                match fs::symlink_metadata(&full) {
                    Ok(meta) if meta.is_symlink() => {
                        links += 1;
                        if links > LINKS {
                            return Ok(None);
                        }
                        rest.extend(reversed(&fs::read_link(&full)?));
                    }
                    Ok(_) => inside = next,
                    Err(error) => match error.kind() {
                        ErrorKind::NotFound | ErrorKind::NotADirectory => return Ok(None),
                        _ => {
                            return Err(error)
                                .with_context(|| format!("looking at {}", full.display()));
                        }
                    },
                }
            }
        }
    }
    Ok(Some(root.join(inside)))
}

/// The path on the host of a folder of a tree, as [`real`]; none if it is absent, or not a folder.
pub(super) fn real_folder(root: &Path, path: &Path) -> Result<Option<PathBuf>> {
    Ok(real(root, path)?.filter(|path| path.is_dir()))
}

/// The path on the host of a name in a tree, which may be absent or a link: only its folder is that of [`real`]. None without the folder.
pub(super) fn real_name(root: &Path, path: &Path) -> Result<Option<PathBuf>> {
    match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) => Ok(real_folder(root, folder)?.map(|path| path.join(name))),
        _ => real(root, path),
    }
}

/// A path's parent and last part.
pub(super) fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Ignores a poisoned lock: the panic of its holder ends the build.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_as_if_the_tree_were_the_root() {
        let place = tempfile::tempdir().unwrap();
        let outside = place.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "").unwrap();
        let root = place.path().join("root");
        fs::create_dir_all(root.join("usr/lib/app")).unwrap();
        fs::write(root.join("usr/lib/app/file"), "").unwrap();
        let link = |target: &str, name: &str| symlink(target, root.join(name)).unwrap();
        link("usr/lib", "lib");
        link("/lib/app", "app");
        link("../../../../lib/app/file", "usr/lib/up");
        link(outside.to_str().unwrap(), "out");
        link("../outside", "upwards");
        link("loop", "loop");
        let found = |path: &str| real(&root, path.as_ref()).unwrap();
        let file = Some(root.join("usr/lib/app/file"));
        for path in ["app/file", "/app/./file", "usr/lib/up", "../lib/app/file"] {
            assert_eq!(found(path), file, "{path}");
        }
        for path in ["out", "out/file", "upwards/file", "loop", "app/file/x", "x"] {
            assert_eq!(found(path), None, "{path}");
        }
        let name = |path: &str| real_name(&root, path.as_ref()).unwrap();
        assert_eq!(name("app/new"), Some(root.join("usr/lib/app/new")));
        assert_eq!(name("out"), Some(root.join("out")));
        assert_eq!(name("out/file"), None);
        assert_eq!(name("app/file/x"), None);
        assert_eq!(real_folder(&root, "app/file".as_ref()).unwrap(), None);
    }
}
