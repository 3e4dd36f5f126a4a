//! The workspace keeps the rules of `docs/architecture.md`: floors, no circles, no large rooms, arrows one way.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use house::graph::Crate;
use house::rules::{self, Finding};
use house::workspace;

fn list(findings: &[Finding]) -> String {
    findings.iter().fold(String::new(), |mut text, finding| {
        writeln!(text, "{finding}").unwrap();
        text
    })
}

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

#[test]
fn no_crate_depends_on_one_that_the_arrows_do_not_allow() {
    let packages = workspace::read(top()).unwrap();
    let findings = rules::dependencies(&packages, rules::ARROWS);
    assert!(findings.is_empty(), "\n{}", list(&findings));
}

#[test]
fn modules_use_only_lower_floors_and_never_in_a_circle() {
    let packages = workspace::read(top()).unwrap();
    let mut findings = Vec::new();
    for package in &packages {
        findings.extend(rules::check(&Crate::read(top(), package).unwrap()));
    }
    assert!(findings.is_empty(), "\n{}", list(&findings));
}

#[test]
fn every_crate_is_read_whole() {
    // An unread file would hide its uses. Only test files are left out.
    for package in workspace::read(top()).unwrap() {
        let krate = Crate::read(top(), &package).unwrap();
        let read = krate.paths();
        let mut unread = Vec::new();
        let mut next = vec![package.folder.join("src")];
        while let Some(folder) = next.pop() {
            for entry in std::fs::read_dir(top().join(&folder)).unwrap() {
                let entry = entry.unwrap();
                let path = folder.join(entry.file_name());
                if entry.file_type().unwrap().is_dir() {
                    next.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs")
                    && !read.contains(&path)
                {
                    unread.push(path);
                }
            }
        }
        let tests: Vec<_> = krate.trees.iter().flat_map(|tree| &tree.tests).collect();
        unread.retain(|path| {
            let within =
                |test: &&PathBuf| path.starts_with(test) || path.with_extension("") == **test;
            !tests.iter().any(within)
        });
        assert!(unread.is_empty(), "not read: {unread:?}");
    }
}
