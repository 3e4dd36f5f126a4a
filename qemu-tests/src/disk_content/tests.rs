//! Reading and comparing disks.

use super::*;

#[test]
fn partitions_of_a_disk_behind_others_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let (one, all) = (folder.path().join("one"), folder.path().join("all"));
    blank(&one, 8 << 20).unwrap();
    let mut table = gpt::GptConfig::new().writable(true).create(&one).unwrap();
    table
        .add_partition("größer", 1 << 20, gpt::partition_types::LINUX_FS, 0, None)
        .unwrap();
    table.write().unwrap();
    let (first, size) = slipway::vm::disks::partition(&one, "größer").unwrap();
    let behind = 3 << 20;
    fs::write(&all, [vec![0; behind], fs::read(&one).unwrap()].concat()).unwrap();
    assert!(partitions(&all, 0).is_err());
    let found = partitions(&all, behind as u64).unwrap();
    assert_eq!(found, [("größer".to_owned(), behind as u64 + first, size)]);
}

#[test]
fn ranges_of_files_are_compared_to_their_last_byte() {
    let (one, other) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    let end = (2 << 20) + 5;
    for (file, last) in [(&one, b"x"), (&other, b"y")] {
        file.set_len(end).unwrap();
        file.write_all_at(last, end - 1).unwrap();
    }
    assert!(same(&one, &other, 3..end - 1).unwrap());
    assert!(!same(&one, &other, 3..end).unwrap());
    assert!(same(&one, &other, 0..end + 1).is_err());
}

#[test]
fn a_second_flip_restores_the_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, b"abc").unwrap();
    let before = digest(&path).unwrap();
    flip(&path, 1).unwrap();
    assert_eq!(fs::read(&path).unwrap(), [b'a', !b'b', b'c']);
    flip(&path, 1).unwrap();
    assert_eq!(digest(&path).unwrap(), before);
}
