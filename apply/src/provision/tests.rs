use std::path::Path;

use super::*;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

use crate::digest::sha256;
use crate::fetched::{Content, Contents, Spooled};
use crate::tree::{self as root_tree, Owners};
use crate::volumes::Unlock;

const NOW: (&str, u64) = ("boot", 1_795_265_163);

/// The input of an attempt.
type Wish = (Fetched, DiskResults);

/// One attempt, with the journal that is below `state`.
fn run(fetched: &Fetched, tree: &Tree, state: Option<&Path>) -> Result<Applied> {
    run_with(fetched, &DiskResults::default(), tree, state)
}

/// One attempt, with the results of the disks stage.
fn run_with(
    fetched: &Fetched,
    brought: &DiskResults,
    tree: &Tree,
    state: Option<&Path>,
) -> Result<Applied> {
    let mut journal = match state {
        Some(state) => FileJournal::open(state)?,
        None => FileJournal::default(),
    };
    apply_to(fetched, tree, brought, &mut journal, NOW)
}

fn volume(name: &str, key: Option<&[u8]>) -> Opened {
    Opened {
        name: name.to_owned(),
        uuid: "abab".to_owned(),
        by: key.map_or(Unlock::Tpm, |key| Unlock::Key(key.to_vec())),
    }
}

/// The tree of a test: root sets owners for real, other users record them.
pub(crate) fn tree(root: &Path) -> Tree {
    let owners = match nix::unistd::geteuid().is_root() {
        true => Owners::Real,
        false => Owners::Recorded(std::sync::Mutex::default()),
    };
    Tree::with_owners(root, crate::target::Rules::NODE, owners).unwrap()
}

/// A root as the state step leaves it: links into /var, an /etc, and a read-only rest.
fn root() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for path in [
        "etc/skel/.config",
        "etc/systemd/system",
        "var/home",
        "var/roothome",
        "usr/lib/systemd/system",
    ] {
        fs::create_dir_all(root.join(path)).unwrap();
    }
    for (link, target) in image::paths::VAR_LINKS {
        symlink(target, root.join(&link[1..])).unwrap();
    }
    for (path, text) in [
        ("etc/passwd", "root:x:0:0:root:/root:/bin/bash\n"),
        ("etc/shadow", "root:*:20000:0:99999:7:::\n"),
        ("etc/group", "root:x:0:\nsudo:x:27:\nshadow:x:42:\n"),
        ("etc/gshadow", "root:*::\nsudo:*::\nshadow:*::\n"),
        ("etc/skel/.bashrc", "# rc\n"),
        ("etc/skel/.config/x", "x\n"),
        ("etc/motd", "old\n"),
        (
            "usr/lib/systemd/system/sshd.service",
            "[Install]\nWantedBy=multi-user.target\n",
        ),
    ] {
        fs::write(root.join(path), text).unwrap();
    }
    fs::set_permissions(root.join("etc/shadow"), fs::Permissions::from_mode(0o640)).unwrap();
    folder
}

/// A config with its `data:` contents.
fn fetched(text: &str) -> Fetched {
    let (config, _) = ignition::Config::parse(text.as_bytes(), "t").unwrap();
    let model = config.model().unwrap();
    let data = |resource: &ignition::model::Resource| {
        resource
            .source
            .as_ref()
            .map(|url| Content::Memory(ignition::data_url::decode(url).unwrap()))
    };
    let storage = model.storage.clone().unwrap_or_default();
    let files = storage.files.iter().flatten();
    let files = files.map(|file| Contents {
        contents: file.contents.as_ref().and_then(data),
        append: file.append.iter().flatten().filter_map(data).collect(),
    });
    Fetched {
        files: files.collect(),
        keys: vec![],
        config,
        model,
        user_config: true,
        from_server: false,
        warnings: vec![],
        sources: std::collections::BTreeMap::new(),
        spool: None,
    }
}

