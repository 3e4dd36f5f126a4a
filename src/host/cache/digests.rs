//! Digests: hashes of big files, stored by their `stat`, so that an unchanged one is not read again.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

use super::{Cache, Key};
use crate::format::digest;
use crate::format::hashed_file::HashedFile;

/// Size below which files are hashed anew each time, bytes; reading the stored digest would take as long.
const SMALL: u64 = 256 << 10;

impl Cache {
    /// SHA-256 of a file as hexadecimal digits. Stored by device, inode, size and times, so that an unchanged
    /// big file costs one `stat`.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn digest(&self, path: &Path) -> Result<String> {
        let is_known = |known: &str| (known.len() == 64).then(|| known.to_owned());
        self.stored("digest", path, is_known, || {
            let digest = digest::sha256(path)?;
            Ok((digest.clone(), digest))
        })
    }

    /// The hashes of a file that somebody else may change, for a key and for each later read. Stored as those of
    /// [`Cache::digest`]: one that is out of date fails the read.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn hashed(&self, path: &Path) -> Result<HashedFile> {
        let is_known = |known: &str| HashedFile::of_text(path, known);
        self.stored("hashed file", path, is_known, || {
            let hashed = HashedFile::hash(path)?;
            Ok((hashed.text(), hashed))
        })
    }

    /// What a big file's content comes to: read from the text that was stored for an unchanged file, or made, with its text.
    fn stored<T>(
        &self,
        name: &str,
        path: &Path,
        read: impl FnOnce(&str) -> Option<T>,
        make: impl FnOnce() -> Result<(String, T)>,
    ) -> Result<T> {
        let about = || format!("reading {}", path.display());
        let seen = SystemTime::now();
        let meta = fs::metadata(path).with_context(about)?;
        if meta.len() < SMALL {
            return Ok(make()?.1);
        }
        let memo = Key::of_data(name, 1)
            .text("path", &path.to_string_lossy())
            .text(
                "stat",
                &format!(
                    "{}:{} {} {}.{} {}.{}",
                    meta.dev(),
                    meta.ino(),
                    meta.len(),
                    meta.mtime(),
                    meta.mtime_nsec(),
                    meta.ctime(),
                    meta.ctime_nsec()
                ),
            )
            .finish();
        let memo = self.root.join("digests").join(memo.as_str());
        let known = fs::read_to_string(&memo).ok();
        if let Some(known) = known.and_then(|known| read(&known)) {
            return Ok(known);
        }
        let (text, made) = make()?;
        // A file written within the clock's granularity could change again with the same times, also while it is read.
        let settled = meta.modified().is_ok_and(|at| {
            seen.duration_since(at)
                .is_ok_and(|age| age > Duration::from_secs(2))
        });
        if settled {
            let mut temporary = tempfile::NamedTempFile::new_in(self.root.join("digests"))?;
            std::io::Write::write_all(&mut temporary, text.as_bytes())?;
            temporary.persist(&memo)?;
        }
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_a_file_that_was_written_just_before_it_was_read_is_not_stored() {
        let place = tempfile::tempdir().unwrap();
        let cache = Cache::at(place.path().join("cache")).unwrap();
        let path = place.path().join("big");
        fs::write(&path, vec![1; 1 << 20]).unwrap();
        let file = fs::File::open(&path).unwrap();
        let before = SystemTime::now() - Duration::from_secs(1);
        file.set_modified(before).unwrap();
        // It takes a while, after which the file is old.
        let read = || {
            std::thread::sleep(Duration::from_millis(1200));
            Ok(("text".to_owned(), ()))
        };
        cache.stored("test", &path, |_| None, read).unwrap();
        assert_eq!(fs::read_dir(cache.root.join("digests")).unwrap().count(), 0);
    }
}
