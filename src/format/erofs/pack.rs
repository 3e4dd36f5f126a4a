//! Compresses a part of a file into physical clusters of whole blocks.
//!
//! Each cluster holds as much content as fits into its blocks. Its data ends where its last block ends, with zeros before it, which the
//! kernel skips. Where compression saves no block, content is stored as it is, a block of it in each cluster.

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use zstd::bulk::Compressor as Zstd;
use zstd::zstd_safe::CParameter;

use super::{BLOCK, Compression};
use crate::format::lz4;

/// The most content of one cluster, bytes. The kernel decompresses all of it for any page of it.
const MOST: usize = 1 << 20;
/// The largest window of zstd, as a power of two.
const WINDOW: u32 = 20;
/// How often a size of the input is tried for one cluster.
const TRIES: usize = 6;

/// Content that is stored together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Extent {
    /// Bytes of content.
    pub(super) length: u32,
    /// Blocks that hold it.
    pub(super) blocks: u16,
    /// Whether it is stored as it is.
    pub(super) plain: bool,
}

/// A packed part of a file.
#[derive(Debug, Default)]
pub(super) struct Packed {
    pub(super) extents: Vec<Extent>,
    /// Whole blocks.
    pub(super) data: Vec<u8>,
}

/// Packs one part after another.
pub(super) struct Packer {
    algorithm: Algorithm,
    cluster: usize,
    /// One cluster's data.
    scratch: Vec<u8>,
}

enum Algorithm {
    Lz4(lz4::Encoder),
    Zstd(Box<Zstd<'static>>),
}

impl Packer {
    /// `None` if content is not compressed. `cluster` is the most bytes of a cluster's data.
    ///
    /// # Errors
    /// If zstd does not know the level.
    pub(super) fn new(compression: Compression, cluster: u32) -> Result<Option<Self>> {
        let algorithm = match compression {
            Compression::None => return Ok(None),
            Compression::Lz4(level) => Algorithm::Lz4(lz4::Encoder::new(level)),
            Compression::Zstd(level) => {
                let about = || format!("setting up zstd's level {level}");
                let mut zstd = Zstd::new(level).with_context(about)?;
                zstd.set_parameter(CParameter::WindowLog(WINDOW))
                    .with_context(about)?;
                zstd.set_parameter(CParameter::ChecksumFlag(false))
                    .with_context(about)?;
                Algorithm::Zstd(Box::new(zstd))
            }
        };
        Ok(Some(Self {
            algorithm,
            cluster: cluster as usize,
            scratch: Vec::new(),
        }))
    }

