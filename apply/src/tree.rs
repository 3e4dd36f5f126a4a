//! The root that is provisioned: every path is resolved inside it, links included, as the running node will
//! resolve it. A chain of links never leaves the root (`openat2` with `RESOLVE_IN_ROOT`).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

use crate::digest::sha256_of;
use crate::target::Rules;

/// Symbolic links that are followed before a path counts as a loop, as in the kernel (`path_resolution(7)`).
const LONGEST_CHAIN: u32 = 40;

/// The root that is provisioned.
#[derive(Debug)]
pub struct Tree {
    /// Its rules: what is writable, and the links into `/var`.
    pub(crate) rules: Rules,
    root: OwnedFd,
    real: PathBuf,
    owners: Owners,
    /// Files that were written under temporary names and wait for [`Tree::settle`].
    pending: RefCell<Vec<(TreeEntry, TreeEntry)>>,
    /// A folder of each file system with changes, by its device number.
    touched: RefCell<BTreeMap<u64, File>>,
}

/// Whether owners are set or recorded.
#[derive(Debug)]
pub enum Owners {
    /// Set by the system.
    Real,
    /// Recorded beside the tree, for tests that may not change owners: path in the root → (uid, gid).
    #[cfg(test)]
    Recorded(std::sync::Mutex<std::collections::BTreeMap<String, (u32, u32)>>),
}

/// An entry in an existing folder; the entry itself need not exist.
#[derive(Debug)]
pub struct TreeEntry {
    parent: OwnedFd,
    name: String,
    /// The path in the root, without links.
    pub real: String,
}

impl TreeEntry {
    /// A path for other calls, valid as long as this entry lives.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.parent.as_raw_fd())).join(&self.name)
    }

    /// Its metadata, links not followed; `None` if it does not exist.
    pub fn stat(&self) -> Option<fs::Metadata> {
        fs::symlink_metadata(self.path()).ok()
    }

    /// The target of the entry if it is a link.
    pub fn link_target(&self) -> Option<String> {
        let target = fs::read_link(self.path()).ok()?;
        target.to_str().map(str::to_owned)
    }

    /// Opens the regular file.
    pub fn open(&self) -> Result<File> {
        let mut options = fs::OpenOptions::new();
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let file = options
            .read(true)
            .custom_flags(flags.bits())
            .open(self.path());
        file.with_context(|| format!("opening {}", self.real))
    }

    /// The content of the regular file.
    pub fn read(&self) -> Result<Vec<u8>> {
        self.read_first(u64::MAX)
    }

    /// The first bytes of the regular file, at most so many.
    pub fn read_first(&self, bytes: u64) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let read = self.open()?.take(bytes).read_to_end(&mut out);
        read.with_context(|| format!("reading {}", self.real))?;
        Ok(out)
    }

    /// The number of bytes of the regular file, and their SHA-256 in hexadecimal digits. It need not fit into memory.
    pub fn sha256(&self) -> Result<(u64, String)> {
        sha256_of(self.open()?).with_context(|| format!("reading {}", self.real))
    }

    /// The names of a folder's entries, sorted; none if it is not a folder.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path()).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|e| e.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// Removes the entry if it is an empty folder without a mount.
    pub fn remove_empty(&self) {
        fs::remove_dir(self.path()).unwrap_or_default();
    }

    /// Removes the entry, a folder with its content.
    pub fn remove(&self) -> Result<()> {
        if self.stat().is_some() {
            failpoint()?;
        }
        let done = match self.stat() {
            None => Ok(()),
            Some(meta) if meta.is_dir() => fs::remove_dir_all(self.path()),
            Some(_) => fs::remove_file(self.path()),
        };
        done.with_context(|| format!("removing {}", self.real))
    }
}

impl Tree {
    /// Opens a root.
    pub(crate) fn open(root: &Path, rules: Rules) -> Result<Self> {
        Self::with_owners(root, rules, Owners::Real)
    }

    /// As [`Tree::open`], with another handling of owners.
    pub(crate) fn with_owners(root: &Path, rules: Rules, owners: Owners) -> Result<Self> {
        let open = || format!("opening the root {}", root.display());
        let file = File::open(root).with_context(open)?;
        let real = fs::canonicalize(root).with_context(open)?;
        Ok(Self {
            rules,
            root: file.into(),
            real,
            owners,
            pending: RefCell::default(),
            touched: RefCell::default(),
        })
    }

