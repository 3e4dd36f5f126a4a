//! Files, directories, links, file systems, disks and arrays.

use ignition::Kind;
use serde_json::{Value, json};

use super::{config, file, found, merge, translated};

#[test]
fn files_are_overwritten_or_appended_to() {
    for (version, old, new) in [
        (
            "2.3.0",
            json!({ "contents": { "source": "data:,x", "compression": "", "verification": {} } }),
            json!({ "overwrite": true, "contents": { "source": "data:,x" } }),
        ),
        (
            "2.3.0",
            json!({ "contents": { "source": "data:,x", "compression": "gzip" }, "overwrite": false }),
            json!({ "overwrite": false, "contents": { "source": "data:,x", "compression": "gzip" } }),
        ),
        // Without contents it is made empty.
        (
            "2.0.0",
            json!({}),
            json!({ "overwrite": true, "contents": { "source": "" } }),
        ),
        (
            "2.2.0",
            json!({ "append": true, "contents": { "source": "data:,x" } }),
            json!({ "overwrite": false, "append": [{ "source": "data:,x" }] }),
        ),
        (
            "2.1.0",
            json!({ "user": { "id": 0, "name": "" }, "group": { "name": "g" } }),
            json!({ "overwrite": true, "contents": { "source": "" }, "user": { "id": 0 }, "group": { "name": "g" } }),
        ),
        // The special bits had no effect.
        (
            "2.3.0",
            json!({ "mode": 0o4755 }),
            json!({ "mode": 0o755, "overwrite": true, "contents": { "source": "" } }),
        ),
        (
            "2.3.0",
            json!({ "path": "/a/../b//c" }),
            json!({ "path": "/b/c", "overwrite": true, "contents": { "source": "" } }),
        ),
    ] {
        let mut wanted = json!({ "path": "/a", "mode": 384 });
        merge(&mut wanted, &new);
        let text = config(version, &file(&old));
        assert_eq!(
            translated(&text)["storage"]["files"],
            json!([wanted]),
            "{text}"
        );
    }
}

#[test]
fn a_mode_that_is_not_given_is_zero_until_2_1_and_the_default_later() {
    for (version, mode) in [
        ("2.0.0", json!(0)),
        ("2.1.0", json!(0)),
        ("2.2.0", Value::Null),
        ("2.4.0", Value::Null),
    ] {
        let text = config(
            version,
            &json!({ "storage": { "files": [{ "filesystem": "root", "path": "/a" }] } }),
        );
        assert_eq!(
            translated(&text)["storage"]["files"][0]["mode"],
            mode,
            "{version}"
        );
        let warned = found(&text, Kind::Warning);
        assert_eq!(warned[0].0, "$.storage.files.0.mode", "{warned:?}");
    }
}

#[test]
fn files_with_one_path_become_one() {
    let files = |files: Value| config("2.3.0", &json!({ "storage": { "files": files } }));
    let at = |rest: Value| {
        let mut file = json!({ "filesystem": "root", "path": "/a" });
        merge(&mut file, &rest);
        file
    };
    let one = json!({ "mode": 384, "contents": { "source": "data:,1" } });
    let text = files(json!([
        at(one.clone()),
        at(json!({ "append": true, "mode": 384, "contents": { "source": "data:,2" } })),
        at(json!({ "append": true, "contents": { "source": "data:,3" } })),
    ]));
    assert_eq!(
        translated(&text)["storage"]["files"],
        json!([{ "path": "/a", "mode": 384, "overwrite": true, "contents": { "source": "data:,1" },
            "append": [{ "source": "data:,2" }, { "source": "data:,3" }] }])
    );
    // The later takes the place of the earlier, as a whole.
    let text = files(json!([
        at(one.clone()),
        at(json!({ "contents": { "source": "data:,2" } }))
    ]));
    assert_eq!(
        translated(&text)["storage"]["files"],
        json!([{ "path": "/a", "overwrite": true, "contents": { "source": "data:,2" } }])
    );
    let warned = found(&text, Kind::Warning);
    assert!(
        warned
            .iter()
            .any(|(path, what)| path == "$.storage.files.1.path"
                && what.contains("$.storage.files.0"))
    );
    for (later, path) in [
        (json!({ "overwrite": false }), "$.storage.files.1.path"),
        (
            json!({ "append": true, "mode": 420 }),
            "$.storage.files.1.mode",
        ),
        (
            json!({ "append": true, "overwrite": true }),
            "$.storage.files.1.overwrite",
        ),
        (
            json!({ "append": true, "contents": { "source": "oem:///x" } }),
            "$.storage.files.1.contents.source",
        ),
    ] {
        let errors = found(&files(json!([at(one.clone()), at(later)])), Kind::Error);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert_eq!(errors[0].0, path, "{errors:?}");
    }
}

