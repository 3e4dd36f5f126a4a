//! Entries and homes that exist before the config is applied: replaced, removed with their user, or left.

use super::cuts::{cut_and_again, cut_everywhere_on, plain};
use super::*;

/// Sets the owner, where a test may.
fn own(path: &Path, id: u32) {
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::lchown(path, Some(id), Some(id)).unwrap();
    }
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    own(path, 1000);
}

/// A root with a directory and a file of another user's.
fn full_root() -> tempfile::TempDir {
    let folder = root();
    let full = folder.path().join("var/lib/full");
    fs::create_dir_all(full.join("sub/deep")).unwrap();
    for file in ["kept", "old", "sub/old", "sub/deep/old"] {
        fs::write(full.join(file), "old").unwrap();
    }
    for path in [full.join("sub"), full, folder.path().join("etc/motd")] {
        open_to_all(&path);
    }
    folder
}

const EMPTIED: &str = r#"{"ignition": {"version": "3.5.0"}, "storage": {
    "directories": [{"path": "/var/lib/full/sub", "overwrite": true, "mode": 448},
                    {"path": "/var/lib/full", "overwrite": true}],
    "files": [{"path": "/var/lib/full/kept", "contents": {"source": "data:,new"}},
              {"path": "/var/lib/full/sub/new/file", "contents": {"source": "data:,new"}},
              {"path": "/etc/motd", "overwrite": true, "contents": {"source": "data:,old%0A"}}]}}"#;

#[test]
fn overwriting_a_directory_empties_it_once_and_keeps_no_mode_or_owner() {
    let (folder, state) = (full_root(), tempfile::tempdir().unwrap());
    let (root, tree) = (folder.path(), tree(folder.path()));
    let full = root.join("var/lib/full");
    run(&fetched(EMPTIED), &tree, Some(state.path())).unwrap();
    let names = |path: &str| tree.find(path).unwrap().names();
    assert_eq!(names("/var/lib/full"), ["kept", "sub"]);
    assert_eq!(names("/var/lib/full/sub"), ["new"]);
    assert_eq!(fs::read_to_string(full.join("kept")).unwrap(), "new");
    for (path, mode) in [
        ("/var/lib/full", 0o755),
        ("/var/lib/full/sub", 0o700),
        ("/etc/motd", 0o644),
    ] {
        let entry = tree.find(path).unwrap();
        assert_eq!(entry.stat().unwrap().mode() & 0o7777, mode, "{path}");
        assert_eq!(tree.owner(&entry), (0, 0), "{path}");
    }
    // A second run finds the result of the first one, and what was written since.
    fs::write(full.join("later"), "").unwrap();
    let before = snapshot(root);
    run(&fetched(EMPTIED), &tree, None).unwrap();
    assert_eq!(snapshot(root), before);
}

#[test]
fn a_directory_is_emptied_wherever_the_power_is_cut() {
    for fresh_etc in [true, false] {
        let cuts = cut_everywhere_on(full_root, &plain(EMPTIED), &plain(EMPTIED), fresh_etc);
        assert!(cuts > 15, "{cuts}");
    }
}

#[test]
fn a_mount_point_is_not_emptied() {
    let text = refused(
        r#"{"ignition": {"version": "3.5.0"}, "storage": {
             "filesystems": [{"device": "/dev/x", "format": "ext4", "path": "/var/lib/data/x"}],
             "directories": [{"path": "/var/lib/data", "overwrite": true},
                             {"path": "/var", "overwrite": true}]}}"#,
    );
    for wanted in [
        "$.storage.directories.0: /var/lib/data: overwrite cannot remove it: a file system is mounted at /var/lib/data/x",
        "$.storage.directories.1: /var: overwrite cannot remove it",
    ] {
        assert!(text.contains(wanted), "{wanted}\nnot in\n{text}");
    }
    let text = refused(
        r#"{"ignition": {"version": "3.5.0"}, "storage": {
             "directories": [{"path": "/var", "overwrite": true}]}}"#,
    );
    assert!(text.contains("belongs to the node itself"), "{text}");
}

#[test]
fn targets_of_links_are_compared_and_resolved_as_by_ignition() {
    let folder = root();
    let root = folder.path();
    symlink("/usr/bin/", root.join("etc/bin")).unwrap();
    symlink("../usr//./lib", root.join("etc/lib")).unwrap();
    let config = fetched(
        r#"{"ignition": {"version": "3.5.0"}, "storage": {"links": [
             {"path": "/etc/bin", "target": "/usr/bin"}, {"path": "/etc/lib", "target": "../usr/x/../lib/"},
             {"path": "/etc/deep/hard", "target": "etc/motd", "hard": true}]}}"#,
    );
    let tree = tree(root);
    for _ in 0..2 {
        run(&config, &tree, None).unwrap();
        let inode = |path: &str| fs::symlink_metadata(root.join(path)).unwrap().ino();
        assert_eq!(inode("etc/deep/hard"), inode("etc/motd"));
        let bin = fs::read_link(root.join("etc/bin")).unwrap();
        assert_eq!(bin.to_str(), Some("/usr/bin/"));
    }
    let folder = self::root();
    symlink("usr/bin", folder.path().join("etc/bin")).unwrap();
    let error = run(&config, &self::tree(folder.path()), None).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("/etc/bin: it exists and is not"), "{error}");
}

