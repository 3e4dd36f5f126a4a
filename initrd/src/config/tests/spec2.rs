//! Cluster API's data, a config of specification 2.3, by every way that its providers deliver it.

use super::*;

/// As the kubeadm provider writes it.
const KUBEADM: &str = include_str!("../../../../ignition/tests/data/kubeadm-2.3.json");
/// The query of a presigned URL.
const PRESIGNED: &str =
    "/bucket/node?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Expires=900&X-Amz-Signature=0a1b";
/// The credentials of the instance's role.
const KEYS: &str = r#"{"Code":"Success","LastUpdated":"2026-01-01T00:00:00Z","Type":"AWS-HMAC",
    "AccessKeyId":"ASIAEXAMPLE","SecretAccessKey":"SECRET","Token":"SESSION","Expiration":"2199-01-01T00:00:00Z"}"#;

/// The data in both forms of an enabled unit.
fn forms() -> [String; 2] {
    let older = KUBEADM.replace("\"enabled\":true", "\"enable\":true");
    assert_ne!(older, KUBEADM);
    [KUBEADM.to_owned(), older]
}

/// S3 and EC2's metadata service: the object is for signed requests and for those with the presigned query.
fn aws(data: String) -> Server {
    serve(Box::new(move |_, path, stream| {
        let answer = match path {
            "/latest/api/token" => "IMDS",
            "/latest/meta-data/placement/region" => "eu-west-1",
            "/latest/meta-data/iam/security-credentials/" => "node-role",
            "/latest/meta-data/iam/security-credentials/node-role" => KEYS,
            "/bucket" => "",
            "/bucket/node" | PRESIGNED | "/plain" => data.as_str(),
            _ => return reply(stream, "404 Not Found", b""),
        };
        reply(stream, "200 OK", answer.as_bytes());
    }))
}

fn settings_of(server: &Server) -> Settings {
    Settings {
        endpoints: fetch::Endpoints {
            ec2: server.base.clone(),
            s3: Some(server.base.clone()),
            ..fetch::Endpoints::default()
        },
        ..settings()
    }
}

fn assert_kubeadm(fetched: &Fetched, how: &str) {
    let storage = fetched.model.storage.as_ref().unwrap();
    let files = storage.files.as_deref().unwrap();
    let file = |path: &str| {
        let found = files.iter().position(|file| file.path == path);
        let i = found.unwrap_or_else(|| panic!("{how}: {path}"));
        let content = fetched.files[i].contents.as_ref();
        (files[i].mode, content.and_then(Content::in_memory).unwrap())
    };
    let (mode, script) = file("/etc/kubeadm.sh");
    assert!(script.starts_with(b"#!/bin/bash\n"), "{how}");
    assert_eq!(mode, Some(0o700), "{how}");
    let (mode, yml) = file("/etc/kubeadm.yml");
    assert!(yml.starts_with(b"---\napiVersion: kubeadm"), "{how}");
    assert_eq!(mode, Some(0o600), "{how}");
    let units = fetched.model.systemd.as_ref().unwrap().units.as_deref();
    let named = |unit: &&ignition::model::Unit| unit.name == "kubeadm.service";
    let found: Vec<_> = units.unwrap().iter().filter(named).collect();
    assert_eq!(found.len(), 1, "{how}");
    assert_eq!(found[0].enabled, Some(true), "{how}");
    assert!(found[0].contents.as_ref().unwrap().contains("oneshot"));
}

#[test]
fn the_kubeadm_providers_data_comes_by_every_way() {
    for data in forms() {
        let server = aws(data.clone());
        let settings = settings_of(&server);
        let base = &server.base;
        let stub = |version: &str, word: &str, url: &str| {
            format!(
                r#"{{"ignition": {{"version": "{version}", "config": {{"{word}": [{{"source": "{url}"}}]}}}}}}"#
            )
        };
        let replaced = format!(
            r#"{{"ignition": {{"version": "3.4.0", "config": {{"replace": {{"source": "{base}/plain"}}}}}}}}"#
        );
        for (how, text) in [
            ("raw", data.clone()),
            (
                "2.3 append",
                stub("2.3.0", "append", &format!("{base}/plain")),
            ),
            (
                "2.3 append, signed",
                stub("2.3.0", "append", "s3://bucket/node"),
            ),
            (
                "3.4 merge, signed",
                stub("3.4.0", "merge", "s3://bucket/node"),
            ),
            (
                "3.4 merge, presigned",
                stub("3.4.0", "merge", &format!("{base}{PRESIGNED}")),
            ),
            ("3.4 replace", replaced),
        ] {
            server.log.lock().unwrap().clear();
            let user = Some(text_of(how, &text));
            let fetched = gathered_with(&settings, Metadata::default(), None, user);
            assert_kubeadm(&fetched.unwrap_or_else(|why| panic!("{how}: {why}")), how);
            let log = server.log.lock().unwrap();
            let of_object = |path: &str| path.starts_with("/bucket/node") || path == "/plain";
            let heads: Vec<_> = log.iter().filter(|(path, _)| of_object(path)).collect();
            assert_eq!(heads.len(), usize::from(how != "raw"), "{how}: {log:?}");
            let signed = "authorization: aws4-hmac-sha256 credential=asiaexample/";
            for (_, head) in heads {
                let is_signed = head.to_lowercase().contains(signed);
                assert_eq!(is_signed, how.ends_with(", signed"), "{how}: {head}");
            }
        }
    }
}

#[test]
fn a_parent_of_specification_2_takes_a_child_of_3() {
    let server = aws(file("/child", r#"{"source": "data:,c"}"#));
    let text = KUBEADM.replace(
        "\"config\":{}",
        &format!(
            r#""config":{{"append":[{{"source":"{}/plain"}}]}}"#,
            server.base
        ),
    );
    let fetched = gathered(None, Some(text_of("user", &text))).unwrap();
    assert_kubeadm(&fetched, "parent");
    let files = fetched.model.storage.as_ref().unwrap().files.as_deref();
    assert_eq!(files.unwrap().last().unwrap().path, "/child");
}

#[test]
fn what_cannot_be_translated_is_refused_with_the_source_and_the_place() {
    let bad = r#"{"ignition": {"version": "2.3.0"},
        "storage": {"files": [{"filesystem": "oem", "path": "/grub.cfg", "mode": 420}]}}"#;
    let server = aws(bad.to_owned());
    let text = format!(
        r#"{{"ignition": {{"version": "3.4.0", "config": {{"merge": [{{"source": "{}/plain"}}]}}}}}}"#,
        server.base
    );
    let why = gathered(None, Some(text_of("user", &text))).unwrap_err();
    let said = why.to_string();
    for part in [
        "$.ignition.config.merge.0 (",
        "/plain):2:",
        "$.storage.files.0.filesystem",
        "found \"oem\"",
    ] {
        assert!(said.contains(part), "{said}");
    }
}
