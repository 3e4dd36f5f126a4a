//! Slipway's own part of Butane: the variant `slipway`, the sections that are refused by name, and nodes without local
//! files. The rest is compared with Butane's results in `tests/butane.rs`.

use ignition::butane::Options;
use ignition::config::from_butane;
use ignition::{Config, Kind as Severity};

/// Each error as `line:column path message`.
fn errors(text: &str) -> Vec<String> {
    let report = match Config::parse(text.as_bytes(), "t") {
        Ok((_, report)) | Err(report) => report,
    };
    let errors = report
        .entries
        .iter()
        .filter(|entry| entry.kind == Severity::Error);
    errors
        .map(|entry| {
            let at = entry.at.as_ref().unwrap();
            format!("{}:{} {} {}", at.line, at.column, entry.path, entry.message)
        })
        .collect()
}

#[track_caller]
fn fails(text: &str, wanted: &[&str]) {
    let found = errors(text);
    assert_eq!(found.len(), wanted.len(), "{found:#?}");
    for (found, wanted) in found.iter().zip(wanted) {
        assert!(found.contains(wanted), "{found}\nhas not {wanted}");
    }
}

#[test]
fn our_own_variant_becomes_3_6() {
    let text = "variant: slipway\nversion: 1.0.0\nstorage:\n  files:\n    - path: /etc/slipway/node.toml\n      mode: 0644\n      contents:\n        inline: |\n          role = \"worker\"\n  filesystems:\n    - {device: /dev/vdb, format: ext4, path: /var/data, with_mount_unit: true}\n";
    let (json, report) = from_butane(text.as_bytes(), "t", Options::BARE).unwrap();
    assert!(report.entries.is_empty(), "{report}");
    assert_eq!(json["ignition"]["version"], "3.6.0");
    assert_eq!(json["storage"]["files"][0]["mode"], 0o644);
    assert_eq!(json["systemd"]["units"][0]["name"], "var-data.mount");
    fails(
        "variant: slipway\nversion: 1.0.0\nstorage:\n  filesystems:\n    - {device: /dev/vdb, format: ext4, path: /data, with_mount_unit: true}\n",
        &["5:46 $.storage.filesystems.0.path a mount unit's path is /etc, /var or below"],
    );
}

#[test]
fn the_boot_disk_may_be_named_as_on_fedora_coreos() {
    for variant in ["fcos\nversion: 1.5.0", "slipway\nversion: 1.0.0"] {
        let text = format!(
            "variant: {variant}\nstorage:\n  disks:\n    - device: /dev/disk/by-id/coreos-boot-disk\n      partitions:\n        - {{number: 9, label: data}}\n  filesystems:\n    - {{device: /dev/disk/by-id/coreos-boot-disk-part9, format: ext4, path: /var/data, with_mount_unit: true}}\n"
        );
        let (json, report) = from_butane(text.as_bytes(), "t", Options::BARE).unwrap();
        assert!(report.entries.is_empty(), "{report}");
        let disk = "/dev/disk/by-id/coreos-boot-disk";
        assert_eq!(json["storage"]["disks"][0]["device"], disk);
        let unit = json["systemd"]["units"][0]["contents"].as_str().unwrap();
        assert!(unit.contains(&format!("What={disk}-part9\n")), "{unit}");
    }
}

#[test]
fn what_needs_another_layout_is_refused_by_name() {
    fails(
        "variant: fcos\nversion: 1.5.0\nboot_device:\n  mirror:\n    devices: [/dev/a, /dev/b]\ngrub:\n  users: []\nextensions: []\n",
        &[
            "3:1 $.boot_device boot_device is not for Slipway: it rewrites the partitions of Fedora CoreOS",
            "6:1 $.grub grub is not for Slipway: it writes to the boot partition",
            "8:1 $.extensions extensions is not for Slipway",
        ],
    );
    fails(
        "variant: openshift\nversion: 4.14.0\n",
        &[
            "1:10 $.variant a config for OpenShift becomes a MachineConfig for its operator, which no Slipway node runs",
        ],
    );
}

#[test]
fn edge_systems_take_neither_disks_nor_kernel_arguments() {
    for head in [
        "variant: r4e\nversion: 1.0.0\n",
        "variant: fiot\nversion: 1.0.0\n",
    ] {
        let text =
            format!("{head}storage:\n  files:\n    - {{path: /etc/a, contents: {{inline: x}}}}\n");
        let (json, _) = from_butane(text.as_bytes(), "t", Options::BARE).unwrap();
        assert_eq!(json["storage"]["files"][0]["path"], "/etc/a");
    }
    fails(
        "variant: r4e\nversion: 1.1.0\nkernel_arguments:\n  should_exist: [quiet]\nstorage:\n  disks:\n    - device: /dev/vdb\n  raid: []\n  luks:\n    - name: a\n      device: /dev/vdb\n",
        &[
            "4:3 $.kernel_arguments r4e and fiot take none",
            "7:5 $.storage.disks r4e and fiot take none",
            "10:5 $.storage.luks r4e and fiot take none",
        ],
    );
}

