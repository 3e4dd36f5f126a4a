//! MIME messages (RFC 2045, RFC 2046), as far as user data uses them: multiparts, also nested, with their encodings.

use data_encoding::HEXUPPER_PERMISSIVE;

/// A part that is not itself a multipart.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Media type in lower case, without parameters.
    pub(crate) kind: String,
    /// Its content, decoded.
    pub(crate) body: Vec<u8>,
}

/// The limit of nested multiparts: deeper ones are an attack on the stack.
const DEEPEST: usize = 4;

/// The parts of a message; none if `data` does not begin like a message. A message that is not multipart is one part.
///
/// # Errors
/// A text that begins like a message and is malformed.
pub(crate) fn parts(data: &[u8]) -> Result<Option<Vec<Part>>, String> {
    let begins = |name: &[u8]| {
        data.get(..name.len())
            .is_some_and(|begin| begin.eq_ignore_ascii_case(name))
    };
    if !begins(b"content-type:") && !begins(b"mime-version:") {
        return Ok(None);
    }
    let mut out = Vec::new();
    collect(data, DEEPEST, &mut out)?;
    Ok(Some(out))
}

fn collect(data: &[u8], depth: usize, out: &mut Vec<Part>) -> Result<(), String> {
    let (header, body) = split(data);
    let fields = fields(header);
    let field = |name: &str| {
        fields
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    };
    let full = field("content-type").unwrap_or("text/plain");
    let kind = full.split(';').next().unwrap_or_default();
    let kind = kind.trim().to_ascii_lowercase();
    if kind.starts_with("multipart/") {
        if depth == 0 {
            return Err(format!("its MIME parts are more than {DEEPEST} deep"));
        }
        let boundary = parameter(full, "boundary").ok_or("its MIME multipart has no boundary")?;
        for part in between(body, &boundary)? {
            collect(part, depth - 1, out)?;
        }
        return Ok(());
    }
    let encoding = field("content-transfer-encoding").unwrap_or("8bit");
    let body = match encoding.trim().to_ascii_lowercase().as_str() {
        "7bit" | "8bit" | "binary" => body.to_vec(),
        "base64" => crate::base64::decode(body, "a MIME part")?,
        "quoted-printable" => quoted_printable(body),
        _ => return Err("a MIME part has an unknown transfer encoding".to_owned()),
    };
    out.push(Part { kind, body });
    Ok(())
}

/// Header and body, separated by the first empty line.
fn split(data: &[u8]) -> (&[u8], &[u8]) {
    let mut at = 0;
    for line in data.split_inclusive(|byte| *byte == b'\n') {
        if line.trim_ascii().is_empty() {
            return (&data[..at], &data[at + line.len()..]);
        }
        at += line.len();
    }
    (data, &[])
}

/// The header's fields; a line that begins with white space continues the previous one.
fn fields(header: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(header);
    let mut out: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = out.last_mut() {
                value.push(' ');
                value.push_str(line.trim());
            }
        } else if let Some((name, value)) = line.split_once(':') {
            out.push((name.trim().to_owned(), value.trim().to_owned()));
        }
    }
    out
}

fn parameter(field: &str, wanted: &str) -> Option<String> {
    field.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let value = value.trim().trim_matches('"');
        (name.trim().eq_ignore_ascii_case(wanted) && !value.is_empty()).then(|| value.to_owned())
    })
}

/// The texts between the boundaries. The line break before a boundary belongs to the boundary (RFC 2046, 5.1.1).
fn between<'a>(body: &'a [u8], boundary: &str) -> Result<Vec<&'a [u8]>, String> {
    let delimiter = format!("--{boundary}");
    let (mut out, mut begin, mut at) = (Vec::new(), None, 0);
    for line in body.split_inclusive(|byte| *byte == b'\n') {
        let rest = line
            .strip_prefix(delimiter.as_bytes())
            .map(<[u8]>::trim_ascii);
        let (is_next, is_last) = (rest == Some(b""), rest == Some(b"--"));
        if is_next || is_last {
            if let Some(begin) = begin {
                let part: &[u8] = &body[begin..at];
                let part = part.strip_suffix(b"\n").unwrap_or(part);
                out.push(part.strip_suffix(b"\r").unwrap_or(part));
            }
            begin = Some(at + line.len());
        }
        if is_last {
            return Ok(out);
        }
        at += line.len();
    }
    Err("its MIME multipart is cut short: the closing boundary is missing".to_owned())
}

/// Decodes quoted-printable (RFC 2045, 6.7). A malformed escape stays unchanged.
fn quoted_printable(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len());
    let mut rest = body;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'=' {
            out.push(byte);
            continue;
        }
        if let Some(next) = after
            .strip_prefix(b"\r\n")
            .or_else(|| after.strip_prefix(b"\n"))
        {
            rest = next;
            continue;
        }
        let digits = after.get(..2);
        match digits.and_then(|digits| HEXUPPER_PERMISSIVE.decode(digits).ok()) {
            Some(decoded) => {
                out.extend(decoded);
                rest = &after[2..];
            }
            None => out.push(b'='),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies(text: &str) -> Result<Vec<(String, String)>, String> {
        let parts = parts(text.as_bytes())?.expect("a message");
        let text = |part: Part| (part.kind, String::from_utf8(part.body).unwrap());
        Ok(parts.into_iter().map(text).collect())
    }

    fn pair(kind: &str, body: &str) -> (String, String) {
        (kind.to_owned(), body.to_owned())
    }

    #[test]
    fn parts_are_decoded_by_their_encodings() {
        let text = "Content-Type: Multipart/Mixed; boundary=b\n\n\
            --b\nContent-Type: text/plain\nContent-Transfer-Encoding: base64\n\naGkg\ndGhlcmU=\n\
            --b\ncontent-transfer-encoding: Quoted-Printable\n\na=3Db=\nc=\r\nd=zz=+a\n\
            --b\n\nplain\n--b--\n";
        assert_eq!(
            bodies(text).unwrap(),
            [
                pair("text/plain", "hi there"),
                pair("text/plain", "a=bcd=zz=+a"),
                pair("text/plain", "plain"),
            ]
        );
    }

    #[test]
    fn parts_may_have_parts_and_a_message_may_have_none() {
        let text = "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"a b\"\n\n\
            --a b\nContent-Type: multipart/alternative; boundary=c\n\n--c\n\none\n--c--\n\
            --a b  \n\ntwo\n--a b--";
        let expected = [pair("text/plain", "one"), pair("text/plain", "two")];
        assert_eq!(bodies(text).unwrap(), expected);
        let single = "Content-Type: application/json; charset=utf-8\n\n{}";
        assert_eq!(bodies(single).unwrap(), [pair("application/json", "{}")]);
        assert_eq!(parts(b"{}").unwrap(), None);
    }

    #[test]
    fn a_broken_message_is_refused() {
        for text in [
            "Content-Type: multipart/mixed\n\n--b\n\nx\n--b--",
            "Content-Type: multipart/mixed; boundary=b\n\n--b\n\nx\n",
            "Content-Type: text/plain\nContent-Transfer-Encoding: uuencode\n\nx",
            "Content-Type: text/plain\nContent-Transfer-Encoding: base64\n\n###",
        ] {
            assert!(parts(text.as_bytes()).is_err(), "{text}");
        }
        let mut deep = "x".to_owned();
        for _ in 0..6 {
            deep = format!("Content-Type: multipart/mixed; boundary=b\n\n--b\n{deep}\n--b--");
        }
        // The boundaries of the inner ones are the same: the first closing one ends all of them.
        assert!(parts(deep.as_bytes()).is_err());
    }
}