    fn resolve(&self, path: &str, flags: OFlag) -> Result<OwnedFd, Errno> {
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let relative = path.trim_start_matches('/');
        let relative = if relative.is_empty() { "." } else { relative };
        openat2(&self.root, relative, how)
    }

    fn folder(&self, path: &str) -> Result<OwnedFd, Errno> {
        self.resolve(path, OFlag::O_PATH | OFlag::O_DIRECTORY)
    }

    fn real_path(&self, fd: &OwnedFd) -> Result<String> {
        let path = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        let below = path
            .strip_prefix(&self.real)
            .context("a path leads out of the root")?;
        let below = below.to_str().context("a path is not UTF-8")?;
        Ok(format!("/{below}"))
    }

    /// The path of a folder without links, whether the folder exists or not.
    pub fn real_folder(&self, path: &str) -> Result<String> {
        self.real_folder_within(path, LONGEST_CHAIN)
    }

    fn real_folder_within(&self, path: &str, depth: u32) -> Result<String> {
        let Some(depth) = depth.checked_sub(1) else {
            bail!("{path}: its symbolic links form a loop");
        };
        match self.folder(path) {
            Ok(fd) => self.real_path(&fd),
            Err(Errno::ENOENT) => {
                let (above, name) = split(path);
                let above = self.real_folder_within(above, depth)?;
                let here = join(&above, name);
                // A link whose target does not exist yet: the folder is made at the target.
                match self.link_in(&above, name) {
                    Some(target) => self.real_folder_within(&follow(&above, &target), depth),
                    None => Ok(here),
                }
            }
            Err(Errno::ENOTDIR) => bail!("{path}: a part of it is not a folder"),
            Err(Errno::ELOOP) => bail!("{path}: its symbolic links form a loop"),
            Err(error) => Err(error).with_context(|| format!("looking up {path}")),
        }
    }

    fn link_in(&self, folder: &str, name: &str) -> Option<String> {
        let parent = self.folder(folder).ok()?;
        let target = nix::fcntl::readlinkat(parent, name).ok()?;
        target.into_string().ok()
    }

    /// The path of an entry without links above it; the entry itself is not followed.
    pub fn real(&self, path: &str) -> Result<String> {
        let (above, name) = split(path);
        if name.is_empty() {
            return Ok("/".to_owned());
        }
        Ok(join(&self.real_folder(above)?, name))
    }

    /// Whether a config may write at this path (without links).
    pub fn is_writable(&self, real: &str) -> bool {
        self.rules.may_write(real)
    }

    /// The path without links, if a config may write there.
    ///
    /// # Errors
    /// The reason, with the list of writable folders.
    pub(crate) fn check_writable(&self, path: &str) -> Result<String, String> {
        let real = self.real(path).map_err(|error| format!("{error:#}"))?;
        if self.is_writable(&real) {
            return Ok(real);
        }
        let links: Vec<&str> = self.rules.var_links.iter().map(|(link, _)| *link).collect();
        Err(format!(
            "{path}: the root is read-only there; writable are {} and, by links into /var, {}",
            self.rules.writable.join(", "),
            links.join(", ")
        ))
    }

    /// The entry at `path`, if its folder exists.
    pub fn find(&self, path: &str) -> Option<TreeEntry> {
        let (above, name) = split(path);
        let parent = self.folder(above).ok()?;
        let real = join(&self.real_path(&parent).ok()?, name);
        (!name.is_empty()).then(|| TreeEntry {
            parent,
            name: name.to_owned(),
            real,
        })
    }

    /// The entry at `path`; folders above it that are absent are made (0755, root).
    pub fn entry(&self, path: &str) -> Result<TreeEntry> {
        let (above, name) = split(path);
        if name.is_empty() {
            bail!("the root itself cannot be written");
        }
        let real = self.real_folder(above)?;
        let parent = self.make_folders(&real)?;
        let real = join(&real, name);
        let waits = |(_, entry): &(TreeEntry, TreeEntry)| entry.real == real;
        if self.pending.borrow().iter().any(waits) {
            self.settle()?;
        }
        Ok(TreeEntry {
            parent,
            name: name.to_owned(),
            real,
        })
    }

