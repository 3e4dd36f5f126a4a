//! `[[debian.archives]]` and `[debian.versions]`: what is right, and each mistake at its place.

use super::{SMALL, hashed, written};
use crate::debian::third_party::ThirdParty;

/// A certificate, by `debian/testdata/vendor.sh`.
const KEY: &str = include_str!("../../debian/testdata/vendor-ed25519.asc");

const GOOD: &str = "\
name = 'vendor'
url = 'https://packages.example/linux/debian/'
suites = ['trixie']
keys = ['keys/vendor.asc']
";

fn with(archives: &str) -> Result<Vec<ThirdParty>, String> {
    let text = format!("{SMALL}\n{archives}");
    let files = [
        ("a.toml", text.as_str()),
        ("keys/vendor.asc", KEY),
        ("keys/page.html", "<html>"),
    ];
    Ok(written(&files)?.debian.archives)
}

fn one(from: &str, to: &str) -> Result<Vec<ThirdParty>, String> {
    assert!(from.is_empty() || GOOD.contains(from), "{from}");
    let text = match from {
        "" => format!("{GOOD}{to}\n"),
        _ => GOOD.replace(from, to),
    };
    with(&format!("[[debian.archives]]\n{text}"))
}

#[test]
fn an_archive_has_defaults() {
    let archives = one("", "").unwrap();
    let [archive] = archives.as_slice() else {
        panic!("{archives:?}")
    };
    assert_eq!(archive.url, "https://packages.example/linux/debian");
    assert_eq!(archive.components, ["main"]);
    assert_eq!(archive.keys[0].content, KEY.as_bytes());
    assert_eq!((archive.priority, archive.packages.len()), (None, 0));
    let flat = one("['trixie']", "['./', '/', 'deb/amd64/']").unwrap();
    assert!(flat[0].components.is_empty());
    for (url, expected) in [
        ("file:/srv/a/", "file:///srv/a"),
        ("file:///srv/a", "file:///srv/a"),
        ("http://[::1]:3142/a", "http://[::1]:3142/a"),
    ] {
        let archives = one("https://packages.example/linux/debian/", url).unwrap();
        assert_eq!(archives[0].url, expected);
    }
    for priority in [-1, 1, 100, 990, 1001] {
        let archives = one("", &format!("priority = {priority}")).unwrap();
        assert_eq!(archives[0].priority, Some(priority));
    }
}

/// What is changed, line and column below the table's head, words of the report.
type Mistake = (
    &'static str,
    &'static str,
    (usize, usize),
    &'static [&'static str],
);

const MISTAKES: &[Mistake] = &[
    (
        "'vendor'",
        "'Vendor'",
        (1, 8),
        &["is not the name of an archive"],
    ),
    (
        "'vendor'",
        "'debian'",
        (1, 8),
        &["is Debian's own archive", "`mirror`"],
    ),
    (
        "name = 'vendor'\n",
        "",
        (0, 1),
        &["an archive without `name`"],
    ),
    (
        "https:",
        "ftp:",
        (2, 7),
        &["is not the URL of an archive", "file:///"],
    ),
    (
        "packages.example",
        "",
        (2, 7),
        &["is not the URL of an archive"],
    ),
    ("/linux/", "/../", (2, 7), &["is not the URL of an archive"]),
    (
        "['trixie']",
        "[]",
        (3, 10),
        &["an archive without `suites`"],
    ),
    (
        "['trixie']",
        "['dists trixie']",
        (3, 11),
        &["is not a suite"],
    ),
    ("['trixie']", "['../x/']", (3, 11), &["is not a suite"]),
    ("['trixie']", "'trixie'", (3, 10), &["debian.archives"]),
    (
        "keys/vendor.asc",
        "vendor.asc",
        (4, 9),
        &["No such file", "relative to this recipe"],
    ),
    (
        "keys/vendor.asc",
        "keys/page.html",
        (4, 9),
        &["not usable as a key"],
    ),
    (
        "keys = ['keys/vendor.asc']\n",
        "",
        (0, 1),
        &["an archive without `keys`"],
    ),
    (
        "",
        "priority = 0",
        (5, 12),
        &["no priority is 0", "Debian's is 500"],
    ),
    ("", "priority = 40000", (5, 12), &["no priority is 40000"]),
    ("", "components = ['a b']", (5, 15), &["is not a component"]),
    (
        "['trixie']",
        "['./']\ncomponents = ['main']",
        (4, 14),
        &["flat suites have no components"],
    ),
    (
        "",
        "packages = ['Engine']",
        (5, 13),
        &["pattern of such names"],
    ),
    (
        "",
        "pakages = ['engine']",
        (5, 1),
        &["unknown key `pakages`", "`packages`"],
    ),
];

