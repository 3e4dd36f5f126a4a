//! The power is cut anywhere in an attempt, and the next one converges.

use super::*;

/// A config whose changes only a journal distinguishes from the files that existed before.
const CUT: &str = r#"{
  "ignition": {"version": "3.5.0"},
  "passwd": {
    "groups": [{"name": "team", "gid": 2000}],
    "users": [{"name": "core", "groups": ["sudo", "team"], "passwordHash": "$y$SECRET", "sshAuthorizedKeys": ["ssh-ed25519 AAAA"]},
              {"name": "daemon2", "system": true, "noCreateHome": true},
              {"name": "gone", "shouldExist": false},
              {"name": "root", "sshAuthorizedKeys": ["ssh-ed25519 CCCC"]}]
  },
  "storage": {
    "directories": [{"path": "/var/lib/app/deep", "user": {"name": "core"}}],
    "files": [{"path": "/etc/new/deep/file", "contents": {"source": "data:,SECRET"}},
              {"path": "/etc/twice", "append": [{"source": "data:,a%0A"}]},
              {"path": "/var/lib/log", "append": [{"source": "data:,b%0A"}, {"source": "data:,b%0A"}]},
              {"path": "/home/core/.bashrc", "contents": {"source": "data:,mine"}, "user": {"name": "core"}},
              {"path": "/var/lib/app/empty"}],
    "links": [{"path": "/etc/localtime", "target": "/usr/share/zoneinfo/UTC"},
              {"path": "/etc/hard", "target": "/etc/new/deep/file", "hard": true}]
  },
  "systemd": {"units": [{"name": "sshd.service", "enabled": true}, {"name": "masked.service", "mask": true},
    {"name": "own.service", "enabled": true, "contents": "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"}]}
}"#;

/// Another config, which has almost nothing of the first one, and makes some of it differently.
const CHANGED: &str = r#"{
  "ignition": {"version": "3.5.0"},
  "passwd": {"users": [{"name": "core", "uid": 1500, "homeDir": "/home/other"}]},
  "storage": {
    "directories": [{"path": "/var/lib/app", "mode": 448}],
    "files": [{"path": "/etc/new/deep/file", "contents": {"source": "data:,changed"}},
              {"path": "/etc/twice", "append": [{"source": "data:,c%0A"}]}],
    "links": [{"path": "/etc/localtime", "target": "/usr/share/zoneinfo/Europe/Berlin"}]
  }
}"#;

/// A root with existing files for the configs above: files that end as if something had been appended, and a user that
/// is removed.
fn used_root() -> tempfile::TempDir {
    let folder = root();
    let root = folder.path();
    fs::create_dir_all(root.join("var/lib")).unwrap();
    fs::write(root.join("etc/twice"), "a\n").unwrap();
    fs::write(root.join("var/lib/log"), "b\nb\n").unwrap();
    for (path, line) in [
        ("etc/passwd", "gone:x:1700:1700::/home/gone:/bin/sh\n"),
        ("etc/shadow", "gone:*:20000:0:99999:7:::\n"),
        ("etc/group", "gone:x:1700:\n"),
        ("etc/gshadow", "gone:!::\n"),
        ("etc/subuid", "gone:100000:65536\n"),
    ] {
        let old = fs::read_to_string(root.join(path)).unwrap_or_default();
        fs::write(root.join(path), old + line).unwrap();
    }
    folder
}

/// A config without results of the disks stage.
pub(super) fn plain(text: &str) -> Wish {
    (fetched(text), DiskResults::default())
}

/// Does `work` with the power cut after so many changes of the tree; with `None` it is not cut.
fn cut_after<T>(cut: Option<usize>, work: impl FnOnce() -> T) -> T {
    root_tree::CUT_AFTER.set(cut);
    let done = work();
    root_tree::CUT_AFTER.set(None);
    done
}

