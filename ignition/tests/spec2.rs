//! Configs of specification 2: each field's translation, what is refused with its place, and the data of Cluster API's
//! kubeadm provider.
//!
//! The expected configs are written by hand, from the specifications 2.0 to 2.4 and the behaviour of Flatcar's
//! Ignition, which translates them.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(
    clippy::disallowed_methods,
    reason = "the provider's script is run by its own shell"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use ignition::{Config, Kind};
use serde_json::{Value, json};

#[path = "spec2/refused.rs"]
mod refused;
#[path = "spec2/storage.rs"]
mod storage;

/// The provider's data, with the unit's `enabled`.
const KUBEADM: &str = include_str!("data/kubeadm-2.3.json");

fn config(version: &str, rest: &Value) -> String {
    let mut all = json!({ "ignition": { "version": version } });
    merge(&mut all, rest);
    all.to_string()
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

/// The translated config without what is empty in it, and without its version.
fn translated(text: &str) -> Value {
    let (config, _) = Config::parse(text.as_bytes(), "t").unwrap_or_else(|report| {
        panic!("{text}: {report}");
    });
    let mut json = config.to_json();
    assert_eq!(json["ignition"]["version"], "3.7.0-experimental");
    json["ignition"].as_object_mut().unwrap().remove("version");
    strip(&mut json);
    json
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(strip);
            fields.retain(|_, value| !matches!(value, Value::Object(fields) if fields.is_empty()));
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

/// The findings of one kind: path, line, column and message.
fn found(text: &str, kind: Kind) -> Vec<(String, String)> {
    let report = match Config::parse(text.as_bytes(), "t") {
        Ok((_, report)) | Err(report) => report,
    };
    let entries = report
        .entries
        .into_iter()
        .filter(|entry| entry.kind == kind);
    entries
        .map(|entry| {
            let at = entry.at.expect("every finding has a position");
            (
                entry.path,
                format!("{}:{} {}", at.line, at.column, entry.message),
            )
        })
        .collect()
}

fn file(rest: &Value) -> Value {
    let mut file = json!({ "filesystem": "root", "path": "/a", "mode": 384 });
    merge(&mut file, rest);
    json!({ "storage": { "files": [file] } })
}

#[test]
fn every_field_of_the_section_ignition_is_translated() {
    let hash = format!("sha512-{}", "0".repeat(128));
    let reference = |url: &str| json!({ "source": url, "verification": { "hash": hash } });
    for (version, old, new) in [
        (
            "2.0.0",
            json!({ "config": { "append": [reference("http://a/b"), { "source": "s3://b/c" }] } }),
            json!({ "config": { "merge": [reference("http://a/b"), { "source": "s3://b/c" }] } }),
        ),
        (
            "2.0.0",
            json!({ "config": { "replace": reference("https://a/b") } }),
            json!({ "config": { "replace": reference("https://a/b") } }),
        ),
        (
            "2.1.0",
            json!({ "timeouts": { "httpResponseHeaders": 20, "httpTotal": 0 } }),
            json!({ "timeouts": { "httpResponseHeaders": 20, "httpTotal": 0 } }),
        ),
        (
            "2.2.0",
            json!({ "security": { "tls": { "certificateAuthorities": [reference("data:,x")] } } }),
            json!({ "security": { "tls": { "certificateAuthorities": [reference("data:,x")] } } }),
        ),
        (
            "2.4.0",
            json!({ "proxy": { "httpProxy": "http://p", "httpsProxy": "", "noProxy": ["a", "b", "a"] } }),
            json!({ "proxy": { "httpProxy": "http://p", "noProxy": ["a", "b"] } }),
        ),
        (
            "2.4.0",
            json!({ "config": { "append": [{ "source": "http://a", "httpHeaders": [
                { "name": "A", "value": "x" }, { "name": "B", "value": "" }] }] } }),
            json!({ "config": { "merge": [{ "source": "http://a", "httpHeaders": [
                { "name": "A", "value": "x" }, { "name": "B" }] }] } }),
        ),
        (
            "2.3.0",
            json!({ "config": {}, "timeouts": {}, "security": { "tls": {} } }),
            json!({}),
        ),
    ] {
        let text = config(version, &json!({ "ignition": old }));
        let found = translated(&text);
        let found = found.get("ignition").cloned().unwrap_or(json!({}));
        assert_eq!(found, new, "{text}");
    }
}

#[test]
fn every_field_of_users_and_groups_is_translated() {
    let account = json!({ "uid": 0, "gecos": "G", "homeDir": "/h", "noCreateHome": true, "primaryGroup": "p",
        "groups": ["a", "b", "a"], "noUserGroup": true, "noLogInit": true, "shell": "/s", "system": true });
    let mut flat = json!({ "name": "u", "passwordHash": "x", "sshAuthorizedKeys": ["k", "k"] });
    let mut nested = flat.clone();
    merge(&mut flat, &account);
    merge(&mut nested, &json!({ "create": account }));
    let mut new = flat.clone();
    new["groups"] = json!(["a", "b"]);
    new["sshAuthorizedKeys"] = json!(["k"]);
    for (version, user) in [("2.0.0", &nested), ("2.3.0", &nested), ("2.1.0", &flat)] {
        let text = config(version, &json!({ "passwd": { "users": [user] } }));
        assert_eq!(
            translated(&text)["passwd"],
            json!({ "users": [new] }),
            "{text}"
        );
    }
    // What Go writes for an absent value is absent.
    let text = config(
        "2.3.0",
        &json!({ "passwd": { "users": [
        { "name": "u", "gecos": "", "noCreateHome": false, "shell": "", "system": false }] } }),
    );
    assert_eq!(
        translated(&text)["passwd"],
        json!({ "users": [{ "name": "u" }] })
    );
    let text = config(
        "2.0.0",
        &json!({ "passwd": { "groups": [
        { "name": "g", "gid": 7, "passwordHash": "h", "system": true }, { "name": "e", "passwordHash": "" }] } }),
    );
    assert_eq!(
        translated(&text)["passwd"],
        json!({ "groups": [{ "name": "g", "gid": 7, "passwordHash": "h", "system": true }, { "name": "e" }] })
    );
}

#[test]
fn both_forms_of_an_enabled_unit_are_translated() {
    let install = "[Install]\nWantedBy=a.target\n";
    for (version, old, enabled) in [
        ("2.0.0", json!({ "enable": true }), json!(true)),
        ("2.3.0", json!({ "enable": true }), json!(true)),
        ("2.3.0", json!({ "enabled": true }), json!(true)),
        ("2.3.0", json!({ "enabled": false }), json!(false)),
        (
            "2.3.0",
            json!({ "enable": true, "enabled": false }),
            json!(false),
        ),
        (
            "2.3.0",
            json!({ "enable": false, "enabled": true }),
            json!(true),
        ),
        ("2.3.0", json!({ "enable": false }), Value::Null),
        ("2.3.0", json!({}), Value::Null),
    ] {
        let mut unit = json!({ "name": "a.service", "contents": install, "mask": false });
        merge(&mut unit, &old);
        let text = config(version, &json!({ "systemd": { "units": [unit] } }));
        let unit = &translated(&text)["systemd"]["units"][0];
        assert_eq!(unit["enabled"], enabled, "{text}");
        assert!(
            unit.get("mask").is_none() && unit.get("enable").is_none(),
            "{unit}"
        );
    }
    let text = config(
        "2.1.0",
        &json!({ "systemd": { "units": [{ "name": "a.service", "mask": true, "contents": "",
        "dropins": [{ "name": "x.conf", "contents": "[Unit]\n" }, { "name": "y.conf" }] }] } }),
    );
    assert_eq!(
        translated(&text)["systemd"],
        json!({ "units": [{ "name": "a.service", "mask": true,
            "dropins": [{ "name": "x.conf", "contents": "[Unit]\n" }, { "name": "y.conf" }] }] })
    );
}

/// As the provider writes it: with the drop-in of its additional config as a second entry of the same unit.
#[test]
fn the_kubeadm_providers_data_is_translated() {
    let older = KUBEADM.replace("\"enabled\":true", "\"enable\":true");
    assert_ne!(older, KUBEADM);
    for text in [KUBEADM, &older] {
        let (config, report) = Config::parse(text.as_bytes(), "t").unwrap();
        assert!(report.entries.is_empty(), "{report}");
        let json = config.to_json();
        let files = json["storage"]["files"].as_array().unwrap();
        let modes: Vec<_> = files
            .iter()
            .map(|file| {
                (
                    file["path"].as_str().unwrap(),
                    file["mode"].as_i64().unwrap(),
                )
            })
            .collect();
        assert_eq!(
            modes,
            [
                ("/etc/sudoers.d/core", 0o600),
                ("/etc/kubeadm.sh", 0o700),
                ("/etc/kubeadm.yml", 0o600)
            ]
        );
        assert!(files.iter().all(|file| file["overwrite"] == true));
        let units = json["systemd"]["units"].as_array().unwrap();
        assert_eq!(units.len(), 2);
        assert_eq!(
            (&units[0]["name"], &units[0]["enabled"]),
            (&json!("kubeadm.service"), &json!(true))
        );
        assert!(
            units[0]["contents"]
                .as_str()
                .unwrap()
                .contains("ExecStart=/etc/kubeadm.sh")
        );
        assert_eq!(units[0]["dropins"][0]["name"], "10-flatcar.conf");
        assert_eq!(units[1]["name"], "var-lib-data.mount");
        assert_eq!(json["storage"]["filesystems"][0]["label"], "data");
        assert!(json["storage"]["filesystems"][0].get("path").is_none());
        assert_eq!(
            json["passwd"]["users"][0]["groups"],
            json!(["wheel", "docker"])
        );
    }
}

/// The provider's own script, as the node has it, run by the shell that it names, below another root and with a stub in
/// kubeadm's place.
#[test]
fn the_kubeadm_providers_script_leaves_its_sentinel_on_success_only() {
    let (config, _) = Config::parse(KUBEADM.as_bytes(), "t").unwrap();
    let json = config.to_json();
    let files = json["storage"]["files"].as_array().unwrap();
    let content = |path: &str| {
        let file = files.iter().find(|file| file["path"] == path).unwrap();
        let source = file["contents"]["source"].as_str().unwrap();
        let text = percent_encoding::percent_decode_str(source.strip_prefix("data:,").unwrap());
        text.decode_utf8().unwrap().into_owned()
    };
    for (kubeadm, succeeds) in [("exit 0", true), ("exit 1", false)] {
        let root = tempfile::tempdir().unwrap();
        let below = |path: &str| root.path().join(path);
        for folder in ["etc", "run", "tmp", "bin"] {
            fs::create_dir(below(folder)).unwrap();
        }
        let at = |text: &str| {
            let prefix = format!(" {}/", root.path().display());
            text.replace(" /", &prefix)
        };
        let program = |path: &str, text: &str| {
            fs::write(below(path), text).unwrap();
            fs::set_permissions(below(path), fs::Permissions::from_mode(0o700)).unwrap();
        };
        program("etc/kubeadm.sh", &at(&content("/etc/kubeadm.sh")));
        fs::write(below("etc/kubeadm.yml"), content("/etc/kubeadm.yml")).unwrap();
        let stub = format!(
            "#!/bin/sh\necho \"$*\" >>{}\n{kubeadm}\n",
            below("calls").display()
        );
        program("bin/kubeadm", &stub);
        let path = format!("{}:/usr/bin:/bin", below("bin").display());
        let script = Command::new(below("etc/kubeadm.sh"))
            .env("PATH", path)
            .output();
        assert_eq!(script.unwrap().status.success(), succeeds);
        let calls = fs::read_to_string(below("calls")).unwrap();
        let expected = format!("join --config {}\n", below("etc/kubeadm.yml").display());
        assert_eq!(calls, expected);
        let sentinel = below("run/cluster-api/bootstrap-success.complete");
        assert_eq!(sentinel.exists(), succeeds);
        // The unit's condition: it is not run again once it has succeeded.
        assert_eq!(below("etc/kubeadm.yml").exists(), !succeeds);
    }
}

#[test]
fn a_parent_of_either_specification_takes_a_child_of_the_other() {
    let three = r#"{"ignition": {"version": "3.4.0"}, "storage": {"files": [{"path": "/etc/kubeadm.yml", "mode": 420},
        {"path": "/own"}]}, "systemd": {"units": [{"name": "kubeadm.service", "enabled": false}]}}"#;
    let read = |text: &str| Config::parse(text.as_bytes(), "t").unwrap().0;
    let (three, two) = (read(three), read(KUBEADM));
    let json = three.merge(&two).unwrap().0.to_json();
    assert_eq!(json["systemd"]["units"][0]["enabled"], true);
    assert_eq!(json["storage"]["files"][0]["mode"], 0o600);
    assert_eq!(json["storage"]["files"][1]["path"], "/own");
    let json = two.merge(&three).unwrap().0.to_json();
    assert_eq!(json["systemd"]["units"][0]["enabled"], false);
    assert_eq!(json["storage"]["files"][2]["mode"], 420);
}
