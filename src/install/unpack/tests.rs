//! Packages made by the tests: conflicts, links, and paths that would lead out of the tree.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use super::*;
use crate::debian::pinned::LockedPackage;
use crate::install::deb::tests::write;
use crate::layer::Entry;
use crate::layer::stream::{Form, Stream};

/// An item of a made package.
enum Item<'a> {
    Folder(&'a str, u32),
    File(&'a str, u32, &'a str),
    Link(&'a str, &'a str),
    Hard(&'a str, &'a str),
}

fn package(folder: &Path, name: &str, extra: &str, items: &[Item<'_>]) -> Deb {
    let mut stream = Stream::new(Vec::new());
    for item in items {
        match item {
            Item::Folder(path, mode) => {
                stream.header(&Entry::directory(*path, *mode), Form::Directory, 5)
            }
            Item::File(path, mode, text) => stream
                .header(
                    &Entry::file(*path, *mode, ""),
                    Form::File(text.len() as u64),
                    5,
                )
                .and_then(|()| stream.content(&mut text.as_bytes(), text.len() as u64)),
            Item::Link(path, target) => {
                stream.header(&Entry::symlink(*path, ""), Form::Symlink(target), 5)
            }
            Item::Hard(path, target) => {
                stream.header(&Entry::file(*path, 0o644, ""), Form::HardLink(target), 5)
            }
        }
        .unwrap();
    }
    stream.end().unwrap();
    let path = folder.join(format!("{name}.deb"));
    let control = format!("Package: {name}\nArchitecture: all\n{extra}");
    write(
        &path,
        &[("control", 0o644, &control)],
        &stream.into_inner().unwrap(),
        ".zst",
    );
    Deb {
        package: LockedPackage {
            name: name.into(),
            version: "1".into(),
            architecture: "all".into(),
            archive: "debian".into(),
            path: String::new(),
            size: fs::metadata(&path).unwrap().len(),
            sha256: String::new(),
            source: None,
        },
        path,
    }
}

fn all(debs: &[Deb], root: &Path) -> Result<()> {
    unpack(debs, root, &|_| true)
}

/// Unpacks waves as an installation does; `between` runs before the second one.
fn waves(
    debs: &[Deb],
    root: &Path,
    waves: &[&[usize]],
    between: &dyn Fn(),
) -> Result<Vec<Unpacked>> {
    let mut packages = Unpacked::read(debs)?;
    let ranks = (0..debs.len()).collect();
    let mut tree = Tree::new(root, Overlap::Conflict, ranks)?;
    for (at, wave) in waves.iter().enumerate() {
        if at == 1 {
            between();
        }
        tree.overrides.read_stats(root)?;
        tree.overrides.read_diversions(root)?;
        tree.unpack(debs, &mut packages, wave, &|_| true, &|_| {})?;
    }
    Ok(packages)
}

/// Path, mode and content of all entries below a folder.
fn listing(root: &Path, folder: &Path, out: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let meta = fs::symlink_metadata(&path).unwrap();
        let name = path
            .strip_prefix(root)
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        let shown = if meta.is_dir() {
            listing(root, &path, out);
            format!("{:o}", meta.mode())
        } else if meta.is_symlink() {
            fs::read_link(&path).unwrap().to_str().unwrap().to_owned()
        } else {
            format!(
                "{:o} {} {}",
                meta.mode(),
                meta.mtime(),
                fs::read_to_string(&path).unwrap()
            )
        };
        out.insert(name, shown);
    }
}

