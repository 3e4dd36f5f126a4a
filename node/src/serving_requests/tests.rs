//! Requests that another library makes, at an API server on loopback that keeps them.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

use cluster::serving::SIGNER;
use data_encoding::BASE64;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

use super::*;
use crate::object::{self, Bootstrap};
use crate::samples::{CLOSED, Request, files, machine, server};

pub(crate) const OBJECT: &str = "name = \"blue\"\n[node]\nname = \"cp1\"\naddress = \"10.0.0.7\"\n[kubelet]\nconfig = { serverTLSBootstrap = true }\n";

/// What a kubelet of `node` posts as `name`, for these addresses.
pub(crate) fn request(name: &str, node: &str, addresses: &[&str]) -> Value {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let user = format!("system:node:{node}");
    let mut add = |kind, value: &str| params.distinguished_name.push(kind, value);
    add(DnType::OrganizationName, "system:nodes");
    add(DnType::CommonName, &user);
    let san = |text: &&str| match text.parse() {
        Ok(address) => SanType::IpAddress(address),
        Err(_) => SanType::DnsName((*text).try_into().unwrap()),
    };
    params.subject_alt_names = addresses.iter().map(san).collect();
    let key = KeyPair::generate().unwrap();
    let text = params.serialize_request(&key).unwrap().pem().unwrap();
    json!({
        "metadata": {"name": name, "resourceVersion": "1", "uid": name},
        "spec": {
            "request": BASE64.encode(text.as_bytes()),
            "signerName": SIGNER,
            "usages": ["digital signature", "server auth"],
            "username": user,
            "groups": ["system:nodes", "system:authenticated"],
        },
        "status": {},
    })
}

/// A Node as its kubelet registers it.
fn node(name: &str, address: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "status": {"addresses": [
            {"type": "InternalIP", "address": address},
            {"type": "Hostname", "address": name},
        ]},
    })
}

/// What the API server has: its lists come with one object a page.
pub(crate) struct Kept {
    pub(crate) requests: Vec<Value>,
    pub(crate) nodes: Vec<Value>,
    /// The requests with these numbers get these answers, and change nothing.
    pub(crate) faults: BTreeMap<usize, u16>,
    /// They come while somebody waits, one in each wait.
    pub(crate) coming: Vec<Value>,
    asked: usize,
}

impl Kept {
    fn answer(&mut self, request: &Request) -> (u16, String) {
        let number = self.asked;
        self.asked += 1;
        if let Some(status) = self.faults.get(&number) {
            return (*status, "{\"message\": \"a fault\"}".to_owned());
        }
        let (method, path) = request.line.split_once(' ').unwrap();
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        match (method, path) {
            ("GET", REQUESTS) => {
                assert!(query.starts_with(SERVING), "{query}");
                if query.contains("watch=true&resourceVersion=7&") {
                    let new = self.coming.pop();
                    let event = |object: &Value| json!({"type": "ADDED", "object": object});
                    let line = new.as_ref().map(|new| format!("{}\n", event(new)));
                    self.requests.extend(new);
                    return (200, line.unwrap_or_default());
                }
                page(&self.requests, query)
            }
            ("GET", NODES) => page(&self.nodes, query),
            ("PUT", path) => self.decide(path, &request.body),
            other => panic!("{other:?}"),
        }
    }

    /// The subresource `approval`: nothing but conditions is taken, and of this version of the object alone.
    fn decide(&mut self, path: &str, body: &str) -> (u16, String) {
        let name = path.strip_prefix(REQUESTS).unwrap();
        let name = name
            .trim_start_matches('/')
            .strip_suffix("/approval")
            .unwrap();
        let body: Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["kind"], "CertificateSigningRequest");
        assert_eq!(body["apiVersion"], "certificates.k8s.io/v1");
        let mut all = self.requests.iter_mut();
        let Some(there) = all.find(|there| there["metadata"]["name"] == name) else {
            return (404, "{\"message\": \"not found\"}".to_owned());
        };
        if there["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"] {
            return (
                409,
                "{\"message\": \"the object has been modified\"}".to_owned(),
            );
        }
        assert_eq!(there["spec"], body["spec"]);
        there["status"]["conditions"] = body["status"]["conditions"].clone();
        (200, there.to_string())
    }

    /// The names of the requests that are approved.
    pub(crate) fn approved(&self) -> BTreeSet<&str> {
        let approved = |there: &&Value| there["status"]["conditions"][0]["type"] == "Approved";
        let all = self.requests.iter().filter(approved);
        all.map(|there| there["metadata"]["name"].as_str().unwrap())
            .collect()
    }
}

fn page(all: &[Value], query: &str) -> (u16, String) {
    assert!(query.contains("limit="), "{query}");
    let at = query.split("continue=").nth(1);
    let at: usize = at.map_or(0, |at| at.parse().unwrap());
    let next = if at + 1 < all.len() {
        (at + 1).to_string()
    } else {
        String::new()
    };
    let items: Vec<&Value> = all.iter().skip(at).take(1).collect();
    (
        200,
        json!({"metadata": {"continue": next, "resourceVersion": "7"}, "items": items}).to_string(),
    )
}

/// An API server with these requests, and the nodes `node1` and `node2`.
pub(crate) fn plane(requests: Vec<Value>) -> (Api, Arc<Mutex<Kept>>, Receiver<Request>) {
    let kept = Arc::new(Mutex::new(Kept {
        requests,
        nodes: vec![node("node1", "10.0.0.8"), node("node2", "10.0.0.9")],
        faults: BTreeMap::new(),
        coming: Vec::new(),
        asked: 0,
    }));
    let inner = Arc::clone(&kept);
    let (url, asked) = server(move |request| inner.lock().unwrap().answer(request));
    (Api::plain(&url).unwrap(), kept, asked)
}

