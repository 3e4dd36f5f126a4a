//! Files with holes: zeros are never written, so that an image occupies only the space of its content.

use std::borrow::Cow;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};

/// Granularity of the search for zeros, bytes: the page size of every file system that stores images.
pub const BLOCK: usize = 4096;
/// Size of a read, bytes.
const CHUNK: usize = 1 << 20;

/// Bytes at an offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent<'a> {
    /// Offset of the first byte.
    pub offset: u64,
    /// The content.
    pub bytes: Cow<'a, [u8]>,
}

/// Whether all bytes are zero.
#[must_use]
pub fn is_zero(bytes: &[u8]) -> bool {
    // Words first: the compiler vectorises this loop.
    let (words, rest) = bytes.as_chunks::<8>();
    rest.iter().all(|byte| *byte == 0)
        && words.chunks(64).all(|chunk| {
            chunk
                .iter()
                .fold(0, |all, word| all | u64::from_ne_bytes(*word))
                == 0
        })
}

/// Writes the bytes at the offset, except for blocks of zeros. The file must be new: skipped blocks
/// are not overwritten.
///
/// # Errors
/// When the file cannot be written.
pub fn write(file: &File, offset: u64, bytes: &[u8]) -> Result<()> {
    // Runs of blocks that are not all zeros, cut at multiples of the block size in the file.
    let lead = (BLOCK - usize::try_from(offset % BLOCK as u64)?) % BLOCK;
    let (head, body) = bytes.split_at(lead.min(bytes.len()));
    if !is_zero(head) {
        file.write_all_at(head, offset)?;
    }
    let start = offset + u64::try_from(head.len())?;
    let mut run: Option<usize> = None;
    let mut at = 0;
    for block in body.chunks(BLOCK) {
        if is_zero(block) {
            if let Some(from) = run.take() {
                file.write_all_at(&body[from..at], start + u64::try_from(from)?)?;
            }
        } else {
            run.get_or_insert(at);
        }
        at += block.len();
    }
    if let Some(from) = run {
        file.write_all_at(&body[from..], start + u64::try_from(from)?)?;
    }
    Ok(())
}

/// Copies a file into another at an offset, without zeros. Gives the number of bytes read.
///
/// # Errors
/// Names the source.
pub fn copy(source: &Path, target: &File, offset: u64) -> Result<u64> {
    let naming = || format!("copying {}", source.display());
    let from = File::open(source).with_context(naming)?;
    let mut buffer = vec![0; CHUNK];
    let mut done = 0;
    for (start, length) in data(&from).with_context(naming)? {
        let mut at = start;
        while at < start + length {
            let want = usize::try_from((start + length - at).min(CHUNK as u64))?;
            from.read_exact_at(&mut buffer[..want], at)
                .with_context(naming)?;
            write(target, offset + at, &buffer[..want])?;
            at += u64::try_from(want)?;
        }
        done = at;
    }
    Ok(done.max(from.metadata().with_context(naming)?.len()))
}

/// The parts of a file that its file system stores, as (offset, length); the rest is zero.
///
/// # Errors
/// When the file system does not report them.
pub fn data(file: &File) -> Result<Vec<(u64, u64)>> {
    use nix::unistd::{Whence, lseek};
    let length = file.metadata()?.len();
    let (mut out, mut at) = (Vec::new(), 0);
    while at < length {
        let start = match lseek(file, i64::try_from(at)?, Whence::SeekData) {
            Ok(start) => u64::try_from(start)?,
            Err(nix::errno::Errno::ENXIO) => break,
            // A file system without support for holes: all of the file is data.
            Err(nix::errno::Errno::EINVAL | nix::errno::Errno::EOPNOTSUPP) => {
                return Ok(vec![(0, length)]);
            }
            Err(error) => return Err(error).context("looking for data in a sparse file"),
        };
        let end = u64::try_from(lseek(file, i64::try_from(start)?, Whence::SeekHole)?)?;
        out.push((start, end - start));
        at = end;
    }
    Ok(out)
}

/// The blocks that are not all zeros, as (offset, length) in multiples of [`BLOCK`], merged. They come from the
/// content, not from the file system's holes, so that the result is the same everywhere.
///
/// # Errors
/// When the file cannot be read.
pub fn map(file: &mut File) -> Result<Vec<(u64, u64)>> {
    let block = BLOCK as u64;
    let mut out: Vec<(u64, u64)> = Vec::new();
    let mut buffer = vec![0; CHUNK];
    for (start, length) in data(file)? {
        let end = start + length;
        let mut at = start / block * block;
        file.seek(SeekFrom::Start(at))?;
        while at < end {
            let read = fill(file, &mut buffer)?;
            if read == 0 {
                break;
            }
            for piece in buffer[..read].chunks(BLOCK) {
                let size = u64::try_from(piece.len())?;
                if at >= end {
                    break;
                }
                if !is_zero(piece) {
                    match out.last_mut() {
                        Some((from, total)) if *from + *total == at => *total += size,
                        Some((from, total)) if at < *from + *total => {}
                        _ => out.push((at, size)),
                    }
                }
                at += size;
            }
        }
    }
    Ok(out)
}

fn fill(file: &mut File, buffer: &mut [u8]) -> Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read(&mut buffer[read..])? {
            0 => break,
            more => read += more,
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_neither_written_nor_mapped() {
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(16 << 20).unwrap();
        let mut bytes = vec![0; 3 << 20];
        bytes[0] = 1;
        bytes[1 << 20] = 2;
        write(&file, (1 << 20) + 100, &bytes).unwrap();
        // Stored zeros are zeros too.
        file.write_all_at(&[0; 65_536], 8 << 20).unwrap();
        file.write_all_at(b"end", (16 << 20) - 3).unwrap();
        let block = BLOCK as u64;
        assert_eq!(
            map(&mut file).unwrap(),
            [
                (1 << 20, block),
                (2 << 20, block),
                ((16 << 20) - block, block)
            ]
        );
        let mut back = vec![9; bytes.len()];
        file.read_exact_at(&mut back, (1 << 20) + 100).unwrap();
        assert!(back == bytes);
    }

    #[test]
    fn copies_are_equal_and_as_sparse() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("source");
        let source = File::create_new(&path).unwrap();
        source.set_len(32 << 20).unwrap();
        source.write_all_at(b"something", 5 << 20).unwrap();
        let target = tempfile::tempfile().unwrap();
        target.set_len(64 << 20).unwrap();
        assert_eq!(copy(&path, &target, 4096).unwrap(), 32 << 20);
        let mut back = [0; 9];
        target.read_exact_at(&mut back, (5 << 20) + 4096).unwrap();
        assert_eq!(&back, b"something");
        assert!(target.metadata().unwrap().blocks() * 512 < 1 << 20);
    }

    #[test]
    fn zero_is_seen_in_every_place() {
        for length in [0, 1, 7, 8, 4095, 4096] {
            let mut bytes = vec![0; length];
            assert!(is_zero(&bytes));
            for at in 0..length {
                bytes[at] = 1;
                assert!(!is_zero(&bytes), "{at} of {length}");
                bytes[at] = 0;
            }
        }
    }
}
