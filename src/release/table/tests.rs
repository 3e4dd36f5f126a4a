//! Entries that are whole, and each way in which one is not.

use super::*;

fn hash(text: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(text))
}

fn go_sum() -> String {
    let hash = format!("h1:{}", data_encoding::BASE64.encode(&[7; 32]));
    [
        "k8s.io/kubernetes v1.36.3",
        "github.com/coredns/coredns v1.14.2",
    ]
    .map(|module| format!("{module} {hash}\n{module}/go.mod {hash}\n"))
    .concat()
}

/// One change of an entry.
type Change = fn(&mut Release);

/// A whole entry.
fn entry() -> Release {
    entry_of("1.36.3")
}

fn entry_of(version: &str) -> Release {
    let implied = Implied::of(version).unwrap();
    let files = ARCHITECTURES.into_iter().flat_map(|architecture| {
        implied
            .files(architecture)
            .into_iter()
            .map(move |file| Binary {
                name: file.name.to_owned(),
                architecture: architecture.to_owned(),
                sha256: hash(&file.url),
                url: file.url,
                path: file.path.to_owned(),
                unpack: file.unpack,
            })
    });
    let images = implied
        .images()
        .into_iter()
        .map(|(name, repository, tag)| Image {
            name: name.to_owned(),
            reference: format!("registry.example/{repository}:{tag}"),
            digest: format!("sha256:{}", hash(name)),
        });
    let mut entry = Release {
        version: version.to_owned(),
        id: String::new(),
        binaries: files.collect(),
        images: images.collect(),
        module: Some(Module {
            version: format!("v{version}"),
            go_sum: go_sum().replace("v1.36.3", &format!("v{version}")),
        }),
    };
    entry.id = entry.identity();
    entry
}

#[test]
fn the_id_covers_url_path_unpacking_and_hash() {
    let whole = entry();
    assert_eq!(whole.mistakes(), Vec::<String>::new());
    let changes: [Change; 12] = [
        |entry| entry.version = "1.36.4".to_owned(),
        |entry| entry.binaries[0].name.push('x'),
        |entry| entry.binaries[0].architecture = "riscv64".to_owned(),
        |entry| entry.binaries[0].url.push('x'),
        |entry| entry.binaries[0].path.push('x'),
        |entry| entry.binaries[0].unpack = Unpack::TarGz,
        |entry| entry.binaries[0].sha256 = hash("other"),
        |entry| entry.images[0].reference.push('x'),
        |entry| entry.images[0].digest = format!("sha256:{}", hash("other")),
        |entry| entry.module = None,
        |entry| entry.module.as_mut().unwrap().go_sum.push('\n'),
        // A byte that moves from one field to the next is another entry.
        |entry| {
            let last = entry.binaries[0].name.pop().unwrap();
            entry.binaries[0].architecture.insert(0, last);
        },
    ];
    let mut ids = BTreeSet::from([whole.id.clone()]);
    for change in changes {
        let mut changed = whole.clone();
        change(&mut changed);
        assert!(ids.insert(changed.identity()), "{changed:?}");
        assert!(
            changed
                .mistakes()
                .iter()
                .any(|mistake| mistake.contains("has the id") || mistake.contains("patch release"))
                || changed.version == "1.36.4",
            "{changed:?}"
        );
    }
    let mut sorted = whole.clone();
    sorted.binaries.reverse();
    sorted.images.reverse();
    assert_eq!(sorted.identity(), whole.id);
}

#[test]
fn an_entry_that_is_not_whole_is_refused_by_what_is_wrong() {
    let faults: [(Change, &str); 14] = [
        (|e| e.binaries[0].sha256.clear(), "\"\" is not a SHA-256"),
        (
            |e| e.binaries[0].sha256 = OF_NOTHING.to_owned(),
            "an empty file",
        ),
        (
            |e| e.binaries[0].sha256.make_ascii_uppercase(),
            "lower case",
        ),
        (
            |e| drop(e.binaries.remove(3)),
            "kube-apiserver for amd64 is missing",
        ),
        (
            |e| e.binaries.push(e.binaries[0].clone()),
            "kubelet for amd64 is there twice",
        ),
        (
            |e| e.binaries[0].url = "https://dl.example/kubelet".to_owned(),
            "has the URL",
        ),
        (
            |e| e.binaries[0].url = "{release}/../kubelet".to_owned(),
            "has the URL",
        ),
        (
            |e| e.binaries[7].path = "../crictl".to_owned(),
            "with the path \"../crictl\"",
        ),
        (|e| e.images[0].digest.clear(), "the digest \"\""),
        (|e| drop(e.images.remove(5)), "the image etcd is missing"),
        (|e| e.images.clear(), "the image pause is missing"),
        (
            |e| e.module.as_mut().unwrap().version.push('0'),
            "expected \"v1.36.3\"",
        ),
        (
            |e| {
                e.module.as_mut().unwrap().go_sum =
                    go_sum().replace("coredns v1.14.2/go.mod", "coredns v1.14.1/go.mod")
            },
            "no hash of github.com/coredns/coredns v1.14.2/go.mod",
        ),
        (
            |e| {
                e.module
                    .as_mut()
                    .unwrap()
                    .go_sum
                    .push_str("a v1 h1:short\n")
            },
            "a v1 h1:short",
        ),
    ];
    for (change, words) in faults {
        let mut changed = entry();
        change(&mut changed);
        changed.id = changed.identity();
        let found = changed.mistakes();
        assert!(
            found.iter().any(|mistake| mistake.contains(words)),
            "{words}: {found:?}"
        );
    }
    let mut empty = entry();
    (empty.binaries, empty.images, empty.module) = (vec![], vec![], None);
    empty.id = empty.identity();
    assert!(
        empty.mistakes()[0].contains("neither"),
        "{:?}",
        empty.mistakes()
    );
}

