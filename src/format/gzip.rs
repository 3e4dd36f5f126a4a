//! One gzip member, compressed on all cores: blocks end on a byte by a sync flush, so they can be joined.
//!
//! Formats: RFC 1951 and 1952. The bytes depend on the input alone, not on the number of cores. The output is one
//! member, because some readers of disk images stop after the first.

use super::threads;
use std::io::{Read, Write};
use std::sync::mpsc::sync_channel;
use std::thread;

use anyhow::{Context, Result, bail};
use flate2::{Compress, Compression, Crc, FlushCompress};

/// Bytes of input per independent block: large enough that the lost window costs less than one per cent.
const BLOCK: usize = 1 << 20;
/// The default level; 9 takes three times as long for almost no gain.
const LEVEL: u32 = 6;
/// Magic, deflate, no name, no time, no hint, unknown system.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];

struct Packed {
    bytes: Vec<u8>,
    sum: Crc,
}

/// Compresses all of `input`.
///
/// # Errors
/// When the input cannot be read or the output not written.
pub fn compress(input: &mut impl Read, output: &mut impl Write) -> Result<()> {
    let workers = threads::number();
    output.write_all(&HEADER)?;
    let mut sum = Crc::new();
    thread::scope(|scope| -> Result<()> {
        let (jobs, results): (Vec<_>, Vec<_>) = (0..workers)
            .map(|_| {
                let (job, work) = sync_channel::<Vec<u8>>(1);
                let (done, result) = sync_channel::<Result<Packed>>(1);
                scope.spawn(move || {
                    for block in work {
                        if done.send(pack(&block)).is_err() {
                            break;
                        }
                    }
                });
                (job, result)
            })
            .unzip();
        let (mut sent, mut written) = (0, 0);
        let mut take = |written: &mut usize| -> Result<()> {
            let packed = results[*written % workers]
                .recv()
                .context("a compressing thread ended early")??;
            *written += 1;
            sum.combine(&packed.sum);
            Ok(output.write_all(&packed.bytes)?)
        };
        loop {
            let mut block = Vec::with_capacity(BLOCK);
            input.by_ref().take(BLOCK as u64).read_to_end(&mut block)?;
            if block.is_empty() {
                break;
            }
            // A worker takes its next block only after its last result was taken: two blocks for each keep all workers
            // busy.
            if sent - written == 2 * workers {
                take(&mut written)?;
            }
            if jobs[sent % workers].send(block).is_err() {
                bail!("a compressing thread ended early");
            }
            sent += 1;
        }
        drop(jobs);
        while written < sent {
            take(&mut written)?;
        }
        Ok(())
    })?;
    // An empty final block ends the member.
    output.write_all(&[3, 0])?;
    output.write_all(&sum.sum().to_le_bytes())?;
    output.write_all(&sum.amount().to_le_bytes())?;
    Ok(())
}

fn pack(block: &[u8]) -> Result<Packed> {
    let mut state = Compress::new(Compression::new(LEVEL), false);
    let mut bytes = Vec::with_capacity(block.len() + block.len() / 100 + 1024);
    loop {
        let read = usize::try_from(state.total_in())?;
        state.compress_vec(&block[read..], &mut bytes, FlushCompress::Sync)?;
        // The flush is complete only if the buffer still has space after it.
        if bytes.len() < bytes.capacity() {
            break;
        }
        bytes.reserve(block.len() / 4 + 1024);
    }
    if usize::try_from(state.total_in())? != block.len() {
        bail!("compressing stopped before its end");
    }
    let mut sum = Crc::new();
    sum.update(block);
    Ok(Packed { bytes, sum })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(input: &[u8]) -> Vec<u8> {
        let mut packed = Vec::new();
        compress(&mut &input[..], &mut packed).unwrap();
        let mut out = Vec::new();
        // This reader stops after one member, so a second one would be noticed.
        let mut reader = flate2::bufread::GzDecoder::new(packed.as_slice());
        reader.read_to_end(&mut out).unwrap();
        assert!(reader.into_inner().is_empty());
        out
    }

    #[test]
    fn blocks_join_to_one_member() {
        let mut noise = 1u64;
        let input: Vec<u8> = (0..9 * BLOCK + 12345)
            .map(|at| {
                noise = noise
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                if at % 3 == 0 {
                    0
                } else {
                    noise.to_le_bytes()[7]
                }
            })
            .collect();
        assert!(round_trip(&input) == input);
        assert!(round_trip(&input[..BLOCK]) == input[..BLOCK]);
        assert_eq!(round_trip(b"x"), b"x");
        assert_eq!(round_trip(b""), b"");
    }
}
