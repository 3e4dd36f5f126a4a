//! `debs` in `[debian]`: what is right, and each mistake at its place.

use super::{SMALL, hashed, written};
use crate::recipe::{DebFrom, Recipe};

const SUM: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn with(content: &str, debs: &str) -> Result<Recipe, String> {
    let text = format!("{SMALL}\n[debian]\ndebs = [\n{debs}\n]\n");
    let files = [
        ("a.toml", text.as_str()),
        ("agents/a.deb", content),
        ("page.html", "<html>"),
    ];
    written(&files)
}

#[test]
fn files_are_in_the_lock_by_their_content() {
    let one = "{ file = 'agents/a.deb' }";
    let recipe = with("!<arch>\n1", one).unwrap();
    let [deb] = recipe.debian.debs.as_slice() else {
        panic!("{:?}", recipe.debian.debs)
    };
    assert_eq!(deb.name(), "a.deb");
    assert!(matches!(&deb.from, DebFrom::File(path) if path.ends_with("agents/a.deb")));
    // Not by its folder, which is another one each time.
    let lock = hashed(&recipe).1;
    assert_eq!(hashed(&with("!<arch>\n1", one).unwrap()).1, lock);
    assert_ne!(hashed(&with("!<arch>\n2", one).unwrap()).1, lock);
    let url = |host: &str| {
        let debs = format!("{{ url = 'https://{host}/a/b_1.deb?x=1', sha256 = '{SUM}' }}");
        with("", &debs).unwrap()
    };
    assert_eq!(url("a.example").debian.debs[0].name(), "b_1.deb");
    assert_eq!(hashed(&url("a.example")), hashed(&url("b.example")));
}

#[test]
fn each_mistake_of_a_file_is_shown_at_its_place() {
    let line = SMALL.lines().count() + 4;
    let sum = format!("'{SUM}'");
    for (debs, column, words) in [
        ("{ file = 'none.deb' }", 10, "No such file"),
        ("{ file = 'page.html' }", 10, "it is not a Debian package"),
        (
            "{ file = 'agents/a.deb', sha256 = SUM }",
            35,
            "has the SHA-256",
        ),
        (
            "{ url = 'https://a.example/b.deb' }",
            1,
            "without its `sha256`",
        ),
        (
            "{ url = 'a.example/b.deb', sha256 = SUM }",
            9,
            "is not a URL",
        ),
        (
            "{ url = 'https://a.example/b.deb', sha256 = '12' }",
            45,
            "is not a SHA-256",
        ),
        (
            "{ file = 'agents/a.deb', url = 'https://a.example/b' }",
            1,
            "a package has 2 of its sources",
        ),
        ("{ }", 1, "a package has 0 of its sources"),
        ("'agents/a.deb'", 1, "debian.debs"),
    ] {
        let report = with("!<arch>\n", &debs.replace("SUM", &sum)).unwrap_err();
        assert!(
            report.contains(&format!("a.toml:{line}:{column}")),
            "{debs}\n{report}"
        );
        assert!(report.contains(words), "{debs}\n{report}");
        assert!(!report.contains("mistakes"), "{debs}\n{report}");
    }
    let twice = "{ file = 'agents/a.deb' }, { file = './agents/a.deb' }";
    let report = with("!<arch>\n", twice).unwrap_err();
    assert!(
        report.contains("is given twice in `debian.debs`"),
        "{report}"
    );
    let secret = format!("{{ url = 'https://me:hunter2@a.example/b.deb', sha256 = '{SUM}' }}");
    let report = with("", &secret).unwrap_err();
    assert!(
        report.contains("the URL has a user or a password")
            && report.contains(&format!("a.toml:{line}:9")),
        "{report}"
    );
    assert!(!report.contains("hunter2"), "{report}");
}
