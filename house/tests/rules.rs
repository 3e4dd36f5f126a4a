//! Each rule reports a violation and accepts correct code, in small source trees.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::Path;

use house::graph::Crate;
use house::{metrics, rules, workspace};
use tempfile::TempDir;

const MANIFEST: &str = "[workspace]\nmembers = []\n[package]\nname = \"small-one\"\n";

/// A workspace with one package and these files.
fn tree(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in [("Cargo.toml", MANIFEST)].iter().chain(files) {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

fn krate(folder: &Path) -> Crate {
    let packages = workspace::read(folder).unwrap();
    Crate::read(folder, &packages[0]).unwrap()
}

fn findings(files: &[(&str, &str)]) -> Vec<String> {
    let folder = tree(files);
    let found = rules::check(&krate(folder.path()));
    found.iter().map(ToString::to_string).collect()
}

const TWO_FLOORS: &str = "// Floor: ground\nmod low;\nmod side;\n\n// Floor: top\nmod high;\n";

#[test]
fn a_use_of_a_lower_floor_is_right() {
    let found = findings(&[
        ("src/lib.rs", TWO_FLOORS),
        (
            "src/low.rs",
            "mod child;\npub struct Item;\nuse child::f;\n",
        ),
        ("src/low/child.rs", "pub fn f() {}\n"),
        ("src/side.rs", ""),
        (
            "src/high.rs",
            "use crate::low::Item;\nfn f() { crate::side::g(); crate::low::child::f(); }\n",
        ),
    ]);
    assert_eq!(found, [""; 0]);
}

#[test]
fn a_back_arrow_is_found_with_file_line_and_path() {
    let found = findings(&[
        ("src/lib.rs", TWO_FLOORS),
        ("src/low.rs", "fn f() {\n    crate::high::Item::new();\n}\n"),
        ("src/side.rs", "use super::low;\n"),
        ("src/high.rs", "pub struct Item;\n"),
    ]);
    assert_eq!(
        found,
        [
            "src/low.rs:2: `crate::high::Item::new` goes up: `low` stands on the floor \"ground\", `high` on \"top\"",
            "src/side.rs:1: `super::low` goes up: `side` stands on the floor \"ground\", `low` on \"ground\"",
        ]
    );
}

#[test]
fn a_back_arrow_is_found_wherever_a_path_may_stand() {
    for code in [
        "use crate::{side, high::{self, Item}};\n",
        "use crate::high as other;\n",
        "fn f() { assert!(1 == crate::high::N); }\n",
        "#[derive(D)]\nstruct S { #[serde(with = \"crate::high::date\")] at: u8 }\n",
        "type T = Vec<Option<super::high::Item>>;\n",
        "pub(crate) mod inner { use super::super::high::Item; }\n",
        "use crate::*;\nfn f(_: high::Item) {}\n",
        "use crate::Item;\n",
        "impl crate::high::Trait for u8 {}\n",
        "fn f() { use crate::high::Item; }\n",
    ] {
        let root = format!("{TWO_FLOORS}\npub use high::Item;\n");
        let found = findings(&[
            ("src/lib.rs", &root),
            ("src/low.rs", code),
            ("src/side.rs", ""),
            ("src/high.rs", "pub struct Item;\n"),
        ]);
        assert!(
            found.iter().any(|text| text.contains("goes up")),
            "{code}: {found:?}"
        );
    }
}

#[test]
fn tests_and_doc_comments_may_use_everything() {
    let found = findings(&[
        ("src/lib.rs", TWO_FLOORS),
        (
            "src/low.rs",
            "//! [`crate::high`].\n/// As in [`crate::high::Item`].\npub fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::high::Item;\n}\n\
             #[cfg(all(test, unix))]\nuse crate::high;\n",
        ),
        ("src/side.rs", "#[cfg(test)]\nmod tests;\n"),
        ("src/high.rs", ""),
    ]);
    assert_eq!(found, [""; 0]);
}

#[test]
fn what_is_compiled_in_tests_too_counts() {
    let found = findings(&[
        ("src/lib.rs", TWO_FLOORS),
        (
            "src/low.rs",
            "#[cfg(any(test, unix))]\nuse crate::high;\n#[cfg(not(test))]\nuse crate::high as b;\n",
        ),
        ("src/side.rs", ""),
        ("src/high.rs", ""),
    ]);
    assert_eq!(found.len(), 2, "{found:?}");
}

#[test]
fn a_missing_floor_is_found() {
    let found = findings(&[
        (
            "src/lib.rs",
            "mod a;\n\n// Floor: ground\nmod b;\n\nmod c;\n",
        ),
        ("src/a.rs", ""),
        ("src/b.rs", ""),
        ("src/c.rs", ""),
    ]);
    assert_eq!(
        found,
        [
            "src/lib.rs:1: `a` stands under no `// Floor: ` comment",
            "src/lib.rs:6: `c` stands under no `// Floor: ` comment",
        ]
    );
}

#[test]
fn a_circle_within_a_room_is_found() {
    let found = findings(&[
        ("src/lib.rs", "// Floor: ground\nmod a;\n"),
        ("src/a.rs", "mod one;\nmod two;\nmod three;\n"),
        ("src/a/one.rs", "use super::two::Two;\npub struct One;\n"),
        ("src/a/two.rs", "pub use super::three::Three as Two;\n"),
        ("src/a/three.rs", "\npub struct Three(super::one::One);\n"),
    ]);
    assert_eq!(
        found,
        [
            "src/a/one.rs:1: `super::two::Two` closes a circle (2 files reach each other): it leads to src/a/three.rs",
            "src/a/three.rs:2: `super::one::One` closes a circle (2 files reach each other): it leads to src/a/one.rs",
        ]
    );
}

#[test]
fn a_child_that_names_its_parents_items_is_counted_apart() {
    let folder = tree(&[
        ("src/lib.rs", "// Floor: ground\nmod a;\n"),
        (
            "src/a.rs",
            "mod one;\npub struct Item;\nfn f() { one::g(); }\n",
        ),
        ("src/a/one.rs", "use super::Item;\npub fn g() {}\n"),
    ]);
    let krate = krate(folder.path());
    assert_eq!(rules::check(&krate), []);
    let paths = krate.paths();
    let found = metrics::child_uses(&krate);
    let found: Vec<_> = found
        .iter()
        .map(|(child, parent)| (&paths[*child], &paths[*parent]))
        .collect();
    assert_eq!(found, [(&"src/a/one.rs".into(), &"src/a.rs".into())]);
}

#[test]
fn a_large_room_is_found_in_a_large_crate_only() {
    let check = |lines: usize| {
        let text = "//\n".repeat(lines);
        let files = ["a", "b", "c", "d", "e", "f", "g"].map(|name| format!("src/{name}.rs"));
        let mut all = vec![(
            "src/lib.rs",
            "// Floor: ground\nmod a;\nmod b;\nmod c;\nmod d;\nmod e;\nmod f;\nmod g;\n",
        )];
        all.extend(files.iter().map(|path| (path.as_str(), text.as_str())));
        let large = format!("{text}//\n").repeat(2);
        all[3].1 = &large;
        findings(&all)
    };
    assert_eq!(check(200), [""; 0]);
    let found = check(300);
    assert_eq!(
        found,
        ["src/lib.rs:4: `c` has 602 of the crate's 2410 lines; the most is 17 %"]
    );
}

#[test]
fn a_row_of_providers_is_judged_one_by_one_while_none_uses_another() {
    let folder = tree(&[
        ("src/lib.rs", "// Floor: ground\nmod providers;\n"),
        ("src/providers.rs", "mod a;\nmod b;\n"),
        ("src/providers/a.rs", &"//\n".repeat(2000)),
        ("src/providers/b.rs", "use super::a;\n"),
    ]);
    let platform = MANIFEST.replace("small-one", "platform");
    fs::write(folder.path().join("Cargo.toml"), platform).unwrap();
    let found = rules::check(&krate(folder.path()));
    let found: Vec<_> = found.iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "src/lib.rs:2: `providers::a` has 2000 of the crate's 2005 lines; the most is 17 %",
            "src/providers/b.rs:1: `super::a` uses src/providers/a.rs, which stands beside it in a row",
        ]
    );
}

