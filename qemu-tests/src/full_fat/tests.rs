//! Filling and freeing a file system of our own writer.

use std::io::{Seek, SeekFrom, Write};

use slipway::format::fat::{Options, Volume, files};

use super::*;

#[test]
fn every_free_cluster_is_taken_and_given_back_and_the_files_stay() {
    let mut volume = Volume::new();
    volume.file("/EFI/one", b"content").unwrap();
    let start = 1 << 20;
    let options = Options {
        size: 64 << 20,
        offset: start,
        sector: image::layout::SectorSize::default(),
        label: "ESP",
        id: 1,
        time: 0,
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let mut disk = File::create(&path).unwrap();
    disk.set_len(65 << 20).unwrap();
    for extent in volume.write(&options).unwrap() {
        disk.seek(SeekFrom::Start(start + extent.offset)).unwrap();
        disk.write_all(&extent.bytes).unwrap();
    }
    let full = FullFat::fill(&path, start).unwrap();
    let taken = full.taken.len();
    assert!(taken > 65_000, "{taken}");
    let again = FullFat::fill(&path, start).unwrap_err();
    assert!(again.to_string().contains("full already"), "{again}");
    let found = files(&mut File::open(&path).unwrap(), start).unwrap();
    assert_eq!(found["/EFI/one"], b"content");
    full.free().unwrap();
    assert_eq!(FullFat::fill(&path, start).unwrap().taken.len(), taken);
}
