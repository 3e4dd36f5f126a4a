//! Unpacks packages into a tree, in parallel. The result does not depend on the speed of the threads, and no path
//! of a package leads out of the tree.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, anyhow, bail};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat};
use nix::sys::stat::{Mode, UtimensatFlags, futimens, mkdirat, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{
    Gid, LinkatFlags, Uid, UnlinkatFlags, fchown, fchownat, linkat, symlinkat, unlinkat,
};

use super::deb::{self, ControlFile};
use crate::debian::pinned::Deb;
use crate::debian::relation;

/// Folders of a merged `/usr`, and the links at the top that lead into it.
const MERGED: &[(&str, &str)] = &[
    ("bin", "usr/bin"),
    ("sbin", "usr/sbin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib64"),
];
/// Mount points of every tree.
const PLACES: &[(&str, u32)] = &[
    ("proc", 0o555),
    ("sys", 0o555),
    ("dev", 0o755),
    ("run", 0o755),
    ("tmp", 0o1777),
    ("etc", 0o755),
];

/// An unpacked package.
#[derive(Debug)]
pub(crate) struct Unpacked {
    /// Its control files, `control` among them.
    pub(crate) control: Vec<ControlFile>,
    /// All its paths in dpkg's form (`/.`, `/usr`, …), in the order of the archive.
    pub(crate) paths: Vec<String>,
}

impl Unpacked {
    /// The text of a control file, empty if there is none.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.control
            .iter()
            .find(|file| file.name == name)
            .and_then(|file| std::str::from_utf8(&file.content).ok())
            .unwrap_or_default()
    }

    /// A field of the control file, empty if there is none.
    pub(crate) fn field(&self, name: &str) -> &str {
        deb::field(self.text("control"), name).unwrap_or_default()
    }
}

/// Unpacks all packages into `root` (which must be empty or absent). `wanted` selects the unpacked paths
/// (`usr/share/doc/x`). The result is in the order of `debs`.
pub(crate) fn unpack(
    debs: &[Deb],
    root: &Path,
    wanted: &(dyn Fn(&str) -> bool + Sync),
    on_package: &(dyn Fn(u64) + Sync),
) -> Result<Vec<Unpacked>> {
    prepare(root)?;
    let tree = Tree::open(root)?;
    let mut controls = Vec::new();
    for deb in debs {
        controls.push(
            deb::control(&deb.path).with_context(|| format!("reading {}", deb.path.display()))?,
        );
    }
    let replaces: Vec<Vec<String>> = controls.iter().map(|files| replaced(files)).collect();
    // Big packages first: the last thread to finish determines the time.
    let mut order: Vec<usize> = (0..debs.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(debs[*at].package.size));
    let next = AtomicUsize::new(0);
    let lists = Mutex::new(vec![Vec::new(); debs.len()]);
    let failed: Mutex<Option<anyhow::Error>> = Mutex::new(None);
    let work = || {
        while let Some(&at) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            let deb = &debs[at];
            let mut package = Package {
                tree: &tree,
                at,
                debs,
                replaces: &replaces,
                wanted,
                parent: None,
                buffer: vec![0; 256 << 10],
            };
            match package.unpack(&deb.path) {
                Ok(paths) => lock(&lists)[at] = paths,
                Err(error) => {
                    let error = error.context(format!("unpacking {}", deb.package.name));
                    lock(&failed).get_or_insert(error);
                    next.store(order.len(), Ordering::Relaxed);
                }
            }
            on_package(deb.package.size);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(work);
        }
    });
    if let Some(error) = failed
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
    {
        return Err(error);
    }
    tree.finish(root)?;
    let lists = lists
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    Ok(controls
        .into_iter()
        .zip(lists)
        .map(|(control, paths)| Unpacked { control, paths })
        .collect())
}

/// Ignores a poisoned lock: the panic of its holder ends the build.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Names in the `Replaces` field.
fn replaced(control: &[ControlFile]) -> Vec<String> {
    control
        .iter()
        .find(|file| file.name == "control")
        .and_then(|file| std::str::from_utf8(&file.content).ok())
        .and_then(|text| deb::field(text, "Replaces"))
        .into_iter()
        .flat_map(|list| relation::groups(list).flatten())
        .map(|other| other.name.to_owned())
        .collect()
}

/// Creates the skeleton: `/usr` is merged before the first package.
fn prepare(root: &Path) -> Result<()> {
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
    Ok(())
}

fn make(path: &Path, mode: u32) -> Result<()> {
    fs::create_dir(path).with_context(|| format!("making {}", path.display()))?;
    Ok(fs::set_permissions(path, Permissions::from_mode(mode))?)
}

