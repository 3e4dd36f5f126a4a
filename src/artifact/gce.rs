//! The archive that Google Compute Engine imports: `disk.raw` alone, in GNU tar's old sparse format, gzipped.
//!
//! Format: GNU tar's manual, "Old GNU Format". The map of stored ranges comes from the content in blocks, not
//! from the holes that the file system has, so equal disks give equal archives everywhere.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use image::layout::GIB;

use super::{Artifact, Inputs};
use crate::format::{gzip, sparse};

/// The archive in the output folder.
const FILE: &str = "gce.tar.gz";
/// The name of the only member, required by the importer.
const MEMBER: &str = "disk.raw";
/// Holes smaller than this are stored: compressed zeros cost less than a longer map.
const LEAST_HOLE: u64 = 64 << 10;
const TAR_BLOCK: usize = 512;
/// Entries of the map in the header, and in each block that continues it.
const IN_HEADER: usize = 4;
const IN_EXTENSION: usize = 21;

/// The row of the table.
pub(super) static ROW: Artifact = Artifact {
    name: "gce",
    help: "The tar archive that Google Compute Engine imports.",
    // The importer refuses a disk of another size.
    size_multiple: GIB,
    // Persistent disks have logical sectors of 512 bytes, whatever their physical ones.
    any_sectors: false,
    write,
};

fn write(inputs: &Inputs, output: &Path) -> Result<Vec<PathBuf>> {
    pack(inputs.disk, &output.join(FILE), inputs.epoch)?;
    Ok(vec![FILE.into()])
}

/// Writes the archive of a disk.
fn pack(disk: &Path, archive: &Path, epoch: u64) -> Result<()> {
    let naming = || format!("reading {}", disk.display());
    let mut file = File::open(disk).with_context(naming)?;
    let size = file.metadata().with_context(naming)?.len();
    let map = coarse(&sparse::map(&mut file).with_context(naming)?, size);
    let stored: u64 = map.iter().map(|(_, length)| length).sum();
    let header = header(&map, size, stored, epoch)?;
    let end = stored.next_multiple_of(TAR_BLOCK as u64) - stored + 2 * TAR_BLOCK as u64;
    let mut input = io::Cursor::new(header)
        .chain(Stored {
            file,
            map: map.into_iter(),
            left: 0,
        })
        .chain(io::repeat(0).take(end));
    let naming = || format!("writing {}", archive.display());
    let mut output = BufWriter::new(File::create(archive).with_context(naming)?);
    gzip::compress(&mut input, &mut output).with_context(naming)?;
    output.flush().with_context(naming)
}

/// Joins close ranges, and ends with an empty entry if the file ends in a hole, as GNU tar does.
fn coarse(map: &[(u64, u64)], size: u64) -> Vec<(u64, u64)> {
    let mut out: Vec<(u64, u64)> = Vec::new();
    for &(offset, length) in map {
        match out.last_mut() {
            Some((start, total)) if offset - (*start + *total) < LEAST_HOLE => {
                *total = offset + length - *start;
            }
            _ => out.push((offset, length)),
        }
    }
    if out
        .last()
        .is_none_or(|(offset, length)| offset + length < size)
    {
        out.push((size, 0));
    }
    out
}

fn header(map: &[(u64, u64)], size: u64, stored: u64, epoch: u64) -> Result<Vec<u8>> {
    let mut block = [0; TAR_BLOCK];
    block[..MEMBER.len()].copy_from_slice(MEMBER.as_bytes());
    number(&mut block[100..108], 0o644)?;
    number(&mut block[108..116], 0)?;
    number(&mut block[116..124], 0)?;
    number(&mut block[124..136], stored)?;
    number(&mut block[136..148], epoch)?;
    block[156] = b'S';
    block[257..265].copy_from_slice(b"ustar  \0");
    block[265..269].copy_from_slice(b"root");
    block[297..301].copy_from_slice(b"root");
    let (here, rest) = map.split_at(map.len().min(IN_HEADER));
    entries(&mut block[386..482], here)?;
    block[482] = u8::from(!rest.is_empty());
    number(&mut block[483..495], size)?;
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    number(&mut block[148..155], sum)?;
    let mut out = block.to_vec();
    let mut chunks = rest.chunks(IN_EXTENSION).peekable();
    while let Some(chunk) = chunks.next() {
        let mut block = [0; TAR_BLOCK];
        entries(&mut block[..504], chunk)?;
        block[504] = u8::from(chunks.peek().is_some());
        out.extend(block);
    }
    Ok(out)
}

fn entries(room: &mut [u8], map: &[(u64, u64)]) -> Result<()> {
    for (at, (offset, length)) in map.iter().enumerate() {
        number(&mut room[24 * at..24 * at + 12], *offset)?;
        number(&mut room[24 * at + 12..24 * at + 24], *length)?;
    }
    Ok(())
}

/// Octal digits and a NUL; a larger value is written in base 256 with the first bit set.
fn number(field: &mut [u8], value: u64) -> Result<()> {
    let digits = field.len() - 1;
    let text = format!("{value:0digits$o}");
    if text.len() == digits {
        field[..digits].copy_from_slice(text.as_bytes());
        field[digits] = 0;
    } else {
        let bytes = value.to_be_bytes();
        let start = field
            .len()
            .checked_sub(bytes.len())
            .context("a number too large for its field in a tar header")?;
        field.fill(0);
        field[start..].copy_from_slice(&bytes);
        field[0] |= 0x80;
    }
    Ok(())
}

/// The stored parts of the disk, one after the other.
struct Stored {
    file: File,
    map: std::vec::IntoIter<(u64, u64)>,
    left: u64,
}

impl Read for Stored {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.left == 0 {
            let Some((offset, length)) = self.map.next() else {
                return Ok(0);
            };
            self.file.seek(SeekFrom::Start(offset))?;
            self.left = length;
        }
        let want = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let read = self.file.read(&mut buffer[..want])?;
        if read == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        self.left -= u64::try_from(read).unwrap_or(0);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_tar_reader_restores_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk.raw");
        let file = File::create(&disk).unwrap();
        file.set_len(64 << 20).unwrap();
        // More parts than the header and one extension block hold.
        for part in 0..40u64 {
            let text = format!("part {part}");
            file.write_all_at(text.as_bytes(), part * (1 << 20) + 4096)
                .unwrap();
        }
        let archive = folder.path().join("disk.tar.gz");
        pack(&disk, &archive, 1_780_000_000).unwrap();
        assert!(archive.metadata().unwrap().len() < 100_000);
        let reader = flate2::read::GzDecoder::new(File::open(&archive).unwrap());
        let mut archive = tar::Archive::new(reader);
        let mut entries = archive.entries().unwrap();
        let mut entry = entries.next().unwrap().unwrap();
        assert_eq!(entry.path().unwrap().to_str(), Some(MEMBER));
        let mut restored = Vec::new();
        entry.read_to_end(&mut restored).unwrap();
        assert!(restored == std::fs::read(&disk).unwrap());
        drop(entry);
        assert!(entries.next().is_none());
    }

    #[test]
    fn numbers_beyond_octal_go_in_base_256() {
        let mut field = [0; 12];
        number(&mut field, 8 << 30).unwrap();
        assert_eq!(field, [0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0]);
        number(&mut field, 0o644).unwrap();
        assert_eq!(&field, b"00000000644\0");
    }
}