#[test]
fn links_folders_and_modes_are_as_in_the_packages() {
    let folder = tempfile::tempdir().unwrap();
    let debs = [
        package(
            folder.path(),
            "a",
            "",
            &[
                Item::Folder("/", 0o755),
                Item::Folder("/usr", 0o755),
                Item::Folder("/usr/bin", 0o755),
                Item::Folder("/var/spool", 0o2775),
                Item::File("/usr/bin/tool", 0o4755, "tool"),
                Item::Hard("/usr/bin/again", "/usr/bin/tool"),
                Item::Link("/usr/bin/link", "tool"),
            ],
        ),
        // The path leads through the link at the top of a merged /usr; its folder has no entry.
        package(
            folder.path(),
            "b",
            "",
            &[
                Item::File("/bin/old", 0o755, "old"),
                Item::Link("/sbin", "usr/sbin"),
                Item::Folder("/var/spool", 0o700),
            ],
        ),
    ];
    let root = folder.path().join("root");
    let unpacked = waves(&debs, &root, &[&[0, 1]], &|| {}).unwrap();
    let mut found = BTreeMap::new();
    listing(&root, &root, &mut found);
    for (path, expected) in [
        ("usr/bin/tool", "104755 5 tool"),
        ("usr/bin/again", "104755 5 tool"),
        ("usr/bin/link", "tool"),
        ("usr/bin/old", "100755 5 old"),
        ("bin", "usr/bin"),
        ("sbin", "usr/sbin"),
        ("var/spool", "42775"),
        ("tmp", "41777"),
    ] {
        assert_eq!(
            found.get(path).map(String::as_str),
            Some(expected),
            "{path}: {found:#?}"
        );
    }
    let meta = |name: &str| fs::metadata(root.join("usr/bin").join(name)).unwrap().ino();
    assert_eq!(meta("tool"), meta("again"));
    assert_eq!(unpacked[0].paths[..3], ["/.", "/usr", "/usr/bin"]);
    assert_eq!(unpacked[1].field("Package"), "b");
}

