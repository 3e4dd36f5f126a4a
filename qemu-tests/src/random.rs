//! Random numbers that a seed repeats.

use std::fs::File;
use std::io::Read;

use anyhow::{Context, Result};

/// The variable that gives the seed of a run again, as the run printed it.
const SEED: &str = "SLIPWAY_SEED";

/// A run's seed: that of the environment, else a new one.
///
/// # Errors
/// If the variable has no number, or the host gives no random bytes.
pub fn seed() -> Result<u64> {
    let Some(text) = std::env::var_os(SEED) else {
        let mut bytes = [0; 8];
        File::open("/dev/urandom")
            .and_then(|mut random| random.read_exact(&mut bytes))
            .context("reading random bytes for a seed")?;
        return Ok(u64::from_le_bytes(bytes));
    };
    let text = text.to_string_lossy();
    let number = u64::from_str_radix(text.trim_start_matches("0x"), 16);
    number.with_context(|| format!("{SEED} is {text:?}; expected a hexadecimal number"))
}

/// The generator SplitMix64 (Steele, Lea, Flood: *Fast splittable pseudorandom number generators*, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below this one, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        // The remainder's bias is 2⁻⁴⁰ for any number of writes.
        let bits = usize::try_from(self.bits() >> 1).unwrap_or(usize::MAX);
        bits % bound
    }

    /// One of two.
    pub fn coin(&mut self) -> bool {
        self.bits() >> 63 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_published_numbers_again() {
        // The first outputs of the authors' reference program for seed 1234567.
        let mut random = Random::new(1_234_567);
        let found: Vec<u64> = (0..3).map(|_| random.bits()).collect();
        assert_eq!(
            found,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
        assert!((0..100).all(|_| random.below(3) < 3));
    }
}
