//! Sources: URLs as Go reads them, and the schemes that each version of the specification knows.

use crate::data_url;
use crate::encoding::escapes_are_valid;

/// The reason why a source is invalid. Holds no part of the URL, which may be secret.
pub type Wrong = &'static str;

/// The parts of a URL that this crate uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url<'a> {
    /// Scheme in lower case; empty if there is none.
    pub scheme: String,
    /// The text after `scheme:`, without query and fragment.
    pub rest: &'a str,
    /// The text after `?`.
    pub query: Option<&'a str>,
}

/// Splits a URL by the rules of Go's `net/url`.
///
/// # Errors
/// If Go would refuse it.
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
    match escapes_are_valid(text) {
        true => Ok(()),
        false => Err("unable to parse the URL"),
    }
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

/// Checks that a config of specification 3.`minor` may name this source. Every version may name an `oci` source, which
/// is Slipway's own and in no version of the specification.
///
/// # Errors
/// The reason why it may not.
pub fn check(text: &str, minor: u8) -> Result<(), Wrong> {
    let url = split(text)?;
    match url.scheme.as_str() {
        "http" | "https" | "tftp" => Ok(()),
        "oci" => check_oci(&url),
        "gs" if minor >= 2 => Ok(()),
        "s3" => check_version(&url),
        "arn" if minor >= 4 => check_arn(&url),
        "data" => data_url::decode(text).map(drop),
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
    const BAD: Wrong = "expected the ARN of an S3 object";
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

/// A source for messages: without user, query and data.
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