const WHOLE: &str = r#"{
  "ignition": {"version": "3.5.0"},
  "passwd": {
    "groups": [{"name": "team", "gid": 2000}],
    "users": [{"name": "core", "groups": ["sudo", "team"], "passwordHash": "$y$SECRET",
               "sshAuthorizedKeys": ["ssh-ed25519 AAAA one", " ssh-rsa BBBB two\n"]},
              {"name": "root", "sshAuthorizedKeys": ["ssh-ed25519 CCCC"]}]
  },
  "storage": {
    "directories": [{"path": "/var/lib/app", "mode": 488, "user": {"name": "core"}, "group": {"name": "team"}},
                    {"path": "/opt", "mode": 493}],
    "files": [{"path": "/etc/motd", "overwrite": true, "contents": {"source": "data:,new"}, "mode": 384},
              {"path": "/etc/new/deep/file", "contents": {"source": "data:,SECRET"}},
              {"path": "/etc/hosts", "append": [{"source": "data:,a%0A"}, {"source": "data:,b%0A"}]},
              {"path": "/home/core/.config/x", "contents": {"source": "data:,mine"}, "user": {"name": "core"}},
              {"path": "/usr/local/bin/tool", "mode": 493, "contents": {"source": "data:,tool"}},
              {"path": "/etc/empty"}],
    "links": [{"path": "/etc/localtime", "target": "/usr/share/zoneinfo/UTC"},
              {"path": "/etc/hard", "target": "/etc/new/deep/file", "hard": true}]
  },
  "systemd": {"units": [{"name": "sshd.service", "enabled": true},
    {"name": "own.service", "enabled": true, "contents": "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"}]}
}"#;

#[test]
fn a_whole_config_is_applied_and_a_second_run_changes_nothing() {
    let folder = root();
    let root = folder.path();
    let fetched = fetched(WHOLE);
    let tree = tree(root);
    let applied = run(&fetched, &tree, None).unwrap();
    assert_eq!(
        (
            applied.entries,
            applied.files,
            applied.accounts,
            applied.units
        ),
        (10, 6, 3, 2)
    );
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    assert_eq!(read("etc/motd"), "new");
    assert_eq!(read("etc/new/deep/file"), "SECRET");
    assert_eq!(read("etc/hosts"), "a\nb\n");
    assert_eq!(read("var/usrlocal/bin/tool"), "tool");
    assert_eq!(read("var/home/core/.bashrc"), "# rc\n");
    assert_eq!(read("var/home/core/.config/x"), "mine");
    assert_eq!(
        read("var/home/core/.ssh/authorized_keys.d/ignition"),
        "ssh-ed25519 AAAA one\nssh-rsa BBBB two\n"
    );
    assert_eq!(
        read("var/roothome/.ssh/authorized_keys.d/ignition"),
        "ssh-ed25519 CCCC\n"
    );
    assert!(read("etc/shadow").contains("core:$y$SECRET:20778:0:99999:7:::\n"));
    assert!(read("etc/group").contains("sudo:x:27:core\n"));
    assert!(root.join("var/opt").is_dir());
    let mode = |path: &str| fs::metadata(root.join(path)).unwrap().mode() & 0o7777;
    assert_eq!(mode("etc/motd"), 0o600);
    assert_eq!(mode("etc/shadow"), 0o640);
    assert_eq!(mode("etc/new/deep"), 0o755);
    assert_eq!(mode("var/lib/app"), 0o750);
    assert_eq!(mode("var/home/core"), 0o700);
    assert_eq!(mode("var/home/core/.ssh/authorized_keys.d/ignition"), 0o600);
    let owner = |path: &str| tree.owner(&tree.find(path).unwrap());
    assert_eq!(owner("/var/lib/app"), (1000, 2000));
    assert_eq!(owner("/etc/new/deep/file"), (0, 0));
    assert_eq!(owner("/home/core"), (1000, 1000));
    assert_eq!(owner("/home/core/.config"), (1000, 1000));
    assert_eq!(owner("/home/core/.config/x"), (1000, 0));
    assert_eq!(
        owner("/home/core/.ssh/authorized_keys.d/ignition"),
        (1000, 1000)
    );
    let wants = root.join("etc/systemd/system/multi-user.target.wants");
    assert_eq!(
        fs::read_link(wants.join("own.service")).unwrap(),
        Path::new("/etc/systemd/system/own.service")
    );
    let result: serde_json::Value =
        serde_json::from_str(&read("etc/.ignition-result.json")).unwrap();
    assert_eq!(result["provisioningDate"], "2026-11-21T12:46:03Z");
    assert_eq!(result["userConfigProvided"], true);

    let before = snapshot(root);
    run(&fetched, &tree, None).unwrap();
    assert_eq!(snapshot(root), before);
    fs::remove_file(root.join("etc/.ignition-result.json")).unwrap();
}