/// Applies `wish` to a root with the power cut after `cut` changes, and once more to its end; returns the tree of the root.
pub(super) fn cut_and_again(wish: &Wish, root: &Path, cut: usize) -> Tree {
    let state = tempfile::tempdir().unwrap();
    let mut told = tree(root);
    for cut in [Some(cut), None] {
        told.forget_pending();
        let done = cut_after(cut, || {
            run_with(&wish.0, &wish.1, &told, Some(state.path()))
        });
        assert!(cut.is_some() || done.is_ok(), "{done:?}");
    }
    told
}

/// All of a root, by the paths below it.
fn below(root: &Path) -> Vec<(PathBuf, u32, u32, Vec<u8>)> {
    let strip = |path: PathBuf| path.strip_prefix(root).unwrap().to_owned();
    let all = snapshot(root).into_iter();
    all.map(|(path, mode, owner, content)| (strip(path), mode, owner, content))
        .collect()
}

/// Applies `first` with the power cut after each number of changes, and `then` afterwards; returns the number of cuts.
/// With `fresh_etc` each attempt begins with the root's `/etc`, as the state step arranges; without it, with that of
/// the attempt before, as on a `/var` that was used before.
fn cut_everywhere(first: &Wish, then: &Wish, fresh_etc: bool) -> usize {
    cut_everywhere_on(used_root, first, then, fresh_etc)
}

/// As [`cut_everywhere`], on roots that `make` gives.
pub(super) fn cut_everywhere_on(
    make: fn() -> tempfile::TempDir,
    first: &Wish,
    then: &Wish,
    fresh_etc: bool,
) -> usize {
    let whole = make();
    run_with(&then.0, &then.1, &tree(whole.path()), None).unwrap();
    let expected = below(whole.path());
    for cut in 0.. {
        let (folder, state) = (make(), tempfile::tempdir().unwrap());
        let mut told = tree(folder.path());
        let done = cut_after(Some(cut), || {
            run_with(&first.0, &first.1, &told, Some(state.path()))
        });
        let marker = folder.path().join("etc/.ignition-result.json");
        assert!(done.is_err() || marker.exists());
        let finished = done.is_ok();
        let begin = |told: &mut Tree| {
            told.forget_pending();
            if fresh_etc {
                let etc = folder.path().join("etc");
                fs::remove_dir_all(&etc).unwrap();
                fs::rename(make().path().join("etc"), &etc).unwrap();
            }
        };
        // Some runs are cut several times, each time at another change.
        let more = [cut / 2, 3 * cut / 2];
        for again in more.into_iter().filter(|_| cut % 4 == 0) {
            begin(&mut told);
            // The run may also complete.
            drop(cut_after(Some(again), || {
                run_with(&then.0, &then.1, &told, Some(state.path()))
            }));
        }
        begin(&mut told);
        let done = run_with(&then.0, &then.1, &told, Some(state.path()));
        done.unwrap_or_else(|error| panic!("cut after {cut} changes: {error:#}"));
        let found = below(folder.path());
        for entry in &found {
            let (path, mode, owner, content) = entry;
            let other = expected.iter().find(|other| other.0 == *path);
            let text = |content: &[u8]| String::from_utf8_lossy(content).into_owned();
            assert!(
                Some(entry) == other,
                "cut after {cut} changes: {path:?} {mode:o} {owner} {:?}; expected {:?}",
                text(content),
                other.map(|(_, mode, owner, content)| (format!("{mode:o}"), owner, text(content)))
            );
        }
        assert_eq!(found.len(), expected.len(), "cut after {cut} changes");
        let journal = fs::read_to_string(state.path().join("files.json")).unwrap();
        assert!(!journal.contains("SECRET"), "{journal}");
        if finished {
            return cut;
        }
    }
    unreachable!("the cuts have an end")
}

