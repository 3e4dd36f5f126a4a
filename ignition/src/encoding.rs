//! Base64 and percent-encoding as Go's standard library reads them: configs and metadata services rely on its rules.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};

// Go's `base64.StdEncoding` requires the padding, and ignores the bits after the last byte.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// Standard base64 with padding (RFC 4648, section 4).
#[must_use]
pub fn encode_base64(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// Reads standard base64 with padding; line feeds and carriage returns may stand anywhere.
///
/// # Errors
/// If the text is not base64.
pub fn decode_base64(text: &str) -> Result<Vec<u8>, &'static str> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(|byte| !matches!(byte, b'\n' | b'\r'))
        .collect();
    BASE64.decode(digits).map_err(|_| "invalid base64 data")
}

/// Whether two hexadecimal digits follow each `%`. [`percent_encoding`] keeps a `%` without them unchanged, Go refuses
/// it.
pub(crate) fn escapes_are_valid(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_hexdigit);
    text.match_indices('%')
        .all(|(at, _)| is_digit(at + 1) && is_digit(at + 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_as_go_reads_it() {
        let all: Vec<u8> = (0..=255).collect();
        for len in [0, 1, 2, 3, 4, 100, 256] {
            let text = encode_base64(&all[..len]);
            assert_eq!(decode_base64(&text).unwrap(), &all[..len]);
        }
        assert_eq!(encode_base64(b"hi"), "aGk=");
        // The test vectors of RFC 4648, section 10.
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode_base64(bytes.as_bytes()), text);
            assert_eq!(decode_base64(text).unwrap(), bytes.as_bytes());
        }
        // The last two bits after `hi` are not zero.
        for text in ["aGk=", "aG\r\nk\n=\n", "aGl="] {
            assert_eq!(decode_base64(text).unwrap(), b"hi", "{text}");
        }
        for text in ["aGk", "a=Gk", "aGk=aGk=", "aGk==", "a-_=", "aG k="] {
            assert!(decode_base64(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_escape_is_two_hexadecimal_digits() {
        assert!(escapes_are_valid("a%20%C3%bC"));
        for text in ["%", "%2", "%2g", "%+a", "% a", "%%41"] {
            assert!(!escapes_are_valid(text), "{text}");
        }
    }
}
