//! Uploads to an API server on loopback that keeps its secrets, and collects what has lost its owner.

use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

use cluster::shared_keys;

use super::*;
use crate::samples::{CLOSED, Request, machine, put, server};
use crate::{control_plane, object};

const OBJECT: &str = "name = \"blue\"\n[node]\naddress = \"10.0.0.7\"\n";
const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const LIMITS: Limits = Limits {
    patience: std::time::Duration::from_secs(20),
    every: std::time::Duration::from_millis(1),
};

/// What an API server has: secrets by their names, and the number of changes.
#[derive(Default)]
struct Kept {
    secrets: BTreeMap<String, Value>,
    changes: usize,
    requests: usize,
    /// The requests with these numbers get these answers, and change nothing.
    faults: BTreeMap<usize, u16>,
}

impl Kept {
    fn answer(&mut self, request: &Request) -> (u16, String) {
        let number = self.requests;
        self.requests += 1;
        if let Some(status) = self.faults.get(&number) {
            return (*status, "{\"message\": \"a fault\"}".to_owned());
        }
        let (method, path) = request.line.split_once(' ').unwrap();
        if path.starts_with("/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/role") {
            assert_eq!(method, "PATCH", "{path}");
            return (200, "{}".to_owned());
        }
        let name = path.strip_prefix(SECRETS).unwrap().trim_start_matches('/');
        let body: Value = serde_json::from_str(&request.body).unwrap_or_default();
        let there = self.secrets.get(name).cloned();
        match (method, there) {
            ("GET", None) => (404, "{\"message\": \"not found\"}".to_owned()),
            ("GET", Some(secret)) => (200, secret.to_string()),
            ("POST", _) => self.make(body),
            ("PUT", Some(there)) => {
                let version = &there["metadata"]["resourceVersion"];
                assert_eq!(body["metadata"]["resourceVersion"], *version);
                self.keep(body)
            }
            ("DELETE", Some(there)) => {
                assert_eq!(body["preconditions"]["uid"], there["metadata"]["uid"]);
                self.secrets.remove(name);
                let owner = &there["metadata"]["uid"];
                self.secrets
                    .retain(|_, secret| secret["metadata"]["ownerReferences"][0]["uid"] != *owner);
                (200, "{}".to_owned())
            }
            (method, _) => panic!("{method} {path}"),
        }
    }

    fn make(&mut self, mut secret: Value) -> (u16, String) {
        assert!(secret["metadata"]["resourceVersion"].is_null());
        secret["metadata"]["uid"] = format!("uid-{}", self.changes).into();
        self.keep(secret)
    }

    fn keep(&mut self, mut secret: Value) -> (u16, String) {
        self.changes += 1;
        secret["metadata"]["resourceVersion"] = self.changes.to_string().into();
        let name = secret["metadata"]["name"].as_str().unwrap().to_owned();
        let text = secret.to_string();
        self.secrets.insert(name, secret);
        (201, text)
    }

    fn tokens(&self) -> Vec<&Value> {
        let tokens = self.secrets.iter();
        let tokens = tokens.filter(|(name, _)| name.starts_with("bootstrap-token-"));
        tokens.map(|(_, token)| token).collect()
    }
}

fn started() -> (Api, Arc<Mutex<Kept>>, Receiver<Request>) {
    let kept = Arc::new(Mutex::new(Kept::default()));
    let inner = Arc::clone(&kept);
    let (url, requests) = server(move |request| inner.lock().unwrap().answer(request));
    (Api::plain(&url).unwrap(), kept, requests)
}

fn texts() -> [String; FILES.len()] {
    FILES.map(|file| format!("the text of {file}\n"))
}

fn opened(kept: &Kept, key: &CertificateKey) -> Vec<String> {
    let files = shared_keys::open(&kept.secrets["kubeadm-certs"], key).unwrap();
    files.into_iter().map(|(_, text)| text).collect()
}

