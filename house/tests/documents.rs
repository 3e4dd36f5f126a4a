//! Paths and names in the documents exist.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};

use house::workspace;

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// README, CONTRIBUTING, and the pages of `docs/`, below the workspace's folder.
fn pages() -> Vec<PathBuf> {
    let mut pages = vec!["README.md".into(), "CONTRIBUTING.md".into()];
    for entry in fs::read_dir(top().join("docs")).unwrap() {
        pages.push(Path::new("docs").join(entry.unwrap().file_name()));
    }
    pages.retain(|page: &PathBuf| page.extension().is_some_and(|extension| extension == "md"));
    pages
}

#[test]
fn every_link_leads_to_a_file() {
    let mut found = 0;
    for page in pages() {
        let text = fs::read_to_string(top().join(&page)).unwrap();
        for rest in text.split("](").skip(1) {
            let target = rest.split([')', '#']).next().unwrap();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            found += 1;
            let path = top().join(&page).parent().unwrap().join(target);
            assert!(path.exists(), "{} links to {target}", page.display());
        }
    }
    assert!(found > 20, "{found}");
}

#[test]
fn the_readme_has_a_line_for_every_folder_and_no_other() {
    let text = fs::read_to_string(top().join("README.md")).unwrap();
    let rows = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("/` |"));
    let named: Vec<&str> = rows.map(|(folder, _)| folder).collect();
    for folder in &named {
        assert!(top().join(folder).is_dir(), "the README names {folder}/");
    }
    for package in workspace::read(top()).unwrap() {
        let folder = package.folder.to_str().unwrap();
        let folder = if folder.is_empty() { "src" } else { folder };
        assert!(
            named.contains(&folder),
            "the README has no line for {folder}/"
        );
    }
}

#[test]
fn every_cloud_has_a_line_in_the_platforms_page() {
    let text = fs::read_to_string(top().join("docs/platforms.md")).unwrap();
    let mut found = 0;
    for entry in fs::read_dir(top().join("platform/src/providers")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            let name = entry.file_name().into_string().unwrap();
            assert!(
                text.contains(&format!("\n| `{name}` |")),
                "docs/platforms.md has no line for {name}"
            );
            found += 1;
        }
    }
    assert!(found > 10, "{found}");
}

#[test]
fn the_architecture_page_has_the_steps_of_both_lines() {
    let page = fs::read_to_string(top().join("docs/architecture.md")).unwrap();
    let (build, boot) = page.split_once("## The boot line").unwrap();
    let rows = |text: &str| -> Vec<String> {
        let rows = text
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
        rows.map(|(step, _)| step.to_owned()).collect()
    };
    let code = fs::read_to_string(top().join("initrd/src/boot.rs")).unwrap();
    let mut steps: Vec<&str> = code
        .split("step.step(\"")
        .skip(1)
        .chain(code.split("step.enter(\"").skip(1))
        .map(|rest| rest.split('"').next().unwrap())
        .collect();
    let mut named = rows(boot.split_once("## The contract").unwrap().0);
    steps.sort_unstable();
    steps.dedup();
    named.sort_unstable();
    assert_eq!(named, steps);
    // A step of the build is called by its module: `root::seal(`.
    let code = fs::read_to_string(top().join("src/pipeline.rs")).unwrap();
    let mut at = 0;
    for step in rows(build.split_once("## The build line").unwrap().1) {
        let found = code[at..]
            .find(&format!("= {step}::"))
            .or_else(|| code[at..].find(&format!(" {step}::")));
        at += found.unwrap_or_else(|| panic!("build has no step {step} after the one before"));
    }
}

/// Examples in documentation would be tests. There are none, so each library says `doctest = false`: Cargo would compile it once more
/// to look for them. This finds an example that somebody adds and that nobody would run.
#[test]
fn no_example_in_documentation_is_a_test_that_nobody_runs() {
    let packages = workspace::read(top()).unwrap();
    let mut libraries = 0;
    for package in &packages {
        let folder = top().join(&package.folder);
        if !folder.join("src/lib.rs").exists() {
            continue;
        }
        libraries += 1;
        let manifest: toml::Table =
            toml::from_str(&fs::read_to_string(folder.join("Cargo.toml")).unwrap()).unwrap();
        let off = manifest.get("lib").and_then(|lib| lib.get("doctest"));
        assert_eq!(
            off.and_then(toml::Value::as_bool),
            Some(false),
            "{}",
            folder.display()
        );
        let mut folders = vec![folder.join("src")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|kind| kind == "rs") {
                    let text = fs::read_to_string(&path).unwrap();
                    assert_eq!(examples(&text), [""; 0], "{}", path.display());
                }
            }
        }
    }
    assert!(libraries > 10, "{libraries}");
}

/// The lines of documentation that begin code of Rust.
fn examples(text: &str) -> Vec<&str> {
    let mut inside = false;
    let fences = text.lines().filter(|line| {
        let line = line.trim_start();
        let line = line
            .strip_prefix("///")
            .or_else(|| line.strip_prefix("//!"));
        let Some(kind) = line.and_then(|line| line.trim_start().strip_prefix("```")) else {
            return false;
        };
        inside = !inside;
        inside && matches!(kind.trim(), "" | "rust" | "no_run" | "should_panic")
    });
    fences.collect()
}

#[test]
fn examples_are_found() {
    let text = "/// ```\n/// f();\n/// ```\n//! ```text\n//! x\n//! ```\n    /// ```rust\n";
    assert_eq!(examples(text), ["/// ```", "    /// ```rust"]);
}