    /// Makes the folder `real` (a path without links) and those above it.
    fn make_folders(&self, real: &str) -> Result<OwnedFd> {
        match self.folder(real) {
            Ok(fd) => Ok(fd),
            Err(Errno::ENOENT) => {
                let (above, name) = split(real);
                let entry = TreeEntry {
                    parent: self.make_folders(above)?,
                    name: name.to_owned(),
                    real: real.to_owned(),
                };
                self.make_folder(&entry, 0o755, (0, 0))?;
                self.folder(real).with_context(|| format!("opening {real}"))
            }
            Err(error) => Err(error).with_context(|| format!("opening {real}")),
        }
    }

    /// Makes one folder.
    pub fn make_folder(&self, entry: &TreeEntry, mode: u32, owner: (u32, u32)) -> Result<()> {
        failpoint()?;
        fs::DirBuilder::new()
            .mode(0o700)
            .create(entry.path())
            .with_context(|| format!("making the folder {}", entry.real))?;
        self.own(entry, owner)?;
        self.chmod(entry, mode)?;
        self.touch(entry)
    }

    /// Writes a file under a temporary name; [`Tree::settle`] renames it. So a path never holds half a file, and the
    /// disk is synced once and not for each file.
    pub fn write(
        &self,
        entry: &TreeEntry,
        data: &[u8],
        mode: u32,
        owner: (u32, u32),
    ) -> Result<()> {
        self.write_from(entry, &mut &data[..], mode, owner)
    }

    /// As [`Tree::write`], from a reader: the content need not fit into memory.
    pub fn write_from(
        &self,
        entry: &TreeEntry,
        data: &mut dyn Read,
        mode: u32,
        owner: (u32, u32),
    ) -> Result<()> {
        let beside = self.beside(entry)?;
        self.write_new_from(&beside, data, mode, owner)
            .with_context(|| format!("writing {}", entry.real))?;
        self.rename_later(beside, entry)
    }

    /// As [`Tree::write`], with a file outside of the tree that becomes this one: by a rename on one file system, else it is
    /// copied and removed, so that it takes the disk's space twice only until it is copied.
    pub fn take(&self, entry: &TreeEntry, file: &Path, mode: u32, owner: (u32, u32)) -> Result<()> {
        let beside = self.beside(entry)?;
        failpoint()?;
        let taken = match fs::rename(file, beside.path()) {
            Ok(()) => self.complete_new(&beside, mode, owner),
            Err(error) if error.kind() == ErrorKind::CrossesDevices => {
                let mut data =
                    File::open(file).with_context(|| format!("opening {}", file.display()))?;
                self.write_new_from(&beside, &mut data, mode, owner)
                    .and_then(|()| Ok(fs::remove_file(file)?))
            }
            Err(error) => Err(error.into()),
        };
        taken.with_context(|| format!("writing {}", entry.real))?;
        self.rename_later(beside, entry)
    }

    /// The entry of the temporary name beside `entry`, which nothing has.
    fn beside(&self, entry: &TreeEntry) -> Result<TreeEntry> {
        let name = temporary_name(&entry.name);
        let beside = TreeEntry {
            parent: entry.parent.try_clone()?,
            real: join(split(&entry.real).0, &name),
            name,
        };
        if self
            .pending
            .borrow()
            .iter()
            .any(|(other, _)| other.real == beside.real)
        {
            self.settle()?;
        }
        beside.remove()?;
        Ok(beside)
    }

    /// Leaves the rename of a complete file to [`Tree::settle`].
    fn rename_later(&self, beside: TreeEntry, entry: &TreeEntry) -> Result<()> {
        let target = TreeEntry {
            parent: entry.parent.try_clone()?,
            name: entry.name.clone(),
            real: entry.real.clone(),
        };
        self.pending.borrow_mut().push((beside, target));
        Ok(())
    }

    /// Writes a new file, in a folder that is itself renamed when it is complete.
    pub fn write_new(
        &self,
        entry: &TreeEntry,
        data: &[u8],
        mode: u32,
        owner: (u32, u32),
    ) -> Result<()> {
        self.write_new_from(entry, &mut &data[..], mode, owner)
    }

    fn write_new_from(
        &self,
        entry: &TreeEntry,
        data: &mut dyn Read,
        mode: u32,
        owner: (u32, u32),
    ) -> Result<()> {
        failpoint()?;
        let mut options = fs::OpenOptions::new();
        let options = options.write(true).create_new(true).mode(0o600);
        let mut file = options.open(entry.path())?;
        io::copy(data, &mut file)?;
        self.complete_new(entry, mode, owner)
    }