    /// Packs `input`, which begins at a whole block of its file.
    ///
    /// # Errors
    /// If zstd fails.
    pub(super) fn pack(&mut self, input: &[u8]) -> Result<Packed> {
        let mut packed = Packed::default();
        if let Algorithm::Lz4(encoder) = &mut self.algorithm {
            encoder.begin(input);
        }
        let mut at = 0;
        // How many bytes of content a byte of the last cluster held: where zstd begins to try.
        let mut ratio = 3;
        while at < input.len() {
            self.scratch.clear();
            let end = input.len().min(at + MOST);
            let length = match &mut self.algorithm {
                Algorithm::Lz4(encoder) => {
                    encoder.block(&input[..end], at, self.cluster, &mut self.scratch)
                }
                Algorithm::Zstd(zstd) => {
                    let length = fill(
                        zstd,
                        &input[at..end],
                        self.cluster,
                        ratio,
                        &mut self.scratch,
                    )?;
                    ratio = (length / self.scratch.len().max(1)).max(1);
                    length
                }
            };
            let blocks = self.scratch.len().div_ceil(BLOCK);
            if length > blocks * BLOCK {
                let padding = blocks * BLOCK - self.scratch.len();
                packed.data.resize(packed.data.len() + padding, 0);
                packed.data.extend_from_slice(&self.scratch);
                packed.extents.push(Extent {
                    length: u32::try_from(length)?,
                    blocks: u16::try_from(blocks)?,
                    plain: false,
                });
                at += length;
            } else {
                at = plain(input, at, length, &mut packed);
            }
        }
        Ok(packed)
    }
}

/// Stores about `length` bytes from `at` on as they are: whole blocks, or what is left. Gives the end.
fn plain(input: &[u8], mut at: usize, length: usize, packed: &mut Packed) -> usize {
    let end = input.len().min(at + length.next_multiple_of(BLOCK));
    while at < end {
        let part = &input[at..end.min(at + BLOCK)];
        packed.data.extend_from_slice(part);
        packed
            .data
            .resize(packed.data.len().next_multiple_of(BLOCK), 0);
        packed.extents.push(Extent {
            length: u32::try_from(part.len()).unwrap_or(u32::MAX),
            blocks: 1,
            plain: true,
        });
        at += part.len();
    }
    at
}

/// The length to try next: in proportion, and not outside of what is known; none if the two are near enough. They may be neighbours: zstd
/// has other parameters above 256 KiB, with which a byte more may take a block more.
fn between(fits: usize, too_long: usize, proportion: usize) -> Option<usize> {
    (too_long - fits > BLOCK / 8).then(|| proportion.clamp(fits + 1, too_long - 1))
}

/// Compresses as much of the input as a few tries find to fit into `room` bytes: gives its length.
fn fill(
    zstd: &mut Zstd<'_>,
    input: &[u8],
    room: usize,
    ratio: usize,
    best: &mut Vec<u8>,
) -> Result<usize> {
    let (mut fits, mut too_long) = (0, input.len() + 1);
    let mut length = input.len().min(room * ratio);
    let mut scratch = vec![0; zstd::zstd_safe::compress_bound(input.len())];
    for _ in 0..TRIES {
        let size = zstd
            .compress_to_buffer(&input[..length], &mut scratch)
            .context("compressing with zstd")?;
        if size <= room {
            fits = length;
            best.clear();
            best.extend_from_slice(&scratch[..size]);
            if length == input.len() || room - size < BLOCK / 8 {
                break;
            }
        } else {
            too_long = length;
        }
        let proportion = length.saturating_mul(room - room / 128) / size.max(1);
        match between(fits, too_long, proportion) {
            Some(next) => length = next,
            None => break,
        }
    }
    if fits == 0 {
        // It does not compress: any length is as good.
        fits = input.len().min(room);
        best.clear();
        best.resize(room.max(fits), 0);
    }
    Ok(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of a made-up language, of which `bits` of each byte cannot be foreseen.
    fn text(seed: u64, bits: u32, length: usize) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        (0..length)
            .map(|_| u8::try_from(next() >> 32 & ((1 << bits) - 1)).unwrap_or(0))
            .collect()
    }

    #[test]
    fn the_next_length_is_between_what_fits_and_what_does_not() {
        for proportion in [0, 262_144, 262_145, 300_000, usize::MAX] {
            assert_eq!(between(262_144, 262_145, proportion), None);
            let next = between(262_144, 300_000, proportion).unwrap();
            assert!(262_144 < next && next < 300_000, "{proportion}");
        }
    }

    #[test]
    fn zstd_stores_whatever_the_content_is() {
        const CLUSTER: u32 = 65536;
        for bits in 0..=8 {
            let mut packer = Packer::new(Compression::Zstd(3), CLUSTER).unwrap().unwrap();
            // A part is as long as the longest cluster's content, or ends anywhere.
            for length in [MOST, 262_144, 262_145, 300_001, 4097, 1] {
                let input = text(u64::from(bits) + 1, bits, length);
                let packed = packer.pack(&input).unwrap();
                let (mut at, mut data) = (0, packed.data.as_slice());
                for extent in &packed.extents {
                    let stored;
                    (stored, data) = data.split_at(usize::from(extent.blocks) * BLOCK);
                    let content = &input[at..at + extent.length as usize];
                    at += content.len();
                    if extent.plain {
                        assert!(stored.starts_with(content));
                        continue;
                    }
                    let begin = stored.iter().position(|byte| *byte != 0).unwrap();
                    let whole = zstd::bulk::decompress(&stored[begin..], content.len());
                    assert!(whole.unwrap() == content);
                }
                assert_eq!((at, data.len()), (input.len(), 0), "{bits} bits");
            }
        }
    }
}
