//! Hashed file: a file of somebody else, of which each later read gives the content that was hashed, or fails.
//!
//! The hash of a recipe's file is part of the key of what is made of it, and the file is read again to make that. Its owner may
//! write to it in between: the result would be kept under the key of another content.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// What is hashed at once, bytes: a file is verified in pieces, by several threads, without all of it in memory.
pub const PIECE: u64 = 4 << 20;

/// A file with the hashes of its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashedFile {
    /// Its path.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// SHA-256 of each [`PIECE`], the last one shorter, in hexadecimal digits.
    pieces: Vec<String>,
}

impl HashedFile {
    /// Reads and hashes a file.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn hash(path: &Path) -> Result<Self> {
        let about = || format!("hashing {}", path.display());
        let file = File::open(path).with_context(about)?;
        let (mut size, mut pieces) = (0, Vec::new());
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let read = (&file).take(PIECE).read_to_end(&mut bytes);
            match read.with_context(about)? {
                0 => break,
                read => size += read as u64,
            }
            pieces.push(digits(&bytes));
        }
        Ok(Self {
            path: path.to_owned(),
            size,
            pieces,
        })
    }

    /// Size and hashes as text, a line each: equal for files of equal content alone.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = self.size.to_string();
        for piece in &self.pieces {
            text = text + "\n" + piece;
        }
        text
    }

    /// A file of which [`HashedFile::text`] was stored; none if the text is damaged.
    #[must_use]
    pub fn of_text(path: &Path, text: &str) -> Option<Self> {
        let (size, pieces) = text.split_once('\n').unwrap_or((text, ""));
        let size = size.parse().ok()?;
        let pieces: Vec<String> = pieces.lines().map(str::to_owned).collect();
        let is_whole = pieces.len() as u64 == u64::div_ceil(size, PIECE)
            && pieces.iter().all(|piece| piece.len() == 64);
        is_whole.then(|| Self {
            path: path.to_owned(),
            size,
            pieces,
        })
    }

    /// The piece that begins at `at`, a multiple of [`PIECE`], of the file, which is open. None has bytes behind the end.
    ///
    /// # Errors
    /// If it cannot be read, or differs from what was hashed.
    pub fn piece(&self, file: &File, at: u64) -> Result<Vec<u8>> {
        let about = || format!("reading {}", self.path.display());
        let size = self.size.saturating_sub(at).min(PIECE);
        let mut bytes = vec![0; usize::try_from(size)?];
        match file.read_exact_at(&mut bytes, at) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(self.changed());
            }
            read => read.with_context(about)?,
        }
        let expected = self.pieces.get(usize::try_from(at / PIECE)?);
        if !bytes.is_empty() && expected != Some(&digits(&bytes)) {
            return Err(self.changed());
        }
        Ok(bytes)
    }

    /// Its whole content.
    ///
    /// # Errors
    /// If it cannot be read, or differs from what was hashed.
    pub fn read(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(usize::try_from(self.size)?);
        let mut reader = self.open()?;
        reader.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// A reader of its content, whose errors are those of [`HashedFile::piece`].
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(&self) -> Result<Reader> {
        let about = || format!("opening {}", self.path.display());
        Ok(Reader {
            file: File::open(&self.path).with_context(about)?,
            of: self.clone(),
            next: 0,
            piece: io::Cursor::default(),
        })
    }

    fn changed(&self) -> anyhow::Error {
        anyhow::anyhow!(
            "{} changed during the build: its content is not what was hashed at the beginning; \
             build again when nothing writes to it (`touch` it, if nothing does)",
            self.path.display()
        )
    }
}

/// Reads a [`HashedFile`]: no byte is given before its piece is verified.
#[derive(Debug)]
pub struct Reader {
    file: File,
    of: HashedFile,
    /// Where the next piece begins.
    next: u64,
    piece: io::Cursor<Vec<u8>>,
}

impl Read for Reader {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.piece.read(to)?;
        if read > 0 || to.is_empty() || self.next >= self.of.size {
            return Ok(read);
        }
        let piece = self.of.piece(&self.file, self.next);
        self.piece = io::Cursor::new(piece.map_err(io::Error::other)?);
        self.next += PIECE;
        self.piece.read(to)
    }
}

fn digits(bytes: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Two pieces and a part of a third one.
    fn file(folder: &Path) -> (PathBuf, Vec<u8>) {
        let size = usize::try_from(PIECE).unwrap() * 2 + 5;
        let content: Vec<u8> = (0..251_u8).cycle().take(size).collect();
        let path = folder.join("agent");
        fs::write(&path, &content).unwrap();
        (path, content)
    }

    #[test]
    fn a_file_is_read_as_it_was_hashed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, content) = file(folder.path());
        let hashed = HashedFile::hash(&path).unwrap();
        assert_eq!((hashed.size, hashed.pieces.len()), (PIECE * 2 + 5, 3));
        assert!(hashed.read().unwrap() == content);
        assert_eq!(HashedFile::of_text(&path, &hashed.text()).unwrap(), hashed);
        // What is appended is no part of it.
        fs::write(&path, [&content[..], b"more"].concat()).unwrap();
        assert!(hashed.read().unwrap() == content);
        let empty = folder.path().join("empty");
        fs::write(&empty, "").unwrap();
        let hashed = HashedFile::hash(&empty).unwrap();
        assert!(hashed.read().unwrap().is_empty());
        assert_eq!(HashedFile::of_text(&empty, "0").unwrap(), hashed);
        for damaged in ["", "1", "x", "1\nab"] {
            assert_eq!(HashedFile::of_text(&path, damaged), None, "{damaged:?}");
        }
    }

    #[test]
    fn a_changed_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (path, content) = file(folder.path());
        let hashed = HashedFile::hash(&path).unwrap();
        let (mut other, mut late) = (content.clone(), content.clone());
        other[1] ^= 1;
        *late.last_mut().unwrap() ^= 1;
        for content in [&other[..], &late, &content[..content.len() - 1], b""] {
            fs::write(&path, content).unwrap();
            let error = format!("{:#}", hashed.read().unwrap_err());
            assert!(error.contains("agent changed during the build"), "{error}");
        }
    }
}
