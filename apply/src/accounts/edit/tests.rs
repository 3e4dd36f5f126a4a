use super::*;

use std::fs;

fn accounts() -> Accounts {
    accounts_with("# x\nSHELL=/bin/sh\n")
}

/// With these defaults of `useradd`.
fn accounts_with(defaults: &str) -> Accounts {
    let folder = tempfile::tempdir().unwrap();
    let etc = folder.path().join("etc");
    fs::create_dir_all(etc.join("default")).unwrap();
    for (name, text) in [
        (
            "passwd",
            "root:x:0:0:root:/root:/bin/bash\nsshd:x:989:65534:sshd user:/run/sshd:/usr/sbin/nologin\n",
        ),
        ("shadow", "root:*:20000:0:99999:7:::\nsshd:!*:20778::::::\n"),
        ("group", "root:x:0:\nadm:x:4:\nsudo:x:27:\nusers:x:100:\n"),
        ("gshadow", "root:*::\nadm:*::\nsudo:*::\nusers:*::\n"),
        ("subuid", ""),
        (
            "login.defs",
            "UID_MIN\t\t 1000\nHOME_MODE\t0700\n#UMASK 022\n",
        ),
        ("default/useradd", defaults),
    ] {
        fs::write(etc.join(name), text).unwrap();
    }
    Accounts::load(
        &Tree::open(folder.path(), crate::target::Rules::NODE).unwrap(),
        20_778,
    )
    .unwrap()
}

fn user(name: &str) -> User {
    User::new(name.to_owned())
}

#[test]
fn a_person_is_added_as_useradd_adds_one() {
    let mut accounts = accounts();
    let core = User {
        groups: Some(vec!["sudo".into(), "adm".into()]),
        password_hash: Some("$y$secret".into()),
        gecos: Some("Core, User".into()),
        ..user("core")
    };
    accounts.apply_user(&core).unwrap();
    accounts.apply_user(&user("next")).unwrap();
    assert_eq!(
        accounts.passwd.get("core").unwrap().join(":"),
        "core:x:1000:1000:Core, User:/home/core:/bin/sh"
    );
    assert_eq!(
        accounts.passwd.get("next").unwrap().join(":"),
        "next:x:1001:1001::/home/next:/bin/sh"
    );
    assert_eq!(
        accounts.shadow.get("core").unwrap().join(":"),
        "core:$y$secret:20778:0:99999:7:::"
    );
    assert_eq!(accounts.shadow.get("next").unwrap()[1], "*");
    assert_eq!(
        accounts.group.to_text(),
        "root:x:0:\nadm:x:4:core\nsudo:x:27:core\nusers:x:100:\ncore:x:1000:\nnext:x:1001:\n"
    );
    assert_eq!(
        accounts.gshadow.get("sudo").unwrap().join(":"),
        "sudo:*::core"
    );
    assert_eq!(accounts.gshadow.get("core").unwrap().join(":"), "core:!::");
    // subuid exists and gets ranges; subgid does not exist and stays so.
    assert_eq!(
        accounts.subuid.to_text(),
        "core:100000:65536\nnext:165536:65536\n"
    );
    assert!(!accounts.subgid.changed);
    assert_eq!(
        accounts.homes[0],
        Home {
            path: "/home/core".into(),
            owner: (1000, 1000),
            existing: false,
        }
    );
}

#[test]
fn a_system_user_gets_the_next_lower_id_and_no_ageing() {
    let mut accounts = accounts();
    let daemon = User {
        system: Some(true),
        no_create_home: Some(true),
        shell: Some("/usr/sbin/nologin".into()),
        ..user("daemon2")
    };
    accounts.apply_user(&daemon).unwrap();
    assert_eq!(
        accounts.passwd.get("daemon2").unwrap().join(":"),
        "daemon2:x:988:988::/home/daemon2:/usr/sbin/nologin"
    );
    assert_eq!(
        accounts.shadow.get("daemon2").unwrap().join(":"),
        "daemon2:*:20778::::::"
    );
    assert!(accounts.homes.is_empty() && !accounts.subuid.changed);
}

#[test]
fn an_existing_user_is_changed_in_place() {
    let mut accounts = accounts();
    let root = User {
        password_hash: Some("$6$x".into()),
        shell: Some("/bin/sh".into()),
        ssh_authorized_keys: Some(vec!["ssh-ed25519 AAAA".into()]),
        ..user("root")
    };
    accounts.apply_user(&root).unwrap();
    assert_eq!(accounts.passwd.get("root").unwrap()[6], "/bin/sh");
    assert_eq!(
        accounts.shadow.get("root").unwrap().join(":"),
        "root:$6$x:20778:0:99999:7:::"
    );
    assert_eq!(
        accounts.homes,
        [Home {
            path: "/root".into(),
            owner: (0, 0),
            existing: true,
        }]
    );
    let removed = User {
        should_exist: Some(false),
        ..user("sshd")
    };
    accounts.apply_user(&removed).unwrap();
    assert!(accounts.passwd.get("sshd").is_none() && accounts.shadow.get("sshd").is_none());
    assert_eq!(
        accounts.former,
        [FormerUser {
            name: "sshd".into(),
            uid: 989,
            home: "/run/sshd".into(),
        }]
    );
}