/// Adds a user to the accounts of a root, and a home.
fn add(root: &Path, name: &str, id: u32, home: &str) {
    let passwd = root.join("etc/passwd");
    let old = fs::read_to_string(&passwd).unwrap();
    let line = format!("{name}:x:{id}:{id}::/home/{home}:/bin/sh\n");
    fs::write(&passwd, old + &line).unwrap();
    let home = root.join("var/home").join(home);
    fs::create_dir_all(home.join(".ssh")).unwrap();
    fs::write(home.join(".ssh/authorized_keys"), "key").unwrap();
    own(&home, id);
}

/// A root with users who are removed: one with a home that is another's too, one with a home that is root's.
fn homes_root() -> tempfile::TempDir {
    let folder = root();
    let users = [
        ("gone", "gone"),
        ("left", "shared"),
        ("other", "of-root"),
        ("stays", "shared"),
    ];
    for (id, (name, home)) in (1700..).zip(users) {
        add(folder.path(), name, id, home);
    }
    own(&folder.path().join("var/home/shared"), 1701);
    own(&folder.path().join("var/home/of-root"), 0);
    folder
}

const REMOVED: &str = r#"{"ignition": {"version": "3.5.0"}, "passwd": {"users": [
    {"name": "gone", "shouldExist": false}, {"name": "left", "shouldExist": false},
    {"name": "other", "shouldExist": false}]},
  "storage": {"files": [{"path": "/home/gone/.ssh/authorized_keys", "contents": {"source": "data:,new"}}]}}"#;

#[test]
fn a_removed_users_home_goes_too_unless_it_is_anothers() {
    let (folder, state) = (homes_root(), tempfile::tempdir().unwrap());
    let tree = tree(folder.path());
    for (home, owner) in [("gone", 1700), ("shared", 1701), ("of-root", 0)] {
        let entry = tree.find(&format!("/home/{home}")).unwrap();
        tree.own(&entry, (owner, owner)).unwrap();
    }
    let text = REMOVED.replace("/home/gone/.ssh/authorized_keys", "/etc/new");
    let applied = run(&fetched(&text), &tree, Some(state.path())).unwrap();
    let homes = folder.path().join("var/home");
    assert!(!homes.join("gone").exists());
    for home in ["shared", "of-root"] {
        assert!(homes.join(home).join(".ssh/authorized_keys").exists());
    }
    let warnings = applied.warnings;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    let why = "left is removed, and the home /home/shared stays: the home of stays is there too";
    assert!(warnings[0].contains(why), "{warnings:?}");
    let why = "the home /home/of-root stays: it does not belong to that user";
    assert!(warnings[1].contains(why), "{warnings:?}");
}

#[test]
fn a_home_goes_wherever_the_power_is_cut() {
    // Otherwise the homes belong to the user who runs the test, and so to none of the removed ones.
    if !linux::host::is_root() {
        return;
    }
    let cuts = cut_everywhere_on(homes_root, &plain(REMOVED), &plain(REMOVED), true);
    assert!(cuts > 8, "{cuts}");
}

#[test]
fn the_home_of_an_existing_user_that_only_a_mount_made_is_the_users() {
    for (more, mounted, mode, owner) in [
        ("", true, 0o700, (1000, 1000)),
        (r#", "noCreateHome": true"#, true, 0o755, (0, 0)),
        ("", false, 0o755, (0, 0)),
    ] {
        let config = fetched(&format!(
            r#"{{"ignition": {{"version": "3.5.0"}}, "passwd": {{"users": [
                 {{"name": "core"{more}}}, {{"name": "homeless"}}]}}}}"#
        ));
        let brought = DiskResults {
            mounted: match mounted {
                true => vec!["/var/home/core".to_owned()],
                false => vec![],
            },
            ..DiskResults::default()
        };
        let wish = (config, brought);
        for cut in 0..10 {
            let folder = root();
            add(folder.path(), "core", 1000, "core");
            add(folder.path(), "homeless", 1001, "homeless");
            let homes = folder.path().join("var/home");
            fs::remove_dir_all(homes.join("homeless")).unwrap();
            let home = homes.join("core");
            fs::set_permissions(&home, fs::Permissions::from_mode(0o755)).unwrap();
            own(&home, 0);
            let told = cut_and_again(&wish, folder.path(), cut);
            let place = told.find("/home/core").unwrap();
            assert_eq!(place.stat().unwrap().mode() & 0o7777, mode, "{more}");
            assert_eq!(told.owner(&place), owner, "{more}");
            assert!(!homes.join("homeless").exists());
        }
    }
}