#[test]
fn a_program_uses_its_library_by_name() {
    let folder = tree(&[
        ("src/lib.rs", "// Floor: ground\npub mod a;\n"),
        ("src/a.rs", ""),
        (
            "src/main.rs",
            "// Floor: ground\nmod cli;\nuse small_one::a;\n",
        ),
        ("src/cli.rs", "use small_one::a;\n"),
    ]);
    let krate = krate(folder.path());
    assert_eq!(rules::check(&krate), []);
    let paths = krate.paths();
    let arrows: Vec<_> = krate
        .arrows
        .iter()
        .map(|arrow| (&paths[arrow.from], &paths[arrow.to]))
        .collect();
    let a = &"src/a.rs".into();
    assert_eq!(
        arrows,
        [(&"src/main.rs".into(), a), (&"src/cli.rs".into(), a)]
    );
}

#[test]
fn a_dependency_against_the_arrows_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write(
        "Cargo.toml",
        "[workspace]\nmembers = [\"low\", \"middle\", \"high\"]\n",
    );
    write(
        "low/Cargo.toml",
        "[package]\nname = \"low\"\n[dependencies]\nserde = \"1\"\nmiddle.workspace = true\n",
    );
    write(
        "middle/Cargo.toml",
        "[package]\nname = \"middle\"\n[dependencies]\nlow = { path = \"../low\" }\n[dev-dependencies]\nhigh.workspace = true\n",
    );
    write(
        "high/Cargo.toml",
        "[package]\nname = \"high\"\n[target.'cfg(unix)'.dependencies]\nlow.workspace = true\n",
    );
    let packages = workspace::read(folder.path()).unwrap();
    let arrows: &[(&str, &[&str])] = &[("low", &[]), ("middle", &["low"]), ("high", &["middle"])];
    let text = |arrows| -> Vec<String> {
        let found = rules::dependencies(&packages, arrows);
        found.iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        text(arrows),
        ["low/Cargo.toml:5: `low` must not depend on `middle`"]
    );
    assert_eq!(
        text(&arrows[..2]),
        [
            "low/Cargo.toml:5: `low` must not depend on `middle`",
            "high/Cargo.toml:1: `high` is not in the table of arrows",
            "high/Cargo.toml:4: `high` must not depend on `low`",
        ]
    );
}

