use std::path::Path;

use super::*;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

use crate::digest::sha256;
use crate::fetched::{Content, Contents, Spooled};
use crate::tree::{self as root_tree, Owners};
use crate::volumes::Unlock;

mod cuts;
mod existing;

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
    assert_eq!(mode("etc/.ignition-result.json"), 0o600);

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
