//! The command against an API server on loopback.

use std::path::Path;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use cluster::objects::upload;
use serde_json::Value;

use super::*;
use crate::control_plane;
use crate::samples::{Request, machine, put, server};

const OBJECT: &str =
    "name = \"blue\"\nendpoint = \"api.example.test\"\n[node]\naddress = \"10.0.0.7\"\n";
const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// An API server without an upload, with these tokens.
fn plane(tokens: Vec<Value>) -> (Api, Receiver<Request>) {
    let (url, requests) = server(move |request| {
        let (method, path) = request.line.split_once(' ').unwrap();
        match (method, path) {
            ("GET", path) if path.ends_with(TOKENS) => (200, json!({"items": tokens}).to_string()),
            ("GET", _) => (404, "{\"message\": \"not found\"}".to_owned()),
            ("POST", _) => {
                let mut object: Value = serde_json::from_str(&request.body).unwrap();
                object["metadata"]["uid"] = "1".into();
                (201, object.to_string())
            }
            _ => (200, "{}".to_owned()),
        }
    });
    (Api::plain(&url).unwrap(), requests)
}

/// The secret of a bootstrap token by which nodes join, until this time.
fn token(id: &str, end: &str) -> Value {
    let text = format!("{id}.0123456789abcdef");
    let mut secret = upload::owner(&Token::parse(&text).unwrap(), end);
    for (name, text) in [
        ("usage-bootstrap-authentication", "true"),
        ("usage-bootstrap-signing", "true"),
        (
            "auth-extra-groups",
            "system:bootstrappers:kubeadm:default-node-token",
        ),
    ] {
        secret["data"][name] = data_encoding::BASE64.encode(text.as_bytes()).into();
    }
    secret
}

fn node(root: &Path) -> (World, Bootstrap) {
    let world = machine(root, OBJECT);
    let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
    control_plane::prepare(&world, &bootstrap, |_| Ok(())).unwrap();
    (world, bootstrap)
}

fn now(world: &World) -> Reading {
    let wall = cluster::duration::time("2026-11-23T18:00:00Z").unwrap();
    Reading::at(world, wall)
}

#[test]
fn what_is_printed_is_the_object_of_a_further_control_plane() {
    let folder = tempfile::tempdir().unwrap();
    let (world, bootstrap) = node(folder.path());
    let (api, _requests) = plane(vec![
        token("aaaaaa", "2026-11-23T17:00:00Z"),
        token("bbbbbb", "2026-11-24T17:00:00Z"),
        token("cccccc", "2026-11-23T19:00:00Z"),
    ]);
    let options = Options::read(&["--certificate-key", KEY]).unwrap();
    let said = run(&world, &api, &bootstrap, &options, &now(&world)).unwrap();
    assert!(
        said.contains("until 2026-11-23T20:00:00Z, sealed"),
        "{said}"
    );
    let other = tempfile::tempdir().unwrap();
    let object = format!("name = \"blue\"\n{said}[node]\naddress = \"10.0.0.8\"\n");
    let joins = machine(other.path(), &object);
    let joins = object::read(&joins, Duration::ZERO)
        .unwrap()
        .unwrap()
        .object;
    assert_eq!(
        joins.config.control_plane_url(),
        bootstrap.object.config.control_plane_url()
    );
    let (join, key) = joins.further.unwrap().fetched.unwrap();
    assert_eq!((join.token.id(), key.text().as_str()), ("bbbbbb", KEY));
    let authority = std::fs::read_to_string(world.in_initrd("/etc/kubernetes/pki/ca.crt")).unwrap();
    assert_eq!(join.pins, [Pin::of_pem(&authority).unwrap()]);
}

#[test]
fn a_new_key_is_made_for_each_upload_and_programs_read_json() {
    let folder = tempfile::tempdir().unwrap();
    let (world, bootstrap) = node(folder.path());
    let (api, _requests) = plane(Vec::new());
    let options = Options::read(&["--json"]).unwrap();
    let mut keys = Vec::new();
    for _ in 0..2 {
        let said = run(&world, &api, &bootstrap, &options, &now(&world)).unwrap();
        let value: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(value["token"], Value::Null);
        assert_eq!(value["endpoint"], "api.example.test:6443");
        keys.push(value["certificateKey"].as_str().unwrap().to_owned());
    }
    assert!(CertificateKey::parse(&keys[0]).is_some());
    assert_ne!(keys[0], keys[1]);
    let said = run(&world, &api, &bootstrap, &Options::default(), &now(&world)).unwrap();
    assert!(said.contains("# token: the cluster has none"), "{said}");
}

#[test]
fn a_dry_run_asks_only_and_a_wrong_key_asks_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (world, bootstrap) = node(folder.path());
    let (api, requests) = plane(Vec::new());
    let options = Options::read(&["--dry-run"]).unwrap();
    let said = run(&world, &api, &bootstrap, &options, &now(&world)).unwrap();
    assert!(
        said.contains("/kubeadm-certs would be made, with ca.crt, ca.key"),
        "{said}"
    );
    let asked: Vec<Request> = requests.try_iter().collect();
    assert_eq!(asked.len(), 2);
    assert!(asked.iter().all(|request| request.line.starts_with("GET ")));
    let options = Options::read(&["--certificate-key", "0102zz"]).unwrap();
    let error = run(&world, &api, &bootstrap, &options, &now(&world)).unwrap_err();
    let error = format!("{error:#}");
    assert!(
        error.contains("64 hexadecimal digits") && !error.contains("zz"),
        "{error}"
    );
    assert_eq!(requests.try_iter().count(), 0);
    for wrong in [&["--certificate-key"][..], &["--key", KEY], &[KEY]] {
        assert_eq!(Options::read(wrong), None);
    }
    // A worker has none of the keys.
    put(
        &world.in_run(image::paths::RUN_ETCD_GATE),
        "{\"required\": false}",
    );
    let join = format!(
        "{OBJECT}[join]\ntoken = \"abcdef.0123456789abcdef\"\nca-hashes = [\"sha256:{KEY}\"]\n"
    );
    put(&world.in_initrd(image::paths::CLUSTER), &join);
    let error = upload(&world, &Options::default()).unwrap_err();
    assert!(
        format!("{error:#}").contains("this node is a worker"),
        "{error:#}"
    );
}