#[test]
fn mistakes_are_named_without_their_secrets() {
    let mut accounts = accounts();
    let cases = [
        (
            User {
                uid: Some(989),
                ..user("a")
            },
            "belongs to the user sshd",
        ),
        (
            User {
                primary_group: Some("none".into()),
                ..user("b")
            },
            "the group none does not exist",
        ),
        (
            User {
                groups: Some(vec!["none".into()]),
                ..user("c")
            },
            "the group none does not exist",
        ),
        (
            User {
                password_hash: Some("se:cret".into()),
                ..user("d")
            },
            "a colon",
        ),
        (user("sudo"), "a group sudo exists"),
        (user("a:b"), "not a valid name"),
        (user(""), "empty"),
        (
            User {
                uid: Some(-1),
                ..user("e")
            },
            "not a valid id",
        ),
        (
            User {
                uid: Some(4_294_967_295),
                ..user("f")
            },
            "not a valid id",
        ),
    ];
    for (wanted, text) in cases {
        let error = accounts.apply_user(&wanted).unwrap_err();
        assert!(error.contains(text) && !error.contains("cret"), "{error}");
    }
}

#[test]
fn groups_are_made_changed_and_removed() {
    let mut accounts = accounts();
    let group = |name: &str| Group::new(name.to_owned());
    accounts
        .apply_group(&Group {
            gid: Some(1234),
            ..group("a")
        })
        .unwrap();
    accounts
        .apply_group(&Group {
            system: Some(true),
            ..group("b")
        })
        .unwrap();
    accounts.apply_group(&group("c")).unwrap();
    accounts
        .apply_group(&Group {
            should_exist: Some(false),
            ..group("adm")
        })
        .unwrap();
    assert_eq!(
        accounts.group.to_text(),
        "root:x:0:\nsudo:x:27:\nusers:x:100:\na:x:1234:\nb:x:999:\nc:x:1235:\n"
    );
    let shadow = |accounts: &Accounts| accounts.gshadow.get("a").unwrap().join(":");
    assert_eq!(shadow(&accounts), "a:!::");
    for (hash, expected) in [("$y$secret", "a:$y$secret::"), ("", "a:$y$secret::")] {
        let hash = Some(hash.to_owned());
        accounts
            .apply_group(&Group {
                password_hash: hash,
                ..group("a")
            })
            .unwrap();
        assert_eq!(shadow(&accounts), expected);
    }
    let error = accounts
        .apply_group(&Group {
            should_exist: Some(false),
            ..group("root")
        })
        .unwrap_err();
    assert!(error.contains("primary group of the user root"), "{error}");
}

#[test]
fn without_useradds_defaults_the_shell_is_the_one_that_it_has_compiled_in() {
    let mut accounts = accounts_with("");
    accounts.apply_user(&user("core")).unwrap();
    let line = accounts.passwd.get("core").unwrap().join(":");
    assert!(line.ends_with(":/bin/bash"), "{line}");
}

/// What shadow-utils 4.13 (Debian 12) did with the groups of Ignition's suite, where its stubs do otherwise: a system group has the
/// gid below the lowest, the group of a user has the uid as its gid, and a user's primary group stays.
#[test]
fn groups_have_the_gids_that_shadow_utils_gives_them() {
    let mut accounts = accounts();
    for (name, gid) in [
        ("sudo", "150"),
        ("docker", "233"),
        ("fleet", "253"),
        ("core", "500"),
        ("systemd-coredump", "998"),
        ("rkt-admin", "999"),
    ] {
        accounts.group.remove(name);
        accounts.group.add(&[name, "x", gid, ""]);
    }
    let system = Group {
        system: Some(true),
        ..Group::new("systemgroup".to_owned())
    };
    accounts.apply_group(&system).unwrap();
    let other = User {
        uid: Some(1030),
        ..user("other")
    };
    accounts.apply_user(&other).unwrap();
    for (name, gid) in [("systemgroup", "149"), ("other", "1030")] {
        assert_eq!(accounts.group.get(name).unwrap()[2], gid);
        assert_eq!(accounts.gshadow.get(name).unwrap()[1], "!");
    }
    let gone = Group {
        should_exist: Some(false),
        ..Group::new("other".to_owned())
    };
    let error = accounts.apply_group(&gone).unwrap_err();
    assert_eq!(error, "it is the primary group of the user other");
}
