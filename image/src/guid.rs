//! GUIDs as GPT uses them: text order outside, mixed-endian bytes on the disk.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A GUID held in the order of its text (big-endian throughout).
///
/// GPT stores the first three fields little-endian; [`Guid::to_disk`] and [`Guid::from_disk`]
/// convert (UEFI specification 2.10, appendix A).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Guid(pub [u8; 16]);

impl Guid {
    /// Parses the 8-4-4-4-12 form in a constant; a malformed literal fails the compilation.
    #[must_use]
    pub const fn constant(text: &str) -> Self {
        match parse(text.as_bytes()) {
            Some(guid) => guid,
            None => panic!("a GUID is written 8-4-4-4-12 in hexadecimal digits"),
        }
    }

    /// The 16 bytes as they stand in a GPT.
    #[must_use]
    pub const fn to_disk(self) -> [u8; 16] {
        let b = self.0;
        [
            b[3], b[2], b[1], b[0], b[5], b[4], b[7], b[6], b[8], b[9], b[10], b[11], b[12], b[13],
            b[14], b[15],
        ]
    }

    /// Reads the 16 bytes of a GPT.
    #[must_use]
    pub const fn from_disk(bytes: [u8; 16]) -> Self {
        Self(Self(bytes).to_disk())
    }

    /// A random (version 4) or seeded GUID from 16 bytes: sets the version and variant bits of RFC 9562.
    #[must_use]
    pub const fn from_random(mut bytes: [u8; 16]) -> Self {
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Self(bytes)
    }
}

const fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

const fn parse(text: &[u8]) -> Option<Guid> {
    if text.len() != 36 {
        return None;
    }
    let mut out = [0u8; 16];
    let (mut at, mut filled) = (0, 0);
    while at < 36 {
        if at == 8 || at == 13 || at == 18 || at == 23 {
            if text[at] != b'-' {
                return None;
            }
            at += 1;
            continue;
        }
        let (Some(high), Some(low)) = (digit(text[at]), digit(text[at + 1])) else {
            return None;
        };
        out[filled] = high << 4 | low;
        filled += 1;
        at += 2;
    }
    Some(Guid(out))
}

impl FromStr for Guid {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text.as_bytes()).ok_or_else(|| {
            format!("{text:?} is not a GUID; expected 8-4-4-4-12 hexadecimal digits")
        })
    }
}

impl TryFrom<String> for Guid {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Guid> for String {
    fn from(guid: Guid) -> Self {
        guid.to_string()
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_order_swaps_the_first_three_fields() {
        let guid: Guid = "00112233-4455-6677-8899-aabbccddeeff".parse().unwrap();
        assert_eq!(
            guid.to_disk(),
            [
                0x33, 0x22, 0x11, 0x00, 0x55, 0x44, 0x77, 0x66, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd,
                0xee, 0xff
            ]
        );
        assert_eq!(Guid::from_disk(guid.to_disk()), guid);
        assert_eq!(guid.to_string(), "00112233-4455-6677-8899-aabbccddeeff");
    }

    #[test]
    fn malformed_texts_are_refused() {
        for text in [
            "",
            "00112233",
            "00112233-4455-6677-8899-aabbccddeefg",
            "00112233_4455-6677-8899-aabbccddeeff",
        ] {
            assert!(text.parse::<Guid>().is_err(), "{text}");
        }
    }
}
