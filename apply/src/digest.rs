//! SHA-256 as journals and markers know a text by.

use sha2::Digest as _;

/// SHA-256 of a text in hexadecimal digits.
#[must_use]
pub fn sha256(text: &[u8]) -> String {
    let digest = sha2::Sha256::digest(text);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