/// Path → mode, owner, content, of all files except the report of the run itself.
fn snapshot(root: &Path) -> Vec<(PathBuf, u32, u32, Vec<u8>)> {
    let mut out = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let content = match &meta {
                meta if meta.is_dir() => Vec::new(),
                meta if meta.is_symlink() => fs::read_link(&path)
                    .unwrap()
                    .into_os_string()
                    .into_encoded_bytes(),
                _ => fs::read(&path).unwrap(),
            };
            if meta.is_dir() {
                folders.push(path.clone());
            }
            if !path.ends_with(".ignition-result.json") {
                out.push((path, meta.mode(), meta.uid(), content));
            }
        }
    }
    out.sort();
    out
}

/// The error for this config, on a root where nothing was written.
fn refused(text: &str) -> String {
    let folder = root();
    let before = snapshot(folder.path());
    let error = run(&fetched(text), &tree(folder.path()), None).unwrap_err();
    assert_eq!(snapshot(folder.path()), before, "{error:#}");
    assert!(!folder.path().join("etc/.ignition-result.json").exists());
    let text = format!("{error:#}");
    assert!(!text.contains("SECRET"), "{text}");
    text
}

#[test]
fn all_mistakes_are_told_at_once_and_nothing_is_written() {
    let text = refused(
        r#"{
  "ignition": {"version": "3.5.0"},
  "passwd": {"users": [{"name": "ok", "passwordHash": "SECRET"},
                       {"name": "bad", "groups": ["nogroup1"], "passwordHash": "SECRET"}]},
  "storage": {
    "directories": [{"path": "/usr/lib/x"}, {"path": "/etc/motd"}],
    "files": [{"path": "/etc/motd2", "user": {"name": "nobody2"}, "contents": {"source": "data:,SECRET"}},
              {"path": "/boot/x", "contents": {"source": "data:,SECRET"}},
              {"path": "/etc/passwd", "contents": {"source": "data:,SECRET"}},
              {"path": "/home/ok/x"}, {"path": "/var/home/ok/x"}],
    "links": [{"path": "/etc/group", "target": "/x"}]
  },
  "systemd": {"units": [{"name": "none.service", "enabled": true}]}
}"#,
    );
    for wanted in [
        "$.passwd.users.1: the group nogroup1 does not exist",
        "$.storage.directories.0: /usr/lib/x: the root is read-only there; writable are /etc, /var and",
        "$.storage.directories.1: /etc/motd: it exists and is not a directory",
        "$.storage.files.0.user: no user nobody2",
        "$.storage.files.1: /boot/x: the root is read-only",
        "$.storage.files.2: /etc/passwd: it exists with other contents",
        "$.storage.files.4: /var/home/ok/x: it is the same file as that of $.storage.files.3",
        "$.storage.links.0: /etc/group: it exists and is not this link",
        "$.systemd.units.0: the unit none.service does not exist",
    ] {
        assert!(text.contains(wanted), "{wanted}\nnot in\n{text}");
    }
}

#[test]
fn overwriting_replaces_what_is_in_the_way() {
    let folder = root();
    let root = folder.path();
    fs::create_dir_all(root.join("etc/dir/below")).unwrap();
    let fetched = fetched(
        r#"{"ignition": {"version": "3.5.0"}, "storage": {
             "files": [{"path": "/etc/dir", "overwrite": true, "contents": {"source": "data:,file"}}],
             "directories": [{"path": "/etc/motd", "overwrite": true}],
             "links": [{"path": "/etc/group-", "target": "group"}, {"path": "/etc/skel", "overwrite": true, "target": "x"}]}}"#,
    );
    run(&fetched, &tree(root), None).unwrap();
    assert_eq!(fs::read_to_string(root.join("etc/dir")).unwrap(), "file");
    assert!(root.join("etc/motd").is_dir());
    assert!(root.join("etc/skel").is_symlink());
}

