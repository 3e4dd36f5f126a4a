//! Contents: fetched bytes unpacked and verified. Hashes are over the unpacked data, as in Ignition.

use std::io::{self, Read, Write};

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use flate2::write::MultiGzDecoder;
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
    Hash(u64),
    /// It cannot be written where it is to go.
    Write(String),
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
            Self::Write(error) => write!(f, "it cannot be written: {error}"),
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
        Some(hash) if !hash.holds(&data) => Err(Refused::Hash(length(&data))),
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
    if length(&out) > limit {
        return Err(Refused::TooLong(limit));
    }
    Ok(out)
}

fn length(data: &[u8]) -> u64 {
    u64::try_from(data.len()).unwrap_or(u64::MAX)
}

/// What a content turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Bytes, unpacked.
    pub bytes: u64,
    /// SHA-256 of them in hexadecimal digits, whatever hash was expected.
    pub sha256: String,
}

/// Unpacks (when `gzip`) and verifies (when a hash is given) a content as it comes, piece by piece: it need not fit into
/// memory. What is written to `W` before [`Unpacker::finish`] is not verified yet.
pub struct Unpacker<W: Write>(Packing<W>);

enum Packing<W: Write> {
    None(Box<Measure<W>>),
    Gzip(Box<MultiGzDecoder<Measure<W>>>),
}

/// Measures and hashes what is written through it.
struct Measure<W> {
    out: W,
    bytes: u64,
    limit: u64,
    sha256: Sha256,
    /// With the expected hash, where that is SHA-512.
    sha512: Option<Box<Sha512>>,
    wanted: Option<Hash>,
    /// Why it takes no more: the decoder reports every failure below it as its own.
    refused: Option<Refused>,
}

/// Contents may be secret, and `W` may hold them.
impl<W: Write> std::fmt::Debug for Unpacker<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unpacker").finish_non_exhaustive()
    }
}

impl<W: Write> Unpacker<W> {
    /// For a content that has at most `limit` bytes when it is unpacked.
    pub fn new(out: W, gzip: bool, wanted: Option<Hash>, limit: u64) -> Self {
        let measure = Measure {
            out,
            bytes: 0,
            limit,
            sha256: Sha256::new(),
            sha512: matches!(wanted, Some(Hash::Sha512(_))).then(Box::default),
            wanted,
            refused: None,
        };
        Self(match gzip {
            false => Packing::None(Box::new(measure)),
            true => Packing::Gzip(Box::new(MultiGzDecoder::new(measure))),
        })
    }

    /// Takes the next piece.
    ///
    /// # Errors
    /// What failed, without any of the data. The content is lost then.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), Refused> {
        let pushed = match &mut self.0 {
            Packing::None(measure) => measure.write_all(piece),
            Packing::Gzip(decoder) => decoder.write_all(piece),
        };
        pushed.map_err(|error| self.refused(&error))
    }

    /// The content is complete. Gives what it was written to, and what it is.
    ///
    /// # Errors
    /// If it is cut short, or has another hash than it should.
    pub fn finish(mut self) -> Result<(W, Measured), Refused> {
        if let Packing::Gzip(decoder) = &mut self.0
            && let Err(error) = decoder.try_finish()
        {
            return Err(self.refused(&error));
        }
        let measure = match self.0 {
            Packing::None(measure) => *measure,
            Packing::Gzip(decoder) => decoder
                .finish()
                .map_err(|error| Refused::Gzip(error.to_string()))?,
        };
        measure.finish()
    }

    /// The reason behind an error of the writer below, or of the decoder itself.
    fn refused(&self, error: &io::Error) -> Refused {
        let (measure, packed) = match &self.0 {
            Packing::None(measure) => (&**measure, false),
            Packing::Gzip(decoder) => (decoder.get_ref(), true),
        };
        let own = match packed {
            true => Refused::Gzip(error.to_string()),
            false => Refused::Write(error.to_string()),
        };
        measure.refused.clone().unwrap_or(own)
    }
}

