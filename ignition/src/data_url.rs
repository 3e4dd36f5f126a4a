//! `data:` URLs (RFC 2397) as Ignition reads them, and the two forms in which Butane writes them.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

use crate::encoding::{decode_base64, encode_base64, escapes_are_valid};

/// All but the unreserved characters of RFC 2396.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'!')
    .remove(b'~')
    .remove(b'*')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')');

/// A `data:` URL with its content percent-encoded.
#[must_use]
pub fn percent_encoded(content: &[u8]) -> String {
    format!("data:,{}", percent_encode(content, RESERVED))
}

/// A `data:` URL with its content in base64.
#[must_use]
pub fn base64_encoded(content: &[u8]) -> String {
    format!("data:;base64,{}", encode_base64(content))
}

/// The bytes of a `data:` URL.
///
/// # Errors
/// The mistake in its form; never any of its data.
pub fn decode(text: &str) -> Result<Vec<u8>, &'static str> {
    let rest = text.strip_prefix("data:").ok_or("missing data prefix")?;
    let (base64, data) = split_data(rest)?;
    if base64 {
        return decode_base64(data);
    }
    let good = |c: char| c.is_ascii() && !c.is_ascii_control() && !" <>#\"{}|\\^[]`".contains(c);
    if !data.chars().all(good) {
        return Err("invalid character in the data of a data URL");
    }
    match escapes_are_valid(data) {
        true => Ok(percent_encoding::percent_decode_str(data).collect()),
        false => Err("invalid escape in the data of a data URL"),
    }
}

/// Checks and drops media type and parameters; returns whether `;base64` ended them, and the data.
fn split_data(mut rest: &str) -> Result<(bool, &str), &'static str> {
    if !rest.starts_with([';', ',']) {
        let end = rest
            .find(|c| !is_token(c))
            .ok_or("missing media type slash")?;
        let (kind, after) = rest.split_at(end);
        let after = after
            .strip_prefix('/')
            .ok_or("invalid character in the media type")?;
        let known = [
            "text",
            "image",
            "audio",
            "video",
            "application",
            "message",
            "multipart",
        ];
        let extension = kind.starts_with("x-") || kind.starts_with("X-");
        if kind.is_empty() || !(extension || known.iter().any(|k| kind.starts_with(k))) {
            return Err("invalid media type");
        }
        let end = after
            .find(|c| !is_token(c))
            .ok_or("incomplete media type")?;
        rest = &after[end..];
    }
    loop {
        if let Some(data) = rest.strip_prefix(',') {
            return Ok((false, data));
        }
        let after = rest
            .strip_prefix(';')
            .ok_or("missing comma before the data")?;
        let end = after
            .find(|c| !is_token(c))
            .ok_or("unterminated parameter")?;
        let (name, after) = after.split_at(end);
        if name.is_empty() {
            return Err("invalid parameter");
        }
        if let Some(data) = after.strip_prefix(',') {
            return match name {
                "base64" => Ok((true, data)),
                _ => Err("expected base64 before the comma"),
            };
        }
        let value = after.strip_prefix('=').ok_or("invalid parameter")?;
        rest = match value.strip_prefix('"') {
            Some(quoted) => skip_quoted(quoted)?,
            None => {
                let end = value
                    .find(|c| !is_token(c))
                    .ok_or("missing comma before the data")?;
                if end == 0 {
                    return Err("invalid parameter value");
                }
                &value[end..]
            }
        };
    }
}

fn skip_quoted(text: &str) -> Result<&str, &'static str> {
    let mut escaped = false;
    for (i, c) in text.char_indices() {
        match c {
            c if !c.is_ascii() => return Err("invalid parameter value"),
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Ok(&text[i + 1..]),
            _ => {}
        }
    }
    Err("unclosed quotes in a parameter")
}

fn is_token(c: char) -> bool {
    c.is_ascii() && !c.is_ascii_control() && c != ' ' && !"()<>@,;:\\\"/[]?=".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_urls_decode() {
        for (text, bytes) in [
            ("data:,a%20b", b"a b".as_slice()),
            ("data:text/plain;charset=\"x,\\\"y\",hi", b"hi"),
            ("data:;base64,aGk=", b"hi"),
            ("data:text/plain;charset=utf-8;base64,aGkh\n", b"hi!"),
            ("data:,", b""),
            ("data:;base64,", b""),
        ] {
            assert_eq!(decode(text).unwrap(), bytes, "{text}");
        }
        for text in [
            "data:",
            "data:x",
            "data:text,x",
            "data:;base64,###",
            "data:;base64,aGk",
            "data:,a b",
            "data:,%z1",
            "data:,%+a",
            "data:foo/bar,x",
            "DATA:,x",
            "data:;base64x,aGk=",
            "data:;base64,a=Gk",
        ] {
            assert!(decode(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let all: Vec<u8> = (0..=255).collect();
        for len in [0, 1, 2, 3, 4, 100, 256] {
            for url in [percent_encoded(&all[..len]), base64_encoded(&all[..len])] {
                assert_eq!(decode(&url).unwrap(), &all[..len], "{url}");
            }
        }
        let url = percent_encoded(b"a /'%\n\xff");
        assert_eq!(url, "data:,a%20%2F'%25%0A%FF");
    }
}
