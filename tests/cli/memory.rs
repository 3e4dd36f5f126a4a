//! What a store in a folder of this host has is copied piece by piece: an archive of a result may have gigabytes.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use slipway::format::digest;
use slipway::store::{Haste, Object, Store};

use super::stderr;

/// Set in the process that copies: its folder.
const FOLDER: &str = "TEST_MEMORY";
/// Bytes of the file.
const SIZE: u64 = 192 << 20;
/// The memory that a copy may take, KiB.
const MOST: u64 = 48 << 10;

/// The most memory that this process has had, KiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mut lines = status.lines();
    let peak = lines.find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Takes a file from a store, and prints what that took.
fn copy(folder: &Path) {
    let file = folder.join("file");
    File::create(&file).unwrap().set_len(SIZE).unwrap();
    let object = Object {
        sha256: digest::sha256(&file).unwrap(),
        size: SIZE,
    };
    let url = format!("file://{}/store", folder.display());
    let options = fetch::Options::default();
    let mut store = Store::open(&url, &options, Haste::Patient).unwrap();
    assert!(store.put(&object, &file).unwrap());
    let before = peak();
    let target = folder.join("target");
    let got = store.get(&object.sha256, SIZE, &target, &|_| ());
    got.unwrap();
    assert_eq!(fs::metadata(target).unwrap().len(), SIZE);
    eprintln!("took {} KiB", peak() - before);
}

/// In a process of its own: another test's memory would count too.
#[test]
fn a_large_file_of_a_store_is_not_taken_into_memory() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return copy(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "memory::a_large_file_of_a_store_is_not_taken_into_memory",
            "--nocapture",
        ])
        .env(FOLDER, folder.path())
        .output()
        .unwrap();
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    let took = said.lines().find_map(|line| line.strip_prefix("took "));
    let took: u64 = took.unwrap().trim_end_matches(" KiB").parse().unwrap();
    assert!(took < MOST, "{took} KiB");
}
