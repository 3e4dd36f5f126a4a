//! Arrays, encrypted volumes, and the file systems on them.

use super::*;

const STACK: &str = r#""disks": [{"device": "/dev/vdb", "partitions": [{"label": "left", "number": 1}]},
    {"device": "/dev/vdc", "partitions": [{"label": "right", "number": 1}]}],
  "raid": [{"name": "pair", "level": "raid1", "devices": ["/dev/disk/by-partlabel/left", "/dev/vdc1"]}],
  "luks": [{"name": "vault", "device": "/dev/md/pair", "keyFile": {"source": "data:,SECRET"}}],
  "filesystems": [{"device": "/dev/mapper/vault", "format": "ext4", "path": "/var/lib/vault"}]"#;

#[test]
fn what_is_stacked_is_found_by_the_names_that_it_will_have() {
    let lab = lab();
    let plan = lab.plan(STACK).unwrap();
    let member = |disk: &str| DeviceRef::Partition(disk.to_owned(), 1);
    assert_eq!(plan.arrays[0].members, [member("vdb"), member("vdc")]);
    assert_eq!(plan.volumes[0].target, DeviceRef::Array("pair".to_owned()));
    // A new array shows nothing that is to be kept.
    assert_eq!(plan.volumes[0].action, Some(volumes::VolumeAction::Make));
    assert_eq!(
        plan.filesystems[0].target,
        DeviceRef::Volume("vault".to_owned())
    );
    assert_eq!(plan.filesystems[0].action, Some(FilesystemAction::Make));
    let wiped = STACK.replace(r#""keyFile""#, r#""wipeVolume": true, "keyFile""#);
    let plan = lab.plan(&wiped).unwrap();
    assert_eq!(plan.filesystems[0].action, Some(FilesystemAction::Make));
    for (from, to, because) in [
        (
            "/dev/vdc1",
            "/dev/vdb1",
            "the same device as that of $.storage.raid.0.devices.0",
        ),
        (
            "/dev/vdc1",
            "/dev/disk/by-partlabel/state",
            "belongs to the node itself",
        ),
        (
            "/dev/md/pair",
            "/dev/md/other",
            "/dev/md/other does not exist",
        ),
        (
            "/dev/mapper/vault",
            "/dev/disk/by-id/dm-name-x",
            "dm-name-x does not exist",
        ),
        (
            "/dev/mapper/vault",
            "/dev/md/pair",
            "the same device as that of $.storage.luks.0",
        ),
        (
            "/dev/vdc1",
            "/dev/vdc",
            "$.storage.raid.0.devices.1: /dev/vdc has partitions",
        ),
        (
            r#""keyFile""#,
            r#""clevis": {"tang": [{"url": "http://tang.example", "thumbprint": "x"}]}, "keyFile""#,
            "$.storage.luks.0: clevis.tang.0: its advertisement is invalid",
        ),
        (
            r#""keyFile""#,
            r#""clevis": {"tpm2": true, "threshold": 2}, "keyFile""#,
            "clevis.threshold",
        ),
    ] {
        lab.refused(&STACK.replace(from, to), because);
    }
}

/// A later boot of the node needs `/var` before the network is up.
#[test]
fn what_clevis_opens_is_nothing_for_var() {
    let lab = lab();
    let custom = r#""clevis": {"custom": {"pin": "sss", "config": "{}"}}"#;
    let bound = |path: &str| {
        let stack = STACK.replace(r#""keyFile": {"source": "data:,SECRET"}"#, custom);
        stack.replace("/var/lib/vault", path)
    };
    assert!(lab.plan(&bound("/var/lib/vault")).is_ok());
    lab.refused(
        &bound("/var"),
        "$.storage.filesystems.0.path: /var cannot be",
    );
    // Nor beside a key, which is stored nowhere.
    let tang = r#""clevis": {"tang": [{"url": "http://tang.example", "thumbprint": "x",
        "advertisement": "{\"payload\": \"own\"}"}]}"#;
    let tpm = r#""clevis": {"tpm2": true}"#;
    for (clevis, fits) in [(custom, false), (tang, false), (tpm, true)] {
        let keyed = STACK.replace(r#""keyFile""#, &format!(r#"{clevis}, "keyFile""#));
        assert!(lab.plan(&keyed).is_ok(), "{clevis}");
        let var = keyed.replace("/var/lib/vault", "/var");
        match fits {
            true => drop(lab.plan(&var).unwrap()),
            false => lab.refused(&var, "filesystems.0.path: /var cannot be"),
        }
    }
}

