//! Sources: URLs as Go reads them, the schemes of each version, `data:` URLs (RFC 2397).

/// The form of a source that is wrong. Holds no part of the URL, which may be secret.
pub type Wrong = &'static str;

/// A URL's parts, as far as they matter here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url<'a> {
    /// Scheme in lower case; empty if there is none.
    pub scheme: String,
    /// What follows `scheme:`, without query and fragment.
    pub rest: &'a str,
    /// What follows `?`.
    pub query: Option<&'a str>,
}

/// Splits a URL by the rules of Go's `net/url`.
///
/// # Errors
/// If Go would not parse it.
pub fn split(text: &str) -> Result<Url<'_>, Wrong> {
    const BAD: Wrong = "unable to parse the URL";
    if text.bytes().any(|b| b < 0x20 || b == 0x7f) {
        return Err(BAD);
    }
    let (text, fragment) = text.split_once('#').unwrap_or((text, ""));
    check_escapes(fragment)?;
    let (scheme, rest) =
        match text.find(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c))) {
            Some(0) if text.starts_with(':') => return Err(BAD),
            Some(i)
                if text[i..].starts_with(':')
                    && text.starts_with(|c: char| c.is_ascii_alphabetic()) =>
            {
                (text[..i].to_ascii_lowercase(), &text[i + 1..])
            }
            _ => (String::new(), text),
        };
    let (rest, query) = match rest.split_once('?') {
        Some((rest, query)) => (rest, Some(query)),
        None => (rest, None),
    };
    if scheme.is_empty() || rest.starts_with('/') {
        let first = rest.split('/').next().unwrap_or_default();
        if scheme.is_empty() && first.contains(':') {
            return Err(BAD);
        }
        let path = match rest.strip_prefix("//") {
            Some(authority) => {
                let end = authority.find('/').unwrap_or(authority.len());
                check_authority(&authority[..end])?;
                &authority[end..]
            }
            None => rest,
        };
        check_escapes(path)?;
    }
    Ok(Url {
        scheme,
        rest,
        query,
    })
}

fn check_escapes(text: &str) -> Result<(), Wrong> {
    let bytes = text.as_bytes();
    for (i, _) in text.match_indices('%') {
        let hex = |b: Option<&u8>| b.is_some_and(u8::is_ascii_hexdigit);
        if !(hex(bytes.get(i + 1)) && hex(bytes.get(i + 2))) {
            return Err("unable to parse the URL");
        }
    }
    Ok(())
}

fn check_authority(text: &str) -> Result<(), Wrong> {
    const BAD: Wrong = "unable to parse the URL";
    let (user, host) = match text.rsplit_once('@') {
        Some((user, host)) => (user, host),
        None => ("", text),
    };
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
    if !user.chars().all(allowed) {
        return Err(BAD);
    }
    check_escapes(user)?;
    let port = match host.strip_prefix('[') {
        Some(literal) => literal.rsplit_once(']').ok_or(BAD)?.1,
        None => host.rfind(':').map_or("", |i| &host[i..]),
    };
    let port_is_good = match port.strip_prefix(':') {
        Some(digits) => digits.bytes().all(|b| b.is_ascii_digit()),
        None => port.is_empty(),
    };
    if !port_is_good || host.contains([' ', '<', '>', '"', '\\', '^', '`', '{', '|', '}']) {
        return Err(BAD);
    }
    if !host.starts_with('[') && host.contains('%') {
        // Go allows escapes in a host only for bytes outside ASCII.
        check_escapes(host)?;
        let ascii = |i: usize| host.as_bytes().get(i + 1).is_some_and(|b| *b < b'8');
        if host.match_indices('%').any(|(i, _)| ascii(i)) {
            return Err(BAD);
        }
    }
    Ok(())
}

/// Whether a config of specification 3.`minor` may name this source. `oci` is Slipway's own and known to no version of the
/// specification, so every version may.
///
/// # Errors
/// Why not.
pub fn check(text: &str, minor: u8) -> Result<(), Wrong> {
    let url = split(text)?;
    match url.scheme.as_str() {
        "http" | "https" | "tftp" => Ok(()),
        "oci" => check_oci(&url),
        "gs" if minor >= 2 => Ok(()),
        "s3" => check_version(&url),
        "arn" if minor >= 4 => check_arn(&url),
        "data" => decode_data(text).map(drop),
        _ => Err("this URL scheme is not one of http, https, tftp, s3, gs, arn, oci and data"),
    }
}

fn check_oci(url: &Url<'_>) -> Result<(), Wrong> {
    let parts = url
        .rest
        .strip_prefix("//")
        .and_then(|rest| rest.split_once('/'));
    match parts {
        Some((registry, repository)) if !registry.is_empty() && !repository.is_empty() => Ok(()),
        _ => Err("expected oci://REGISTRY/REPOSITORY, with :TAG or @sha256:DIGEST behind it"),
    }
}

fn check_version(url: &Url<'_>) -> Result<(), Wrong> {
    for pair in url.query.unwrap_or_default().split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if name == "versionId" {
            return match value {
                "" => Err("the S3 object's versionId is empty"),
                _ => Ok(()),
            };
        }
    }
    Ok(())
}

