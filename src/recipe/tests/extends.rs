//! Recipes that extend another.

use super::{SMALL, written};
use crate::recipe::{FileKind, Platform};

#[test]
fn tables_merge_values_replace_and_names_are_added() {
    let child = r#"
        extends = "base/parent.toml"
        image.version = "2"
        kernel.cmdline = ["-a", "c"]
        kernel.platforms = ["aws"]
        [files."/etc/x"]
        link = "y"
    "#;
    let parent =
        format!("{SMALL}\n[files.'/etc/x']\ncontent = 'x'\n[files.'/etc/z']\nsource = 'z'\n");
    let recipe = written(&[
        ("child.toml", child),
        ("base/parent.toml", &parent),
        ("base/z", "from beside the parent"),
    ])
    .unwrap();
    assert_eq!(
        (recipe.image.name.as_str(), recipe.image.version.as_str()),
        ("a", "2")
    );
    assert_eq!(recipe.kernel.cmdline, ["b", "c"]);
    assert_eq!(recipe.kernel.platforms, [Platform::named("aws").unwrap()]);
    assert_eq!(recipe.files[0].kind, FileKind::Link("y".into()));
    let FileKind::Source(source) = &recipe.files[1].kind else {
        panic!("{:?}", recipe.files[1]);
    };
    assert!(source.ends_with("base/z"), "{}", source.display());
    assert_eq!(recipe.parts.len(), 2);
}

#[test]
fn everything_inherited_is_taken_away_by_a_star() {
    let child = "extends = 'p.toml'\nkernel.cmdline = ['-*', 'z']";
    let recipe = written(&[("c.toml", child), ("p.toml", SMALL)]).unwrap();
    assert_eq!(recipe.kernel.cmdline, ["z"]);
}

#[test]
fn an_inherited_file_is_taken_back() {
    let parent =
        format!("{SMALL}[files.'/etc/a']\ncontent = 'a'\n[files.'/usr/bin/b']\nremove = true\n");
    let child = "extends = 'p.toml'\n[files.'/usr/bin/b']\nremove = false\n";
    let recipe = written(&[("c.toml", child), ("p.toml", &parent)]).unwrap();
    let paths: Vec<&str> = recipe.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["/etc/a"]);
    let wrong = child.replace("/usr/bin/b", "/etc/b");
    let report = written(&[("c.toml", &wrong), ("p.toml", &parent)]).unwrap_err();
    for expected in [
        "c.toml:2:8",
        "which is not inherited",
        "did you mean `/etc/a`?",
    ] {
        assert!(report.contains(expected), "{expected}\n{report}");
    }
    let both = format!("{child}content = 'b'\n");
    let report = written(&[("c.toml", &both), ("p.toml", &parent)]).unwrap_err();
    assert!(report.contains("content and remove at once"), "{report}");
}

#[test]
fn recipes_that_extend_each_other_are_refused_with_the_circle() {
    let report = written(&[
        ("a.toml", "extends = 'b.toml'"),
        ("b.toml", "extends = 'a.toml'"),
    ])
    .unwrap_err();
    assert!(report.contains("a.toml → b.toml → a.toml"), "{report}");
}

#[test]
fn the_nearest_recipe_is_offered() {
    let report = written(&[("a.toml", "extends = 'nod.toml'"), ("node.toml", "")]).unwrap_err();
    assert!(report.contains("did you mean `node.toml`?"), "{report}");
}

/// A path is relative to the recipe that has it: the same text in two folders is two paths, and one folder is one however it is written.
#[test]
fn the_folders_of_all_recipes_are_laid_over() {
    let trees = |own: &str, files: &[(&str, &str)]| {
        let child = format!("extends = ['a/p.toml', 'b/p.toml']\n{own}");
        let parent = format!("{SMALL}\noverlay.trees = ['tree', '../shared']");
        let mut all = vec![
            ("c.toml", child.as_str()),
            ("a/p.toml", parent.as_str()),
            ("b/p.toml", "overlay.trees = ['tree', '../shared/.']"),
            ("a/tree/etc/a", ""),
            ("tree/etc/c", ""),
            ("shared/etc/s", ""),
        ];
        all.extend(files);
        let recipe = written(&all)?;
        let paths = recipe.files.into_iter().map(|file| file.path);
        Ok::<Vec<String>, String>(paths.collect())
    };
    let files = [("b/tree/etc/b", "")];
    assert_eq!(trees("", &files).unwrap(), ["/etc/a", "/etc/b", "/etc/s"]);
    let own = "overlay.trees = ['tree']";
    let all = ["/etc/a", "/etc/b", "/etc/c", "/etc/s"];
    assert_eq!(trees(own, &files).unwrap(), all);
    let without = trees("overlay.trees = ['-a/tree', '-../shared']", &files);
    assert_eq!(without.unwrap(), ["/etc/b"]);
    let none: &[(&str, &str)] = &[];
    for (own, files, place, words) in [
        (
            "",
            none,
            "b/p.toml:1:18",
            "expected a folder, relative to this recipe",
        ),
        (
            "overlay.trees = ['-tree']",
            &files[..],
            "c.toml:2:18",
            "may take away tree of several recipes",
        ),
        (
            "overlay.trees = ['shared']",
            &files[..],
            "c.toml:2:18",
            "`shared` is given twice",
        ),
        (
            "overlay.trees = ['-trees']",
            &files[..],
            "c.toml:2:18",
            "what is not inherited",
        ),
    ] {
        let report = trees(own, files).unwrap_err();
        assert!(report.contains(place), "{report}");
        assert!(report.contains(words), "{report}");
    }
}