#[test]
fn volumes_get_their_keys_and_lines_beside_what_the_config_wrote() {
    let folder = root();
    let fetched = fetched(
        r#"{"ignition": {"version": "3.5.0"}, "storage": {"files": [
             {"path": "/etc/crypttab", "contents": {"source": "data:,mine%20/dev/x%0A"}}]}}"#,
    );
    let brought = DiskResults {
        volumes: vec![volume("keyed", Some(b"SECRET")), volume("sealed", None)],
        ..DiskResults::default()
    };
    let (tree, state) = (tree(folder.path()), tempfile::tempdir().unwrap());
    run_with(&fetched, &brought, &tree, Some(state.path())).unwrap();
    let etc = folder.path().join("etc");
    let text = fs::read_to_string(etc.join("crypttab")).unwrap();
    assert_eq!(
        text,
        "mine /dev/x\nkeyed UUID=abab /etc/luks/keyed luks,x-initrd.attach\n\
         sealed UUID=abab none luks,tpm2-device=auto,headless=true,x-initrd.attach\n"
    );
    assert_eq!(fs::read(etc.join("luks/keyed")).unwrap(), b"SECRET");
    assert!(!etc.join("luks/sealed").exists());
    for file in ["crypttab", "luks/keyed"] {
        let mode = fs::metadata(etc.join(file)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    // `state` is not encrypted: it does not even hold a key's hash.
    let journal = fs::read(state.path().join("files.json")).unwrap();
    let journal: serde_json::Value = serde_json::from_slice(&journal).unwrap();
    let noted = &journal["places"]["/etc/luks/keyed"];
    assert!(noted.is_object() && noted["after"].is_null(), "{journal}");
}

#[test]
fn special_bits_survive_the_change_of_owner() {
    let folder = root();
    let fetched = fetched(
        r#"{"ignition": {"version": "3.6.0"}, "storage": {"files": [
             {"path": "/etc/suid", "mode": 2541, "user": {"id": 0}, "contents": {"source": "data:,x"}}]}}"#,
    );
    run(&fetched, &tree(folder.path()), None).unwrap();
    let mode = fs::metadata(folder.path().join("etc/suid")).unwrap().mode();
    assert_eq!(mode & 0o7777, 2541);
}

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
fn plain(text: &str) -> Wish {
    (fetched(text), DiskResults::default())
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
    let whole = used_root();
    run_with(&then.0, &then.1, &tree(whole.path()), None).unwrap();
    let expected = below(whole.path());
    for cut in 0.. {
        let (folder, state) = (used_root(), tempfile::tempdir().unwrap());
        let mut told = tree(folder.path());
        root_tree::CUT_AFTER.set(Some(cut));
        let done = run_with(&first.0, &first.1, &told, Some(state.path()));
        root_tree::CUT_AFTER.set(None);
        let marker = folder.path().join("etc/.ignition-result.json");
        assert!(done.is_err() || marker.exists());
        let finished = done.is_ok();
        let begin = |told: &mut Tree| {
            told.forget_pending();
            if fresh_etc {
                let etc = folder.path().join("etc");
                fs::remove_dir_all(&etc).unwrap();
                fs::rename(used_root().path().join("etc"), &etc).unwrap();
            }
        };
        // Some runs are cut several times, each time at another change.
        let more = [cut / 2, 3 * cut / 2];
        for again in more.into_iter().filter(|_| cut % 4 == 0) {
            begin(&mut told);
            root_tree::CUT_AFTER.set(Some(again));
            // The run may also complete.
            drop(run_with(&then.0, &then.1, &told, Some(state.path())));
            root_tree::CUT_AFTER.set(None);
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
    let config =
        fetched(r#"{"ignition": {"version": "3.5.0"}, "passwd": {"users": [{"name": "core"}]}}"#);
    for cut in 0..40 {
        let (folder, state) = (root(), tempfile::tempdir().unwrap());
        let home = folder.path().join("var/home/core");
        for made in [&home, &home.join("data"), &home.with_extension("other")] {
            fs::create_dir(made).unwrap();
            fs::set_permissions(made, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mounted = ["core", "core/data", "core.other"];
        let brought = DiskResults {
            mounted: mounted.map(|name| format!("/var/home/{name}")).into(),
            ..DiskResults::default()
        };
        let mut told = tree(folder.path());
        for cut in [Some(cut), None] {
            told.forget_pending();
            root_tree::CUT_AFTER.set(cut);
            let done = run_with(&config, &brought, &told, Some(state.path()));
            root_tree::CUT_AFTER.set(None);
            assert!(cut.is_some() || done.is_ok(), "{done:?}");
        }
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
                root_tree::CUT_AFTER.set(cut);
                let done = run(&wish, &told, Some(state.path()));
                root_tree::CUT_AFTER.set(None);
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
