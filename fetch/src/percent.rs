//! Percent-encoding of the parts of addresses (RFC 3986, section 2.1).

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// All but the unreserved characters; AWS signs the same set.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');
/// The same for a path, whose slashes stay.
const PATH: &AsciiSet = &RESERVED.remove(b'/');
/// The same for the scope of a token, as registries document it.
const SCOPE: &AsciiSet = &PATH.remove(b':');

/// One part of a path, or a value of a query.
pub(crate) fn encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// A path.
pub(crate) fn encode_path(text: &str) -> String {
    utf8_percent_encode(text, PATH).to_string()
}

/// A value of a token request.
pub(crate) fn encode_scope(text: &str) -> String {
    utf8_percent_encode(text, SCOPE).to_string()
}

/// The text without its escapes; a `%` without two hexadecimal digits stays as it is.
pub(crate) fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_written_and_read() {
        assert_eq!(encode_path("a b/ü+~"), "a%20b/%C3%BC%2B~");
        assert_eq!(encode("a/b"), "a%2Fb");
        assert_eq!(
            encode_scope("repository:a/b:pull,push"),
            "repository:a/b:pull%2Cpush"
        );
        assert_eq!(decode("a%20b%2"), "a b%2");
        assert_eq!(decode("%C3%BC"), "ü");
        // A sign is not a hexadecimal digit.
        assert_eq!(decode("%+a%-1"), "%+a%-1");
    }
}
