use super::*;

use std::fs;

#[test]
fn what_is_packed_comes_back_without_what_is_between() {
    let folder = tempfile::tempdir().unwrap();
    let [disk, packed, back] = ["disk", "packed", "back"].map(|name| folder.path().join(name));
    blank(&disk, 8 << 20).unwrap();
    let file = File::options().write(true).open(&disk).unwrap();
    for at in [100, 1 << 20, 5 << 20] {
        file.write_all_at(b"data", at).unwrap();
    }
    pack(&disk, &[0..8192, (5 << 20)..(6 << 20)], &packed).unwrap();
    let bytes = fs::read(&packed).unwrap();
    assert!(bytes.len() < 1024);
    unpack(&bytes, &back).unwrap();
    file.write_all_at(&[0; 4], 1 << 20).unwrap();
    assert!(fs::read(&disk).unwrap() == fs::read(&back).unwrap());
    for end in [0, 1, bytes.len() / 2] {
        assert!(unpack(&bytes[..end], &back).is_err(), "cut at {end}");
    }
}