#[test]
fn an_upload_ends_with_its_token_and_replaces_the_one_before() {
    let (api, kept, requests) = started();
    let (first, second) = (
        CertificateKey::parse(KEY).unwrap(),
        CertificateKey::random().unwrap(),
    );
    let now = cluster::duration::time("2026-11-23T18:00:00Z").unwrap();
    let expires = upload(&api, &texts(), &first, now).unwrap();
    assert_eq!(expires, "2026-11-23T20:00:00Z");
    {
        let kept = kept.lock().unwrap();
        assert_eq!(opened(&kept, &first), texts());
        let secret = &kept.secrets["kubeadm-certs"];
        let owners = secret["metadata"]["ownerReferences"].as_array().unwrap();
        let [token] = kept.tokens()[..] else {
            panic!("{:?}", kept.secrets.keys());
        };
        assert_eq!(owners.len(), 1);
        assert_eq!(owners[0]["uid"], token["metadata"]["uid"]);
        assert_eq!(owners[0]["name"], token["metadata"]["name"]);
    }
    upload(&api, &texts(), &second, now).unwrap();
    let kept = kept.lock().unwrap();
    assert_eq!(opened(&kept, &second), texts());
    assert!(shared_keys::open(&kept.secrets["kubeadm-certs"], &first).is_err());
    let secret = &kept.secrets["kubeadm-certs"];
    let owners = secret["metadata"]["ownerReferences"].as_array().unwrap();
    let second = kept
        .tokens()
        .into_iter()
        .find(|token| token["metadata"]["uid"] == owners[0]["uid"]);
    assert!(owners.len() == 1 && second.is_some());
    // Neither the key nor a file is in what was sent.
    for request in requests.try_iter() {
        assert!(!request.body.contains("the text of") && !request.body.contains(KEY));
    }
}

#[test]
fn an_upload_that_fails_at_any_request_leaves_nothing_and_the_next_one_succeeds() {
    let key = CertificateKey::parse(KEY).unwrap();
    let now = SystemTime::now();
    // The token, the look for the secret, the secret, the role, its binding.
    for number in 0..5 {
        for status in [503, 403, CLOSED] {
            let (api, kept, _requests) = started();
            kept.lock().unwrap().faults.insert(number, status);
            let error = upload(&api, &texts(), &key, now).unwrap_err();
            assert!(is_temporary(&error), "{error:#}");
            assert!(kept.lock().unwrap().secrets.is_empty(), "{number} {status}");
            upload(&api, &texts(), &key, now).unwrap();
            let kept = kept.lock().unwrap();
            assert_eq!(opened(&kept, &key), texts());
            assert_eq!(kept.tokens().len(), 1);
        }
    }
    // Nor can the token be taken back: it may be used for nothing, and ends by itself.
    let (api, kept, _requests) = started();
    kept.lock().unwrap().faults = BTreeMap::from([(2, 422), (3, 503)]);
    let error = upload(&api, &texts(), &key, now).unwrap_err();
    assert!(format!("{error:#}").ends_with("422 Unprocessable Entity: a fault"));
    let kept = kept.lock().unwrap();
    assert_eq!((kept.secrets.len(), kept.tokens().len()), (1, 1));
}

#[test]
fn uploads_at_the_same_time_do_not_tear_each_other() {
    let key = CertificateKey::parse(KEY).unwrap();
    let (api, kept, _requests) = started();
    kept.lock().unwrap().faults = BTreeMap::from([(2, 409), (4, 404)]);
    upload(&api, &texts(), &key, SystemTime::now()).unwrap();
    assert_eq!(opened(&kept.lock().unwrap(), &key), texts());
    let (api, kept, _requests) = started();
    kept.lock().unwrap().faults = BTreeMap::from([(2, 409), (4, 409), (6, 409)]);
    let error = upload(&api, &texts(), &key, SystemTime::now()).unwrap_err();
    assert!(
        format!("{error:#}").contains("3 times meanwhile"),
        "{error:#}"
    );
    assert!(kept.lock().unwrap().secrets.is_empty());
}

