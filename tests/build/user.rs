//! A build by an ordinary user with subordinate ids, beside one by root.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::Uid;

use super::{Place, RECIPE, reference};

/// An unused id, and the first of its subordinate ids.
const USER: u32 = 54_321;
const FIRST: u32 = 1_000_000;
const COUNT: u32 = 65_536;

/// Replaces `newuidmap` and `newgidmap`, which must be setuid and may be absent on the host: it requests the same write
/// to `/proc/PID/uid_map` from this test, which is root, and waits until it is done.
const DOOR: &str = r#"#!/bin/sh
set -e
name=${0##*/}
echo "$name $*" > "$SLIPWAY_DOOR/$name.part"
mv "$SLIPWAY_DOOR/$name.part" "$SLIPWAY_DOOR/$name.asked"
while [ ! -e "$SLIPWAY_DOOR/$name.done" ]; do sleep 0.05; done
"#;

/// As root: the build of an ordinary user, in a user namespace over its subordinate ids, gives the same bytes as
/// root's. As an ordinary user every build of these tests is such a build already, and this one is compared with them.
#[test]
fn an_ordinary_user_gives_the_same_bytes() {
    let reference = reference();
    if !Uid::effective().is_root() {
        let place = Place::new("user", Some(&reference.lock));
        super::finish(place.build());
        assert_eq!(place.sums(), reference.sums);
        return;
    }
    let held = tempfile::tempdir().unwrap();
    let folder = held.path().to_owned();
    open(&folder);
    fs::create_dir_all(folder.join("recipes")).unwrap();
    fs::write(folder.join("recipes/small.toml"), RECIPE).unwrap();
    fs::write(folder.join("recipes/small.lock"), &reference.lock).unwrap();
    let cache = slipway::host::cache::Cache::open().unwrap();
    copy(
        &cache.root().join("downloads"),
        &folder.join("cache/downloads"),
    );
    let program = folder.join("slipway");
    fs::copy(env!("CARGO_BIN_EXE_slipway"), &program).unwrap();
    let door = folder.join("door");
    fs::create_dir(&door).unwrap();
    for name in ["newuidmap", "newgidmap"] {
        fs::write(door.join(name), DOOR).unwrap();
        open(&door.join(name));
    }
    copy(Path::new("/etc"), &folder.join("etc"));
    for name in ["subuid", "subgid"] {
        let line = format!("{USER}:{FIRST}:{COUNT}\n");
        fs::write(folder.join("etc").join(name), line).unwrap();
    }
    give(&folder);

    let over = AtomicBool::new(false);
    let output = thread::scope(|scope| {
        scope.spawn(|| keep_door(&door, &over));
        let built = scope.spawn(|| {
            let output = build(&folder, &program, &door);
            over.store(true, Ordering::Relaxed);
            output
        });
        built.join().unwrap()
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let sums = fs::read_to_string(folder.join("out/small-1.0/SHA256SUMS")).unwrap();
    assert_eq!(sums, reference.sums);
    let disk = fs::metadata(folder.join("out/small-1.0/disk.raw")).unwrap();
    assert_eq!(disk.uid(), USER);
}

/// Runs the build as the user, with an `/etc` that grants its subordinate ids. A thread has a separate mount namespace.
fn build(folder: &Path, program: &Path, door: &Path) -> std::process::Output {
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let none: Option<&str> = None;
    #[allow(
        clippy::disallowed_methods,
        reason = "another /etc for the program under test"
    )]
    {
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        mount(
            Some(&folder.join("etc")),
            "/etc",
            none,
            MsFlags::MS_BIND,
            none,
        )
        .unwrap();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path =
        std::env::join_paths(std::iter::once(door.to_owned()).chain(std::env::split_paths(&path)))
            .unwrap();
    #[allow(clippy::disallowed_methods, reason = "the program under test")]
    Command::new(program)
        .args(["build", "recipes/small.toml", "-o", "out", "--locked"])
        .current_dir(folder)
        .env("SLIPWAY_CACHE", folder.join("cache"))
        .env("SLIPWAY_DOOR", door)
        .env("HOME", folder)
        .env("PATH", path)
        .uid(USER)
        .gid(USER)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .unwrap()
}

/// Does the work of the setuid programs: maps the user's id to 0 and its subordinate ids to 1 and up. Any other request
/// fails the test.
fn keep_door(door: &Path, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        for (name, map) in [("newuidmap", "uid_map"), ("newgidmap", "gid_map")] {
            let asked = door.join(format!("{name}.asked"));
            let Ok(text) = fs::read_to_string(&asked) else {
                continue;
            };
            fs::remove_file(&asked).unwrap();
            let words: Vec<&str> = text.split_whitespace().collect();
            let process = words[1];
            let allowed = format!("{name} {process} 0 {USER} 1 1 {FIRST} {COUNT}");
            assert_eq!(words.join(" "), allowed);
            fs::write(
                format!("/proc/{process}/{map}"),
                format!("0 {USER} 1\n1 {FIRST} {COUNT}\n"),
            )
            .unwrap();
            fs::write(door.join(format!("{name}.done")), "").unwrap();
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn open(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Copies files, folders and links; the program needs no other kind.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (from, to): (PathBuf, PathBuf) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            copy(&from, &to);
        } else if kind.is_symlink() {
            symlink(fs::read_link(&from).unwrap(), &to).unwrap();
        } else if kind.is_file() {
            // Files that only root may read are not given to another user; one that another program downloads at this moment is such
            // a file too, and soon has another name.
            let readable = fs::metadata(&from).is_ok_and(|meta| meta.mode() & 0o004 != 0);
            if readable {
                fs::copy(&from, &to).unwrap();
            }
        }
    }
}

/// Makes the user the owner of the folder and its content.
fn give(path: &Path) {
    if fs::symlink_metadata(path).unwrap().is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            give(&entry.unwrap().path());
        }
        chown(path, Some(USER), Some(USER)).unwrap();
    } else {
        lchown(path, Some(USER), Some(USER)).unwrap();
    }
}
