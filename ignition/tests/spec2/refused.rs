//! What is refused, and what is ignored, with its place.

use ignition::Kind;
use serde_json::{Value, json};

use super::{config, file, found, merge};

/// Each row: version, config, the path of an error and a part of its message.
fn refused(rows: &[(&str, Value, &str, &str)]) {
    for (version, rest, path, why) in rows {
        let text = config(version, rest);
        let errors = found(&text, Kind::Error);
        let wanted = |(place, what): &(String, String)| place == path && what.contains(why);
        assert!(errors.iter().any(wanted), "{text}: {errors:?}");
    }
}

fn fs(rest: &Value) -> Value {
    let files = json!([{ "filesystem": "a", "path": "/x", "mode": 420 }]);
    json!({ "storage": { "filesystems": [rest], "files": files } })
}

fn mount(rest: &Value) -> Value {
    let mut mount = json!({ "device": "/dev/d", "format": "ext4" });
    merge(&mut mount, rest);
    fs(&json!({ "name": "a", "mount": mount }))
}

fn partition(rest: &Value) -> Value {
    json!({ "storage": { "disks": [{ "device": "/dev/d", "partitions": [rest] }] } })
}

#[test]
fn disks_that_cannot_be_translated_are_refused_with_their_places() {
    refused(&[
        (
            "2.0.0",
            partition(&json!({ "number": 1, "size": 2048 })),
            "$.storage.disks.0.partitions.0.size",
            "write sizeMiB",
        ),
        (
            "2.3.0",
            partition(&json!({ "number": 1, "start": 1 })),
            "$.storage.disks.0.partitions.0.start",
            "write startMiB",
        ),
        (
            "2.3.0",
            partition(&json!({})),
            "$.storage.disks.0.partitions.0",
            "number",
        ),
        (
            "2.0.0",
            mount(&json!({ "create": { "force": false } })),
            "$.storage.filesystems.0.mount.create",
            "\"force\": true",
        ),
        (
            "2.1.0",
            mount(&json!({ "create": { "force": true }, "wipeFilesystem": true })),
            "$.storage.filesystems.0.mount.wipeFilesystem",
            "without create",
        ),
        (
            "2.1.0",
            mount(&json!({ "create": { "force": true }, "options": ["-F"] })),
            "$.storage.filesystems.0.mount.options",
            "without create",
        ),
        (
            "2.3.0",
            mount(&json!({ "format": "zfs" })),
            "$.storage.filesystems.0.mount.format",
            "format",
        ),
        (
            "2.3.0",
            mount(&json!({ "device": "d" })),
            "$.storage.filesystems.0.mount.device",
            "not absolute",
        ),
        (
            "2.3.0",
            fs(&json!({ "name": "a", "path": "/run/x" })),
            "$.storage.files.0.filesystem",
            "folder of the initrd",
        ),
        (
            "2.3.0",
            fs(&json!({ "name": "b", "path": "/sysroot" })),
            "$.storage.files.0.filesystem",
            "found \"a\"",
        ),
        (
            "2.3.0",
            fs(&json!({ "name": "a" })),
            "$.storage.filesystems.0",
            "mount or path",
        ),
        (
            "2.3.0",
            fs(
                &json!({ "name": "a", "path": "/x", "mount": { "device": "/dev/d", "format": "xfs" } }),
            ),
            "$.storage.filesystems.0.path",
            "both",
        ),
    ]);
}

#[test]
fn what_cannot_be_translated_is_refused_with_its_place() {
    refused(&[
        (
            "2.3.0",
            file(&json!({ "filesystem": "" })),
            "$.storage.files.0.filesystem",
            "found no file system",
        ),
        (
            "2.3.0",
            file(&json!({ "path": "a" })),
            "$.storage.files.0.path",
            "not absolute",
        ),
        (
            "2.3.0",
            file(&json!({ "contents": { "source": "oem:///x" } })),
            "$.storage.files.0.contents.source",
            "scheme",
        ),
        (
            "2.3.0",
            file(&json!({ "mode": "0644" })),
            "$.storage.files.0.mode",
            "expected a whole number",
        ),
        (
            "2.3.0",
            json!({ "passwd": { "users": [{ "name": "u", "shell": "/s", "create": {} }] } }),
            "$.passwd.users.0.shell",
            "create",
        ),
        (
            "2.3.0",
            json!({ "networkd": { "units": [{ "name": "a.conf", "contents": "x" }] } }),
            "$.networkd.units.0.name",
            ".network",
        ),
        (
            "2.3.0",
            json!({ "systemd": { "units": [{ "name": "a" }] } }),
            "$.systemd.units.0.name",
            "extension",
        ),
        (
            "2.3.0",
            json!({ "ignition": { "config": { "append": [{ "source": "x:y" }] } } }),
            "$.ignition.config.append.0.source",
            "scheme",
        ),
        (
            "2.3.0",
            json!({ "storage": {
            "links": [{ "filesystem": "root", "path": "/l", "target": "/t" }],
            "files": [{ "filesystem": "root", "path": "/l/x", "mode": 420 }] } }),
            "$.storage.files.0",
            "includes link",
        ),
    ]);
}

#[test]
fn findings_have_the_lines_of_the_text() {
    let text = "{\"ignition\": {\"version\": \"2.3.0\"},\n \"storage\": {\"files\": [\n  {\"filesystem\": \"root\", \"path\": \"/a\", \"mode\": 420},\n  {\"filesystem\": \"x\", \"path\": \"/b\", \"mode\": 420}]},\n \"extra\": 1}";
    let errors = found(text, Kind::Error);
    assert_eq!(errors[0].0, "$.storage.files.1.filesystem");
    assert!(errors[0].1.starts_with("4:18 "), "{errors:?}");
    assert_eq!(
        found(text, Kind::Warning),
        [("$.extra".to_owned(), "5:2 unused key extra".to_owned())]
    );
}

#[test]
fn fields_of_a_later_version_are_unused_keys() {
    for (version, rest, path) in [
        (
            "2.0.0",
            json!({ "systemd": { "units": [{ "name": "a.service", "enabled": true }] } }),
            "$.systemd.units.0.enabled",
        ),
        (
            "2.0.0",
            json!({ "storage": { "links": [] } }),
            "$.storage.links",
        ),
        (
            "2.1.0",
            file(&json!({ "append": true })),
            "$.storage.files.0.append",
        ),
        (
            "2.2.0",
            json!({ "storage": { "disks": [{ "device": "/dev/d", "partitions": [{ "number": 1, "sizeMiB": 1 }] }] } }),
            "$.storage.disks.0.partitions.0.sizeMiB",
        ),
        (
            "2.3.0",
            json!({ "ignition": { "proxy": {} } }),
            "$.ignition.proxy",
        ),
    ] {
        let warned = found(&config(version, &rest), Kind::Warning);
        assert!(
            warned
                .iter()
                .any(|(place, what)| place == path && what.contains("unused key")),
            "{version}: {warned:?}"
        );
    }
}

#[test]
fn versions_that_are_not_known_are_refused() {
    for version in ["2.5.0", "2.4.0-experimental", "2.3", "1.0.0", "2.3.1"] {
        let errors = found(&config(version, &json!({})), Kind::Error);
        assert_eq!(errors[0].0, "$.ignition.version");
        assert!(errors[0].1.contains("or 2.0.0 to 2.4.0"), "{errors:?}");
    }
}