/// Mode and owner of a folder, from the first package (in the order of the list) that has it.
#[derive(Clone, Copy, Debug)]
struct Folder {
    package: usize,
    mode: u32,
    uid: u32,
    gid: u32,
}

/// The tree being written, shared by the threads.
#[derive(Debug)]
struct Tree {
    root: OwnedFd,
    /// The package that has each path, folders excepted.
    claims: Mutex<HashMap<String, usize>>,
    folders: Mutex<BTreeMap<String, Folder>>,
}

impl Tree {
    fn open(root: &Path) -> Result<Self> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_PATH;
        Ok(Self {
            root: openat(AT_FDCWD, root, flags, Mode::empty())?,
            claims: Mutex::default(),
            folders: Mutex::default(),
        })
    }

    /// Opens a folder of the tree; links in the path are followed as if the tree were the root.
    fn folder(&self, path: &str) -> nix::Result<OwnedFd> {
        let how = OpenHow::new()
            .flags(OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_PATH)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT);
        openat2(&self.root, if path.is_empty() { "." } else { path }, how)
    }

    /// Opens a folder, creating it and its parents if absent.
    fn folder_made(&self, path: &str) -> Result<OwnedFd> {
        match self.folder(path) {
            Err(Errno::ENOENT) => {}
            other => return other.with_context(|| format!("opening /{path}")),
        }
        let (parent, name) = split(path);
        let parent = self.folder_made(parent)?;
        match mkdirat(&parent, name, Mode::from_bits_truncate(0o755)) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(error).with_context(|| format!("making /{path}")),
        }
        self.folder(path)
            .with_context(|| format!("opening /{path}"))
    }

    /// Gives every folder its mode and owner, deepest first, so that none becomes inaccessible before its content is
    /// done.
    fn finish(self, root: &Path) -> Result<()> {
        let folders = self
            .folders
            .into_inner()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        for (path, folder) in folders.iter().rev() {
            let how = OpenHow::new()
                .flags(OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
                .resolve(ResolveFlag::RESOLVE_IN_ROOT);
            let about = || format!("setting the owner of /{path} in {}", root.display());
            let opened = openat2(
                &self.root,
                if path.is_empty() { "." } else { path.as_str() },
                how,
            )
            .with_context(about)?;
            if (folder.uid, folder.gid) != (0, 0) {
                let owner = (Uid::from_raw(folder.uid), Gid::from_raw(folder.gid));
                fchown(&opened, Some(owner.0), Some(owner.1)).with_context(about)?;
            }
            File::from(opened).set_permissions(Permissions::from_mode(folder.mode))?;
        }
        Ok(())
    }
}

/// A path's parent and last part.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// The path of an archive's entry without `./` and slashes at the end; a path with `..` is refused.
fn plain(path: &[u8]) -> Result<String> {
    let text =
        std::str::from_utf8(path).map_err(|_| anyhow!("a path that is not UTF-8: {path:?}"))?;
    let mut parts = Vec::new();
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." => bail!("the path {text:?} leads upwards"),
            part => parts.push(part),
        }
    }
    Ok(parts.join("/"))
}

/// A package that is being unpacked into the tree.
struct Package<'a> {
    tree: &'a Tree,
    at: usize,
    debs: &'a [Deb],
    replaces: &'a [Vec<String>],
    wanted: &'a (dyn Fn(&str) -> bool + Sync),
    /// The folder of the last entry, kept open: most entries are in the same folder as the previous one.
    parent: Option<(String, OwnedFd)>,
    buffer: Vec<u8>,
}

