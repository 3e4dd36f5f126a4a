//! `tftp://` addresses.

use crate::percent;
use crate::tftp::Place;

/// Reads `tftp://HOST[:PORT]/PATH`. The path is sent with its slash, as by Ignition.
pub(super) fn parse(text: &str) -> Result<Place, String> {
    let wrong = || "expected tftp://HOST/PATH".to_owned();
    let shown = text.split(['?', '#']).next().unwrap_or_default();
    let (_, rest) = shown.split_once("://").ok_or_else(wrong)?;
    let (authority, path) = rest.split_at(rest.find('/').ok_or_else(wrong)?);
    let authority = authority.rsplit('@').next().unwrap_or_default();
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().map_err(|_| wrong())?),
        _ => (authority, 69),
    };
    let host = host.trim_matches(['[', ']']);
    let path = percent::decode(path);
    if host.is_empty() || path == "/" || path.contains('\0') {
        return Err(wrong());
    }
    Ok(Place {
        shown: shown.to_owned(),
        host: host.to_owned(),
        port,
        path,
        options: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart() {
        for (text, host, port, path) in [
            ("tftp://h.example/a/b%20c", "h.example", 69, "/a/b c"),
            ("tftp://192.0.2.1:1069/x?y#z", "192.0.2.1", 1069, "/x"),
            ("tftp://[fd00::1]/x", "fd00::1", 69, "/x"),
            ("tftp://[fd00::1]:70/x", "fd00::1", 70, "/x"),
        ] {
            let place = parse(text).unwrap();
            assert_eq!(
                (place.host.as_str(), place.port, place.path.as_str()),
                (host, port, path)
            );
        }
        for text in [
            "tftp://h",
            "tftp://h/",
            "tftp:///x",
            "tftp://h:x/y",
            "tftp:x",
            "tftp://h/%00",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
