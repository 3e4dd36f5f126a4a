//! SHA-256, by which journals and markers identify a text.

use data_encoding::HEXLOWER;
use sha2::Digest as _;

/// SHA-256 of a text in hexadecimal digits.
#[must_use]
pub fn sha256(text: &[u8]) -> String {
    HEXLOWER.encode(&sha2::Sha256::digest(text))
}