pub(crate) fn control_plane(root: &Path) -> (World, Bootstrap) {
    let world = machine(root, OBJECT);
    let bootstrap = object::read(&world, std::time::Duration::ZERO)
        .unwrap()
        .unwrap();
    (world, bootstrap)
}

fn now() -> SystemTime {
    cluster::duration::time("2026-11-23T18:00:00Z").unwrap()
}

#[test]
fn requests_of_nodes_for_their_own_addresses_are_approved_and_all_others_left() {
    let folder = tempfile::tempdir().unwrap();
    let (world, bootstrap) = control_plane(folder.path());
    let mut replayed = request("csr-replayed", "node2", &["node2", "10.0.0.9"]);
    replayed["spec"]["username"] = "system:node:node1".into();
    let mut denied = request("csr-denied", "node1", &["node1"]);
    denied["status"]["conditions"] = json!([{"type": "Denied"}]);
    let (api, kept, asked) = plane(vec![
        request("csr-1", "node1", &["node1", "10.0.0.8"]),
        request("csr-other", "node1", &["node2"]),
        replayed,
        denied,
        request("csr-early", "node3", &["node3"]),
        request("csr-2", "node2", &["10.0.0.9"]),
    ]);
    let config = &bootstrap.object.config;
    approve_all(&world, &api, config, now()).unwrap();
    assert_eq!(
        kept.lock().unwrap().approved(),
        BTreeSet::from(["csr-1", "csr-2"])
    );
    let condition = kept.lock().unwrap().requests[0]["status"]["conditions"][0].clone();
    assert_eq!(condition["status"], "True");
    assert_eq!(condition["lastUpdateTime"], "2026-11-23T18:00:00Z");
    let file = world.in_run(RUN_REQUESTS);
    let left: BTreeMap<String, String> =
        serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert!(left["csr-other"].contains("\"node2\" is not an address of its node"));
    assert!(left["csr-replayed"].contains("expected the requester: CN=system:node:node1"));
    assert_eq!(left["csr-early"], "there is no node \"node3\"");
    assert_eq!(left.len(), 3);
    // Nothing is approved twice, and each reason is said once.
    let before = files(&folder.path().join("run"));
    assert!(asked.try_iter().count() > 2);
    approve_all(&world, &api, config, now()).unwrap();
    assert!(
        asked
            .try_iter()
            .all(|request| request.line.starts_with("GET "))
    );
    assert!(files(&folder.path().join("run")) == before);
    // Its Node is there now.
    kept.lock().unwrap().nodes.push(node("node3", "10.0.0.10"));
    approve_all(&world, &api, config, now()).unwrap();
    assert!(kept.lock().unwrap().approved().contains("csr-early"));
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains("csr-early"), "{text}");
}

#[test]
fn without_a_request_no_node_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let (world, bootstrap) = control_plane(folder.path());
    let (api, _kept, asked) = plane(Vec::new());
    approve_all(&world, &api, &bootstrap.object.config, now()).unwrap();
    assert_eq!(asked.try_iter().count(), 1);
    assert!(!world.in_run(RUN_REQUESTS).exists());
}

#[test]
fn a_request_that_changes_after_its_check_is_not_approved() {
    let folder = tempfile::tempdir().unwrap();
    let (world, bootstrap) = control_plane(folder.path());
    let (api, kept, _asked) = plane(vec![request("csr-1", "node1", &["node1"])]);
    let config = &bootstrap.object.config;
    let found = pending(&api, config).unwrap();
    let right = found[0].verdict.as_ref().unwrap();
    // Another one by the same name.
    let mut other = request("csr-1", "node1", &["node2"]);
    other["metadata"]["resourceVersion"] = "2".into();
    kept.lock().unwrap().requests[0] = other;
    assert!(!approve(&api, &found[0], right, now()).unwrap());
    kept.lock().unwrap().requests.clear();
    assert!(!approve(&api, &found[0], right, now()).unwrap());
    approve_all(&world, &api, config, now()).unwrap();
    assert!(kept.lock().unwrap().approved().is_empty());
}

#[test]
fn an_approval_that_fails_holds_up_no_other_and_the_next_run_completes_it() {
    let folder = tempfile::tempdir().unwrap();
    let (world, bootstrap) = control_plane(folder.path());
    let config = &bootstrap.object.config;
    // Two pages of requests, two of nodes, two approvals: each of them fails once.
    for number in 0..6 {
        for fault in [503, 403, CLOSED] {
            let (api, kept, _asked) = plane(vec![
                request("csr-1", "node1", &["node1"]),
                request("csr-2", "node2", &["node2"]),
            ]);
            kept.lock().unwrap().faults.insert(number, fault);
            let error = approve_all(&world, &api, config, now()).unwrap_err();
            assert!(api::is_temporary(&error), "{error:#}");
            let expected = match number {
                4 => BTreeSet::from(["csr-2"]),
                5 => BTreeSet::from(["csr-1"]),
                _ => BTreeSet::new(),
            };
            assert_eq!(kept.lock().unwrap().approved(), expected);
            approve_all(&world, &api, config, now()).unwrap();
            assert_eq!(kept.lock().unwrap().approved().len(), 2);
        }
    }
}