impl Package<'_> {
    fn unpack(&mut self, path: &Path) -> Result<Vec<String>> {
        let mut archive = tar::Archive::new(deb::data(path)?);
        let mut paths = Vec::new();
        for entry in archive.entries()? {
            let mut entry = entry?;
            let path = plain(&entry.path_bytes())?;
            paths.push(format!("/{}", if path.is_empty() { "." } else { &path }));
            if (self.wanted)(&path) {
                self.entry(&mut entry, &path)
                    .with_context(|| format!("writing /{path}"))?;
            }
        }
        Ok(paths)
    }

    fn entry(
        &mut self,
        entry: &mut tar::Entry<'_, Box<dyn Read + Send>>,
        path: &str,
    ) -> Result<()> {
        let header = entry.header();
        let mode = header.mode()? & 0o7777;
        let uid = u32::try_from(header.uid()?)?;
        let gid = u32::try_from(header.gid()?)?;
        let mtime = TimeSpec::new(i64::try_from(header.mtime()?)?, 0);
        let kind = header.entry_type();
        if kind.is_dir() {
            return self.folder(path, mode, uid, gid);
        }
        let (parent, name) = split(path);
        self.enter(parent)?;
        let parent = self
            .parent
            .as_ref()
            .map(|(_, fd)| fd.as_fd())
            .context("no parent")?;
        if !self.claim(path) {
            return Ok(());
        }
        if kind.is_symlink() {
            let target = link_name(entry)?;
            let made = self.create(path, || symlinkat(Path::new(&target), parent, name))?;
            if made.is_none() {
                return Ok(());
            }
            if (uid, gid) != (0, 0) {
                let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
                fchownat(
                    parent,
                    name,
                    Some(Uid::from_raw(uid)),
                    Some(Gid::from_raw(gid)),
                    flags,
                )?;
            }
            utimensat(
                parent,
                name,
                &mtime,
                &mtime,
                UtimensatFlags::NoFollowSymlink,
            )?;
        } else if kind.is_hard_link() {
            let target = plain(link_name(entry)?.as_os_str().as_encoded_bytes())?;
            let (folder, base) = split(&target);
            let folder = self.tree.folder(folder)?;
            self.create(path, || {
                linkat(&folder, base, parent, name, LinkatFlags::empty())
            })?;
        } else if kind.is_file() || kind.is_gnu_sparse() {
            let flags = OFlag::O_CREAT
                | OFlag::O_EXCL
                | OFlag::O_WRONLY
                | OFlag::O_NOFOLLOW
                | OFlag::O_CLOEXEC;
            let Some(opened) = self.create(path, || {
                openat(parent, name, flags, Mode::from_bits_truncate(0o600))
            })?
            else {
                return Ok(());
            };
            let mut file = File::from(opened);
            deb::copy(entry, &mut file, &mut self.buffer)?;
            if (uid, gid) != (0, 0) {
                fchown(&file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
            }
            file.set_permissions(Permissions::from_mode(mode))?;
            futimens(&file, &mtime, &mtime)?;
        } else {
            bail!("an entry of type {kind:?}, which packages do not have");
        }
        Ok(())
    }

    /// Creates a folder with a permissive mode; `finish` sets its mode and owner.
    fn folder(&mut self, path: &str, mode: u32, uid: u32, gid: u32) -> Result<()> {
        drop(self.tree.folder_made(path)?);
        let ours = Folder {
            package: self.at,
            mode,
            uid,
            gid,
        };
        let mut folders = lock(&self.tree.folders);
        let entry = folders.entry(path.to_owned()).or_insert(ours);
        if self.at < entry.package {
            *entry = ours;
        }
        Ok(())
    }

    fn enter(&mut self, parent: &str) -> Result<()> {
        if self.parent.as_ref().is_none_or(|(path, _)| path != parent) {
            self.parent = Some((parent.to_owned(), self.tree.folder_made(parent)?));
        }
        Ok(())
    }

    /// Whether this package may write the path: the first package may, unless another one replaces it, or comes later
    /// in the list without being replaced by it.
    fn claim(&self, path: &str) -> bool {
        let mut claims = lock(&self.tree.claims);
        match claims.get(path) {
            Some(&other) if other != self.at && !self.beats(other) => false,
            _ => {
                claims.insert(path.to_owned(), self.at);
                true
            }
        }
    }

    fn beats(&self, other: usize) -> bool {
        let replaces =
            |one: usize, two: usize| self.replaces[one].contains(&self.debs[two].package.name);
        replaces(self.at, other) || (!replaces(other, self.at) && self.at > other)
    }

    /// Creates a file by `make`, removing that of another package unless the other one has taken over the path. Gives
    /// `None` in that case.
    fn create<T>(&self, path: &str, make: impl Fn() -> nix::Result<T>) -> Result<Option<T>> {
        let (_, name) = split(path);
        let parent = self
            .parent
            .as_ref()
            .map(|(_, fd)| fd)
            .context("no parent")?;
        loop {
            match make() {
                Ok(made) => return Ok(Some(made)),
                Err(Errno::EEXIST) => {}
                Err(error) => return Err(error.into()),
            }
            if lock(&self.tree.claims).get(path) != Some(&self.at) {
                return Ok(None);
            }
            // The links of the merged /usr exist before the package that contains them.
            if MERGED.iter().any(|(link, target)| {
                *link == path && readlinkat(parent, name).is_ok_and(|found| found == *target)
            }) {
                return Ok(None);
            }
            match unlinkat(parent, name, UnlinkatFlags::NoRemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn link_name<R: Read>(entry: &tar::Entry<'_, R>) -> Result<PathBuf> {
    Ok(entry
        .link_name()?
        .context("a link without a target")?
        .into_owned())
}

#[cfg(test)]
mod tests;
