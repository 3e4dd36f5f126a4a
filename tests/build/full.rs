//! Builds whose disk becomes full: the error names the folder, what is free there, and what was being written.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::{Place, reference};

/// Lets a command see a RAM disk of this many MiB at a path, with a link to the downloads of a cache, if they are given.
#[allow(unsafe_code, reason = "a mount between fork and exec")]
#[allow(clippy::disallowed_methods, reason = "the file system of the test")]
fn with_disk(command: &mut Command, at: &Path, mebibytes: u32, downloads: Option<PathBuf>) {
    let (at, options) = (at.to_owned(), format!("size={mebibytes}m"));
    let none: Option<&str> = None;
    let mounts = move || {
        unshare(CloneFlags::CLONE_NEWNS)?;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        let (kind, options) = (Some("tmpfs"), Some(options.as_str()));
        mount(kind, &at, kind, MsFlags::empty(), options)?;
        let linked = downloads.iter();
        let mut linked = linked.map(|downloads| symlink(downloads, at.join("downloads")));
        linked.try_for_each(|linked| linked)
    };
    // SAFETY: the child has one thread; glibc lets it allocate after a fork.
    unsafe { command.pre_exec(mounts) };
}

/// What the build said in the line of its error, which is one.
fn error(mut command: Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let (_, error) = said
        .split_once("\nerror: ")
        .unwrap_or_else(|| panic!("{said}"));
    error.to_owned()
}

#[test]
fn a_disk_that_becomes_full_is_named_with_what_is_free_and_what_was_written() {
    if !nix::unistd::Uid::effective().is_root() {
        linux::host::skipped("a mount needs root");
        return;
    }
    let reference = reference();
    let place = Place::new("full", Some(&reference.lock));
    let (cache, out) = (place.folder.join("cache"), place.folder.join("out"));
    let downloads = fs::read_link(cache.join("downloads")).unwrap();
    refused(&place, &cache, &out);
    let mut command = place.build();
    with_disk(&mut command, &cache, 128, Some(downloads));
    let found = error(command);
    for expected in [
        "no space is left for the step ",
        ", of which ",
        &format!(" were written: the cache folder {} has ", cache.display()),
        " of 128 MiB free; set SLIPWAY_CACHE, or --cache, to a folder on a larger disk, or free some by `slipway cache prune`: ",
        "No space left on device",
    ] {
        assert!(found.contains(expected), "{expected}: {found}");
    }

    super::finish(place.build());
    assert_eq!(place.sums(), reference.sums);
    fs::remove_dir_all(&out).unwrap();
    fs::create_dir(&out).unwrap();
    let mut command = place.build();
    with_disk(&mut command, &out, 32, None);
    let found = error(command);
    for expected in [
        &format!(
            "no space is left for the image: the output folder {}/.small-",
            fs::canonicalize(&out).unwrap().display()
        ),
        " of 32.0 MiB free, the cache folder ",
        "; give a folder on a larger disk with --output, or remove images that nobody needs: ",
        "No space left on device",
    ] {
        assert!(found.contains(expected), "{expected}: {found}");
    }
}

/// By the lock both folders are too small, before anything is fetched.
fn refused(place: &Place, cache: &Path, out: &Path) {
    let mut command = place.build();
    with_disk(&mut command, cache, 100, None);
    let found = error(command);
    let start = format!(
        "there is not enough space for this build\n  cache folder: {} (tmpfs) has ",
        cache.display()
    );
    assert!(found.starts_with(&start), "{found}");
    for expected in [
        " MiB free, and ",
        " MiB are needed for ",
        " MiB of downloads and what is made of them\n    → set SLIPWAY_CACHE, or --cache, to a folder on a larger disk",
    ] {
        assert!(found.contains(expected), "{expected}: {found}");
    }

    fs::create_dir(out).unwrap();
    let mut command = place.build();
    command.env("SLIPWAY_CACHE", place.folder.join("empty"));
    with_disk(&mut command, out, 32, None);
    let found = error(command);
    let start = format!(
        "there is not enough space for this build\n  output folder: {} (tmpfs) has 32.0 MiB free, and ",
        fs::canonicalize(out).unwrap().display()
    );
    assert!(found.starts_with(&start), "{found}");
    assert!(
        found.contains(" MiB are needed for the image at least\n    → give a folder"),
        "{found}"
    );
    let fetched = fs::read_dir(place.folder.join("empty/downloads")).unwrap();
    assert_eq!(fetched.count(), 0);
    fs::remove_dir(out).unwrap();
}
