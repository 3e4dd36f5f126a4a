//! Changes of the tree: a file is written under a temporary name and renamed once its content is on the disk, so that a path
//! never holds half a file.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result};

use super::{Owners, Tree, TreeEntry, failpoint, join, split, temporary_name};

/// The most files that wait for their rename: each has two descriptors, and PID 1 may have 1024 by default.
const MOST_PENDING: usize = 64;

impl Tree {
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

    /// Removes an entry, a folder with its content.
    pub fn remove(&self, entry: &TreeEntry) -> Result<()> {
        self.touch(entry)?;
        entry.remove()
    }

    /// Leaves the rename of a complete file to [`Tree::settle`]. The journal has all changes before the first one, so an early
    /// settle leaves nothing that is not undone.
    fn rename_later(&self, beside: TreeEntry, entry: &TreeEntry) -> Result<()> {
        let target = TreeEntry {
            parent: entry.parent.try_clone()?,
            name: entry.name.clone(),
            real: entry.real.clone(),
        };
        self.pending.borrow_mut().push((beside, target));
        let waiting = self.pending.borrow().len();
        match waiting < MOST_PENDING {
            true => Ok(()),
            false => self.settle(),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    use crate::target::Rules;

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

    /// The descriptors of this process that are open for something in a folder: other tests have their own.
    fn descriptors(folder: &Path) -> usize {
        let folder = fs::canonicalize(folder).unwrap();
        let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
        all.filter_map(|fd| fs::read_link(fd.path()).ok())
            .filter(|target| target.starts_with(&folder))
            .count()
    }

    #[test]
    fn thousands_of_files_need_few_descriptors() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir(root.join("etc")).unwrap();
        let owners = Owners::Recorded(std::sync::Mutex::default());
        let tree = Tree::with_owners(root, Rules::NODE, owners).unwrap();
        let mut most = 0;
        for i in 0..2000 {
            let entry = tree.entry(&format!("/etc/{}/{i}", i % 10)).unwrap();
            tree.write(&entry, b"x", 0o644, (0, 0)).unwrap();
            if i % 20 == 0 || i % 64 > 61 {
                most = most.max(descriptors(root));
            }
        }
        assert!((20..192).contains(&most), "{most}");
        tree.finish().unwrap();
        for i in 0..2000 {
            assert!(root.join(format!("etc/{}/{i}", i % 10)).exists(), "{i}");
        }
    }

    #[test]
    fn a_folder_with_a_mount_is_not_removed() {
        // `/proc` is a mount wherever a test runs; `Owners::Recorded` writes nothing.
        let owners = Owners::Recorded(std::sync::Mutex::default());
        let tree = Tree::with_owners(Path::new("/"), Rules::ignition(true), owners).unwrap();
        let error = tree.check_removable(&tree.find("/proc").unwrap());
        let error = error.unwrap_err();
        assert!(error.contains("mounted at /proc"), "{error}");

        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("var/lib/slipway/x")).unwrap();
        let tree = Tree::open(folder.path(), Rules::NODE).unwrap();
        for path in ["/var", "/var/lib/slipway", "/var/lib/slipway/x"] {
            let error = tree.check_removable(&tree.find(path).unwrap());
            assert!(error.unwrap_err().contains("node itself"), "{path}");
        }
    }
}