impl<W: Write> Measure<W> {
    fn finish(mut self) -> Result<(W, Measured), Refused> {
        let flushed = self.out.flush();
        flushed.map_err(|error| Refused::Write(error.to_string()))?;
        let sha256: [u8; 32] = self.sha256.finalize().into();
        let holds = match &self.wanted {
            None => true,
            Some(Hash::Sha256(wanted)) => *wanted == sha256,
            Some(Hash::Sha512(wanted)) => self
                .sha512
                .is_some_and(|hash| hash.finalize().as_slice() == wanted),
        };
        if !holds {
            return Err(Refused::Hash(self.bytes));
        }
        let measured = Measured {
            bytes: self.bytes,
            sha256: HEXLOWER.encode(&sha256),
        };
        Ok((self.out, measured))
    }

    fn refuse(&mut self, why: Refused) -> io::Error {
        self.refused = Some(why.clone());
        io::Error::other(why)
    }
}

impl<W: Write> Write for Measure<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let after = self.bytes.saturating_add(length(data));
        if after > self.limit {
            return Err(self.refuse(Refused::TooLong(self.limit)));
        }
        if let Err(error) = self.out.write_all(data) {
            return Err(self.refuse(Refused::Write(error.to_string())));
        }
        self.sha256.update(data);
        if let Some(hash) = &mut self.sha512 {
            hash.update(data);
        }
        self.bytes = after;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
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

    /// All of `data`, in pieces of `size` bytes.
    fn stream(
        data: &[u8],
        gzip: bool,
        hash: Option<&str>,
        limit: u64,
        size: usize,
    ) -> Result<(Vec<u8>, Measured), Refused> {
        let hash = hash.map(|hash| Hash::parse(hash, 6).unwrap());
        let mut unpacker = Unpacker::new(Vec::new(), gzip, hash, limit);
        for piece in data.chunks(size) {
            unpacker.push(piece)?;
        }
        unpacker.finish()
    }

    #[test]
    fn what_comes_in_pieces_is_unpacked_and_verified_as_the_whole_of_it() {
        // Two members, as `cat a.gz b.gz` makes them.
        let plain = [b"hello ".repeat(5000), b"world".to_vec()].concat();
        let packed = [gzip(&plain[..30_000]), gzip(&plain[30_000..])].concat();
        let sha256 = HEXLOWER.encode(&Sha256::digest(&plain));
        let sha512 = HEXLOWER.encode(&Sha512::digest(&plain));
        for hash in [
            None,
            Some(format!("sha256-{sha256}")),
            Some(format!("sha512-{sha512}")),
        ] {
            for (data, gzip) in [(&plain, false), (&packed, true)] {
                for size in [1, 7, 4096, 1 << 20] {
                    let (out, measured) =
                        stream(data, gzip, hash.as_deref(), 30_005, size).unwrap();
                    assert_eq!(out, plain);
                    assert_eq!((measured.bytes, measured.sha256), (30_005, sha256.clone()));
                }
                let long = stream(data, gzip, hash.as_deref(), 30_004, 4096);
                assert_eq!(long.unwrap_err(), Refused::TooLong(30_004));
            }
        }
        let other = format!("sha256-{}", "0".repeat(64));
        for (data, gzip) in [(&plain, false), (&packed, true)] {
            let refused = stream(data, gzip, Some(&other), u64::MAX, 4096).unwrap_err();
            assert_eq!(refused, Refused::Hash(30_005));
        }
        let wrong = [&b""[..], b"no gzip", &packed[..packed.len() - 1]];
        for data in wrong {
            let refused = stream(data, true, None, u64::MAX, 5).unwrap_err();
            assert!(matches!(refused, Refused::Gzip(_)), "{refused}");
        }
    }

    #[test]
    fn a_disk_that_takes_no_more_is_the_reason_and_not_the_packing() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        for (data, packed) in [(b"data".to_vec(), false), (gzip(b"data"), true)] {
            let mut unpacker = Unpacker::new(Full, packed, None, u64::MAX);
            let pushed = unpacker.push(&data);
            let refused = pushed.and_then(|()| unpacker.finish().map(drop));
            let text = refused.unwrap_err().to_string();
            assert!(text.starts_with("it cannot be written: "), "{text}");
        }
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
