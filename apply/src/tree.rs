//! The root that is provisioned: every path is resolved inside it, links included, as the running node will
//! resolve it. A chain of links never leaves the root (`openat2` with `RESOLVE_IN_ROOT`).

mod write;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use image::paths::STATE;
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

    /// Removes the entry, a folder with its content, unless a file system is mounted there.
    pub fn remove(&self) -> Result<()> {
        if self.stat().is_some() {
            failpoint()?;
        }
        let done = match self.stat() {
            None => Ok(()),
            Some(meta) if meta.is_dir() => {
                if let Some(at) = self.mount_point()? {
                    bail!("removing {}: a file system is mounted at {at}", self.real);
                }
                fs::remove_dir_all(self.path())
            }
            Some(_) => fs::remove_file(self.path()),
        };
        done.with_context(|| format!("removing {}", self.real))
    }

    /// The path in the root of the first mount point at the folder or below it; none if the entry is not a folder.
    fn mount_point(&self) -> Result<Option<String>> {
        let at = |path: &Path| join(split(&self.real).0, &path.to_string_lossy());
        let mut left = vec![PathBuf::from(&self.name)];
        while let Some(path) = left.pop() {
            // The kernel also refuses a bind mount of the same file system, which has the device number of its parent.
            let how = OpenHow::new()
                .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
                .resolve(ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_NO_SYMLINKS);
            let folder = match openat2(&self.parent, path.as_path(), how) {
                Ok(folder) => folder,
                Err(Errno::EXDEV) => return Ok(Some(at(&path))),
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => continue,
                Err(error) => {
                    return Err(error).with_context(|| format!("looking at {}", at(&path)));
                }
            };
            let folder = format!("/proc/self/fd/{}", folder.as_raw_fd());
            let entries = fs::read_dir(folder).with_context(|| format!("listing {}", at(&path)))?;
            for entry in entries {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    left.push(path.join(entry.file_name()));
                }
            }
        }
        Ok(None)
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

    /// Whether a folder may be removed with all that it holds.
    ///
    /// # Errors
    /// The reason why not.
    pub(crate) fn check_removable(&self, entry: &TreeEntry) -> Result<(), String> {
        let (own, real) = (split(STATE).0, entry.real.as_str());
        let is_own = real == own || is_below(real, own) || is_below(own, real);
        if is_own && !self.is_writable("/") {
            return Err(format!(
                "it cannot be removed: {own} belongs to the node itself"
            ));
        }
        match entry.mount_point() {
            Ok(None) => Ok(()),
            Ok(Some(at)) => Err(format!(
                "it cannot be removed: a file system is mounted at {at}"
            )),
            Err(error) => Err(format!("{error:#}")),
        }
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

/// Whether a path is below `folder`; both without links.
pub(crate) fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.starts_with('/'))
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
}
