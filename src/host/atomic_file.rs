//! Atomic file writes: a temporary file in the same folder, fsync, rename.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use tempfile::{NamedTempFile, PersistError};

/// Writes a file by `fill`; until `fill` has succeeded, `path` is unchanged. The umask clears bits of `mode`, as for
/// every other program.
///
/// # Errors
/// As `fill`, or if the folder cannot be written.
pub fn write(path: &Path, mode: u32, fill: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    put(path, mode, fill, |temporary| temporary.persist(path))
}

/// The same for a file that must not be there: of several programs that write it at once, one does.
///
/// # Errors
/// As [`write()`], and if it is there, which [`is_there`] recognises.
pub fn create(path: &Path, mode: u32, fill: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    put(path, mode, fill, |temporary| {
        temporary.persist_noclobber(path)
    })
}

/// Whether an error of [`create`] says that the file is there already.
#[must_use]
pub fn is_there(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::AlreadyExists)
}

fn put(
    path: &Path,
    mode: u32,
    fill: impl FnOnce(&mut File) -> Result<()>,
    name: impl FnOnce(NamedTempFile) -> Result<File, PersistError>,
) -> Result<()> {
    let put = || -> Result<()> {
        // In the same folder: a rename works only inside one file system.
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let mut temporary = tempfile::Builder::new()
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(folder)?;
        fill(temporary.as_file_mut())?;
        // Without the sync, a power cut may leave an empty file under the new name.
        temporary.as_file().sync_all()?;
        name(temporary).map_err(|error| error.error)?;
        Ok(())
    };
    put().with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write(&path, 0o600, |file| Ok(file.write_all(b"old")?)).unwrap();
        let error = write(&path, 0o600, |file| {
            file.write_all(b"half")?;
            anyhow::bail!("the source ended")
        });
        assert!(format!("{:#}", error.unwrap_err()).ends_with("file: the source ended"));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
    #[test]
    fn a_file_that_is_there_is_not_created_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let make =
            |text: &'static str| create(&path, 0o600, |file| Ok(file.write_all(text.as_bytes())?));
        make("first").unwrap();
        let error = make("second").unwrap_err();
        assert!(is_there(&error), "{error:#}");
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let missing = create(&folder.path().join("no/file"), 0o600, |_| Ok(()));
        assert!(!is_there(&missing.unwrap_err()));
    }
}
