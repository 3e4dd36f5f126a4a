use super::*;
use std::os::unix::fs::FileExt as _;

/// What etcd 3.5.16 had written when it was killed as soon as `member/wal` was there: its log without the zeros behind the head,
/// its backend cut behind the last page that is not empty. etcd waits for ever with them.
const LOG_OF_UNSTARTED: &[u8] = include_bytes!("testdata/unstarted.wal");
const BACKEND_OF_UNSTARTED: &[u8] = include_bytes!("testdata/unstarted.db");
/// The backend of a member that ran.
const BACKEND_OF_ONE: &[u8] = include_bytes!("../../../etcd/src/release/testdata/etcd-3.5.db");
/// The backend below a data folder.
const BACKEND_FILE: &str = "member/snap/db";
/// The size of a log as etcd makes it, bytes.
const SIZE: u64 = 64_000_000;

/// A data folder with these files, and the path of its log.
fn data(log: &[u8], backend: Option<&[u8]>) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("member/wal").join(FIRST);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::create_dir_all(folder.path().join("member/snap")).unwrap();
    fs::create_dir(folder.path().join("lost+found")).unwrap();
    fs::write(&path, log).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(SIZE).unwrap();
    fs::write(folder.path().join("member/wal/0.tmp"), [0; 64]).unwrap();
    if let Some(backend) = backend {
        fs::write(folder.path().join(BACKEND_FILE), backend).unwrap();
    }
    (folder, path)
}

fn removed(folder: &tempfile::TempDir) -> bool {
    let member = folder.path().join("member");
    let before = member.exists();
    let said = remove_unstarted(folder.path()).unwrap();
    assert_eq!(before && !member.exists(), said);
    assert!(!folder.path().join(UNSTARTED).exists());
    said
}

#[test]
fn a_member_without_entries_is_removed_and_nothing_else_is() {
    for backend in [Some(BACKEND_OF_UNSTARTED), None] {
        let (folder, _) = data(LOG_OF_UNSTARTED, backend);
        assert!(removed(&folder));
        assert!(folder.path().join("lost+found").exists());
        assert!(!removed(&folder), "there is none any more");
    }
}

#[test]
fn a_removal_that_was_cut_off_is_completed() {
    let (folder, _) = data(LOG_OF_UNSTARTED, None);
    fs::create_dir_all(folder.path().join(UNSTARTED).join("wal")).unwrap();
    assert!(removed(&folder));
}

#[test]
fn a_log_with_anything_behind_its_head_stays() {
    let end = head(LOG_OF_UNSTARTED).unwrap() as u64;
    // A frame, a byte far away, and one in the last byte.
    for (at, bytes) in [
        (end, &[5_u8, 0, 0, 0, 0, 0, 0, 0][..]),
        (1_000_000, &[1]),
        (SIZE - 1, &[1]),
    ] {
        let (folder, log) = data(LOG_OF_UNSTARTED, Some(BACKEND_OF_UNSTARTED));
        let file = File::options().write(true).open(&log).unwrap();
        file.write_all_at(bytes, at).unwrap();
        assert!(!removed(&folder), "a byte at {at}");
    }
}

#[test]
fn a_head_of_another_kind_stays() {
    // The log's frames begin at 0, 16 and 56; a record's type is its second byte, and the last four are the snapshot's.
    for (at, value, what) in [
        (9, 2, "an entry in place of the checksum"),
        (25, 3, "a state in place of the identity"),
        (0, 0, "nothing"),
        (75, 9, "a snapshot of index 9"),
        (7, 0x7F, "a frame of no size"),
    ] {
        let mut log = LOG_OF_UNSTARTED.to_vec();
        log[at] = value;
        let (folder, _) = data(&log, Some(BACKEND_OF_UNSTARTED));
        assert!(!removed(&folder), "{what}");
    }
    for cut in [1, 8, 20, 60, 70] {
        let (folder, _) = data(&LOG_OF_UNSTARTED[..cut], None);
        assert!(!removed(&folder), "cut at {cut}");
    }
}

#[test]
fn data_beside_an_empty_log_is_never_lost() {
    let (folder, _) = data(LOG_OF_UNSTARTED, Some(BACKEND_OF_ONE));
    assert!(!removed(&folder), "a backend with keys");
    let (folder, _) = data(LOG_OF_UNSTARTED, Some(BACKEND_OF_UNSTARTED));
    fs::write(
        folder
            .path()
            .join("member/snap/0000000000000002-0000000000000064.snap"),
        "x",
    )
    .unwrap();
    assert!(!removed(&folder), "a snapshot");
    let (folder, log) = data(LOG_OF_UNSTARTED, Some(BACKEND_OF_UNSTARTED));
    fs::copy(
        &log,
        log.with_file_name("0000000000000001-0000000000000100.wal"),
    )
    .unwrap();
    assert!(!removed(&folder), "a second log");
    let (folder, _) = data(LOG_OF_UNSTARTED, Some(BACKEND_OF_UNSTARTED));
    let file = File::options()
        .write(true)
        .open(folder.path().join(BACKEND_FILE))
        .unwrap();
    file.set_len(MADE + 1).unwrap();
    assert!(!removed(&folder), "a large backend");
    let (folder, _) = data(LOG_OF_UNSTARTED, Some(b"no bbolt file"));
    let error = remove_unstarted(folder.path()).unwrap_err();
    assert!(
        format!("{error:#}").contains("neither of its two meta pages is valid"),
        "{error:#}"
    );
    assert!(folder.path().join("member").exists());
}

#[test]
fn the_log_of_a_running_etcd_is_left_alone() {
    let (folder, log) = data(LOG_OF_UNSTARTED, Some(BACKEND_OF_UNSTARTED));
    let file = File::options().read(true).write(true).open(&log).unwrap();
    assert!(lock(&file).unwrap());
    assert!(!removed(&folder));
    drop(file);
    assert!(removed(&folder));
}

#[test]
fn a_node_without_data_has_nothing_to_remove() {
    let folder = tempfile::tempdir().unwrap();
    assert!(!removed(&folder));
    assert!(!remove_unstarted(&folder.path().join("none")).unwrap());
    fs::create_dir_all(folder.path().join("member/wal")).unwrap();
    assert!(!removed(&folder));
}