#[test]
fn the_picture_has_every_room_and_only_direct_arrows() {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write(
        "Cargo.toml",
        "[workspace]\nmembers = [\"low\", \"middle\", \"high\"]\n",
    );
    for (name, uses) in [
        ("low", ""),
        ("middle", "low = {}\n"),
        ("high", "low = {}\nmiddle = {}\n"),
    ] {
        write(
            &format!("{name}/Cargo.toml"),
            &format!("[package]\nname = \"{name}\"\n[dependencies]\n{uses}"),
        );
        write(
            &format!("{name}/src/lib.rs"),
            "// Floor: <ground>\nmod a;\n\nmod b;\n",
        );
        write(&format!("{name}/src/a.rs"), "//\n");
        write(&format!("{name}/src/b.rs"), "//\n");
    }
    let packages = workspace::read(folder.path()).unwrap();
    let crates: Vec<_> = packages
        .iter()
        .map(|package| Crate::read(folder.path(), package).unwrap())
        .collect();
    let svg = house::picture::svg(&crates);
    assert_eq!(svg.matches("fill-opacity").count(), 6);
    // Of high → middle, high → low and middle → low: the second follows from the others, and most use low.
    assert_eq!(svg.matches("stroke-width=\"1.6\"").count(), 1);
    assert!(svg.contains("&lt;ground>") && !svg.contains("NaN"), "{svg}");
    assert_eq!(svg, house::picture::svg(&crates));
}