    /// Gives a new file, which is not a link, its owner and mode.
    fn complete_new(&self, entry: &TreeEntry, mode: u32, owner: (u32, u32)) -> Result<()> {
        self.own(entry, owner)?;
        // After the owner, since a change of owner clears setuid and setgid.
        fs::set_permissions(entry.path(), fs::Permissions::from_mode(mode))?;
        self.touch(entry)
    }

    /// Records the file system of an entry for [`Tree::settle`].
    fn touch(&self, entry: &TreeEntry) -> Result<()> {
        let folder = format!("/proc/self/fd/{}", entry.parent.as_raw_fd());
        let device = fs::metadata(&folder)?.dev();
        if let std::collections::btree_map::Entry::Vacant(slot) =
            self.touched.borrow_mut().entry(device)
        {
            slot.insert(
                File::open(&folder)
                    .with_context(|| format!("opening the folder of {}", entry.real))?,
            );
        }
        Ok(())
    }

    /// Syncs everything that was written, then renames each file to its path.
    pub fn settle(&self) -> Result<()> {
        self.sync()?;
        for (beside, entry) in self.pending.take() {
            failpoint()?;
            fs::rename(beside.path(), entry.path())
                .with_context(|| format!("renaming to {}", entry.real))?;
            self.move_owner(&beside, &entry);
        }
        Ok(())
    }

    /// Simulates a power cut: drops the files that are not renamed yet.
    #[cfg(test)]
    pub fn forget_pending(&mut self) {
        self.pending.take();
        self.touched.take();
    }

    /// [`Tree::settle`], followed by a sync of the renames: afterwards a power cut undoes nothing.
    pub fn finish(&self) -> Result<()> {
        self.settle()?;
        self.sync()
    }

    fn sync(&self) -> Result<()> {
        for folder in self.touched.borrow().values() {
            nix::unistd::syncfs(folder).context("waiting for the disk")?;
        }
        Ok(())
    }

    /// Renames an entry; the new path must not exist.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (self.entry(from)?, self.entry(to)?);
        self.settle()?;
        failpoint()?;
        fs::rename(from.path(), to.path())
            .with_context(|| format!("renaming {} to {}", from.real, to.real))?;
        self.move_owner(&from, &to);
        Ok(())
    }

    /// Makes a symbolic link; nothing may exist at its path.
    pub fn link(&self, entry: &TreeEntry, target: &str, owner: (u32, u32)) -> Result<()> {
        failpoint()?;
        std::os::unix::fs::symlink(target, entry.path())
            .with_context(|| format!("making the link {}", entry.real))?;
        self.own(entry, owner)?;
        self.touch(entry)
    }

    /// Makes a hard link to `target`, a path in the root.
    pub fn hard_link(&self, entry: &TreeEntry, target: &str) -> Result<()> {
        let target = self
            .find(target)
            .filter(|target| target.stat().is_some())
            .with_context(|| {
                format!("{}: the target of the hard link does not exist", entry.real)
            })?;
        failpoint()?;
        fs::hard_link(target.path(), entry.path())
            .with_context(|| format!("making the hard link {}", entry.real))?;
        self.touch(entry)
    }

    /// Sets owner and group of the entry itself, if they differ.
    pub fn own(&self, entry: &TreeEntry, owner: (u32, u32)) -> Result<()> {
        failpoint()?;
        match &self.owners {
            Owners::Real => {
                let now = entry.stat().map(|meta| (meta.uid(), meta.gid()));
                if now == Some(owner) {
                    return Ok(());
                }
                std::os::unix::fs::lchown(entry.path(), Some(owner.0), Some(owner.1))
                    .with_context(|| format!("setting the owner of {}", entry.real))
            }
            #[cfg(test)]
            Owners::Recorded(recorded) => {
                recorded.lock().unwrap().insert(entry.real.clone(), owner);
                Ok(())
            }
        }
    }

    /// The owner and group of the entry.
    pub fn owner(&self, entry: &TreeEntry) -> (u32, u32) {
        match &self.owners {
            Owners::Real => entry.stat().map_or((0, 0), |meta| (meta.uid(), meta.gid())),
            #[cfg(test)]
            Owners::Recorded(recorded) => recorded
                .lock()
                .unwrap()
                .get(&entry.real)
                .copied()
                .unwrap_or((0, 0)),
        }
    }

    /// Moves a recorded owner with a renamed entry.
    #[cfg_attr(not(test), allow(unused_variables, clippy::unused_self))]
    fn move_owner(&self, from: &TreeEntry, to: &TreeEntry) {
        #[cfg(test)]
        if let Owners::Recorded(recorded) = &self.owners {
            let mut recorded = recorded.lock().unwrap();
            let below = format!("{}/", from.real);
            let moved: Vec<String> = recorded
                .keys()
                .filter(|path| **path == from.real || path.starts_with(&below))
                .cloned()
                .collect();
            for path in moved {
                let owner = recorded.remove(&path).unwrap();
                recorded.insert(path.replacen(&from.real, &to.real, 1), owner);
            }
        }
    }

    /// Sets the mode of a file or folder; not of a link, which has none.
    pub fn chmod(&self, entry: &TreeEntry, mode: u32) -> Result<()> {
        match entry.stat() {
            Some(meta) if !meta.is_symlink() => {
                failpoint()?;
                fs::set_permissions(entry.path(), fs::Permissions::from_mode(mode))
                    .with_context(|| format!("setting the mode of {}", entry.real))
            }
            _ => Ok(()),
        }
    }
}