#[test]
fn directories_and_links_are_translated() {
    let text = config(
        "2.2.0",
        &json!({ "storage": {
        "directories": [{ "filesystem": "root", "path": "/d", "mode": 493, "overwrite": true, "user": { "name": "u" } }],
        "links": [{ "filesystem": "root", "path": "/l", "target": "/t", "hard": true, "overwrite": false },
            { "filesystem": "root", "path": "/m", "target": "t", "hard": false }],
    } }),
    );
    assert_eq!(
        translated(&text)["storage"],
        json!({
            "directories": [{ "path": "/d", "mode": 493, "overwrite": true, "user": { "name": "u" } }],
            "links": [{ "path": "/l", "target": "/t", "hard": true, "overwrite": false }, { "path": "/m", "target": "t" }],
        })
    );
}

#[test]
fn networkd_units_are_files() {
    let text = config(
        "2.2.0",
        &json!({ "networkd": { "units": [
        { "name": "00-a.network", "contents": "[Match]\nName=a b\n", "dropins": [{ "name": "x.conf", "contents": "[Link]\n" }] },
        { "name": "01-b.netdev", "contents": "" }] } }),
    );
    assert_eq!(
        translated(&text)["storage"]["files"],
        json!([
            { "path": "/etc/systemd/network/00-a.network", "mode": 420, "overwrite": true,
                "contents": { "source": "data:,%5BMatch%5D%0AName%3Da%20b%0A" } },
            { "path": "/etc/systemd/network/00-a.network.d/x.conf", "mode": 420, "overwrite": true,
                "contents": { "source": "data:,%5BLink%5D%0A" } },
        ])
    );
}

/// A file system of the config's, the files, the units, the translated file system, the first file's path.
type Row = (&'static str, Value, Value, Value, Value, &'static str);

fn assert_rows(rows: &[Row]) {
    for (version, filesystem, files, systemd, new, path) in rows {
        let storage = json!({ "filesystems": [filesystem], "files": files });
        let text = config(version, &json!({ "storage": storage, "systemd": systemd }));
        let storage = translated(&text)["storage"].clone();
        assert_eq!(storage["filesystems"][0], *new, "{text}");
        let found = storage["files"][0]["path"].as_str();
        assert_eq!(found.unwrap_or_default(), *path, "{text}");
    }
}

fn mount(rest: &Value) -> Value {
    let mut mount = json!({ "device": "/dev/d", "format": "ext4" });
    merge(&mut mount, rest);
    mount
}

fn in_it(name: &str) -> Value {
    json!([{ "filesystem": name, "path": "/x", "mode": 420 }])
}

#[test]
fn file_systems_that_are_made_are_translated() {
    assert_rows(&[
        // Nothing is written to it: it is made, and mounted nowhere.
        (
            "2.3.0",
            json!({ "name": "a", "mount": mount(&json!({ "wipeFilesystem": true, "label": "L", "options": ["-F", "-E"] })) }),
            json!([]),
            json!({}),
            json!({ "device": "/dev/d", "format": "ext4", "wipeFilesystem": true, "label": "L", "options": ["-F", "-E"] }),
            "",
        ),
        (
            "2.0.0",
            json!({ "mount": mount(&json!({ "create": { "force": true, "options": ["-L", "x"] } })) }),
            json!([]),
            json!({}),
            json!({ "device": "/dev/d", "format": "ext4", "wipeFilesystem": true, "options": ["-L", "x"] }),
            "",
        ),
        (
            "2.3.0",
            json!({ "name": "a", "mount": mount(&json!({ "wipeFilesystem": false, "uuid": "8A7A6E26-5E8F-4CCA-A654-46215D4696AC" })) }),
            in_it("a"),
            json!({}),
            json!({ "device": "/dev/d", "format": "ext4", "uuid": "8A7A6E26-5E8F-4CCA-A654-46215D4696AC", "path": "/var/tmp/ignition/a" }),
            "/var/tmp/ignition/a/x",
        ),
    ]);
}

