//! Packages from a mirror on loopback: intact, missing, and with wrong content.

use std::collections::HashMap;

use data_encoding::HEXLOWER;

use sha2::Digest as _;

use super::*;
use crate::debian::loopback::Loopback;
use crate::host::cache::Cache;
use crate::host::progress::{Kind, Progress};
use crate::lock::{LockedSource, VERSION};

fn package(name: &str) -> LockedPackage {
    let content = content(name);
    LockedPackage {
        name: name.to_owned(),
        version: "1".to_owned(),
        architecture: "amd64".to_owned(),
        archive: "debian".to_owned(),
        path: format!("pool/{name}.deb"),
        size: u64::try_from(content.len()).unwrap(),
        sha256: HEXLOWER.encode(&sha2::Sha256::digest(&content)),
        source: None,
    }
}

fn content(name: &str) -> Vec<u8> {
    format!("content of {name}").into_bytes()
}

fn lock(names: &[&str]) -> Lock {
    Lock {
        version: VERSION,
        epoch: 1_795_140_670,
        sources: vec![LockedSource {
            archive: "debian".to_owned(),
            suite: "trixie".to_owned(),
            date: 1_795_140_670,
        }],
        sets: [(
            "root".to_owned(),
            names.iter().map(|name| package(name)).collect(),
        )]
        .into(),
        ..Lock::default()
    }
}

/// Serves the packages of these names below `base`.
fn server(base: &str, names: &[&str]) -> Loopback {
    Loopback::serve(
        names
            .iter()
            .map(|name| (format!("{base}/pool/{name}.deb"), content(name)))
            .collect(),
    )
}

fn fetch(mirror: &str, snapshots: &[String], lock: &Lock, session: &Session) -> Result<Vec<Deb>> {
    let mirrors = Mirrors {
        main: mirror.to_owned(),
        security: mirror.to_owned(),
        main_from: String::new(),
        security_from: String::new(),
        snapshot: format!(
            "{}/archive/{{archive}}/{{time}}",
            mirror.trim_end_matches("/debian")
        ),
        others: BTreeMap::new(),
        debs: BTreeMap::new(),
    };
    fetch_from(session, || Ok(mirrors), (snapshots, None), lock, "root")
}

fn session(folder: &tempfile::TempDir) -> Session {
    let cache = Cache::at(folder.path().to_owned()).unwrap();
    Session::new(cache, Progress::new(Kind::Quiet))
}

#[test]
fn a_set_is_fetched_once() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let server = server("/debian", &names);
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder);
    let mirror = format!("{}/debian", server.url);
    for _ in 0..2 {
        let debs = fetch(&mirror, &[], &lock(&names), &session).unwrap();
        let found: Vec<&str> = debs.iter().map(|deb| deb.package.name.as_str()).collect();
        assert_eq!(found, names);
        for deb in &debs {
            assert_eq!(
                std::fs::read(&deb.path).unwrap(),
                content(&deb.package.name)
            );
        }
        assert_eq!(server.asked().len(), names.len());
    }
}

#[test]
fn what_is_gone_from_the_mirror_is_looked_for_in_snapshots() {
    let mirror = server("/debian", &["a"]);
    let snapshot = server("/archive/debian/20261120T021110Z", &["b"]);
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder);
    let base = format!("{}/debian", mirror.url);
    let snapshots = [format!("{}/archive/{{archive}}/{{time}}/", snapshot.url)];
    fetch(&base, &snapshots, &lock(&["a", "b"]), &session).unwrap();
    assert_eq!(
        snapshot.asked(),
        ["/archive/debian/20261120T021110Z/pool/b.deb"]
    );
}

/// The word of a recipe: the snapshots on the mirror's own server, in the layout of Debian's.
#[test]
fn the_word_for_snapshots_is_debian_s_layout_on_the_mirror_s_server() {
    let mut files = HashMap::new();
    for (path, name) in [
        ("/debian/pool/a.deb", "a"),
        ("/archive/debian/20261120T021110Z/pool/b.deb", "b"),
    ] {
        files.insert(path.to_owned(), content(name));
    }
    let mirror = Loopback::serve(files);
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder);
    let base = format!("{}/debian", mirror.url);
    let word = ["debian".to_owned()];
    fetch(&base, &word, &lock(&["a", "b"]), &session).unwrap();
    let asked = mirror.asked();
    assert_eq!(asked.len(), 3, "{asked:?}");
    let error = fetch(&base, &word, &lock(&["c"]), &session).unwrap_err();
    assert!(
        format!("{error:#}").contains("/debian/pool/c.deb"),
        "{error:#}"
    );
}

/// It may have what is gone from the mirror.
#[test]
fn a_snapshot_archive_that_does_not_answer_is_named() {
    let mirror = server("/debian", &[]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let away = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder);
    let base = format!("{}/debian", mirror.url);
    let snapshots = [format!("{away}/{{archive}}/{{time}}")];
    let error = fetch(&base, &snapshots, &lock(&["gone"]), &session).unwrap_err();
    let error = format!("{error:#}");
    assert!(
        error.contains(&away) && !error.contains("--renew"),
        "{error}"
    );
}

/// Each package would take minutes, and a lock has hundreds.
#[test]
fn a_server_that_was_unreachable_three_times_is_asked_for_no_more_packages() {
    let places = Places::default();
    let asked = std::cell::Cell::new(0);
    let ask = |url: &str, is_away: bool| {
        places.ask(url, || {
            asked.set(asked.get() + 1);
            let away = Failure::Unreachable {
                url: url.to_owned(),
                attempts: 5,
                why: "no answer".to_owned(),
            };
            if is_away { Err(away) } else { Ok(()) }
        })
    };
    for number in 0..9 {
        let url = format!("https://away.example/pool/{number}.deb");
        let error = ask(&url, true).unwrap_err().to_string();
        assert!(
            error.contains(&url) && error.contains("no answer"),
            "{error}"
        );
    }
    assert_eq!(asked.get(), UNREACHABLE);
    ask("https://here.example/pool/0.deb", false).unwrap();
    assert_eq!(asked.get(), UNREACHABLE + 1);
}

#[test]
fn all_that_is_gone_is_named_with_the_remedy() {
    let mirror = server("/debian", &["a"]);
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder);
    let base = format!("{}/debian", mirror.url);
    let error = fetch(&base, &[], &lock(&["a", "gone", "lost"]), &session).unwrap_err();
    let error = format!("{error:#}");
    for expected in ["gone 1: ", "lost 1: ", "404", "slipway lock --renew"] {
        assert!(error.contains(expected), "{error}");
    }
    assert!(!error.contains("a 1: "), "{error}");
}

#[test]
fn other_bytes_than_the_lock_s_are_refused() {
    let lying: HashMap<String, Vec<u8>> =
        [("/debian/pool/a.deb".to_owned(), b"content of X".to_vec())].into();
    let mirror = Loopback::serve(lying);
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder);
    let lock = lock(&["a"]);
    let base = format!("{}/debian", mirror.url);
    let error = format!("{:#}", fetch(&base, &[], &lock, &session).unwrap_err());
    assert!(error.contains("digest mismatch"), "{error}");
    assert!(!session.cache.object(&lock.sets["root"][0].sha256).exists());
}

#[test]
fn a_set_that_the_lock_lacks_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder);
    let mut lock = lock(&[]);
    lock.sets.clear();
    let error = fetch("http://127.0.0.1:9", &[], &lock, &session).unwrap_err();
    assert!(error.to_string().contains("no set root"), "{error}");
}
