//! Unpacks packages into a tree, in parallel. The result does not depend on the speed of the threads, and no path
//! of a package leads out of the tree.

use std::collections::{HashMap, HashSet};
use std::fs::{File, Permissions};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, anyhow, bail};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{Mode, UtimensatFlags, fstat, futimens, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{
    Gid, LinkatFlags, Uid, UnlinkatFlags, fchown, fchownat, linkat, symlinkat, unlinkat,
};

use super::claims::{Claims, Overlap, Place, Verdict};
use super::deb;
use super::overrides::{Overrides, Stat};
use super::package::Unpacked;
use super::target::{MERGED, Target, lock, split};
use crate::debian::pinned::Deb;
use crate::format::threads;

/// The end of a configuration file's name until its package is configured, as dpkg writes it.
const NEW: &str = ".dpkg-new";

/// Unpacks all packages into `root` (which must be empty or absent), for a tree in which no script runs: a path of two
/// packages has the one that replaces the other, else the later one of the list. `wanted` selects the unpacked paths
/// (`usr/share/doc/x`).
pub(crate) fn unpack(
    debs: &[Deb],
    root: &Path,
    wanted: &(dyn Fn(&str) -> bool + Sync),
) -> Result<()> {
    let mut packages = Unpacked::read(debs)?;
    let all: Vec<usize> = (0..debs.len()).collect();
    let mut tree = Tree::new(root, Overlap::LaterWins, all.clone())?;
    tree.unpack(debs, &mut packages, &all, wanted, &|_| {})?;
    Ok(())
}

/// A tree, and which package has each of its paths.
#[derive(Debug)]
pub(super) struct Tree {
    target: Target,
    claims: Mutex<Claims>,
    /// The position of each package in the order of the installation.
    ranks: Vec<usize>,
    /// What scripts have ordered for the files that are unpacked from now on.
    pub(super) overrides: Overrides,
    /// Whether dpkg puts the configuration files in their places later.
    conffiles: bool,
    wave: usize,
}

impl Tree {
    /// A tree in `root`, which must be empty or absent.
    pub(super) fn new(root: &Path, overlap: Overlap, ranks: Vec<usize>) -> Result<Self> {
        Ok(Self {
            target: Target::new(root)?,
            claims: Mutex::new(Claims::new(overlap, ranks.clone())),
            ranks,
            overrides: Overrides::default(),
            conffiles: overlap == Overlap::Conflict,
            wave: 0,
        })
    }

    /// Unpacks the packages of a wave, and sets their paths. Gives the earlier packages that have lost paths to them.
    pub(super) fn unpack(
        &mut self,
        debs: &[Deb],
        packages: &mut [Unpacked],
        wave: &[usize],
        wanted: &(dyn Fn(&str) -> bool + Sync),
        on_package: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<usize>> {
        // Big packages first: the last thread to finish determines the time.
        let mut order = wave.to_vec();
        order.sort_by_key(|at| std::cmp::Reverse(debs[*at].package.size));
        let next = AtomicUsize::new(0);
        let lists = Mutex::new(Vec::new());
        let failed: Mutex<Option<anyhow::Error>> = Mutex::new(None);
        let work = || {
            while let Some(&at) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                let deb = &debs[at];
                let mut package = Package::new(self, at, packages, wanted);
                match package.unpack(&deb.path) {
                    Ok(paths) => lock(&lists).push((at, paths)),
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
            for _ in 0..threads::number() {
                scope.spawn(work);
            }
        });
        // Before the first error, which may follow from it.
        lock(&self.claims).check()?;
        if let Some(error) = lock(&failed).take() {
            return Err(error);
        }
        for (at, paths) in std::mem::take(&mut *lock(&lists)) {
            packages[at].paths = paths;
        }
        self.target.finish(self.wave)?;
        self.wave += 1;
        Ok(self.without_lost(packages, wave))
    }

    /// Takes from the lists what other packages have taken over, as dpkg does.
    fn without_lost(&self, packages: &mut [Unpacked], wave: &[usize]) -> Vec<usize> {
        let mut earlier = Vec::new();
        for (at, path) in lock(&self.claims).take_lost() {
            packages[at].paths.retain(|found| found[1..] != path);
            if !wave.contains(&at) && !earlier.contains(&at) {
                earlier.push(at);
            }
        }
        earlier
    }
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

/// A folder that is kept open.
#[derive(Debug)]
struct Parent {
    path: String,
    fd: OwnedFd,
    inode: u64,
}

/// What an entry of an archive says of a path, beside its content.
#[derive(Clone, Copy, Debug)]
struct Attributes {
    stat: Stat,
    mtime: TimeSpec,
}

/// A package that is being unpacked into the tree.
struct Package<'a> {
    tree: &'a Tree,
    at: usize,
    packages: &'a [Unpacked],
    name: &'a str,
    conffiles: HashSet<&'a str>,
    wanted: &'a (dyn Fn(&str) -> bool + Sync),
    /// Files that are left out and have other names that are not: the first of these, which has the content.
    stand_ins: HashMap<String, String>,
    /// The folder of the last entry, kept open: most entries are in the same folder as the previous one.
    parent: Option<Parent>,
    buffer: Vec<u8>,
}

impl<'a> Package<'a> {
    fn new(
        tree: &'a Tree,
        at: usize,
        packages: &'a [Unpacked],
        wanted: &'a (dyn Fn(&str) -> bool + Sync),
    ) -> Self {
        let conffiles = packages[at].conffiles().map(|(path, _)| path);
        Self {
            tree,
            at,
            packages,
            name: packages[at].name(),
            conffiles: conffiles.filter(|_| tree.conffiles).collect(),
            wanted,
            stand_ins: HashMap::new(),
            parent: None,
            buffer: vec![0; 256 << 10],
        }
    }

    fn unpack(&mut self, deb: &Path) -> Result<Vec<String>> {
        let mut archive = tar::Archive::new(deb::data(deb)?);
        let mut paths = Vec::new();
        for entry in archive.entries()? {
            let mut entry = entry?;
            let path = plain(&entry.path_bytes())?;
            paths.push(format!("/{}", if path.is_empty() { "." } else { &path }));
            let kind = entry.header().entry_type();
            // Scripts may expect the folders of what is left out, as update-alternatives does.
            if !kind.is_dir() && !(self.wanted)(&path) {
                continue;
            }
            let about = || format!("writing /{path}");
            if kind.is_hard_link() {
                let target = plain(link_name(&entry)?.as_os_str().as_encoded_bytes());
                let target = target.with_context(about)?;
                self.hard_link(&path, target, deb).with_context(about)?;
            } else {
                self.entry(&mut entry, &path).with_context(about)?;
            }
        }
        Ok(paths)
    }

    /// Makes another name of a file. If the file is left out, the first of its other names gets the content.
    fn hard_link(&mut self, path: &str, target: String, deb: &Path) -> Result<()> {
        if (self.wanted)(&target) {
            return self.link(path, &target);
        }
        if let Some(first) = self.stand_ins.get(&target).cloned() {
            return self.link(path, &first);
        }
        // The stream has passed the content, so the package is read once more: few have such links.
        let mut archive = tar::Archive::new(deb::data(deb)?);
        for entry in archive.entries()? {
            let mut entry = entry?;
            let kind = entry.header().entry_type();
            let is_content = !kind.is_dir() && !kind.is_hard_link();
            if is_content && plain(&entry.path_bytes())? == target {
                self.entry(&mut entry, path)?;
                self.stand_ins.insert(target, path.to_owned());
                return Ok(());
            }
        }
        bail!("a link to /{target}, which is not in the package")
    }

    fn link(&mut self, path: &str, target: &str) -> Result<()> {
        let (place, suffix) = self.written(target);
        let (folder, base) = split(place);
        let folder = self.tree.target.folder(folder)?;
        let base = format!("{base}{suffix}");
        self.create(path, |parent, name| {
            linkat(&folder, base.as_str(), parent, name, LinkatFlags::empty())
        })?;
        Ok(())
    }

    /// Writes an entry, which is not a hard link, to a path.
    fn entry(
        &mut self,
        entry: &mut tar::Entry<'_, Box<dyn Read + Send>>,
        path: &str,
    ) -> Result<()> {
        let header = entry.header();
        let given = Stat {
            mode: header.mode()? & 0o7777,
            uid: u32::try_from(header.uid()?)?,
            gid: u32::try_from(header.gid()?)?,
        };
        let attributes = Attributes {
            stat: self.tree.overrides.stat(path).unwrap_or(given),
            mtime: TimeSpec::new(i64::try_from(header.mtime()?)?, 0),
        };
        let kind = header.entry_type();
        if kind.is_dir() {
            return self.folder(path, attributes.stat);
        }
        if kind.is_symlink() {
            self.symlink(path, &link_name(entry)?, attributes)
        } else if kind.is_file() || kind.is_gnu_sparse() {
            self.file(path, entry, attributes)
        } else {
            bail!("an entry of type {kind:?}, which packages do not have");
        }
    }

    fn symlink(&mut self, path: &str, target: &Path, attributes: Attributes) -> Result<()> {
        let Attributes { stat, mtime } = attributes;
        // All of it while no other package can take the path over.
        self.create(path, |parent, name| {
            symlinkat(target, parent, name)?;
            if (stat.uid, stat.gid) != (0, 0) {
                let (uid, gid) = (Uid::from_raw(stat.uid), Gid::from_raw(stat.gid));
                let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
                fchownat(parent, name, Some(uid), Some(gid), flags)?;
            }
            utimensat(
                parent,
                name,
                &mtime,
                &mtime,
                UtimensatFlags::NoFollowSymlink,
            )
        })?;
        Ok(())
    }

    fn file(
        &mut self,
        path: &str,
        entry: &mut tar::Entry<'_, Box<dyn Read + Send>>,
        attributes: Attributes,
    ) -> Result<()> {
        let flags =
            OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = self.create(path, |parent, name| {
            openat(parent, name, flags, Mode::from_bits_truncate(0o600))
        })?;
        let Some(opened) = opened else {
            return Ok(());
        };
        let Attributes { stat, mtime } = attributes;
        let mut file = File::from(opened);
        deb::copy(entry, &mut file, &mut self.buffer)?;
        if (stat.uid, stat.gid) != (0, 0) {
            let (uid, gid) = (Uid::from_raw(stat.uid), Gid::from_raw(stat.gid));
            fchown(&file, Some(uid), Some(gid))?;
        }
        file.set_permissions(Permissions::from_mode(stat.mode))?;
        Ok(futimens(&file, &mtime, &mtime)?)
    }

    /// Creates a folder with a permissive mode; the wave's end sets its mode and owner.
    fn folder(&mut self, path: &str, stat: Stat) -> Result<()> {
        let target = &self.tree.target;
        // Held until the folder has its package: who finds it in the place of a file must find that, too.
        let _held;
        if target.owner(path).is_none() && !path.is_empty() {
            let (parent, name) = split(path);
            self.enter(parent)?;
            let parent = self.parent.as_ref().context("no parent")?;
            let place = (parent.inode, name.to_owned());
            let mut claims = lock(&self.tree.claims);
            if let Some((other, wave)) = claims.owner(&place).filter(|(other, _)| *other != self.at)
                // A link of an earlier wave may lead to a folder, which then serves.
                && (wave == self.tree.wave || target.folder(path).is_err())
            {
                claims.conflict(path, &self.packages[self.at], &self.packages[other]);
                return Ok(());
            }
            _held = Some(claims);
        }
        drop(target.folder_made(path)?);
        let by = (self.at, self.tree.ranks[self.at], self.tree.wave);
        target.note(path, by, stat);
        Ok(())
    }

    fn enter(&mut self, path: &str) -> Result<()> {
        if self.parent.as_ref().is_none_or(|open| open.path != path) {
            let fd = self.tree.target.folder_made(path)?;
            self.parent = Some(Parent {
                path: path.to_owned(),
                inode: fstat(&fd)?.st_ino,
                fd,
            });
        }
        Ok(())
    }

    /// Where a path of this package is written: its place after diversions, and the end of its name.
    fn written<'b>(&self, path: &'b str) -> (&'b str, &'static str)
    where
        'a: 'b,
    {
        let suffix = if self.conffiles.contains(path) {
            NEW
        } else {
            ""
        };
        (self.tree.overrides.path(path, self.name), suffix)
    }

    /// Creates a file by `make`, replacing that of another package if the path is this package's; else gives `None`.
    fn create<T>(
        &mut self,
        path: &str,
        make: impl Fn(BorrowedFd<'_>, &str) -> nix::Result<T>,
    ) -> Result<Option<T>> {
        let tree = self.tree;
        let (place, suffix) = self.written(path);
        let (folder, base) = split(place);
        self.enter(folder)?;
        let parent = self.parent.as_ref().context("no parent")?;
        let name = format!("{base}{suffix}");
        let key: Place = (parent.inode, base.to_owned());
        // Held until the file is there: who takes the path over later must find it.
        let mut claims = lock(&tree.claims);
        let by = (self.at, path, tree.wave);
        match claims.claim(&key, by, self.packages, tree.overrides.diverter(path)) {
            Verdict::New => {}
            Verdict::Taken => {
                for end in ["", NEW] {
                    remove(parent.fd.as_fd(), &format!("{base}{end}"))?;
                }
            }
            Verdict::Left => return Ok(None),
        }
        loop {
            match make(parent.fd.as_fd(), &name) {
                Ok(made) => return Ok(Some(made)),
                Err(Errno::EEXIST) => {}
                Err(error) => return Err(error.into()),
            }
            // The links of the merged /usr exist before the package that contains them.
            if MERGED.iter().any(|(link, target)| {
                *link == place && readlinkat(&parent.fd, base).is_ok_and(|found| found == *target)
            }) {
                return Ok(None);
            }
            match remove(parent.fd.as_fd(), &name) {
                Err(Errno::EISDIR) => {
                    self.at_folder(place, &mut claims)?;
                    return Ok(None);
                }
                other => other?,
            }
        }
    }

    /// What a file or link at the place of a folder comes to: dpkg leaves a folder that is there before a link, and
    /// the order of one wave's packages must not matter.
    fn at_folder(&self, path: &str, claims: &mut Claims) -> Result<()> {
        let Some(folder) = self.tree.target.owner(path) else {
            bail!("a folder is at this path");
        };
        if folder.package != self.at {
            claims.conflict(
                path,
                &self.packages[self.at],
                &self.packages[folder.package],
            );
        }
        Ok(())
    }
}

fn remove(parent: BorrowedFd<'_>, name: &str) -> nix::Result<()> {
    match unlinkat(parent, name, UnlinkatFlags::NoRemoveDir) {
        Err(Errno::ENOENT) => Ok(()),
        other => other,
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
