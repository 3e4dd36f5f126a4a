//! Users and passwords in addresses, wherever these stand: found, and made unreadable.

use std::ops::Range;

/// The end of user and password in an address, `@` included, if it has any: `start` is the byte after its `//`.
pub(crate) fn login_end(text: &str, start: usize) -> Option<usize> {
    let rest = &text[start..];
    let rest = &rest[..rest.find(is_end).unwrap_or(rest.len())];
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    let digits = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    // The last `@`: a user or a password may hold an unescaped one too; and a password an unescaped slash, before which no port
    // stands then.
    let within = match authority.rsplit_once(':') {
        _ if authority.contains('@') => authority,
        Some((_, port)) if !authority.ends_with(']') && !digits(port) => rest,
        _ => return None,
    };
    within.rfind('@').map(|at| start + at + 1)
}

/// Whether an address has a user or a password.
#[must_use]
pub fn has_login(url: &str) -> bool {
    let start = url.find("://").map_or(0, |at| at + 3);
    login_end(url, start).is_some()
}

/// The text with asterisks for users and passwords of all addresses in it, and of references to images: as many bytes as before.
#[must_use]
pub fn masked(text: &str) -> String {
    let mut out = text.to_owned();
    let mut at = 0;
    for word in text.split_inclusive(is_end) {
        for range in logins(word) {
            let stars = "*".repeat(range.len());
            out.replace_range(at + range.start..at + range.end, &stars);
        }
        at += word.len();
    }
    out
}

/// Where an address ends in a text.
fn is_end(c: char) -> bool {
    c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '<' | '>')
}

/// Where users and passwords are in a word, without the `@`.
fn logins(word: &str) -> Vec<Range<usize>> {
    let starts: Vec<usize> = word.match_indices("://").map(|(at, _)| at + 3).collect();
    if starts.is_empty() {
        // A reference: `user:password@registry.example/name`.
        let registry = word.split_once('/').map(|(registry, _)| registry);
        let login = registry.and_then(|registry| registry.rsplit_once('@'));
        let login = login.filter(|(login, _)| login.contains(':'));
        return login.map(|(login, _)| 0..login.len()).into_iter().collect();
    }
    let ends = starts
        .iter()
        .filter_map(|start| Some(*start..login_end(word, *start)? - 1));
    ends.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_are_found_in_any_text() {
        for (text, expected) in [
            ("https://h.example/a@b", "https://h.example/a@b"),
            ("x 'https://u:p@h/' y", "x 'https://***@h/' y"),
            ("https://tok@h", "https://***@h"),
            (
                "a=https://u:p@h b=http://v:q@i",
                "a=https://***@h b=http://***@i",
            ),
            ("https://u:p@q@h/x", "https://*****@h/x"),
            // A slash in the password, which ends the authority; a port is none.
            ("https://u:p/q@h/x", "https://*****@h/x"),
            ("https://h:80/x@y", "https://h:80/x@y"),
            ("https://[::1]/x@y", "https://[::1]/x@y"),
            ("https://[::1]:8/x@y", "https://[::1]:8/x@y"),
            ("https://", "https://"),
            ("https://ü:é@h", "https://*****@h"),
            ("no address", "no address"),
            ("mail a@b a@b/c", "mail a@b a@b/c"),
            (
                "oci = 'u:p@r.example/x@sha256:1'",
                "oci = '***@r.example/x@sha256:1'",
            ),
            ("r.example:5/x@sha256:1", "r.example:5/x@sha256:1"),
        ] {
            assert_eq!(masked(text), expected);
            assert_eq!(masked(text).len(), text.len());
        }
        assert!(has_login("https://u:p@h/") && has_login("u:p@h/x"));
        assert!(!has_login("https://h/x@sha256:1") && !has_login("h.example/x@1"));
    }
}