#[test]
fn a_link_to_a_file_that_is_left_out_has_its_content() {
    let folder = tempfile::tempdir().unwrap();
    let debs = [package(
        folder.path(),
        "a",
        "",
        &[
            Item::File("/usr/share/doc/a/example", 0o755, "example"),
            Item::Hard("/usr/share/doc/a/other", "/usr/share/doc/a/example"),
            Item::Hard("/usr/share/a/one", "/usr/share/doc/a/example"),
            Item::File("/usr/share/a/plain", 0o644, "plain"),
            Item::Hard("/usr/share/a/two", "/usr/share/doc/a/example"),
        ],
    )];
    let root = folder.path().join("root");
    unpack(&debs, &root, &|path| !path.starts_with("usr/share/doc")).unwrap();
    assert!(!root.join("usr/share/doc").exists());
    let mut found = BTreeMap::new();
    listing(&root, &root, &mut found);
    for (path, expected) in [
        ("one", "100755 5 example"),
        ("two", "100755 5 example"),
        ("plain", "100644 5 plain"),
    ] {
        assert_eq!(found[&format!("usr/share/a/{path}")], expected, "{path}");
    }
    let inode = |name: &str| {
        let path = root.join("usr/share/a").join(name);
        fs::metadata(path).unwrap().ino()
    };
    assert_eq!(inode("one"), inode("two"));

    let lost = Item::Hard("/usr/share/a/one", "/usr/share/doc/a/lost");
    let debs = [package(folder.path(), "b", "", &[lost])];
    let root = folder.path().join("lost");
    let result = unpack(&debs, &root, &|path| !path.starts_with("usr/share/doc"));
    let error = format!("{:#}", result.unwrap_err());
    let expected =
        "writing /usr/share/a/one: a link to /usr/share/doc/a/lost, which is not in the package";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn of_two_packages_with_one_file_the_same_one_wins_every_time() {
    let folder = tempfile::tempdir().unwrap();
    let file = |text| [Item::File("/usr/bin/x", 0o755, text)];
    let debs = [
        package(folder.path(), "a", "Replaces: c (<< 2)\n", &file("from a")),
        package(folder.path(), "b", "", &file("from b")),
        package(
            folder.path(),
            "c",
            "",
            &[Item::File("/usr/bin/y", 0o755, "from c")],
        ),
        package(
            folder.path(),
            "d",
            "Replaces: e\n",
            &[Item::File("/usr/bin/y", 0o755, "from d")],
        ),
    ];
    for round in 0..20 {
        let root = folder.path().join(format!("root{round}"));
        all(&debs, &root).unwrap();
        let read = |name: &str| fs::read_to_string(root.join("usr/bin").join(name)).unwrap();
        // No package replaces b, so the later one in the list wins; d does not replace c and comes later.
        assert_eq!(
            (read("x").as_str(), read("y").as_str()),
            ("from b", "from d")
        );
    }
    let debs = [
        package(folder.path(), "a", "Replaces: b\n", &file("from a")),
        package(folder.path(), "b", "", &file("from b")),
    ];
    let root = folder.path().join("replaced");
    all(&debs, &root).unwrap();
    assert_eq!(
        fs::read_to_string(root.join("usr/bin/x")).unwrap(),
        "from a"
    );
}

#[test]
fn one_path_of_two_packages_is_refused_with_both_names() {
    let folder = tempfile::tempdir().unwrap();
    for (number, (one, two, path)) in [
        (
            Item::File("/usr/bin/x", 0o755, "same"),
            Item::File("/usr/bin/x", 0o755, "same"),
            "/usr/bin/x",
        ),
        // One file by two names.
        (
            Item::File("/bin/x", 0o755, "1"),
            Item::File("/usr/bin/x", 0o755, "2"),
            "/usr/bin/x",
        ),
        (
            Item::Link("/usr/x", "y"),
            Item::Folder("/usr/x", 0o755),
            "/usr/x",
        ),
        (
            Item::File("/usr/x", 0o644, ""),
            Item::Folder("/usr/x", 0o755),
            "/usr/x",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let debs = [
            package(folder.path(), "one", "Version: 1\n", &[one]),
            package(
                folder.path(),
                "two",
                "Version: 2\nReplaces: one (<< 1)\n",
                &[two],
            ),
        ];
        let orders: [&[&[usize]]; 3] = [&[&[0, 1]], &[&[0], &[1]], &[&[1], &[0]]];
        for (order, waved) in orders.into_iter().enumerate() {
            let root = folder.path().join(format!("root-{number}-{order}"));
            let result = waves(&debs, &root, waved, &|| {});
            // dpkg, too, takes what is there already if that leads to a folder; a link that leads nowhere does not.
            let error = format!("{:#}", result.unwrap_err());
            assert!(
                error.ends_with("is in two packages, one 1 and two 2: neither diverts it, and neither declares that it \
                                 replaces the other"),
                "{number} {order}: {error}"
            );
            assert!(error.contains(path) || error.contains("/bin/x"), "{error}");
        }
    }
}

#[test]
fn a_diverted_path_has_the_files_of_both_packages() {
    let folder = tempfile::tempdir().unwrap();
    let debs = [
        package(
            folder.path(),
            "plain",
            "",
            &[
                Item::File("/usr/sbin/halt", 0o755, "plain"),
                Item::Hard("/usr/sbin/again", "/usr/sbin/halt"),
            ],
        ),
        package(
            folder.path(),
            "guard",
            "",
            &[Item::File("/usr/sbin/halt", 0o755, "guard")],
        ),
        package(folder.path(), "empty", "", &[Item::Folder("/var", 0o755)]),
    ];
    let orders: [&[&[usize]]; 3] = [&[&[2], &[0, 1]], &[&[2], &[1], &[0]], &[&[0], &[1, 2]]];
    for (order, waved) in orders.into_iter().enumerate() {
        let root = folder.path().join(format!("root-{order}"));
        // What `dpkg-divert --rename` does in a script.
        let divert = || {
            let list = "/usr/sbin/halt\n/usr/lib/guard/halt\nguard\n";
            fs::create_dir_all(root.join("var/lib/dpkg")).unwrap();
            fs::write(root.join("var/lib/dpkg/diversions"), list).unwrap();
            fs::create_dir_all(root.join("usr/lib/guard")).unwrap();
            if root.join("usr/sbin/halt").exists() {
                let moved = root.join("usr/lib/guard/halt");
                fs::rename(root.join("usr/sbin/halt"), moved).unwrap();
            }
        };
        let unpacked = waves(&debs, &root, waved, &divert).unwrap();
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
        assert_eq!(read("usr/sbin/halt"), "guard", "{order}");
        assert_eq!(read("usr/lib/guard/halt"), "plain", "{order}");
        assert_eq!(read("usr/sbin/again"), "plain", "{order}");
        assert_eq!(unpacked[0].paths[0], "/usr/sbin/halt");
    }
}

#[test]
fn an_overridden_mode_counts_before_the_packages() {
    let folder = tempfile::tempdir().unwrap();
    let items = [
        Item::File("/usr/bin/tool", 0o755, "tool"),
        Item::Folder("/var/spool/tool", 0o755),
    ];
    let debs = [
        package(folder.path(), "empty", "", &[Item::Folder("/var", 0o755)]),
        package(folder.path(), "tool", "", &items),
    ];
    let root = folder.path().join("root");
    let (uid, gid) = (nix::unistd::getuid(), nix::unistd::getgid());
    let order = || {
        let lines =
            format!("#{uid} #{gid} 4750 /usr/bin/tool\n#{uid} #{gid} 700 /var/spool/tool\n");
        fs::create_dir_all(root.join("var/lib/dpkg")).unwrap();
        fs::write(root.join("var/lib/dpkg/statoverride"), lines).unwrap();
    };
    waves(&debs, &root, &[&[0], &[1]], &order).unwrap();
    let mode = |path: &str| fs::metadata(root.join(path)).unwrap().mode() & 0o7777;
    assert_eq!(mode("usr/bin/tool"), 0o4750);
    assert_eq!(mode("var/spool/tool"), 0o700);
}

#[test]
fn a_configuration_file_waits_for_dpkg() {
    let folder = tempfile::tempdir().unwrap();
    let debs = [package(
        folder.path(),
        "tool",
        "",
        &[
            Item::File("/etc/tool", 0o640, "new"),
            Item::Hard("/etc/again", "/etc/tool"),
        ],
    )];
    let control = |deb: &Deb| {
        let mut packages = Unpacked::read(std::slice::from_ref(deb)).unwrap();
        packages[0].control.push(deb::ControlFile {
            name: "conffiles".into(),
            mode: 0o644,
            content: b"/etc/tool\n".to_vec(),
        });
        packages
    };
    for (overlap, path) in [
        (Overlap::Conflict, "etc/tool.dpkg-new"),
        // No dpkg comes after it.
        (Overlap::LaterWins, "etc/tool"),
    ] {
        let root = folder.path().join(format!("{overlap:?}"));
        let mut packages = control(&debs[0]);
        let mut tree = Tree::new(&root, overlap, vec![0]).unwrap();
        tree.unpack(&debs, &mut packages, &[0], &|_| true, &|_| {})
            .unwrap();
        assert_eq!(fs::read_to_string(root.join(path)).unwrap(), "new");
        assert_eq!(fs::read_dir(root.join("etc")).unwrap().count(), 2);
    }
}

#[test]
fn a_replaced_path_leaves_the_list_of_the_other_package_in_either_order() {
    let folder = tempfile::tempdir().unwrap();
    let file = |text| {
        [
            Item::File("/etc/x", 0o644, text),
            Item::File("/etc/y", 0o644, text),
        ]
    };
    let debs = [
        package(folder.path(), "old", "Version: 1\n", &file("old")),
        package(
            folder.path(),
            "new",
            "Version: 1\nReplaces: old (<= 1)\n",
            &file("new")[..1],
        ),
    ];
    let orders: [&[&[usize]]; 3] = [&[&[0, 1]], &[&[0], &[1]], &[&[1], &[0]]];
    for (order, waved) in orders.into_iter().enumerate() {
        let root = folder.path().join(format!("root-{order}"));
        let unpacked = waves(&debs, &root, waved, &|| {}).unwrap();
        assert_eq!(fs::read_to_string(root.join("etc/x")).unwrap(), "new");
        assert_eq!(unpacked[0].paths, ["/etc/y"]);
        assert_eq!(unpacked[1].paths, ["/etc/x"]);
    }
}

#[test]
fn no_path_leads_out_of_the_tree() {
    let folder = tempfile::tempdir().unwrap();
    let outside = folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let target = outside.to_str().unwrap();
    let deep = "../".repeat(20) + target.trim_start_matches('/');
    let debs = [package(
        folder.path(),
        "evil",
        "",
        &[
            Item::Link("/usr/a", target),
            Item::File("/usr/a/absolute", 0o644, "x"),
            Item::Link("/usr/b", &deep),
            Item::File("/usr/b/relative", 0o644, "x"),
        ],
    )];
    let root = folder.path().join("root");
    // The links lead to a folder of the same name inside the tree, which does not exist.
    let result = all(&debs, &root);
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    assert!(result.is_err(), "the folder was not there: {result:?}");
    for path in [&b"../x"[..], b"usr/../../x", b"./.."] {
        assert!(plain(path).is_err());
    }
    assert_eq!(plain(b"./usr//share/").unwrap(), "usr/share");
}
