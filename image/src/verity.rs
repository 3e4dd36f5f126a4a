//! dm-verity version 1: the superblock, the root hash, and the kernel's table line.
//!
//! Format: <https://gitlab.com/cryptsetup/cryptsetup/-/wikis/DMVerity> and the kernel's
//! `Documentation/admin-guide/device-mapper/verity.rst`. Data and hash blocks are 4096 bytes, the
//! hash is SHA-256, and the superblock fills the first hash block.

use std::fmt;
use std::str::FromStr;

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use serde::{Deserialize, Serialize};

use crate::guid::Guid;

/// Bytes in a data block and in a hash block.
pub const BLOCK: u64 = 4096;
/// Bytes of one SHA-256 digest.
pub const DIGEST: usize = 32;
/// Bytes of salt that the builder uses.
pub const SALT: usize = 32;
/// The first bytes of the superblock.
pub const MAGIC: [u8; 8] = *b"verity\0\0";
/// Bytes of the superblock itself; the rest of its block is zero.
pub const SUPERBLOCK: usize = 512;

/// The SHA-256 root hash, by which dm-verity verifies every block of a root file system.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RootHash(pub [u8; DIGEST]);

impl FromStr for RootHash {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a root hash; expected 64 hexadecimal digits");
        let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes());
        let bytes = bytes.ok().and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or_else(wrong)
    }
}

impl TryFrom<String> for RootHash {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<RootHash> for String {
    fn from(hash: RootHash) -> Self {
        hash.to_string()
    }
}

impl fmt::Display for RootHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for RootHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The superblock of a hash tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// UUID of the hash device.
    pub uuid: Guid,
    /// How many data blocks of [`BLOCK`] bytes the tree covers.
    pub data_blocks: u64,
    /// Salt that is hashed before each block, at most 256 bytes.
    pub salt: Vec<u8>,
}

impl Superblock {
    /// The bytes on the disk.
    ///
    /// # Panics
    /// If the salt is longer than 256 bytes, which the format cannot hold.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; SUPERBLOCK] {
        assert!(
            self.salt.len() <= 256,
            "a verity salt has at most 256 bytes"
        );
        let mut out = [0; SUPERBLOCK];
        let block = 4096u32.to_le_bytes();
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&1u32.to_le_bytes());
        out[12..16].copy_from_slice(&1u32.to_le_bytes());
        out[16..32].copy_from_slice(&self.uuid.0);
        out[32..38].copy_from_slice(b"sha256");
        out[64..68].copy_from_slice(&block);
        out[68..72].copy_from_slice(&block);
        out[72..80].copy_from_slice(&self.data_blocks.to_le_bytes());
        let [low, high, ..] = self.salt.len().to_le_bytes();
        out[80..82].copy_from_slice(&[low, high]);
        out[88..88 + self.salt.len()].copy_from_slice(&self.salt);
        out
    }

    /// Reads a superblock.
    ///
    /// # Errors
    /// The field that this format does not allow, and its value.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let bytes: &[u8; SUPERBLOCK] = bytes
            .get(..SUPERBLOCK)
            .and_then(|b| b.try_into().ok())
            .ok_or_else(|| {
                format!(
                    "a verity superblock has {SUPERBLOCK} bytes, found {}",
                    bytes.len()
                )
            })?;
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        if bytes[..8] != MAGIC {
            return Err(format!(
                "no verity superblock: expected magic {MAGIC:02x?}, found {:02x?}",
                &bytes[..8]
            ));
        }
        for (name, found, expected) in [
            ("version", word(8), 1),
            ("hash type", word(12), 1),
            ("data block size", word(64), 4096),
            ("hash block size", word(68), 4096),
        ] {
            if found != expected {
                return Err(format!("verity {name}: expected {expected}, found {found}"));
            }
        }
        if &bytes[32..39] != b"sha256\0" {
            return Err(format!(
                "verity algorithm: expected sha256, found {:?}",
                String::from_utf8_lossy(&bytes[32..64])
            ));
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[16..32]);
        let mut blocks = [0; 8];
        blocks.copy_from_slice(&bytes[72..80]);
        let salt = usize::from(u16::from_le_bytes([bytes[80], bytes[81]]));
        if salt > 256 {
            return Err(format!(
                "verity salt: expected at most 256 bytes, found {salt}"
            ));
        }
        Ok(Self {
            uuid: Guid(uuid),
            data_blocks: u64::from_le_bytes(blocks),
            salt: bytes[88..88 + salt].to_vec(),
        })
    }

    /// The table line for the kernel's `verity` target: devices as `major:minor`, options after the salt.
    #[must_use]
    pub fn table(&self, data: &str, hash: &str, root: &RootHash, options: &[&str]) -> String {
        let mut line = format!(
            "1 {data} {hash} 4096 4096 {} 1 sha256 {root} ",
            self.data_blocks
        );
        if self.salt.is_empty() {
            line.push('-');
        }
        line.push_str(&HEXLOWER.encode(&self.salt));
        if !options.is_empty() {
            let (number, options) = (options.len(), options.join(" "));
            line.push_str(&format!(" {number} {options}"));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn superblock_round_trips() {
        let superblock = Superblock {
            uuid: Guid([7; 16]),
            data_blocks: 123_456,
            salt: vec![9; SALT],
        };
        assert_eq!(
            Superblock::from_bytes(&superblock.to_bytes()).unwrap(),
            superblock
        );
    }

    #[test]
    fn each_foreign_field_is_named() {
        let good = Superblock {
            uuid: Guid([7; 16]),
            data_blocks: 1,
            salt: vec![],
        }
        .to_bytes();
        for (at, word) in [
            (0, "magic"),
            (8, "version"),
            (12, "hash type"),
            (64, "data block"),
            (68, "hash block"),
            (32, "algorithm"),
        ] {
            let mut bad = good;
            bad[at] ^= 0xff;
            let error = Superblock::from_bytes(&bad).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
