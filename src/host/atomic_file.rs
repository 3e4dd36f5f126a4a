//! Atomic file writes: a temporary file in the same folder, fsync, rename.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};

/// Writes a file by `fill`; until `fill` has succeeded, `path` is unchanged. The umask clears bits of `mode`, as for
/// every other program.
///
/// # Errors
/// As `fill`, or if the folder cannot be written.
pub fn write(path: &Path, mode: u32, fill: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
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
        temporary.persist(path)?;
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
}
