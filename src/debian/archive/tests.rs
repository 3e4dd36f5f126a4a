//! Debian's signed files on loopback: intact, outdated, tampered with, and with an index that does not match.

use std::collections::HashMap;
use std::path::Path;

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use super::*;
use crate::debian::loopback::Loopback;
use crate::host::progress::{Kind, Progress};

/// Debian's files of 20 November 2026; signature and digest prove their origin.
const IN_RELEASE: &[u8] = include_bytes!("../testdata/trixie-updates.InRelease");
const PACKAGES: &[u8] = include_bytes!("../testdata/trixie-updates.Packages.xz");
const PACKAGES_SHA256: &str = "eea860c5dea11680e64299adb2736c2367c4235763a66f2b70ca61ce1b51978a";
/// 21 November 2026.
const NOW: u64 = 1_795_227_900;

const FOLDER: &str = "/debian/dists/trixie-updates";

fn by_hash() -> String {
    format!("{FOLDER}/main/binary-amd64/by-hash/SHA256/{PACKAGES_SHA256}")
}

fn good() -> HashMap<String, Vec<u8>> {
    [
        (format!("{FOLDER}/InRelease"), IN_RELEASE.to_vec()),
        (by_hash(), PACKAGES.to_vec()),
    ]
    .into()
}

/// Reads trixie-updates from a mirror with these files, into a new cache unless one is given.
fn read(
    files: HashMap<String, Vec<u8>>,
    now: u64,
    cache: Option<&Path>,
) -> (Result<Vec<String>>, Vec<String>) {
    let server = Loopback::serve(files);
    // No error shows the password.
    let url = server.url.replace("http://", "http://joe:secret@");
    let mirrors = Mirrors {
        main: format!("{url}/debian"),
        security: format!("{}/debian-security", server.url),
        main_from: "a test".to_owned(),
        security_from: "a test".to_owned(),
        snapshot: String::new(),
        others: BTreeMap::new(),
        debs: BTreeMap::new(),
    };
    let own = tempfile::tempdir().unwrap();
    let cache = Cache::at(cache.unwrap_or(own.path()).to_owned()).unwrap();
    let request = Request {
        mirrors: &mirrors,
        suites: &[Suite {
            archive: ARCHIVE.to_owned(),
            name: "trixie-updates".to_owned(),
            backports: false,
        }],
        components: &["main".to_owned()],
        architecture: "amd64",
        keyring: &Keyring::debian().unwrap(),
        third_parties: &[],
        versions: &BTreeMap::new(),
        now,
        max_age: None,
        options: fetch::Options::default(),
    };
    let step = Progress::new(Kind::Quiet).step("test");
    let names = Archive::read(&request, &cache, &step).and_then(|archive| {
        let pool = archive.pool()?;
        Ok(pool
            .packages
            .iter()
            .map(|package| format!("{} {}", package.name, package.version))
            .collect())
    });
    (names, server.asked())
}

fn refusal(files: HashMap<String, Vec<u8>>, now: u64) -> String {
    let error = format!("{:#}", read(files, now, None).0.unwrap_err());
    assert!(!error.contains("secret"), "{error}");
    error
}

#[test]
fn a_signed_suite_is_read() {
    let (names, asked) = read(good(), NOW, None);
    assert_eq!(
        names.unwrap(),
        [
            "libdatetime-timezone-perl 1:2.65-1+2026f",
            "tzdata 2026f-0+deb13u1",
            "tzdata-legacy 2026f-0+deb13u1"
        ]
    );
    assert_eq!(asked, [format!("{FOLDER}/InRelease"), by_hash()]);
}