#[test]
fn what_an_array_overwrites_is_told() {
    let lab = lab();
    lab.put("vdc", 0, Kind::Xfs);
    let plan = lab
        .plan(r#""raid": [{"name": "r", "level": "raid1", "devices": ["/dev/vdb", "/dev/vdc"]}]"#)
        .unwrap();
    let [warning] = plan.warnings.as_slice() else {
        panic!("{:?}", plan.warnings);
    };
    assert!(
        warning.starts_with("$.storage.raid.0: virtio-serial-vdc holds xfs"),
        "{warning}"
    );
    lab.scatter("vdb", 100 << 20);
    let plan = lab
        .plan(r#""raid": [{"name": "r", "level": "raid1", "devices": ["/dev/vdb", "/dev/vdc"]}]"#)
        .unwrap();
    assert!(
        plan.warnings[0].contains("virtio-serial-vdb holds data of no known kind"),
        "{:?}",
        plan.warnings
    );
}

/// A config that lets an array overwrite its devices is not refused for what these held, when it is too late.
#[test]
fn nothing_that_a_new_array_shows_is_kept_or_refused() {
    const ON_ARRAY: &str = r#""raid": [{"name": "r", "level": "raid1", "devices": ["/dev/vdb", "/dev/vdc"]}],
      "filesystems": [{"device": "/dev/md/r", "format": "ext4"}]"#;
    let volume = r#""luks": [{"name": "v", "device": "/dev/md/r", "keyFile": {"source": "data:,SECRET"}}],
      "filesystems": [{"device": "/dev/mapper/v""#;
    let in_volume = ON_ARRAY.replace(r#""filesystems": [{"device": "/dev/md/r""#, volume);
    let mut lab = lab();
    let of = |lab: &Lab, text: &str| lab.plan(text).unwrap().filesystems[0].action.clone();
    let of_volume = |lab: &Lab| lab.plan(&in_volume).unwrap().volumes[0].action;
    let none = ON_ARRAY.replace("ext4", "none");
    assert_eq!(of(&lab, ON_ARRAY), Some(FilesystemAction::Make));
    assert_eq!(of(&lab, &none), Some(FilesystemAction::Keep));
    assert_eq!(of_volume(&lab), Some(volumes::VolumeAction::Make));
    lab.scatter("vdc", 100 << 20);
    for made in [false, true] {
        assert_eq!(of(&lab, ON_ARRAY), Some(FilesystemAction::Remake));
        assert_eq!(of(&lab, &none), Some(FilesystemAction::Wipe));
        assert_eq!(of_volume(&lab), Some(volumes::VolumeAction::Remake));
        assert_eq!(of(&lab, &in_volume), Some(FilesystemAction::Make));
        let array = &lab.plan(ON_ARRAY).unwrap().arrays[0];
        assert_eq!(array.made, made);
        // Made, and cut off before anything was made on it.
        let key = array.key.as_deref();
        lab.journal.note(&array.spec.at, key, Stage::Done).unwrap();
    }
}

/// What lay below an array of the config may be another's by now: so is what was begun on the array.
#[test]
fn what_was_begun_on_an_array_of_other_disks_is_not_taken_up() {
    const ON_ARRAY: &str = r#""raid": [{"name": "r", "level": "raid1", "devices": ["/dev/vdb", "/dev/vdc"]}],
      "filesystems": [{"device": "/dev/md/r", "format": "ext4"}]"#;
    let mut lab = lab();
    let job = &lab.plan(ON_ARRAY).unwrap().filesystems[0];
    lab.journal
        .note(&job.spec.at, job.key.as_deref(), Stage::Started)
        .unwrap();
    let action = |lab: &Lab| lab.plan(ON_ARRAY).unwrap().filesystems[0].action.clone();
    assert_eq!(action(&lab), Some(FilesystemAction::Remake));
    write(&lab.machine.world.sys.join("block/vdc/serial"), "other");
    assert_eq!(action(&lab), Some(FilesystemAction::Make));
}

#[test]
fn what_the_image_lacks_is_told_with_the_package_that_brings_it() {
    let lab = lab();
    let sealed = STACK.replace(
        r#""keyFile": {"source": "data:,SECRET"}"#,
        r#""clevis": {"tpm2": true}"#,
    );
    let plan = lab.plan(&sealed).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let root = linux::programs::Programs {
        world: std::sync::Arc::new(linux::world::World::below(
            folder.path(),
            linux::world::Clock::Real,
        )),
        sysroot: folder.path().to_owned(),
        in_image: true,
    };
    let told = plan.missing_requirements(&root).unwrap().join("\n");
    for (at, package) in [
        ("$.storage.raid.0", "mdadm"),
        ("$.storage.luks.0", "cryptsetup-bin"),
        ("$.storage.luks.0", "systemd-cryptsetup"),
        ("$.storage.luks.0", "libtss2-esys-3.0.2-0t64"),
        ("$.storage.luks.0", "libtss2-rc0t64"),
        ("$.storage.filesystems.0", "e2fsprogs"),
    ] {
        let line = told
            .lines()
            .find(|line| line.contains(&format!("add the package {package} to")));
        assert!(line.is_some_and(|line| line.starts_with(at)), "{told}");
    }
}

#[test]
fn a_stack_that_was_cut_off_is_started_and_opened_again() {
    let mut lab = lab();
    let (left, right) = (part_key("vdb", 1, 7), part_key("vdc", 1, 7));
    let members = format!("{left}, {right}");
    let array = format!("the array pair of {left}; {right}");
    let volume = format!("the volume vault on {array}");
    lab.journal
        .note("$.storage.raid.0", Some(&members), Stage::Done)
        .unwrap();
    lab.journal
        .note("$.storage.luks.0", Some(&array), Stage::Done)
        .unwrap();
    // Cut off before the file system was begun: what the volume holds is noise.
    let plan = lab.plan(STACK).unwrap();
    assert_eq!(plan.filesystems[0].action, Some(FilesystemAction::Remake));
    lab.journal
        .note("$.storage.filesystems.0", Some(&volume), Stage::Started)
        .unwrap();
    let plan = lab.plan(STACK).unwrap();
    assert!(plan.arrays[0].made);
    assert_eq!(plan.volumes[0].action, Some(volumes::VolumeAction::Open));
    assert_eq!(plan.filesystems[0].action, Some(FilesystemAction::Remake));
    lab.journal
        .note("$.storage.luks.0", Some(&array), Stage::Started)
        .unwrap();
    let plan = lab.plan(STACK).unwrap();
    assert_eq!(plan.volumes[0].action, Some(volumes::VolumeAction::Remake));
    assert_eq!(plan.filesystems[0].action, Some(FilesystemAction::Make));
}

#[test]
fn what_a_run_of_another_config_stacked_is_in_nobodys_way() {
    const VOLUME: &str =
        r#""luks": [{"name": "v", "device": "/dev/vdc", "keyFile": {"source": "data:,SECRET"}}]"#;
    const ARRAY: &str = r#""raid": [{"name": "r", "level": "raid1", "devices": ["/dev/vdb", "/dev/vdc"]}],
      "filesystems": [{"device": "/dev/md/r", "format": "ext4"}]"#;
    let mut lab = lab();
    lab.put("vdc", 0, Kind::Xfs);
    lab.refused(VOLUME, "wipeVolume is not set");
    let plan = lab.plan(ARRAY).unwrap();
    assert_eq!(plan.warnings.len(), 1);
    assert_eq!(plan.filesystems[0].action, Some(FilesystemAction::Remake));
    let made = |at: &str, devices: &str| {
        let state = tempfile::tempdir().unwrap();
        let mut before = DiskJournal::open(Some(state.path()), "another").unwrap();
        before.note(at, Some(devices), Stage::Started).unwrap();
        DiskJournal::open(Some(state.path()), "this").unwrap()
    };
    lab.journal = made("$.storage.luks.1", &key("vdc"));
    let again = lab.plan(VOLUME).unwrap();
    assert_eq!(again.volumes[0].action, Some(volumes::VolumeAction::Remake));
    let plan = lab.plan(ARRAY).unwrap();
    assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
    assert_eq!(plan.filesystems[0].action, Some(FilesystemAction::Remake));
    lab.journal = made(
        "$.storage.raid.0",
        &format!("{}, {}", key("vdb"), key("vdc")),
    );
    let again = lab.plan(VOLUME).unwrap();
    assert_eq!(again.volumes[0].action, Some(volumes::VolumeAction::Remake));
    let plan = lab.plan(ARRAY).unwrap();
    assert_eq!(plan.filesystems[0].action, Some(FilesystemAction::Remake));
}