#[test]
fn the_power_cut_anywhere_the_next_boot_converges() {
    let cuts = cut_everywhere(&plain(CUT), &plain(CUT), true);
    assert!(cuts > 60, "{cuts}");
    // A file that was removed from an `/etc` other than the root's own cannot be restored.
    let kept = CUT.replace(r#"{"name": "gone", "shouldExist": false},"#, "");
    cut_everywhere(&plain(&kept), &plain(&kept), false);
}

#[test]
fn a_config_that_changed_between_two_attempts_finds_nothing_of_the_first() {
    cut_everywhere(&plain(CUT), &plain(CHANGED), true);
    cut_everywhere(&plain(CHANGED), &plain(CUT), true);
}

#[test]
fn volumes_of_an_attempt_that_was_cut_off_leave_no_key_and_no_line() {
    let with = |text: &str, names: &[&str]| -> Wish {
        let volumes = names.iter().map(|name| volume(name, Some(b"SECRET")));
        let brought = DiskResults {
            volumes: volumes.collect(),
            ..DiskResults::default()
        };
        (fetched(text), brought)
    };
    // A crypttab of the config, which it does not allow to be replaced, gets the lines too.
    let own = with(
        r#"{"ignition": {"version": "3.5.0"}, "storage": {"files": [
             {"path": "/etc/crypttab", "contents": {"source": "data:,mine%20/dev/x%0A"}}]}}"#,
        &["one", "two"],
    );
    let empty = r#"{"ignition": {"version": "3.5.0"}}"#;
    let (other, none) = (with(empty, &["three"]), with(empty, &[]));
    for fresh_etc in [true, false] {
        for (first, then) in [(&own, &own), (&own, &other), (&other, &own), (&own, &none)] {
            let cuts = cut_everywhere(first, then, fresh_etc);
            assert!(cuts > 8, "{cuts}");
        }
    }
}

