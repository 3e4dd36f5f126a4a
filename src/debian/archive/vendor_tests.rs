//! Archives beside Debian's on loopback and in a folder, as vendors lay them out; and what is wrong with some.

use std::time::SystemTime;

use super::*;
use crate::debian::files::SCHEME;
use crate::debian::loopback::Loopback;
use crate::debian::third_party::Certificates;
use crate::debian::vendor::{self, Item, Served, Signer};
use crate::host::progress::{Kind, Progress};

const SUITE: vendor::Suite<'_> = vendor::Suite {
    base: "/linux/debian",
    name: "trixie",
    component: "stable",
    fields: "",
    apart: false,
};
const FLAT: vendor::Suite<'_> = vendor::Suite {
    base: "/linux/debian",
    name: "./",
    component: "",
    fields: "",
    apart: true,
};

fn items() -> Vec<Item> {
    ["engine 2.0", "engine-cli 2.0; Architecture: all", "other 1"]
        .map(Item::new)
        .into()
}

fn archive(signer: &Signer, suite: &vendor::Suite<'_>) -> ThirdParty {
    ThirdParty {
        name: "vendor".to_owned(),
        url: String::new(),
        suites: vec![suite.name.to_owned()],
        components: vec![suite.component.to_owned()],
        keys: vec![Certificates {
            path: "vendor.asc".into(),
            content: signer.certificate().into_bytes(),
        }],
        priority: None,
        packages: Vec::new(),
    }
}

/// The packages that may be taken from an archive whose files are below `base`: name, version, priority.
fn read_from(base: &str, archive: &ThirdParty) -> Result<Vec<String>> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    read_at(now.as_secs(), None, base, archive)
}

/// The same at a time, in seconds since 1970, with a list that is at most so many days old.
fn read_at(
    now: u64,
    max_age: Option<u32>,
    base: &str,
    archive: &ThirdParty,
) -> Result<Vec<String>> {
    let url = format!("{base}/linux/debian");
    let archive = ThirdParty {
        url,
        ..archive.clone()
    };
    let mirrors = Mirrors {
        main: "http://127.0.0.1:1/debian".to_owned(),
        security: "http://127.0.0.1:1/security".to_owned(),
        main_from: String::new(),
        security_from: String::new(),
        snapshot: String::new(),
        others: BTreeMap::new(),
        debs: BTreeMap::new(),
    }
    .with(std::slice::from_ref(&archive));
    let request = Request {
        mirrors: &mirrors,
        suites: &[],
        components: &[],
        architecture: "amd64",
        keyring: &Keyring::debian()?,
        third_parties: &[archive],
        versions: &BTreeMap::new(),
        now,
        max_age,
        options: fetch::Options::default(),
    };
    let folder = tempfile::tempdir()?;
    let cache = Cache::at(folder.path().to_owned())?;
    let step = Progress::new(Kind::Quiet).step("test");
    let read = Archive::read(&request, &cache, &step)?;
    read.check_names()?;
    let pool = read.pool()?;
    let label = |package: &Package<'_>| {
        let priority = package.standing.priority;
        format!("{} {} {priority}", package.name, package.version)
    };
    Ok(pool.packages.iter().map(label).collect())
}

fn read(files: Served, archive: &ThirdParty) -> Result<Vec<String>> {
    read_from(&Loopback::serve(files).url, archive)
}

#[test]
fn the_layouts_of_vendors_are_read() {
    let signer = Signer::new();
    let expected = ["engine 2.0 500", "engine-cli 2.0 500", "other 1 500"];
    let apart = vendor::Suite {
        apart: true,
        ..SUITE
    };
    let below = vendor::Suite {
        name: "deb/amd64/",
        ..FLAT
    };
    let in_release = vendor::Suite {
        apart: false,
        ..FLAT
    };
    for suite in [SUITE, apart, FLAT, below, in_release] {
        let read = read(suite.serve(&signer, &items()), &archive(&signer, &suite));
        assert_eq!(read.unwrap(), expected, "{}", suite.name);
    }
}

