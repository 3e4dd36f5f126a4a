//! `same-on-every-node` in `[root]`: what is right, and each mistake at its place.

use super::{SMALL, hashed, written};
use crate::recipe::Recipe;

fn with(line: &str) -> Result<Recipe, String> {
    let text = format!("{SMALL}\n[root]\n{line}\n");
    written(&[("a.toml", text.as_str())])
}

#[test]
fn what_is_taken_as_it_is_is_in_the_image_and_not_in_the_lock() {
    let plain = with("").unwrap();
    let recipe = with("same-on-every-node = ['/etc/app/id', '/var/lib/app']").unwrap();
    assert_eq!(
        recipe.root.same_on_every_node,
        ["/etc/app/id", "/var/lib/app"]
    );
    assert_ne!(hashed(&plain).0, hashed(&recipe).0);
    assert_eq!(hashed(&plain).1, hashed(&recipe).1);
}

#[test]
fn what_is_no_path_or_no_key_is_refused_at_its_place() {
    let line = SMALL.lines().count() + 3;
    for (words, column, expected) in [
        (
            "same-on-every-node = ['etc/app/id']",
            23,
            "\"etc/app/id\" is not the path of a file",
        ),
        (
            "same-on-every-node = ['/etc/../id']",
            23,
            "expected an absolute path",
        ),
        (
            "same-on-each-node = ['/etc/app/id']",
            1,
            "did you mean `same-on-every-node`?",
        ),
    ] {
        let report = with(words).unwrap_err();
        assert!(report.contains(expected), "{expected}\n{report}");
        let place = format!("a.toml:{line}:{column}");
        assert!(report.contains(&place), "{place}\n{report}");
    }
}