#[test]
fn what_an_attempt_replaced_with_permission_may_be_replaced_again() {
    let with = |more: &str| {
        fetched(&format!(
            r#"{{"ignition": {{"version": "3.5.0"}}, "storage": {{"files": [
                 {{"path": "/etc/motd", {more} "contents": {{"source": "data:,{}"}}}}]}}}}"#,
            more.len()
        ))
    };
    let (folder, state) = (root(), tempfile::tempdir().unwrap());
    let tree = tree(folder.path());
    run(&with(r#""overwrite": true,"#), &tree, Some(state.path())).unwrap();
    run(&with(""), &tree, Some(state.path())).unwrap();
    assert_eq!(
        fs::read_to_string(folder.path().join("etc/motd")).unwrap(),
        "0"
    );
    // A file that no config allowed to be replaced is still refused.
    let (folder, state) = (root(), tempfile::tempdir().unwrap());
    run(&with(""), &self::tree(folder.path()), Some(state.path())).unwrap_err();
}

#[test]
fn what_only_mounts_made_of_a_home_is_its_users_after_a_cut_too() {
    let mounted = ["core", "core/data", "core.other"];
    let brought = DiskResults {
        mounted: mounted.map(|name| format!("/var/home/{name}")).into(),
        ..DiskResults::default()
    };
    let config = r#"{"ignition": {"version": "3.5.0"}, "passwd": {"users": [{"name": "core"}]}}"#;
    let wish = (fetched(config), brought);
    for cut in 0..40 {
        let folder = root();
        let home = folder.path().join("var/home/core");
        for made in [&home, &home.join("data"), &home.with_extension("other")] {
            fs::create_dir(made).unwrap();
            fs::set_permissions(made, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let told = cut_and_again(&wish, folder.path(), cut);
        for (name, mode, owner) in [
            ("core", 0o700, (1000, 1000)),
            ("core/data", 0o700, (1000, 1000)),
            ("core.other", 0o755, (0, 0)),
        ] {
            let path = folder.path().join("var/home").join(name);
            assert_eq!(fs::metadata(path).unwrap().mode() & 0o7777, mode, "{name}");
            let place = told.find(&format!("/home/{name}")).unwrap();
            assert_eq!(told.owner(&place), owner, "{name}");
        }
    }
}

/// A config whose contents are files below `folder`, as the boot makes them that does not have the memory.
fn spooled(text: &str, folder: &Path) -> Fetched {
    let mut fetched = fetched(text);
    let parts = fetched.files.iter_mut().flat_map(Contents::parts_mut);
    for (i, part) in parts.enumerate() {
        let bytes = part.in_memory().unwrap().to_vec();
        let file = folder.join(i.to_string());
        fs::write(&file, &bytes).unwrap();
        *part = Content::Spooled(Spooled {
            bytes: bytes.len() as u64,
            sha256: sha256(&bytes),
            file: Some(file),
        });
    }
    fetched.spool = Some(folder.to_owned());
    fetched
}

#[test]
fn contents_on_the_disk_are_applied_as_those_in_memory_wherever_the_power_is_cut() {
    let whole = used_root();
    run(&fetched(CUT), &tree(whole.path()), None).unwrap();
    let expected = below(whole.path());
    // On the file system of the root, as `/var`, and on another one, which files are copied from.
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let beside = tempfile::tempdir().unwrap();
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    assert_ne!(device(elsewhere.path()), device(whole.path()));
    for above in [&beside, &elsewhere] {
        let spool = above.path().join("spool");
        for cut in (0..).map(|nth| nth * 3) {
            let (folder, state) = (used_root(), tempfile::tempdir().unwrap());
            let mut told = tree(folder.path());
            let mut attempt = |cut| {
                told.forget_pending();
                let etc = folder.path().join("etc");
                fs::remove_dir_all(&etc).unwrap();
                fs::rename(used_root().path().join("etc"), &etc).unwrap();
                fs::create_dir(&spool).unwrap();
                let wish = spooled(CUT, &spool);
                let done = cut_after(cut, || run(&wish, &told, Some(state.path())));
                wish.remove_spool().unwrap();
                done
            };
            let finished = attempt(Some(cut)).is_ok();
            attempt(None).unwrap_or_else(|error| panic!("cut after {cut}: {error:#}"));
            assert_eq!(below(folder.path()), expected, "cut after {cut} changes");
            if finished {
                assert!(cut > 60, "{cut}");
                break;
            }
        }
    }
}

#[test]
fn a_file_takes_the_place_of_the_spooled_one() {
    let config = r#"{"ignition": {"version": "3.5.0"}, "storage": {"files": [
        {"path": "/var/large", "mode": 256, "contents": {"source": "data:,large"}},
        {"path": "/etc/motd", "append": [{"source": "data:,more"}]}]}}"#;
    let (folder, spool) = (root(), tempfile::tempdir().unwrap());
    let wish = spooled(config, spool.path());
    let inode = fs::metadata(spool.path().join("0")).unwrap().ino();
    // Before it is on the disk the config is checked as well, and a file that differs is found.
    let mut verified = spooled(config, spool.path());
    for part in verified.files.iter_mut().flat_map(Contents::parts_mut) {
        if let Content::Spooled(part) = part {
            part.file = None;
        }
    }
    let check = |fetched: &Fetched| {
        let journal = FileJournal::default();
        plan(fetched, &tree(folder.path()), &journal, 0).map(drop)
    };
    check(&verified).unwrap();
    fs::write(folder.path().join("var/large"), "other").unwrap();
    let error = check(&verified).unwrap_err().to_string();
    assert!(
        error.contains("/var/large: it exists with other contents"),
        "{error}"
    );
    fs::write(folder.path().join("var/large"), "large").unwrap();
    check(&verified).unwrap();
    fs::remove_file(folder.path().join("var/large")).unwrap();
    run(&wish, &tree(folder.path()), None).unwrap();
    let made = fs::metadata(folder.path().join("var/large")).unwrap();
    // It was renamed: a copy would take the space twice.
    assert_eq!((made.ino(), made.mode() & 0o7777), (inode, 0o400));
    assert_eq!(
        fs::read(folder.path().join("etc/motd")).unwrap(),
        b"old\nmore"
    );
}