#[test]
fn a_folder_of_this_host_is_an_archive_too() {
    let signer = Signer::new();
    let folder = tempfile::tempdir().unwrap();
    for (path, content) in FLAT.serve(&signer, &items()) {
        let path = folder.path().join(&path[1..]);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    let base = format!("{SCHEME}{}", folder.path().display());
    assert_eq!(read_from(&base, &archive(&signer, &FLAT)).unwrap().len(), 3);
    let error = read_from(&format!("{base}/none"), &archive(&signer, &FLAT)).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("there is no such file"), "{error}");
}

/// A store of objects says 403 for one that it does not have, as the InRelease here, or an index by its hash.
#[test]
fn an_archive_in_a_store_of_objects_is_read() {
    let signer = Signer::new();
    let by_hash = vendor::Suite {
        fields: "Acquire-By-Hash: yes\n",
        ..FLAT
    };
    for suite in [FLAT, by_hash] {
        let server = Loopback::serve(suite.serve(&signer, &items())).without("403 Forbidden");
        let read = read_from(&server.url, &archive(&signer, &suite)).unwrap();
        assert_eq!(read.len(), 3, "{}", suite.fields);
        server.replace(Served::new());
        let error = read_from(&server.url, &archive(&signer, &suite)).unwrap_err();
        let error = format!("{error:#}");
        assert!(
            error.contains("/InRelease: the server answered 403"),
            "{error}"
        );
    }
}

/// The index of a flat archive often has the packages of every architecture.
#[test]
fn packages_of_other_machines_are_passed_over() {
    let signer = Signer::new();
    let items = [
        "engine 1",
        "engine 2; Architecture: arm64",
        "tool 1; Architecture: all",
    ]
    .map(Item::new);
    let read = read(FLAT.serve(&signer, &items), &archive(&signer, &FLAT));
    assert_eq!(read.unwrap(), ["engine 1 500", "tool 1 500"]);
}

#[test]
fn priority_is_the_recipes_or_the_archives() {
    let signer = Signer::new();
    for (fields, own, expected) in [
        ("", None, Some(500)),
        ("NotAutomatic: yes\n", None, Some(1)),
        (
            "NotAutomatic: yes\nButAutomaticUpgrades: yes\n",
            None,
            Some(100),
        ),
        ("NotAutomatic: yes\n", Some(990), Some(990)),
        ("", Some(-1), None),
    ] {
        let suite = vendor::Suite { fields, ..SUITE };
        let archive = ThirdParty {
            priority: own,
            ..archive(&signer, &suite)
        };
        let read = read(suite.serve(&signer, &[Item::new("engine 2")]), &archive).unwrap();
        let expected: Vec<String> = expected
            .iter()
            .map(|priority| format!("engine 2 {priority}"))
            .collect();
        assert_eq!(read, expected, "{fields} {own:?}");
    }
}

#[test]
fn only_named_packages_are_taken() {
    let signer = Signer::new();
    let with = |packages: &[&str]| {
        let archive = ThirdParty {
            packages: packages.iter().map(ToString::to_string).collect(),
            ..archive(&signer, &SUITE)
        };
        read(SUITE.serve(&signer, &items()), &archive)
    };
    assert_eq!(with(&["engine"]).unwrap(), ["engine 2.0 500"]);
    assert_eq!(with(&["engine*"]).unwrap().len(), 2);
    let error = with(&["engin", "engine", "nothing-*"])
        .unwrap_err()
        .to_string();
    for words in [
        "archive vendor has no package engin for amd64",
        "the nearest name is engine",
        "no package nothing-*",
    ] {
        assert!(error.contains(words), "{error}");
    }
}

/// A fault, what is changed in the files and in the archive of the recipe, and words of the refusal.
type Fault = (&'static str, fn(&mut Served, &mut ThirdParty), &'static str);

