//! Disks of earlier builds as files of the repository: their data without zeros, in gzip.

use std::fs::File;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use slipway::format::sparse::{BLOCK, is_zero};
use slipway::vm::disks::blank;

#[cfg(test)]
mod tests;

/// Packs ranges of a disk: its size, then for each block that is not all zeros its first byte and its content. Numbers are of
/// eight bytes, the lowest first; the ranges begin and end at multiples of the block's 4096 bytes.
///
/// # Errors
/// If a file cannot be read or written.
pub fn pack(disk: &Path, ranges: &[Range<u64>], to: &Path) -> Result<()> {
    let disk = File::open(disk).with_context(|| format!("opening {}", disk.display()))?;
    let file = File::create(to).with_context(|| format!("making {}", to.display()))?;
    let mut out = GzEncoder::new(file, Compression::best());
    out.write_all(&disk.metadata()?.len().to_le_bytes())?;
    let mut block = [0; BLOCK];
    for at in ranges.iter().flat_map(|range| range.clone().step_by(BLOCK)) {
        disk.read_exact_at(&mut block, at)?;
        if !is_zero(&block) {
            out.write_all(&at.to_le_bytes())?;
            out.write_all(&block)?;
        }
    }
    out.finish()?.sync_all().context("writing the packed disk")
}

/// Makes the disk that was packed, with zeros where nothing was.
///
/// # Errors
/// If the file is not a packed disk, or the disk cannot be written.
pub fn unpack(packed: &[u8], disk: &Path) -> Result<()> {
    let mut input = GzDecoder::new(packed);
    let size = number(&mut input)?.context("the packed disk is empty")?;
    blank(disk, size)?;
    let file = File::options().write(true).open(disk)?;
    let mut block = [0; BLOCK];
    while let Some(at) = number(&mut input)? {
        ensure!(at < size, "a block at {at} of a disk of {size} bytes");
        input.read_exact(&mut block).context("reading a block")?;
        file.write_all_at(&block, at)?;
    }
    Ok(())
}

/// The next number; none at the end.
fn number(input: &mut impl Read) -> Result<Option<u64>> {
    let mut bytes = Vec::new();
    input.take(8).read_to_end(&mut bytes)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let bytes = bytes.try_into();
    let bytes = bytes.map_err(|_| anyhow::anyhow!("the packed disk is cut short"))?;
    Ok(Some(u64::from_le_bytes(bytes)))
}