#[test]
fn a_written_table_reads_back_and_one_without_a_hash_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE);
    assert_eq!(Table::read(&path).unwrap(), Table::default());
    let mut table = Table {
        releases: vec![entry()],
    };
    table.write(&path).unwrap();
    assert_eq!(Table::read(&path).unwrap(), table);
    let text = std::fs::read_to_string(&path).unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("sha256"))
        .unwrap();
    for (from, to, words) in [
        (line, "", "missing field `sha256`"),
        ("version = \"1.36.3\"", "version = \"1.36.4\"", "has the id"),
        ("unpack", "unpak", "unpak"),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text);
        std::fs::write(&path, changed).unwrap();
        let error = format!("{:#}", Table::read(&path).unwrap_err());
        assert!(error.contains(words) && error.contains(FILE), "{error}");
    }
    // What cannot be read must not replace what can.
    let before = std::fs::read(&path).unwrap();
    table.releases[0].id.clear();
    assert!(table.write(&path).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn entries_that_are_added_at_once_are_all_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE);
    let versions = ["1.35.2", "1.35.3", "1.36.2", "1.36.3"];
    // Each has read the table before any of them writes it.
    let published = |version| {
        let mut entry = entry_of(version);
        entry.module = None;
        entry.id = entry.identity();
        entry
    };
    let read = versions.map(|version| (Tables::read(&path).unwrap(), published(version)));
    std::thread::scope(|scope| {
        for (mut tables, entry) in read {
            scope.spawn(move || assert!(tables.put(&entry, false).unwrap()));
        }
    });
    let mut tables = Tables::read(&path).unwrap();
    let there = tables
        .own
        .releases
        .iter()
        .map(|release| release.version.as_str());
    assert_eq!(there.collect::<Vec<_>>(), versions);
    // What has the version with another content is replaced on request alone.
    let other = entry();
    assert!(!tables.put(&published("1.36.3"), false).unwrap());
    let refused = tables.put(&other, false).unwrap_err().to_string();
    assert!(refused.contains("--replace"), "{refused}");
    assert!(tables.put(&other, true).unwrap());
    assert_eq!(Table::read(&path).unwrap().get("1.36.3"), Some(&other));
}

#[test]
fn the_carried_table_is_whole_and_has_what_the_recipes_use() {
    let carried = Table::carried().unwrap();
    let release = carried.get("1.36.3").unwrap();
    let module = release.module.as_ref().unwrap();
    // All of go.sum, not only Kubernetes' own lines.
    assert!(module.go_sum.lines().count() > 500);
    assert!(module.go_sum.contains("\nk8s.io/kubelet v0.36.3 h1:"));
}

#[test]
fn a_version_is_found_or_refused_with_the_nearest() {
    let mut own = entry();
    own.images[0].digest = format!("sha256:{}", hash("own"));
    own.id = own.identity();
    let tables = Tables {
        carried: Table::carried().unwrap(),
        own: Table {
            releases: vec![own.clone()],
        },
        path: PathBuf::from(FILE),
    };
    assert_eq!(tables.find("1.36").unwrap(), &own);
    assert_eq!(tables.find("1.36.3").unwrap(), &own);
    assert_eq!(tables.find("1.34").unwrap().version, "1.34.4");
    for (wanted, nearest) in [
        ("1.36.9", "nearest: 1.36.3, 1.35.4, 1.34.4;"),
        ("1.33", "nearest: 1.34.4, 1.35.4, 1.36.3;"),
        ("1.3", "nearest: 1.34.4,"),
    ] {
        let error = tables.find(wanted).unwrap_err().to_string();
        assert!(error.contains(nearest), "{error}");
        assert!(
            error.contains(&format!("`slipway release add {wanted}")),
            "{error}"
        );
    }
}

#[test]
fn a_go_sum_with_another_hash_is_refused() {
    let module = entry().module.unwrap();
    module.verify(&(go_sum() + "other v1 h1:x\n")).unwrap();
    let other = format!("h1:{}", data_encoding::BASE64.encode(&[8; 32]));
    let (line, rest) = go_sum()
        .split_once('\n')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    let (name, hash) = line.rsplit_once(' ').unwrap();
    let error = module
        .verify(&format!("{name} {other}\n{rest}"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(&other) && error.contains(hash) && error.contains(name),
        "{error}"
    );
    let error = module.verify(&rest).unwrap_err().to_string();
    assert!(error.contains("k8s.io/kubernetes v1.36.3"), "{error}");
}
