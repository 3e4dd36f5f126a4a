//! Atomic file writes: temporary file, fsync, rename, fsync of the folder. A power cut leaves the old content or the new.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// The content of a file, if it exists.
///
/// # Errors
/// If it exists and cannot be read.
pub fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a file; it is on the disk when this returns. The temporary file of an interrupted attempt is removed, and that of one
/// that fails: on a full disk it would take the last space.
///
/// # Errors
/// If it cannot be written.
pub fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let beside = temporary(path)?;
    // Not opened for truncation: a symbolic link left in its place would be followed.
    unlink(&beside)?;
    let done = fill(&beside, content, mode).and_then(|()| fs::rename(&beside, path));
    if done.is_err() {
        unlink(&beside).ok();
    }
    done?;
    sync_folder(path)
}

/// The temporary file, whose name begins with a dot. The kubelet takes every other file in its folder of manifests for a static pod,
/// whatever its ending: it would start `etcd.yaml.new` beside `etcd.yaml`, and for ever wait for the end of the one before it starts
/// the other (<https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/kubelet/config/file_linux.go>).
fn temporary(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(ErrorKind::InvalidFilename)?;
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(".new");
    Ok(path.with_file_name(hidden))
}

fn fill(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut options = File::options();
    let mut file = options.write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Replaces a file by one line, with mode 0644.
///
/// # Errors
/// Names the file.
pub fn write_line(path: &Path, line: &str) -> anyhow::Result<()> {
    write(path, format!("{line}\n").as_bytes(), 0o644)
        .with_context(|| format!("writing {}", path.display()))
}

/// Removes a file if it exists. It does not reappear after a power cut.
///
/// # Errors
/// If it cannot be removed.
pub fn remove(path: &Path) -> io::Result<()> {
    match unlink(path)? {
        true => sync_folder(path),
        false => Ok(()),
    }
}

/// Removes a file; false if it did not exist.
fn unlink(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

// The rename itself is durable only with its folder: https://man7.org/linux/man-pages/man2/fsync.2.html
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|path| !path.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_file_is_replaced_and_a_link_in_place_of_the_temporary_file_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("a.b"), folder.path().join("victim"));
        fs::write(&victim, "kept").unwrap();
        symlink(&victim, folder.path().join(".a.b.new")).unwrap();
        assert_eq!(read(&path).unwrap(), None);
        for content in ["one", "two"] {
            write(&path, content.as_bytes(), 0o600).unwrap();
            assert_eq!(read(&path).unwrap().unwrap(), content.as_bytes());
        }
        assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        for _ in 0..2 {
            remove(&path).unwrap();
            assert_eq!(read(&path).unwrap(), None);
        }
        assert!(write(&folder.path().join("no/such"), b"", 0o600).is_err());
    }

    /// The kubelet's rule for what is a manifest: all names that do not begin with a dot.
    #[test]
    fn a_watched_folder_never_has_a_second_file_of_another_name() {
        let path = Path::new("/etc/kubernetes/manifests/etcd.yaml");
        let beside = temporary(path).unwrap();
        assert_eq!(
            beside,
            Path::new("/etc/kubernetes/manifests/.etcd.yaml.new")
        );
        assert!(temporary(Path::new("/")).is_err());
    }

    #[test]
    fn an_attempt_that_fails_leaves_nothing_beside_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        // No file is renamed to a folder.
        fs::create_dir(&path).unwrap();
        assert!(write(&path, b"content", 0o600).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
