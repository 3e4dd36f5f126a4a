//! Lists of mirrors that apt's entries name by `mirror+file:`, as those of Debian's cloud images do (apt-transport-mirror(1)).

use std::path::{Path, PathBuf};

/// The scheme of a list in a file of this host.
const SCHEME: &str = "mirror+file:";
/// Priority of a mirror without one: it comes after all that have one.
const LAST: u64 = u64::MAX;

/// The file that an entry's URI names as a list of mirrors.
pub(super) fn path(uri: &str) -> Option<PathBuf> {
    let path = uri.strip_prefix(SCHEME)?;
    // `mirror+file:/path` and `mirror+file:///path`.
    let path = path.strip_prefix("//").unwrap_or(path);
    path.starts_with('/').then(|| PathBuf::from(path))
}

/// All such files that apt's files name, each once.
pub(super) fn paths(apt: &[(PathBuf, String)]) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = Vec::new();
    for (_, text) in apt {
        let lines = text
            .lines()
            .filter(|line| !line.trim_start().starts_with('#'));
        let words = lines.flat_map(str::split_ascii_whitespace);
        for path in words.filter_map(|word| path(word.trim_end_matches(','))) {
            if !all.contains(&path) {
                all.push(path);
            }
        }
    }
    all
}

/// The first http mirror of a list, by priority, then by its line: a mirror for some kinds of files, or for some architectures, only
/// if there is no other.
pub(super) fn first(lists: &[(PathBuf, String)], path: &Path) -> Option<String> {
    let (_, text) = lists.iter().find(|(known, _)| known == path)?;
    let mirrors = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let uri = words.next().filter(|uri| super::is_http(uri))?;
        let (mut priority, mut limited) = (LAST, false);
        for word in words {
            match word.split_once(':') {
                Some(("priority", value)) => priority = value.parse().unwrap_or(LAST),
                Some(("arch" | "type" | "release" | "suite" | "codename" | "lang", _)) => {
                    limited = true;
                }
                _ => {}
            }
        }
        Some(((limited, priority), uri.to_owned()))
    });
    mirrors.min_by_key(|(order, _)| *order).map(|(_, uri)| uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_has_either_form() {
        let expected = Some(PathBuf::from("/etc/apt/mirrors/debian.list"));
        for uri in [
            "mirror+file:/etc/apt/mirrors/debian.list",
            "mirror+file:///etc/apt/mirrors/debian.list",
        ] {
            assert_eq!(path(uri), expected, "{uri}");
        }
        for uri in ["mirror+http://x.example/list", "file:/x", "mirror+file:x"] {
            assert_eq!(path(uri), None, "{uri}");
        }
    }

    #[test]
    fn the_first_by_priority_is_taken() {
        for (text, expected) in [
            (
                "# a list\n\nhttp://a.example/debian\nhttp://b.example/debian\n",
                Some("a"),
            ),
            (
                "http://a.example/debian\tpriority:2\nhttp://b.example/debian\tpriority:1 x\n",
                Some("b"),
            ),
            (
                "http://a.example/debian\nhttp://b.example/debian\tpriority:9\n",
                Some("b"),
            ),
            (
                "http://a.example/debian\ttype:index\nhttp://b.example/debian\n",
                Some("b"),
            ),
            ("http://a.example/debian\tarch:amd64\n", Some("a")),
            ("file:/srv/debian\nftp://b.example/debian\n", None),
            ("", None),
        ] {
            let lists = [(PathBuf::from("/l"), text.to_owned())];
            let found = first(&lists, Path::new("/l"));
            let expected = expected.map(|name| format!("http://{name}.example/debian"));
            assert_eq!(found, expected, "{text}");
        }
        assert_eq!(first(&[], Path::new("/l")), None);
    }
}
