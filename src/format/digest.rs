//! SHA-256 of files.

use std::fs::File;
use std::io::{BufRead, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use anyhow::{Context, Result};
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use super::sparse;

/// SHA-256 of a file in hexadecimal digits. Holes are hashed without being read.
///
/// # Errors
/// When the file cannot be read.
pub fn sha256(path: &Path) -> Result<String> {
    let naming = || format!("hashing {}", path.display());
    let file = File::open(path).with_context(naming)?;
    let size = file.metadata().with_context(naming)?.len();
    let mut hash = Sha256::new();
    let mut at = 0;
    for (start, length) in sparse::data(&file).with_context(naming)? {
        skip(&mut hash, at, start);
        let mut reader = BufReader::with_capacity(1 << 20, &file);
        reader.seek(SeekFrom::Start(start)).with_context(naming)?;
        let mut reader = reader.take(length);
        loop {
            let read = reader.fill_buf().with_context(naming)?;
            if read.is_empty() {
                break;
            }
            hash.update(read);
            let count = read.len();
            reader.consume(count);
        }
        at = start + length;
    }
    skip(&mut hash, at, size);
    Ok(HEXLOWER.encode(&hash.finalize()))
}

/// Hashes the zeros of a hole.
fn skip(hash: &mut Sha256, from: u64, to: u64) {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let mut left = to.saturating_sub(from);
    while left > 0 {
        let part = left.min(ZEROS.len() as u64);
        hash.update(&ZEROS[..usize::try_from(part).unwrap_or(ZEROS.len())]);
        left -= part;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt as _;

    use super::*;

    #[test]
    fn holes_hash_as_the_zeros_that_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sparse");
        let file = File::create(&path).unwrap();
        file.set_len((5 << 20) + 17).unwrap();
        file.write_all_at(b"one", 4096).unwrap();
        file.write_all_at(b"two", 3 << 20).unwrap();
        let whole = fs::read(&path).unwrap();
        assert_eq!(
            sha256(&path).unwrap(),
            HEXLOWER.encode(&Sha256::digest(&whole))
        );
    }
}
