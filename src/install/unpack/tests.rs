//! Packages made by the tests: conflicts, links, and paths that would lead out of the tree.

use std::collections::BTreeMap;
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
        },
        path,
    }
}

fn all(debs: &[Deb], root: &Path) -> Result<Vec<Unpacked>> {
    unpack(debs, root, &|_| true, &|_| {})
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
    let unpacked = all(&debs, &root).unwrap();
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
