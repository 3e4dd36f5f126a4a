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
    sha256_growing(path, [])
}

/// The same of a file that is being written: `ends` gives, in rising order and when it is so, the bytes up to which it is as it will be;
/// after the last one all of it is. It may be absent before the first.
///
/// # Errors
/// When the file cannot be read.
pub fn sha256_growing(path: &Path, ends: impl IntoIterator<Item = u64>) -> Result<String> {
    let naming = || format!("hashing {}", path.display());
    let (mut hash, mut at) = (Sha256::new(), 0);
    for end in ends {
        let file = File::open(path).with_context(naming)?;
        part(&mut hash, &file, at, end).with_context(naming)?;
        at = at.max(end);
    }
    let file = File::open(path).with_context(naming)?;
    let size = file.metadata().with_context(naming)?.len();
    part(&mut hash, &file, at, size).with_context(naming)?;
    Ok(HEXLOWER.encode(&hash.finalize()))
}

/// Hashes the bytes of a file from `from` to `to`.
fn part(hash: &mut Sha256, file: &File, from: u64, to: u64) -> Result<()> {
    let mut at = from;
    for (start, length) in sparse::data(file)? {
        let (start, end) = (start.max(at), (start + length).min(to));
        if start >= end {
            continue;
        }
        skip(hash, at, start);
        let mut reader = BufReader::with_capacity(1 << 20, file);
        reader.seek(SeekFrom::Start(start))?;
        let mut reader = reader.take(end - start);
        loop {
            let read = reader.fill_buf()?;
            if read.is_empty() {
                break;
            }
            hash.update(read);
            let count = read.len();
            reader.consume(count);
        }
        at = end;
    }
    skip(hash, at, to);
    Ok(())
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
        // And in parts, whose ends are in data and in holes.
        for ends in [
            vec![0],
            vec![4097, 4097, 70_000],
            vec![4 << 20, (5 << 20) + 17],
        ] {
            let grown = sha256_growing(&path, ends.clone()).unwrap();
            assert_eq!(grown, HEXLOWER.encode(&Sha256::digest(&whole)), "{ends:?}");
        }
    }
}
