//! Writes to file systems that are full: small RAM disks, in a mount namespace of a thread.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::*;
use crate::host::cache::{Cache, Key};

/// Runs `test` with a RAM disk of one MiB at a path, which its thread alone sees; without root it says so.
fn with_small_disk(test: impl FnOnce(&Path) + Send + 'static) {
    if !nix::unistd::Uid::effective().is_root() {
        linux::host::skipped("a mount needs root");
        return;
    }
    let thread = std::thread::spawn(move || {
        let held = tempfile::tempdir().unwrap();
        let none: Option<&str> = None;
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).unwrap();
        #[allow(clippy::disallowed_methods, reason = "the file system of the test")]
        let mounted =
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).and_then(|()| {
                let options = Some("size=1m");
                mount(
                    Some("tmpfs"),
                    held.path(),
                    Some("tmpfs"),
                    MsFlags::empty(),
                    options,
                )
            });
        mounted.unwrap();
        test(held.path());
        #[allow(clippy::disallowed_methods, reason = "the file system of the test")]
        nix::mount::umount2(held.path(), nix::mount::MntFlags::MNT_DETACH).unwrap();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn fill(path: PathBuf) -> anyhow::Result<()> {
    let about = || format!("writing {}", path.display());
    fs::write(&path, vec![7; 2 << 20]).with_context(about)
}

#[test]
fn a_step_on_a_full_cache_names_folder_free_space_and_what_was_written() {
    with_small_disk(|disk| {
        let folder = disk.join("cache");
        let cache = Cache::at(folder.clone()).unwrap();
        let key = Key::of_data("big", 1).finish();
        let error = cache.step("big", &key, |folder| fill(folder.join("content")));
        let error = error.unwrap_err();
        let temporary = folder.join(format!("tmp/big-{key}/content"));
        let found = format!("{error:#}");
        let (shown, _) = found.split_once(" has ").unwrap();
        let expected = "no space is left for the step big, of which ";
        assert!(shown.starts_with(expected), "{found}");
        assert!(
            shown.ends_with(&format!(
                " were written: the cache folder {}",
                folder.display()
            )),
            "{found}"
        );
        let end = format!(
            " has 0 B of 1.0 MiB free; {}: writing {}: No space left on device (os error 28)",
            Place::cache(&folder).remedy,
            temporary.display()
        );
        assert!(found.ends_with(&end), "{found}");
        // What was written is gone, and the next step has room.
        assert!(!temporary.exists());
        let made = cache.step("small", &key, |folder| {
            Ok(fs::write(folder.join("a"), "a")?)
        });
        assert!(!made.unwrap().hit);
    });
}

#[test]
fn an_error_is_explained_once_with_the_fullest_folder_first() {
    with_small_disk(|disk| {
        let error = fill(disk.join("file")).unwrap_err();
        let (roomy, folder) = (Place::output(Path::new("/")), disk.join("not/there/yet"));
        let error = explain(error, "a file", &[roomy, Place::cache(&folder)]);
        let found = format!("{error:#}");
        let expected = format!(
            "no space is left for a file: the cache folder {} has 0 B of 1.0 MiB free, the output folder / has ",
            folder.display()
        );
        let remedy = format!(" free; {}: writing ", Place::cache(&folder).remedy);
        assert!(
            found.starts_with(&expected) && found.contains(&remedy),
            "{found}"
        );
        let again = explain(error, "more", &[Place::cache(disk)]);
        assert_eq!(format!("{again:#}"), found);
    });
}

#[test]
fn a_folder_of_the_command_line_is_shown_whole() {
    with_small_disk(|disk| {
        // Of this thread alone, as its mounts are.
        std::env::set_current_dir(disk).unwrap();
        let error = fill("file".into()).unwrap_err();
        let error = explain(error, "a file", &[Place::output(Path::new("out"))]);
        let found = format!("{error:#}");
        let expected = format!(": the output folder {}/out has ", disk.display());
        assert!(found.contains(&expected), "{found}");
        std::env::set_current_dir("/").unwrap();
    });
}

#[test]
fn programs_and_calls_have_words_of_their_own_and_other_errors_none() {
    let full = [
        anyhow::anyhow!("dpkg: exit status: 2; its last lines:\n  No space left on device"),
        Error::new(Errno::EDQUOT).context("syncing"),
        Error::new(io::Error::from(io::ErrorKind::QuotaExceeded)).context("writing"),
    ];
    for error in full {
        assert!(is_full(&error), "{error:#}");
    }
    let other = Error::new(io::Error::from(io::ErrorKind::NotFound)).context("reading a");
    let before = format!("{other:#}");
    assert!(!is_full(&other));
    assert_eq!(format!("{:#}", explain(other, "a", &[])), before);
}