#[test]
fn file_systems_are_known_by_their_names() {
    let unit = json!({ "units": [{ "name": "srv.mount", "contents": "[Mount]\nWhat=/dev/d\nWhere=/srv\n" }] });
    assert_rows(&[
        // A mount unit of the config for its device says where it is.
        (
            "2.3.0",
            json!({ "name": "a", "mount": mount(&json!({})) }),
            in_it("a"),
            unit.clone(),
            json!({ "device": "/dev/d", "format": "ext4", "path": "/srv" }),
            "/srv/x",
        ),
        (
            "2.3.0",
            json!({ "name": "root", "mount": mount(&json!({ "wipeFilesystem": true })) }),
            in_it("root"),
            json!({}),
            json!({ "device": "/dev/d", "format": "ext4", "wipeFilesystem": true, "path": "/" }),
            "/x",
        ),
        (
            "2.3.0",
            json!({ "name": "a", "path": "/sysroot" }),
            in_it("a"),
            json!({}),
            Value::Null,
            "/x",
        ),
        (
            "2.3.0",
            json!({ "name": "a", "path": "/sysroot/b/" }),
            in_it("a"),
            json!({}),
            Value::Null,
            "/b/x",
        ),
        (
            "2.3.0",
            json!({ "name": "root", "path": "/sysroot" }),
            in_it("root"),
            json!({}),
            Value::Null,
            "/x",
        ),
        // No file is in it, so that it says nothing.
        (
            "2.3.0",
            json!({ "name": "a", "path": "/run/x" }),
            json!([]),
            json!({}),
            Value::Null,
            "",
        ),
    ]);
}

#[test]
fn disks_and_arrays_are_translated() {
    let disk = |partitions: Value, wipe: bool| json!({ "disks": [{ "device": "/dev/d", "wipeTable": wipe, "partitions": partitions }] });
    for (version, old, new) in [
        (
            "2.3.0",
            disk(
                json!([{ "number": 1, "label": "A", "sizeMiB": 10, "startMiB": 0, "guid": "", "size": 0,
                "typeGuid": "0FC63DAF-8483-4772-8E79-3D69D8477DE4", "wipePartitionEntry": true }]),
                false,
            ),
            json!([{ "number": 1, "label": "A", "sizeMiB": 10, "startMiB": 0,
                "typeGuid": "0FC63DAF-8483-4772-8E79-3D69D8477DE4", "wipePartitionEntry": true }]),
        ),
        (
            "2.3.0",
            disk(
                json!([{ "number": 2, "shouldExist": false, "wipePartitionEntry": true }]),
                false,
            ),
            json!([{ "number": 2, "shouldExist": false, "wipePartitionEntry": true }]),
        ),
        (
            "2.0.0",
            disk(json!([{ "number": 1, "label": "" }]), false),
            json!([{ "number": 1 }]),
        ),
        // Cluster API's `layout`: the only partition of a wiped disk.
        ("2.3.0", disk(json!([{}]), true), json!([{ "number": 1 }])),
        (
            "2.3.0",
            disk(json!([{ "number": 1 }, {}]), true),
            json!([{ "number": 1 }, { "number": 2 }]),
        ),
    ] {
        let text = config(version, &json!({ "storage": old }));
        assert_eq!(
            translated(&text)["storage"]["disks"][0]["partitions"],
            new,
            "{text}"
        );
    }
    let raid = json!({ "name": "r", "level": "raid1", "devices": ["/dev/a", "/dev/b"], "spares": 0, "options": ["-v"] });
    let text = config("2.2.0", &json!({ "storage": { "raid": [raid] } }));
    let new = json!([{ "name": "r", "level": "raid1", "devices": ["/dev/a", "/dev/b"], "options": ["-v"] }]);
    assert_eq!(translated(&text)["storage"]["raid"], new);
}
