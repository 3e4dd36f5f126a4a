//! The dm-verity hash tree, computed on all cores. Layout: superblock, then the levels from the top down, each block
//! 128 digests (<https://gitlab.com/cryptsetup/cryptsetup/-/wikis/DMVerity>).

use super::threads;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use image::guid::Guid;
use image::verity::{BLOCK, DIGEST, RootHash, Superblock};
use sha2::{Digest, Sha256};

const BLOCK_BYTES: usize = 4096;
/// Blocks per unit of work of a thread: 1 MiB.
const CHUNK: u64 = 256;

/// Writes superblock and tree of the file `data` to `to`; gives the root hash.
pub fn write(data: &Path, to: &Path, salt: &[u8], uuid: Guid) -> Result<RootHash> {
    let about = || format!("hashing {}", data.display());
    let file = File::open(data).with_context(about)?;
    let size = file.metadata()?.len();
    ensure!(
        size > 0 && size.is_multiple_of(BLOCK),
        "{} has {size} bytes; expected whole blocks of {BLOCK}",
        data.display()
    );
    let blocks = size / BLOCK;
    let salted = Sha256::new_with_prefix(salt);
    let mut levels = vec![leaves(&file, blocks, &salted).with_context(about)?];
    while let Some(level) = levels.last()
        && level.len() > DIGEST
    {
        let padded = level.len().next_multiple_of(BLOCK_BYTES);
        let mut level = level.clone();
        level.resize(padded, 0);
        let above = level
            .chunks_exact(BLOCK_BYTES)
            .flat_map(|block| digest(&salted, block))
            .collect();
        if let Some(last) = levels.last_mut() {
            *last = level;
        }
        levels.push(above);
    }
    let root = levels.pop().context("a tree without a root")?;
    let superblock = Superblock {
        uuid,
        data_blocks: blocks,
        salt: salt.to_vec(),
    };
    let mut out = superblock.to_bytes().to_vec();
    out.resize(BLOCK_BYTES, 0);
    for level in levels.iter().rev() {
        out.extend_from_slice(level);
    }
    fs::write(to, out).with_context(|| format!("writing {}", to.display()))?;
    let mut hash = [0; DIGEST];
    hash.copy_from_slice(&root);
    Ok(RootHash(hash))
}

fn digest(salted: &Sha256, block: &[u8]) -> [u8; DIGEST] {
    salted.clone().chain_update(block).finalize().into()
}

/// The digests of all data blocks, in order.
fn leaves(file: &File, blocks: u64, salted: &Sha256) -> Result<Vec<u8>> {
    let threads = threads::number();
    let next = AtomicU64::new(0);
    let chunks = std::thread::scope(|scope| {
        let work = || -> Result<Vec<(u64, Vec<u8>)>> {
            let mut mine = Vec::new();
            let mut buffer = vec![0; BLOCK_BYTES * usize::try_from(CHUNK)?];
            loop {
                let chunk = next.fetch_add(1, Ordering::Relaxed);
                let first = chunk * CHUNK;
                if first >= blocks {
                    return Ok(mine);
                }
                let count = usize::try_from(CHUNK.min(blocks - first))?;
                let part = &mut buffer[..count * BLOCK_BYTES];
                file.read_exact_at(part, first * BLOCK)?;
                let digests = part
                    .chunks_exact(BLOCK_BYTES)
                    .flat_map(|block| digest(salted, block))
                    .collect();
                mine.push((chunk, digests));
            }
        };
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut all = Vec::new();
        for thread in running {
            all.extend(
                thread
                    .join()
                    .map_err(|_| anyhow::anyhow!("a thread panicked"))??,
            );
        }
        anyhow::Ok(all)
    });
    let mut chunks = chunks?;
    chunks.sort_unstable_by_key(|(chunk, _)| *chunk);
    Ok(chunks
        .into_iter()
        .flat_map(|(_, digests)| digests)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second implementation from the text of the format: recursion over blocks.
    fn plain(data: &[u8], salt: &[u8]) -> Vec<u8> {
        let digests: Vec<u8> = data
            .chunks(BLOCK_BYTES)
            .flat_map(|block| {
                let mut block = block.to_vec();
                block.resize(BLOCK_BYTES, 0);
                Sha256::digest([salt, &block].concat()).to_vec()
            })
            .collect();
        if digests.len() == DIGEST {
            digests
        } else {
            plain(&digests, salt)
        }
    }

    #[test]
    fn the_root_hash_is_that_of_the_plain_computation() {
        let folder = tempfile::tempdir().unwrap();
        let (data, tree) = (folder.path().join("data"), folder.path().join("tree"));
        // One block, one level, a full level, one more than that, three levels.
        for blocks in [1, 2, 128, 129, 300, 16_500] {
            let bytes: Vec<u8> = (0..blocks * BLOCK_BYTES)
                .map(|at| u8::try_from(at / 77 % 251).unwrap())
                .collect();
            fs::write(&data, &bytes).unwrap();
            let hash = write(&data, &tree, &[7; 32], Guid([1; 16])).unwrap();
            assert_eq!(hash.0.to_vec(), plain(&bytes, &[7; 32]), "{blocks} blocks");
            let written = fs::read(&tree).unwrap();
            let superblock = Superblock::from_bytes(&written).unwrap();
            assert_eq!(superblock.data_blocks, blocks as u64);
            let hashes: usize = match blocks {
                1 => 0,
                2..=128 => 1,
                129 => 3,
                300 => 4,
                _ => 129 + 2 + 1,
            };
            assert_eq!(written.len(), (1 + hashes) * BLOCK_BYTES, "{blocks} blocks");
        }
    }

    #[test]
    fn half_a_block_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        fs::write(&data, [0; 5000]).unwrap();
        let error = write(&data, &folder.path().join("tree"), &[], Guid([1; 16])).unwrap_err();
        assert!(error.to_string().contains("5000 bytes"), "{error}");
    }
}
