//! The tarball is the same bytes from two folders.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "this test starts the program that it tests, and fails by panicking"
)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A copy of the repository's files, compiled there: the tarball.
fn dist(folder: &Path) -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let listed = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(repository)
        .output()
        .unwrap();
    assert!(listed.status.success());
    for name in String::from_utf8(listed.stdout)
        .unwrap()
        .split_terminator('\0')
    {
        let to = folder.join(name);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        let from = repository.join(name);
        // Data of tests has links that lead nowhere.
        match fs::read_link(&from) {
            Ok(target) => symlink(target, to).unwrap(),
            Err(_) => drop(fs::copy(&from, to).unwrap()),
        }
    }
    let made = Command::new(env!("CARGO"))
        .args(["run", "--release", "--locked", "--quiet", "-p", "dist"])
        .current_dir(folder)
        .env_remove("CARGO_TARGET_DIR")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{said}");
    folder.join(String::from_utf8(made.stdout).unwrap().trim())
}

#[test]
#[ignore = "compiles everything twice: half an hour"]
fn two_folders_give_the_same_tarball() {
    let held = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (one, other) = (held.path().join("one"), held.path().join("another/folder"));
    let (one, other) = (dist(&one), dist(&other));
    assert_eq!(fs::read(&one).unwrap(), fs::read(&other).unwrap());
}