/// The name of the temporary file that is renamed to `name`.
pub fn temporary_name(name: &str) -> String {
    let short: String = name.chars().take(60).collect();
    format!(".{short}.slipway")
}

#[cfg(test)]
thread_local! {
    /// The number of further changes after which a test cuts the power.
    pub static CUT_AFTER: std::cell::Cell<Option<usize>> = const { std::cell::Cell::new(None) };
}

/// Called before each change of the disk, so that a test can stop there.
#[cfg_attr(
    not(test),
    allow(clippy::unnecessary_wraps, reason = "a test can fail it")
)]
pub fn failpoint() -> Result<()> {
    #[cfg(test)]
    if let Some(left) = CUT_AFTER.get() {
        anyhow::ensure!(left > 0, "the power was cut");
        CUT_AFTER.set(Some(left - 1));
    }
    Ok(())
}

/// A path's folder and name: `("/a", "b")` for `/a/b`.
pub fn split(path: &str) -> (&str, &str) {
    match path.trim_end_matches('/').rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some((above, name)) => (above, name),
        None => ("/", path),
    }
}

/// A folder's path and a name.
pub fn join(folder: &str, name: &str) -> String {
    format!("{}/{name}", folder.trim_end_matches('/'))
}

/// The target of a link in `folder`.
fn follow(folder: &str, target: &str) -> String {
    match target.starts_with('/') {
        true => ignition::validate::clean(target),
        false => ignition::validate::clean(&join(folder, target)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn chains_of_links_stay_in_the_root() {
        let outside = tempfile::tempdir().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        // The chain by which Ignition leaves the root: a → b, b → an absolute path.
        symlink("b", root.join("a")).unwrap();
        symlink(outside.path(), root.join("b")).unwrap();
        symlink("../../../../etc", root.join("up")).unwrap();
        fs::create_dir(root.join("etc")).unwrap();
        let tree = Tree::open(root, Rules::NODE).unwrap();
        let real = tree.real("/a/x").unwrap();
        assert_eq!(Path::new(&real), outside.path().join("x"));
        assert!(!tree.is_writable(&real));
        assert_eq!(tree.real("/up/x").unwrap(), "/etc/x");
        assert!(tree.is_writable("/etc/x") && !tree.is_writable("/etcetera"));
    }

    #[test]
    fn links_into_var_are_made_real_on_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        symlink("../var/usrlocal", root.join("local")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        fs::create_dir(root.join("var")).unwrap();
        let owners = Owners::Recorded(std::sync::Mutex::default());
        let tree = Tree::with_owners(root, Rules::NODE, owners).unwrap();
        assert_eq!(tree.real("/local/bin/x").unwrap(), "/var/usrlocal/bin/x");
        let entry = tree.entry("/local/bin/x").unwrap();
        tree.write(&entry, b"data", 0o755, (0, 0)).unwrap();
        assert!(entry.stat().is_none());
        tree.finish().unwrap();
        assert_eq!(fs::read(root.join("var/usrlocal/bin/x")).unwrap(), b"data");
        assert!(tree.real("/loop/x").is_err());
        // No temporary file remains.
        assert_eq!(
            fs::read_dir(root.join("var/usrlocal/bin")).unwrap().count(),
            1
        );
    }
}
