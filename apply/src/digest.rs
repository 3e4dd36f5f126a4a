//! SHA-256, by which journals and markers identify a text.

use std::io::{ErrorKind, Read, Result};

use data_encoding::HEXLOWER;
use sha2::Digest as _;

/// SHA-256 of a text in hexadecimal digits.
#[must_use]
pub fn sha256(text: &[u8]) -> String {
    HEXLOWER.encode(&sha2::Sha256::digest(text))
}

/// The number of all bytes that `reader` gives, and SHA-256 of them in hexadecimal digits.
///
/// # Errors
/// If it cannot be read.
pub fn sha256_of(mut reader: impl Read) -> Result<(u64, String)> {
    let mut hash = sha2::Sha256::new();
    let mut piece = vec![0; 64 << 10];
    let mut bytes = 0;
    loop {
        match reader.read(&mut piece) {
            Ok(0) => return Ok((bytes, HEXLOWER.encode(&hash.finalize()))),
            Ok(read) => {
                hash.update(&piece[..read]);
                bytes += u64::try_from(read).unwrap_or(0);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