#[test]
fn each_mistake_is_shown_at_its_place() {
    let head = SMALL.lines().count() + 2;
    for (from, to, (line, column), words) in MISTAKES {
        let report = one(from, to).unwrap_err();
        let place = match line {
            // A table that lacks a key is shown from its head to its end.
            0 => format!("a.toml:{head}:{column}"),
            _ => format!("a.toml:{}:{column}", head + line),
        };
        assert!(report.contains(&place), "{from} {to}: {place}\n{report}");
        for word in *words {
            assert!(report.contains(word), "{from} {to}\n{report}");
        }
        assert!(!report.contains("mistakes"), "{from} {to}\n{report}");
    }
}

/// Neither the message nor the line of the recipe that it shows has the secret.
#[test]
fn a_url_with_a_password_is_refused_without_showing_it() {
    for (url, words) in [
        (
            "user:hunter2@packages.example",
            "the URL has a user or a password",
        ),
        (
            "packages.example/?token=hunter2",
            "the URL of this archive has a query",
        ),
    ] {
        let report = one("packages.example/linux/debian/", url).unwrap_err();
        assert!(report.contains(words), "{report}");
        assert!(!report.contains("hunter2"), "{report}");
    }
}

#[test]
fn names_are_given_once() {
    let twice = format!("[[debian.archives]]\n{GOOD}[[debian.archives]]\n{GOOD}");
    let report = with(&twice).unwrap_err();
    assert!(
        report.contains("two archives are called `vendor`"),
        "{report}"
    );
    assert!(report.contains("first given here"), "{report}");
}

/// All of an archive is a requirement that a lock is for, its keys by their content; without one, locks stay as they were.
#[test]
fn an_archive_is_in_the_locks_digest() {
    let digest = |table: &str, key: &str| {
        let text = format!("{SMALL}\n{table}");
        let files = [("a.toml", text.as_str()), ("keys/vendor.asc", key)];
        hashed(&written(&files).unwrap()).1
    };
    let table = format!("[[debian.archives]]\n{GOOD}");
    let own = digest(&table, KEY);
    assert_eq!(digest(&table, KEY), own);
    assert_ne!(digest("", KEY), own);
    assert_ne!(digest(&table, &format!("A note.\n{KEY}")), own);
    for more in [
        "priority = 501",
        "packages = ['engine']",
        "components = ['x']",
    ] {
        assert_ne!(digest(&format!("{table}{more}\n"), KEY), own, "{more}");
    }
}

#[test]
fn versions_are_of_the_archives_form() {
    let with = |line: &str| {
        let text = format!("{SMALL}\n[debian.versions]\n{line}\n");
        Ok::<_, String>(written(&[("a.toml", text.as_str())])?.debian.versions)
    };
    for version in ["1.7.24~ds1-6+b4", "1:2.*", "*", "5.?-1"] {
        assert_eq!(
            with(&format!("runc = '{version}'")).unwrap()["runc"],
            version
        );
    }
    let line = SMALL.lines().count() + 3;
    for (text, column, words) in [
        ("runc = '>= 1.1'", 8, "is not a version or a pattern"),
        ("runc = ''", 8, "is not a version or a pattern"),
        ("runc = 1", 8, "debian.versions.runc"),
        ("Runc = '1'", 1, "did you mean `runc`?"),
    ] {
        let report = with(text).unwrap_err();
        assert!(
            report.contains(&format!("a.toml:{line}:{column}")),
            "{report}"
        );
        assert!(report.contains(words), "{report}");
    }
}
