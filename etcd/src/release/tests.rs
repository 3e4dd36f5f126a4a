use super::*;
use std::fs;

/// Backends of a single member that ran for 25 s, written by etcd 3.5.16 and 3.6.8 themselves (`etcd --data-dir DIR`, then
/// `member/snap/db`) and cut behind the last page that is not empty. etcd 3.5.16 ends with the second: "invalid downgrade".
const OF_35: &[u8] = include_bytes!("testdata/etcd-3.5.db");
const OF_36: &[u8] = include_bytes!("testdata/etcd-3.6.db");

/// A root with this backend on its volume.
fn root(backend: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("var/lib/etcd");
    let file = data.join(BACKEND);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, backend).unwrap();
    (root, data)
}

#[test]
fn the_data_of_real_members_says_its_release() {
    for (backend, expected) in [(OF_35, "3.5"), (OF_36, "3.6")] {
        let (_root, data) = root(backend);
        assert_eq!(needed(&data).unwrap().unwrap().to_string(), expected);
    }
}

#[test]
fn an_older_program_is_refused_and_a_newer_one_not() {
    for (backend, image, refused) in [
        (OF_36, "slipway.local/etcd:3.5.16-0", true),
        (OF_36, "r.example:5000/a/etcd:3.5.24-0@sha256:00", true),
        (OF_36, "slipway.local/etcd:3.6.8-0", false),
        (OF_36, "slipway.local/etcd:3.7.1-0", false),
        (OF_35, "slipway.local/etcd:3.5.16-0", false),
        (OF_35, "slipway.local/etcd:3.6.8-0", false),
        // A tag that is not a version says nothing.
        (OF_36, "slipway.local/etcd:baked", false),
    ] {
        let (root, data) = root(backend);
        let found = refusal(root.path(), &data, Some(image));
        assert_eq!(found.is_some(), refused, "{image}: {found:?}");
        if let Some(reason) = found {
            assert!(reason.contains("of etcd 3.6, this image has"), "{reason}");
        }
    }
    let (root, data) = root(OF_36);
    assert_eq!(refusal(root.path(), &data, None), None);
}

#[test]
fn a_node_that_runs_another_etcd_than_the_images_is_not_held_up() {
    let (root, data) = root(OF_36);
    let pod = root.path().join("etc/kubernetes/manifests/etcd.yaml");
    fs::create_dir_all(pod.parent().unwrap()).unwrap();
    for (text, refused) in [
        ("image: registry.example/etcd:3.6.8-0\n", false),
        ("image: slipway.local/etcd:3.6.8-0\n", true),
        ("image: slipway.local/etcd:baked\n", true),
    ] {
        fs::write(&pod, text).unwrap();
        let found = refusal(root.path(), &data, Some("slipway.local/etcd:3.5.16-0"));
        assert_eq!(found.is_some(), refused, "{text}");
    }
}

#[test]
fn a_volume_without_data_and_a_damaged_one_are_etcds_own_matter() {
    let (root, data) = root(b"not bbolt");
    assert!(needed(&data).is_err());
    let image = Some("slipway.local/etcd:3.5.16-0");
    assert_eq!(refusal(root.path(), &data, image), None);
    fs::remove_file(data.join(BACKEND)).unwrap();
    assert_eq!(needed(&data).unwrap(), None);
    assert_eq!(refusal(root.path(), &data, image), None);
    // One damaged meta page is made up for by the other; every cut is an error or an older answer, never a panic.
    for at in [16, 4096 + 16] {
        let mut one = OF_36.to_vec();
        one[at] ^= 1;
        fs::write(data.join(BACKEND), &one).unwrap();
        assert!(needed(&data).is_ok_and(|found| found.is_some()), "{at}");
    }
    for cut in (0..OF_36.len()).step_by(509) {
        fs::write(data.join(BACKEND), &OF_36[..cut]).unwrap();
        drop(needed(&data));
    }
}
