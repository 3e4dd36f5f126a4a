//! Contents: fetched bytes unpacked and verified. Hashes are over the unpacked data, as in Ignition.

use std::io::{Read, Write as _};

use data_encoding::HEXLOWER_PERMISSIVE;
use sha2::{Digest, Sha256, Sha512};

/// A verification hash.
#[derive(Clone, PartialEq, Eq)]
pub enum Hash {
    /// `sha256-` and 64 hexadecimal digits.
    Sha256([u8; 32]),
    /// `sha512-` and 128 hexadecimal digits.
    Sha512([u8; 64]),
}

impl std::fmt::Debug for Hash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Sha256(_) => "Sha256(…)",
            Self::Sha512(_) => "Sha512(…)",
        })
    }
}

impl Hash {
    /// Checks that a config of specification 3.`minor` may have this hash: `function-hexadecimal`, of a known function
    /// and its length. SHA-256 came with 3.1. As in Ignition, the digits are not checked here: an invalid one is
    /// refused when the hash is used.
    ///
    /// # Errors
    /// The mistake in the hash.
    pub fn check(text: &str, minor: u8) -> Result<(), &'static str> {
        let (function, hex) = text
            .split_once('-')
            .ok_or("expected FUNCTION-HEXADECIMAL")?;
        let len = match function {
            "sha512" => 128,
            "sha256" if minor >= 1 => 64,
            _ if minor == 0 => return Err("unknown hash function; this version knows sha512"),
            _ => return Err("unknown hash function; there are sha512 and sha256"),
        };
        match hex.len() == len {
            true => Ok(()),
            false => Err("the hash has the wrong length for its function"),
        }
    }

    /// Reads `function-hexadecimal`.
    ///
    /// # Errors
    /// The mistake in the hash.
    pub fn parse(text: &str, minor: u8) -> Result<Self, &'static str> {
        Self::check(text, minor)?;
        match text.split_once('-') {
            Some(("sha256", hex)) => Ok(Self::Sha256(from_hex(hex)?)),
            Some((_, hex)) => Ok(Self::Sha512(from_hex(hex)?)),
            None => Err("expected FUNCTION-HEXADECIMAL"),
        }
    }

    fn holds(&self, data: &[u8]) -> bool {
        match self {
            Self::Sha256(wanted) => Sha256::digest(data).as_slice() == wanted,
            Self::Sha512(wanted) => Sha512::digest(data).as_slice() == wanted,
        }
    }
}

fn from_hex<const N: usize>(text: &str) -> Result<[u8; N], &'static str> {
    let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes());
    let bytes = bytes.map_err(|_| "the hash is not hexadecimal")?;
    let wrong = |_| "the hash has the wrong length for its function";
    bytes.try_into().map_err(wrong)
}

/// Why contents are refused. None of the texts holds any of the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is not gzip, or cut short.
    Gzip(String),
    /// Unpacked it is longer than this limit, in bytes.
    TooLong(u64),
    /// This number of bytes has another hash.
    Hash(usize),
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gzip(error) => write!(f, "the data is not a complete gzip stream: {error}"),
            Self::TooLong(limit) => write!(f, "the unpacked data is longer than {limit} bytes"),
            Self::Hash(length) => write!(
                f,
                "the {length} bytes do not have the hash that the config gives"
            ),
        }
    }
}

impl std::error::Error for Refused {}

/// Unpacks (when `gzip`) and verifies (when a hash is given). The result has at most `limit` bytes.
///
/// # Errors
/// What failed, without any of the data.
pub fn open(
    data: Vec<u8>,
    gzip: bool,
    hash: Option<&Hash>,
    limit: u64,
) -> Result<Vec<u8>, Refused> {
    let data = if gzip { gunzip(&data, limit)? } else { data };
    match hash {
        Some(hash) if !hash.holds(&data) => Err(Refused::Hash(data.len())),
        _ => Ok(data),
    }
}

/// Compresses with gzip at the best level, without name and time.
#[must_use]
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::GzBuilder::new().write(Vec::new(), flate2::Compression::best());
    // Writing to memory does not fail.
    let written = encoder.write_all(bytes).and_then(|()| encoder.finish());
    written.unwrap_or_default()
}

/// Unpacks gzip, several members included.
///
/// # Errors
/// If the data is not gzip, is cut short or is longer than `limit`.
pub fn gunzip(data: &[u8], limit: u64) -> Result<Vec<u8>, Refused> {
    let mut out = Vec::new();
    flate2::read::MultiGzDecoder::new(data)
        .take(limit + 1)
        .read_to_end(&mut out)
        .map_err(|error| Refused::Gzip(error.to_string()))?;
    if u64::try_from(out.len()).is_ok_and(|len| len > limit) {
        return Err(Refused::TooLong(limit));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_over_the_unpacked_data() {
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gz.write_all(b"hello").unwrap();
        let packed = gz.finish().unwrap();
        let hex = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        let hash = Hash::parse(&format!("sha256-{hex}"), 6).unwrap();
        assert_eq!(
            open(packed.clone(), true, Some(&hash), 99).unwrap(),
            b"hello"
        );
        assert!(open(packed.clone(), false, Some(&hash), 99).is_err());
        assert!(open(packed[..packed.len() - 1].to_vec(), true, None, 99).is_err());
        assert!(open(packed, true, None, 4).is_err());
        assert!(Hash::parse(&format!("sha256-{hex}"), 0).is_err());
    }

    #[test]
    fn malformed_hashes_are_refused() {
        for text in ["", "sha512", "md5-00", "sha512-00", "sha256-zz"] {
            assert!(Hash::parse(text, 6).is_err(), "{text}");
        }
    }

    #[test]
    fn packing_is_reversible_and_names_no_time() {
        let packed = gzip(b"hello hello hello");
        assert_eq!(packed[..10], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 255]);
        assert_eq!(gunzip(&packed, 99).unwrap(), b"hello hello hello");
    }
}