#[test]
fn versions_are_named() {
    fails(
        "variant: fcos\n",
        &["1:1 $.version missing; fcos has the versions 1.0.0, 1.1.0"],
    );
    fails(
        "variant: slipway\nversion: 2.0.0\n",
        &["2:10 $.version found \"2.0.0\"; expected one of 1.0.0"],
    );
    fails(
        "variant: fcos\nversion: 1.7.0-experimental\n",
        &["2:10 $.version found \"1.7.0-experimental\"; expected one of 1.0.0"],
    );
}

#[test]
fn mistakes_come_all_at_once_with_their_places() {
    fails(
        "variant: fcos\nversion: 1.5.0\nstorage:\n  files:\n    - path: [x]\n      mode: 0888\n    - path: /a\n      overwrite: maybe\n  links: {}\npasswd:\n  users:\n    - name: a\n      uid: \"500\"\n",
        &[
            "5:13 $.storage.files.0.path expected a string, found a list",
            "6:13 $.storage.files.0.mode expected a whole number, found 0888 as octal",
            "8:18 $.storage.files.1.overwrite expected true or false, found a string",
            "9:10 $.storage.links expected a list, found an object",
            "13:12 $.passwd.users.0.uid expected a whole number, found a string",
        ],
    );
}

#[test]
fn a_node_has_no_local_files() {
    let found = errors(
        "variant: fcos\nversion: 1.5.0\nstorage:\n  files:\n    - path: /a\n      contents:\n        local: secret-name\n  trees:\n    - local: t\nsystemd:\n  units:\n    - name: a.service\n      contents_local: u\npasswd:\n  users:\n    - name: x\n      ssh_authorized_keys_local: [k]\n",
    );
    let places: Vec<_> = found
        .iter()
        .map(|text| text.split(' ').nth(1).unwrap())
        .collect();
    assert_eq!(
        places,
        [
            "$.storage.files.0.contents.local",
            "$.systemd.units.0.contents_local",
            "$.passwd.users.0.ssh_authorized_keys_local.0",
            "$.storage.trees.0.local",
        ]
    );
    assert!(found[0].contains("from-butane --files-dir"), "{}", found[0]);
}

#[test]
fn a_text_in_neither_language_is_refused() {
    let why = |text: &str| errors(text).pop().unwrap();
    assert!(
        why("#cloud-config\nusers: []\n")
            .contains("expected Ignition JSON, or Butane YAML with `variant`")
    );
    assert!(why("\u{1}binary").contains("expected Ignition JSON, or Butane YAML"));
    assert!(why("{\"ignition\": ").contains("the text ends"));
    // Meant to be Butane: the YAML's syntax error is reported.
    assert!(why("variant: fcos\nversion: [\n").contains("not valid YAML"));
    assert!(why("variant: fcos\n\tversion: 1\n").contains("tab"));
}

#[test]
fn embedded_configs_are_looked_into() {
    fails(
        "variant: fcos\nversion: 1.5.0\nignition:\n  config:\n    merge:\n      - inline: '{\"ignition\": {\"version\": \"3.4.0\"}, \"storage\": {\"files\": [{\"path\": \"x\"}]}}'\n    replace:\n      inline: |\n        variant: fcos\n        version: 1.5.0\n        storage:\n          files: 1\n",
        &[
            "$.ignition.config.merge.0.inline the config in it: $.storage.files.0.path: path not absolute (line 1",
            "$.ignition.config.replace.inline the config in it: $.storage.files: expected a list, found",
        ],
    );
}

#[test]
fn no_value_that_may_be_secret_is_told() {
    let secret = "S3CR3T";
    for text in [
        format!(
            "variant: fcos\nversion: 1.5.0\nstorage:\n  files:\n    - path: /a\n      mode: {secret}\n"
        ),
        format!(
            "variant: fcos\nversion: 1.5.0\npasswd:\n  users:\n    - name: [x]\n      password_hash: [{secret}]\n"
        ),
        format!(
            "variant: fcos\nversion: 1.5.0\npasswd:\n  users:\n    - password_hash: {secret}: {secret}\n"
        ),
        format!(
            "variant: fcos\nversion: 1.5.0\nsystemd:\n  units:\n    - name: a.service\n      contents: \"{secret}\\n[x\"\n"
        ),
        format!(
            "variant: fcos\nversion: 1.5.0\nignition:\n  config:\n    merge:\n      - inline: \"{secret}\"\n"
        ),
        format!(
            "variant: fcos\nversion: 1.5.0\nstorage:\n  luks:\n    - name: a/b\n      key_file: {{inline: {secret}}}\n"
        ),
    ] {
        let found = errors(&text);
        assert!(
            !found.is_empty() && !found.concat().contains(secret),
            "{text}\n{found:#?}"
        );
    }
}