fn node(root: &std::path::Path, object: &str) -> (World, Bootstrap, Journal) {
    let world = machine(root, object);
    let bootstrap = object::read(&world, std::time::Duration::ZERO)
        .unwrap()
        .unwrap();
    control_plane::prepare(&world, &bootstrap, |_| Ok(())).unwrap();
    let journal = Journal::read(&world).unwrap().unwrap();
    (world, bootstrap, journal)
}

#[test]
fn a_first_control_plane_with_a_certificate_key_uploads_once_for_each_key() {
    let folder = tempfile::tempdir().unwrap();
    let object = format!("certificate-key = \"{KEY}\"\n{OBJECT}");
    let (world, bootstrap, mut journal) = node(folder.path(), &object);
    let (api, kept, requests) = started();
    kept.lock().unwrap().faults = BTreeMap::from([(0, 503), (2, CLOSED)]);
    once(&world, &api, &bootstrap, &mut journal, LIMITS).unwrap();
    let key = CertificateKey::parse(KEY).unwrap();
    let expected = shared(&world, &bootstrap.object).unwrap();
    assert!(expected[1].contains("PRIVATE KEY"));
    assert_eq!(opened(&kept.lock().unwrap(), &key), expected);
    assert!(requests.try_iter().count() > 5);
    // A reboot after two hours does not open the cluster for two more.
    let mut journal = Journal::read(&world).unwrap().unwrap();
    once(&world, &api, &bootstrap, &mut journal, LIMITS).unwrap();
    assert_eq!(requests.try_iter().count(), 0);
    let journal_text = std::fs::read_to_string(world.in_initrd(crate::journal::FILE)).unwrap();
    assert!(!journal_text.contains(KEY));
    // Another key is another upload.
    let changed = object.replace("000102", "ffffff");
    put(&world.in_initrd(image::paths::CLUSTER), &changed);
    let bootstrap = object::read(&world, std::time::Duration::ZERO)
        .unwrap()
        .unwrap();
    once(&world, &api, &bootstrap, &mut journal, LIMITS).unwrap();
    assert!(shared_keys::open(&kept.lock().unwrap().secrets["kubeadm-certs"], &key).is_err());
}

#[test]
fn without_a_certificate_key_nothing_is_uploaded_and_a_refusal_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let (world, bootstrap, mut journal) = node(folder.path(), OBJECT);
    let (api, kept, requests) = started();
    once(&world, &api, &bootstrap, &mut journal, LIMITS).unwrap();
    assert_eq!(requests.try_iter().count(), 0);
    put(
        &world.in_initrd(image::paths::CLUSTER),
        &format!("certificate-key = \"{KEY}\"\n{OBJECT}"),
    );
    let bootstrap = object::read(&world, std::time::Duration::ZERO)
        .unwrap()
        .unwrap();
    kept.lock().unwrap().faults = BTreeMap::from([(0, 422)]);
    let error = once(&world, &api, &bootstrap, &mut journal, LIMITS).unwrap_err();
    assert!(format!("{error:#}").contains("422"), "{error:#}");
    assert_eq!(requests.try_iter().count(), 1);
    assert!(!journal.applied.contains_key(SHARED));
    // A file that is missing is named before anything is asked.
    std::fs::remove_file(world.in_initrd("/etc/kubernetes/pki/etcd/ca.key")).unwrap();
    let error = once(&world, &api, &bootstrap, &mut journal, LIMITS).unwrap_err();
    let error = format!("{error:#}");
    assert!(
        error.contains("/etc/kubernetes/pki/etcd/ca.key, which every control plane has"),
        "{error}"
    );
    assert_eq!(requests.try_iter().count(), 0);
    assert!(kept.lock().unwrap().secrets.is_empty());
}
