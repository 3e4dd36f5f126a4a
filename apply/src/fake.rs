//! A machine for tests: sysfs and device nodes as files in a folder.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use linux::world::{Clock, World};

/// The machine; its folder is removed with it.
pub(crate) struct Machine {
    _folder: tempfile::TempDir,
    pub world: World,
}

/// Writes a file, and makes its folder if it does not exist.
pub(crate) fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

impl Machine {
    /// A machine without disks.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        fs::create_dir_all(&world.dev).unwrap();
        fs::create_dir_all(world.sys.join("class/block")).unwrap();
        fs::create_dir_all(world.sys.join("block")).unwrap();
        Self {
            _folder: folder,
            world,
        }
    }

    /// Adds a device at `place` below `/sys/devices`; a `start` makes it a partition. Returns its folder in sysfs and
    /// its node, a file of zeros.
    pub(crate) fn add(
        &self,
        name: &str,
        place: &str,
        number: &str,
        start: u64,
        size: u64,
    ) -> (PathBuf, File) {
        let real = self.world.sys.join("devices").join(place);
        write(&real.join("size"), &(size / 512).to_string());
        write(&real.join("dev"), number);
        if start > 0 {
            let digits = name.trim_start_matches(char::is_alphabetic);
            write(&real.join("start"), &(start / 512).to_string());
            write(&real.join("partition"), digits);
        } else {
            symlink(&real, self.world.sys.join("block").join(name)).unwrap();
        }
        symlink(&real, self.world.sys.join("class/block").join(name)).unwrap();
        let file = File::create_new(self.world.dev.join(name)).unwrap();
        file.set_len(size).unwrap();
        (real, file)
    }

    /// Sets the content of mountinfo.
    pub(crate) fn mounted(&self, text: &str) {
        write(&self.world.proc.join("self/mountinfo"), text);
    }
}