#[test]
fn what_is_wrong_is_refused_by_name() {
    const FOLDER: &str = "/linux/debian/dists/trixie";
    let faults: &[Fault] = &[
        (
            "another key",
            |_, archive| archive.keys[0].content = Signer::new().certificate().into_bytes(),
            "is not one of the keys of archive vendor (vendor.asc)",
        ),
        (
            "no signature",
            |files, _| {
                files.insert(format!("{FOLDER}/InRelease"), b"Origin: Test\n".to_vec());
            },
            "its InRelease is not to be trusted",
        ),
        (
            "a list that was changed",
            |files, _| {
                let list = files.get_mut(&format!("{FOLDER}/InRelease")).unwrap();
                let text = String::from_utf8(list.clone()).unwrap();
                *list = text.replace("Origin: Test", "Origin: Text").into_bytes();
            },
            "no signature counts",
        ),
        (
            "an index that does not match",
            |files, _| {
                let index = format!("{FOLDER}/stable/binary-amd64/Packages");
                files.get_mut(&index).unwrap()[9] ^= 1;
            },
            "digest mismatch",
        ),
        (
            "another suite",
            |files, archive| {
                archive.suites = vec!["bookworm".to_owned()];
                let list = files[&format!("{FOLDER}/InRelease")].clone();
                files.insert("/linux/debian/dists/bookworm/InRelease".to_owned(), list);
            },
            "the suite is trixie, expected bookworm",
        ),
        (
            "no such component",
            |_, archive| archive.components = vec!["main".to_owned()],
            "no packages of component main for amd64; it has stable for amd64",
        ),
        (
            "gone",
            |files, _| files.clear(),
            "reading trixie of archive vendor from http://127.0.0.1:",
        ),
        (
            "no signature beside the list",
            |files, _| {
                files.remove(&format!("{FOLDER}/InRelease"));
                files.insert(format!("{FOLDER}/Release"), b"Origin: Test\n".to_vec());
            },
            "Release.gpg: the server answered 404",
        ),
    ];
    let signer = Signer::new();
    for (fault, change, words) in faults {
        let mut files = SUITE.serve(&signer, &items());
        let mut archive = archive(&signer, &SUITE);
        change(&mut files, &mut archive);
        let error = format!("{:#}", read(files, &archive).unwrap_err());
        assert!(error.contains(words), "{fault}: {error}");
    }
}

#[test]
fn an_archive_past_its_validity_is_refused() {
    let signer = Signer::new();
    let suite = vendor::Suite {
        fields: "Valid-Until: Sat, 21 Nov 2020 02:11:10 UTC\n",
        ..SUITE
    };
    let read = read(suite.serve(&signer, &items()), &archive(&signer, &suite));
    let error = format!("{:#}", read.unwrap_err());
    assert!(error.contains("valid until 2020-11-21"), "{error}");
}

/// `max-age` holds for a list without an end of its own, to the day; another archive's has none where the recipe says nothing.
#[test]
fn a_list_that_does_not_end_has_the_recipes_age() {
    let signer = Signer::new();
    let archive = archive(&signer, &SUITE);
    let (made, day) = (u64::from(vendor::MADE), 24 * 3600_u64);
    let served = |fields| {
        let suite = vendor::Suite { fields, ..SUITE };
        Loopback::serve(suite.serve(&signer, &items()))
    };
    let (plain, ending) = (
        served(""),
        served("Valid-Until: Fri, 27 Nov 2026 02:11:10 UTC\n"),
    );
    let at = |days, max_age, server: &Loopback| {
        read_at(made + days * day, max_age, &server.url, &archive).map(|names| names.len())
    };
    assert_eq!(at(14, Some(14), &plain).unwrap(), 3);
    assert_eq!(at(400, None, &plain).unwrap(), 3);
    let error = format!("{:#}", at(15, Some(14), &plain).unwrap_err());
    for word in [
        "made at 2026-11-20T02:11:10Z",
        "more than 14 days ago",
        "`max-age`",
    ] {
        assert!(error.contains(word), "{error}");
    }
    assert_eq!(at(6, Some(1), &ending).unwrap(), 3);
    let error = format!("{:#}", at(8, Some(30), &ending).unwrap_err());
    assert!(
        error.contains("valid until 2026-11-27T02:11:10Z"),
        "{error}"
    );
}
