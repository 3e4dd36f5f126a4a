//! The superblock, at byte 1024 of the first block, and the settings of the compression behind it.

use anyhow::{Context as _, Result};

use super::{BLOCK, BLOCK_BYTES, Compression, Volume};

/// The first bytes.
const MAGIC: u32 = 0xe0f5_e1e2;
/// Where it begins.
const OFFSET: usize = 1024;
/// Its bytes.
const SIZE: usize = 128;
/// The superblock has a checksum.
const CHECKSUM: u32 = 1;
/// Inodes have the time of the last change of their content.
const MTIME: u32 = 2;
/// Compressed data ends where its blocks end (`LZ4_0PADDING`).
const ENDS_ALIGNED: u32 = 1;
/// Compressed data may have several blocks, and settings are behind the superblock (`COMPR_CFGS`, `BIG_PCLUSTER`).
const CLUSTERS: u32 = 2;
/// The algorithms' numbers.
pub(super) const LZ4: u8 = 0;
pub(super) const ZSTD: u8 = 3;
/// The largest window of a frame, as a power of two less ten: 1 MiB.
const WINDOW: u8 = 10;

/// What is in it.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    pub(super) volume: &'a Volume,
    /// The number of the root's inode.
    pub(super) root: u64,
    pub(super) inodes: u64,
    /// Of the whole file system.
    pub(super) blocks: u64,
    /// The block from which inodes are counted.
    pub(super) metadata: u32,
}

/// The first block.
pub(super) fn encode(facts: &Facts<'_>) -> Result<Vec<u8>> {
    let Volume {
        uuid,
        epoch,
        compression,
        cluster,
    } = facts.volume;
    let blocks = u16::try_from(u64::from(*cluster) / BLOCK_BYTES)?;
    let (incompatible, algorithms, settings) = match compression {
        Compression::None => (0, 0, Vec::new()),
        Compression::Lz4(_) => {
            let mut settings = u16::MAX.to_le_bytes().to_vec();
            settings.extend_from_slice(&blocks.to_le_bytes());
            settings.resize(14, 0);
            (ENDS_ALIGNED | CLUSTERS, 1 << LZ4, settings)
        }
        Compression::Zstd(_) => (
            ENDS_ALIGNED | CLUSTERS,
            1 << ZSTD,
            vec![0, WINDOW, 0, 0, 0, 0],
        ),
    };
    let mut out = vec![0; OFFSET];
    out.extend_from_slice(&MAGIC.to_le_bytes());
    // The checksum, below.
    out.extend_from_slice(&0_u32.to_le_bytes());
    out.extend_from_slice(&(CHECKSUM | MTIME).to_le_bytes());
    // Blocks of 2^12 bytes; no more slots.
    out.extend_from_slice(&[12, 0]);
    let root = u16::try_from(facts.root).context("the root's inode is too far behind")?;
    out.extend_from_slice(&root.to_le_bytes());
    out.extend_from_slice(&facts.inodes.to_le_bytes());
    out.extend_from_slice(&epoch.to_le_bytes());
    out.extend_from_slice(&0_u32.to_le_bytes());
    let blocks = u32::try_from(facts.blocks).context("more than 16 TiB")?;
    out.extend_from_slice(&blocks.to_le_bytes());
    out.extend_from_slice(&facts.metadata.to_le_bytes());
    // Attributes that inodes share; there are none.
    out.extend_from_slice(&0_u32.to_le_bytes());
    out.extend_from_slice(&uuid.0);
    // The label.
    out.extend_from_slice(&[0; 16]);
    out.extend_from_slice(&u32::to_le_bytes(incompatible));
    out.extend_from_slice(&u16::to_le_bytes(algorithms));
    out.resize(OFFSET + SIZE, 0);
    if !settings.is_empty() {
        out.extend_from_slice(&u16::try_from(settings.len())?.to_le_bytes());
        out.extend_from_slice(&settings);
    }
    out.resize(BLOCK, 0);
    let sum = crc32c(&out[OFFSET..]);
    out[OFFSET + 4..OFFSET + 8].copy_from_slice(&sum.to_le_bytes());
    Ok(out)
}

/// CRC-32C (Castagnoli), reflected, begun with all ones and not inverted at the end.
fn crc32c(bytes: &[u8]) -> u32 {
    bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0x82f6_3b78 & (sum & 1).wrapping_neg())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_of_iscsi() {
        // RFC 3720, appendix B.4, whose sums are inverted at the end.
        assert_eq!(!crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(!crc32c(&[0xff; 32]), 0x62a8_ab43);
    }
}
