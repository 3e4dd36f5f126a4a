//! Limit: how large the cache may be, as it is written, and by default.

use std::path::Path;
use std::str::FromStr;

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// The variable for the cache's limit.
pub(super) const VARIABLE: &str = "SLIPWAY_CACHE_SIZE";
/// The most that the default is, bytes: some ten images with all that they were made from.
const DEFAULT: u64 = 20 << 30;
/// Units, powers of 1024 as in recipes.
const UNITS: [(&str, u32); 9] = [
    ("KiB", 10),
    ("MiB", 20),
    ("GiB", 30),
    ("TiB", 40),
    ("K", 10),
    ("M", 20),
    ("G", 30),
    ("T", 40),
    ("B", 0),
];

/// The size, in bytes, above which the longest unused entries are removed; none: it may grow without end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Limit(pub Option<u64>);

impl TryFrom<String> for Limit {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Limit {
    type Err = String;

    /// Reads a size such as `20G` or `512 MiB`, or `none`.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text == "none" {
            return Ok(Self(None));
        }
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let shift = match unit.trim_start() {
            "" => Some(0),
            unit => UNITS
                .iter()
                .find(|(name, _)| *name == unit)
                .map(|(_, shift)| *shift),
        };
        let bytes = shift.zip(number.parse::<u64>().ok());
        let bytes = bytes.and_then(|(shift, number)| number.checked_mul(1 << shift));
        match bytes {
            Some(bytes) => Ok(Self(Some(bytes))),
            None => Err(format!(
                "{text:?} is not a size: expected a whole number with K, M, G or T, as 20G, or `none`"
            )),
        }
    }
}

impl Limit {
    /// The variable's; none if it is not set.
    ///
    /// # Errors
    /// If the variable's value is not a size.
    pub fn of_environment() -> Result<Option<Self>> {
        match std::env::var(VARIABLE) {
            Ok(text) if !text.is_empty() => {
                let limit: Result<Self> = text.parse().map_err(anyhow::Error::msg);
                let limit = limit.with_context(|| format!("reading the variable {VARIABLE}"))?;
                Ok(Some(limit))
            }
            _ => Ok(None),
        }
    }

    /// The default for the disk of this folder.
    pub(super) fn of_disk(folder: &Path) -> Self {
        Self(Some(default_of(folder)))
    }
}

/// 20 GiB, or half of a smaller disk.
fn default_of(folder: &Path) -> u64 {
    let disk = nix::sys::statvfs::statvfs(folder);
    let half = disk.map(|stat| stat.blocks() * stat.fragment_size() / 2);
    half.map_or(DEFAULT, |half| half.min(DEFAULT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_of_recipes() {
        for (text, bytes) in [
            ("20G", 20 << 30),
            ("20 GiB", 20 << 30),
            ("512MiB", 512 << 20),
            ("1T", 1 << 40),
            ("4096", 4096),
            ("0", 0),
        ] {
            assert_eq!(text.parse(), Ok(Limit(Some(bytes))), "{text}");
        }
        assert_eq!("none".parse(), Ok(Limit(None)));
        for text in ["", "G", "-1G", "1.5G", "20 gigabytes", "99999999999T"] {
            let error = text.parse::<Limit>().unwrap_err();
            assert!(error.contains("20G"), "{error}");
        }
    }

    #[test]
    fn the_default_leaves_half_of_a_small_disk() {
        let folder = tempfile::tempdir().unwrap();
        let default = default_of(folder.path());
        assert!(default > 0 && default <= DEFAULT);
        assert_eq!(default_of(Path::new("/nowhere")), DEFAULT);
    }
}
