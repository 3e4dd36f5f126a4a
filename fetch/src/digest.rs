//! Digests: the expected one, and hashing of content as it arrives.

use std::fmt;
use std::io::{self, Read};

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use sha2::{Digest as _, Sha256, Sha512};

/// Bytes that are read of a content at a time.
const PIECE: usize = 1 << 18;

/// The digest of some content.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Digest {
    /// SHA-256 (FIPS 180-4).
    Sha256([u8; 32]),
    /// SHA-512 (FIPS 180-4).
    Sha512([u8; 64]),
}

impl Digest {
    /// Reads a SHA-256 of 64 hexadecimal digits.
    #[must_use]
    pub fn sha256(hexadecimal: &str) -> Option<Self> {
        from_hex(hexadecimal).map(Self::Sha256)
    }

    /// Reads a SHA-512 of 128 hexadecimal digits.
    #[must_use]
    pub fn sha512(hexadecimal: &str) -> Option<Self> {
        from_hex(hexadecimal).map(Self::Sha512)
    }

    /// The digest of `content`, in the algorithm of `self`.
    #[must_use]
    pub fn of_same_kind(self, content: &[u8]) -> Self {
        let mut hash = Hash::new(Some(self));
        hash.update(content);
        hash.finish().unwrap_or(self)
    }

    /// The digest of all that `from` gives, in the algorithm of `self`.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn of_reader(self, from: &mut impl Read) -> io::Result<Self> {
        let mut hash = Hash::new(Some(self));
        let mut piece = vec![0; PIECE];
        loop {
            match from.read(&mut piece) {
                Ok(0) => return Ok(hash.finish().unwrap_or(self)),
                Ok(read) => hash.update(&piece[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?;
    bytes.try_into().ok()
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: &[u8] = match self {
            Self::Sha256(bytes) => bytes,
            Self::Sha512(bytes) => bytes,
        };
        f.write_str(&HEXLOWER.encode(bytes))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A running hash of the requested kind, or none.
pub(crate) enum Hash {
    None,
    Sha256(Sha256),
    Sha512(Box<Sha512>),
}

impl Hash {
    pub(crate) fn new(digest: Option<Digest>) -> Self {
        match digest {
            None => Self::None,
            Some(Digest::Sha256(_)) => Self::Sha256(Sha256::new()),
            Some(Digest::Sha512(_)) => Self::Sha512(Box::default()),
        }
    }

    pub(crate) fn update(&mut self, piece: &[u8]) {
        match self {
            Self::None => {}
            Self::Sha256(hash) => hash.update(piece),
            Self::Sha512(hash) => hash.update(piece),
        }
    }

    pub(crate) fn finish(self) -> Option<Digest> {
        match self {
            Self::None => None,
            Self::Sha256(hash) => Some(Digest::Sha256(hash.finalize().into())),
            Self::Sha512(hash) => Some(Digest::Sha512(hash.finalize().into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_read_and_print() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let digest = Digest::sha256(empty).unwrap();
        assert_eq!(digest.to_string(), empty);
        assert_eq!(digest.of_same_kind(b""), digest);
        assert_ne!(digest.of_same_kind(b"x"), digest);
        for wrong in [
            "",
            "e3",
            &empty[1..],
            &empty.replace('e', "g"),
            &empty.replace("e3", "+3"),
        ] {
            assert_eq!(Digest::sha256(wrong), None, "{wrong}");
        }
        // FIPS 180-4's example "abc".
        let abc = Digest::sha512(
            "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
        )
        .unwrap();
        assert_eq!(abc.of_same_kind(b"abc"), abc);
        for digest in [digest, abc] {
            for content in [&b""[..], b"abc", &[7; PIECE + 1]] {
                let read = digest.of_reader(&mut &content[..]).unwrap();
                assert_eq!(read, digest.of_same_kind(content));
            }
        }
    }
}
