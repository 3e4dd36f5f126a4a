//! What an image puts below `/var`: lines in the syntax of tmpfiles.d(5), which the builder writes to [`LISTS`] and the init follows.
//!
//! They are not where systemd-tmpfiles reads: it would follow them at each boot, bring back what was deleted on the node, and set
//! modes and owners anew. The init follows each line once.

use crate::paths::{VAR_LAYERS, VAR_PACKAGES};

/// The lists, of which a later one's line for a path counts.
pub const LISTS: [&str; 2] = [VAR_PACKAGES, VAR_LAYERS];

/// The folders whose files and links follow the image as long as nobody has changed them on the node: programs are there, `/opt` and
/// `/usr/local` of [`crate::paths::VAR_LINKS`]. All else is data, which comes once.
pub const FOLLOWING: [&str; 2] = ["/var/opt", "/var/usrlocal"];

/// Mode and owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Permission bits.
    pub mode: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// What a line puts at its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A folder (`d`).
    Folder(Rights),
    /// A symbolic link to this target (`L`).
    Link(String),
    /// A copy of the file at the same path below [`crate::paths::FACTORY`] (`C`).
    File(Rights),
}

/// Reads a line: its path and content; none for an empty line or a comment.
///
/// # Errors
/// The line, if it is of another form.
pub fn parse(line: &str) -> Result<Option<(String, Content)>, String> {
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let words: Vec<&str> = line.split(' ').collect();
    let rights = |mode: &str, uid: &str, gid: &str| {
        Some(Rights {
            mode: u32::from_str_radix(mode, 8).ok()?,
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
        })
    };
    let content = match words.as_slice() {
        ["d", _, mode, uid, gid, "-"] => rights(mode, uid, gid).map(Content::Folder),
        ["C", _, mode, uid, gid, "-", _] => rights(mode, uid, gid).map(Content::File),
        ["L", _, "-", "-", "-", "-", target] => unquoted(target).map(Content::Link),
        _ => None,
    };
    let path = words.get(1).and_then(|path| unquoted(path));
    match (path.filter(|path| path.starts_with("/var/")), content) {
        (Some(path), Some(content)) => Ok(Some((path, content))),
        _ => Err(format!(
            "the line {line:?} is not one of the builder's for /var"
        )),
    }
}

/// A path without the escapes of tmpfiles.d(5): `\\`, `\x20` and `%%`.
fn unquoted(word: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = word;
    while let Some(at) = rest.find(['\\', '%']) {
        out.push_str(&rest[..at]);
        let (escape, plain) = [("\\\\", '\\'), ("\\x20", ' '), ("%%", '%')]
            .into_iter()
            .find(|(escape, _)| rest[at..].starts_with(escape))?;
        out.push(plain);
        rest = &rest[at + escape.len()..];
    }
    out.push_str(rest);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_others_refused() {
        let rights = |mode, uid, gid| Rights { mode, uid, gid };
        for (line, expected) in [
            (
                "d /var/lib/a\\x20b 0750 7 8 -",
                ("/var/lib/a b", Content::Folder(rights(0o750, 7, 8))),
            ),
            (
                "C /var/50%% 0600 0 0 - /usr/share/factory/var/50%%",
                ("/var/50%", Content::File(rights(0o600, 0, 0))),
            ),
            (
                "L /var/run - - - - /a\\\\x20b",
                ("/var/run", Content::Link("/a\\x20b".to_owned())),
            ),
        ] {
            let (path, content) = expected;
            assert_eq!(parse(line), Ok(Some((path.to_owned(), content))), "{line}");
        }
        assert_eq!(parse("# Made by the build."), Ok(None));
        for wrong in [
            "d /etc/a 0755 0 0 -",
            "d /var/a 0855 0 0 -",
            "d /var/a 0755 root root -",
            "D /var/a 0755 0 0 -",
            "d /var/%a 0755 0 0 -",
            "C /var/a 0644 0 0 -",
        ] {
            assert!(
                parse(wrong)
                    .unwrap_err()
                    .contains(wrong.split(' ').next().unwrap())
            );
        }
    }
}