fn check_arn(url: &Url<'_>) -> Result<(), Wrong> {
    const BAD: Wrong = "this is no ARN of an S3 object";
    let parts: Vec<&str> = url.rest.splitn(5, ':').collect();
    let (Some(&"s3"), Some(resource)) = (parts.get(1), parts.get(4)) else {
        return Err(BAD);
    };
    let wanted = if resource.starts_with("accesspoint/") {
        3
    } else {
        2
    };
    if url.rest.split('/').count() < wanted {
        return Err(BAD);
    }
    check_version(url)
}

fn is_token(c: char) -> bool {
    c.is_ascii() && !c.is_ascii_control() && c != ' ' && !"()<>@,;:\\\"/[]?=".contains(c)
}

/// The bytes of a `data:` URL.
///
/// # Errors
/// What is wrong with its form; never any of its data.
pub fn decode_data(text: &str) -> Result<Vec<u8>, Wrong> {
    let rest = text.strip_prefix("data:").ok_or("missing data prefix")?;
    let (base64, data) = split_data(rest)?;
    if base64 {
        return decode_base64(data);
    }
    let good = |c: char| c.is_ascii() && !c.is_ascii_control() && !" <>#\"{}|\\^[]`".contains(c);
    if !data.chars().all(good) {
        return Err("invalid character in the data of a data URL");
    }
    let bytes = data.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        if bytes[i] == b'%' {
            let hex = data
                .get(i + 1..i + 3)
                .filter(|h| h.bytes().all(|b| b.is_ascii_hexdigit()));
            let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
            out.push(byte.ok_or("invalid escape in the data of a data URL")?);
            i += 3;
        } else {
            out.push(bytes[i]);
            i += 1;
        }
    }
    Ok(out)
}

/// Media type and parameters are checked and dropped: whether `;base64` ended them, and the data.
fn split_data(mut rest: &str) -> Result<(bool, &str), Wrong> {
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

fn skip_quoted(text: &str) -> Result<&str, Wrong> {
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

/// Standard base64 with padding, line feeds allowed anywhere.
///
/// # Errors
/// If it is none.
pub fn decode_base64(text: &str) -> Result<Vec<u8>, Wrong> {
    const BAD: Wrong = "invalid base64 data";
    let digits: Vec<u8> = text
        .bytes()
        .filter(|b| !matches!(b, b'\n' | b'\r'))
        .collect();
    if !digits.len().is_multiple_of(4) {
        return Err(BAD);
    }
    let mut out = Vec::with_capacity(digits.len() / 4 * 3);
    let groups = digits.len() / 4;
    for (i, group) in digits.chunks(4).enumerate() {
        let padding = group.iter().rev().take_while(|b| **b == b'=').count();
        if padding > 2 || (padding > 0 && i + 1 != groups) {
            return Err(BAD);
        }
        let mut word: u32 = 0;
        for (j, digit) in group.iter().enumerate() {
            let value = match digit {
                b'A'..=b'Z' => digit - b'A',
                b'a'..=b'z' => digit - b'a' + 26,
                b'0'..=b'9' => digit - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                b'=' if j >= 4 - padding => 0,
                _ => return Err(BAD),
            };
            word = word << 6 | u32::from(value);
        }
        out.extend(&word.to_be_bytes()[1..4 - padding]);
    }
    Ok(out)
}

/// A source as it may be shown: no user, no query, no data.
#[must_use]
pub fn shown(text: &str) -> String {
    match split(text) {
        Ok(url) if url.scheme == "data" => "a data: URL".to_owned(),
        Ok(url) => {
            let rest = match url.rest.strip_prefix("//") {
                Some(rest) => {
                    let end = rest.find('/').unwrap_or(rest.len());
                    let host = rest[..end].rsplit('@').next().unwrap_or_default();
                    format!("//{host}{}", &rest[end..])
                }
                None => url.rest.to_owned(),
            };
            format!("{}:{rest}", url.scheme)
        }
        Err(_) => "a malformed URL".to_owned(),
    }
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
            assert_eq!(decode_data(text).unwrap(), bytes, "{text}");
        }
        for text in [
            "data:",
            "data:x",
            "data:text,x",
            "data:;base64,###",
            "data:;base64,aGk",
            "data:,a b",
            "data:,%z1",
            "data:foo/bar,x",
            "DATA:,x",
            "data:;base64x,aGk=",
            "data:;base64,a=Gk",
        ] {
            assert!(decode_data(text).is_err(), "{text}");
        }
    }

    #[test]
    fn content_of_a_registry_is_a_source_of_every_version() {
        for minor in 0..=7 {
            assert_eq!(check("oci://r.example/configs/node:v1", minor), Ok(()));
            assert!(check("oci://r.example", minor).is_err());
            assert!(check("oci:x", minor).is_err());
        }
    }

    #[test]
    fn what_is_shown_holds_no_secret() {
        assert_eq!(
            shown("https://u:secret@h:1/p?token=secret#secret"),
            "https://h:1/p"
        );
        assert_eq!(shown("data:,secret"), "a data: URL");
        assert_eq!(shown("http://x/%zz"), "a malformed URL");
    }
}