#[test]
fn an_index_is_fetched_once_and_a_damaged_one_in_the_cache_again() {
    let folder = tempfile::tempdir().unwrap();
    read(good(), NOW, Some(folder.path())).0.unwrap();
    let (names, asked) = read(good(), NOW, Some(folder.path()));
    assert_eq!(names.unwrap().len(), 3);
    assert_eq!(asked, [format!("{FOLDER}/InRelease")]);
    // The file as it is fetched, and its text; a damaged text is unpacked again.
    let cache = Cache::at(folder.path().to_owned()).unwrap();
    let mut text = Vec::new();
    let packed = std::fs::read(cache.object(PACKAGES_SHA256)).unwrap();
    std::io::Read::read_to_end(
        &mut liblzma::read::XzDecoder::new(packed.as_slice()),
        &mut text,
    )
    .unwrap();
    let unpacked = cache.object(&HEXLOWER.encode(&Sha256::digest(&text)));
    assert_eq!(std::fs::read(&unpacked).unwrap(), text);
    std::fs::write(&unpacked, b"damaged").unwrap();
    let (names, asked) = read(good(), NOW, Some(folder.path()));
    assert_eq!(names.unwrap().len(), 3);
    assert_eq!(asked.len(), 1);
    assert_eq!(std::fs::read(&unpacked).unwrap(), text);
    for path in [cache.object(PACKAGES_SHA256), unpacked] {
        std::fs::write(path, b"damaged").unwrap();
    }
    let (names, asked) = read(good(), NOW, Some(folder.path()));
    assert_eq!(names.unwrap().len(), 3);
    assert_eq!(asked.len(), 2);
}

/// The longest unused of the cache is removed first. Of a list of which the cache has the text the packed file is not read.
#[test]
fn an_index_that_is_read_again_counts_as_used() {
    let folder = tempfile::tempdir().unwrap();
    let files = || {
        let items = crate::host::tree::walk(&folder.path().join("downloads")).unwrap();
        items.into_iter().filter(|item| item.meta.is_file())
    };
    let old = std::time::SystemTime::UNIX_EPOCH;
    read(good(), NOW, Some(folder.path())).0.unwrap();
    for item in files() {
        let file = std::fs::File::open(&item.path).unwrap();
        file.set_modified(old).unwrap();
    }
    assert_eq!(files().count(), 2);
    read(good(), NOW, Some(folder.path())).0.unwrap();
    let used = files().filter(|item| item.meta.modified().unwrap() > old);
    assert_eq!(used.count(), 1);
}

#[test]
fn a_mirror_without_files_by_hash_is_asked_by_name() {
    let mut files = good();
    let index = files.remove(&by_hash()).unwrap();
    files.insert(format!("{FOLDER}/main/binary-amd64/Packages.xz"), index);
    assert_eq!(read(files, NOW, None).0.unwrap().len(), 3);
}

#[test]
fn a_tampered_release_is_refused_and_nothing_more_is_fetched() {
    let mut files = good();
    let text = String::from_utf8(IN_RELEASE.to_vec()).unwrap();
    let tampered = text.replace(PACKAGES_SHA256, &PACKAGES_SHA256.replace('e', "f"));
    assert_ne!(tampered, text);
    files.insert(format!("{FOLDER}/InRelease"), tampered.into_bytes());
    let (outcome, asked) = read(files, NOW, None);
    let error = format!("{:#}", outcome.unwrap_err());
    assert!(
        error.contains("is not to be trusted: no signature counts"),
        "{error}"
    );
    assert!(error.contains("(set by a test)"), "{error}");
    assert_eq!(asked.len(), 1);
}

#[test]
fn an_outdated_release_is_refused() {
    let error = refusal(good(), NOW + 7 * 24 * 3600);
    assert!(
        error.contains("valid until 2026-11-27T02:11:10Z"),
        "{error}"
    );
}

#[test]
fn a_lying_index_is_refused() {
    let mut lying = PACKAGES.to_vec();
    lying[100] ^= 1;
    let mut files = good();
    files.insert(by_hash(), lying);
    let error = refusal(files, NOW);
    assert!(
        error.contains(&format!("expected {PACKAGES_SHA256}")),
        "{error}"
    );
    let mut files = good();
    files.insert(by_hash(), [PACKAGES, b"more"].concat());
    let error = refusal(files, NOW);
    assert!(
        error.contains("larger than the limit of 1108 bytes"),
        "{error}"
    );
}

#[test]
fn what_is_no_archive_is_named_with_its_mirror() {
    let error = refusal(HashMap::new(), NOW);
    assert!(
        error.contains("reading trixie-updates from the mirror http://127.0.0.1:"),
        "{error}"
    );
    assert!(error.contains("404 Not Found"), "{error}");
}
