//! A further control plane against a control plane and a member of etcd on loopback.

mod cut;
mod lost_data;

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

use base64_of::sealed;
use image::paths::ETCD;
use linux::world::Clock;
use serde_json::{Value, json};

use super::*;
use crate::cni;
use crate::etcd_member;
use crate::etcd_place::promote;
use crate::object;
use crate::samples::{Answer, ControlPlane, Request, TOKEN, files, machine, put, serve_by_tls};

const LIMITS: Limits = Limits {
    patience: Duration::from_secs(30),
    every: Duration::from_secs(1),
};
const REQUEST: Duration = Duration::from_secs(5);
const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
/// The folder of the certificates.
const PKI: &str = "/etc/kubernetes/pki";

/// Seals as kubeadm does.
mod base64_of {
    use data_encoding::BASE64;
    use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

    pub(super) fn sealed(text: &str) -> String {
        let key: Vec<u8> = (0..32).collect();
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).unwrap());
        let nonce = [7; 12];
        let mut bytes = text.as_bytes().to_vec();
        let own = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(own, Aad::empty(), &mut bytes)
            .unwrap();
        BASE64.encode(&[&nonce[..], &bytes].concat())
    }
}

/// Paths to inodes and contents.
type Files = BTreeMap<PathBuf, (u64, Vec<u8>)>;

/// The first control plane, its etcd, and what they were asked.
struct Cluster {
    plane: Arc<ControlPlane>,
    asked: Receiver<Request>,
    etcd: Receiver<Request>,
    members: Arc<Mutex<Vec<Value>>>,
    /// The secret of an upload, in place of one that is sealed here.
    uploaded: Arc<Mutex<Option<Value>>>,
}

impl Cluster {
    /// `late` requests to be promoted are refused before one succeeds.
    fn new(late: usize) -> Self {
        Self::of(ControlPlane::new(), late)
    }

    fn of(plane: ControlPlane, late: usize) -> Self {
        let plane = Arc::new(plane);
        let members = Arc::new(Mutex::new(vec![json!({
            "ID": "7", "name": "node1", "peerURLs": ["https://10.0.0.7:2380"],
        })]));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let of_etcd = ["crt", "key"].map(|end| plane.file(&format!("{PKI}/etcd/server.{end}")));
        let [certificate, key] = of_etcd;
        let known = Arc::clone(&members);
        let refused = AtomicUsize::new(0);
        let etcd = serve_by_tls(
            listener,
            move || (certificate.clone(), key.clone()),
            move |request| {
                let mut members = known.lock().unwrap();
                let late = || refused.fetch_add(1, Ordering::Relaxed) < late;
                etcd(&mut members, request, late)
            },
        );
        let (certificates, answers) = (Arc::clone(&plane), Arc::clone(&plane));
        let uploaded = Arc::new(Mutex::new(None));
        let secret = Arc::clone(&uploaded);
        let asked = serve_by_tls(
            plane.listener(),
            move || certificates.certificate(),
            move |request| match secret.lock().unwrap().as_ref() {
                Some(secret) if request.line == format!("GET {SHARED}") => {
                    Answer::Full(200, Value::to_string(secret))
                }
                _ => kubernetes(&answers, &url, request),
            },
        );
        Self {
            plane,
            asked,
            etcd,
            members,
            uploaded,
        }
    }

    /// The object of the node `node2`, with these fields of `[join]`.
    fn object(&self, join: &str) -> String {
        format!(
            "name = \"blue\"\nendpoint = \"{}\"\n[join]\n{join}\n[node]\nname = \"node2\"\naddress = \"10.0.0.8\"\n",
            self.plane.listener().local_addr().unwrap()
        )
    }

    fn fetching(&self) -> String {
        self.object(&format!(
            "token = \"{TOKEN}\"\nca-hashes = [\"{}\"]\ncertificate-key = \"{KEY}\"",
            self.plane.pin()
        ))
    }
}

fn kubernetes(plane: &ControlPlane, etcd: &str, request: &Request) -> Answer {
    let ok = |value: &Value| Answer::Full(200, value.to_string());
    match request.line.strip_prefix("GET ") {
        Some("/livez/etcd") => Answer::Full(200, "ok".to_owned()),
        Some(etcd_member::PODS) => {
            let annotation = "kubeadm.kubernetes.io/etcd.advertise-client-urls";
            ok(&json!({"items": [{"metadata": {"annotations": {annotation: etcd}}}]}))
        }
        Some(SHARED) if request.authorization == format!("Bearer {TOKEN}") => {
            let data = shared_keys::FILES.map(|file| {
                let text = plane.file(&format!("{PKI}/{file}"));
                (file.replace('/', "-"), Value::from(sealed(&text)))
            });
            ok(&json!({"data": data.into_iter().collect::<serde_json::Map<_, _>>()}))
        }
        _ => plane.answer(request),
    }
}

fn etcd(members: &mut Vec<Value>, request: &Request, late: impl Fn() -> bool) -> Answer {
    let body: Value = serde_json::from_str(&request.body).unwrap();
    match request.line.as_str() {
        "POST /v3/cluster/member/list" => {}
        "POST /v3/cluster/member/add" => {
            assert_eq!(body["isLearner"], true);
            members.push(json!({"ID": "9", "peerURLs": body["peerURLs"], "isLearner": true}));
        }
        "POST /v3/cluster/member/update" => {
            let mut all = members.iter_mut();
            let member = all.find(|member| member["ID"] == body["ID"]).unwrap();
            member["peerURLs"] = body["peerURLs"].clone();
        }
        "POST /v3/cluster/member/promote" if late() => {
            let message =
                "etcdserver: can only promote a learner member which is in sync with leader";
            return Answer::Full(412, json!({"message": message}).to_string());
        }
        "POST /v3/cluster/member/promote" => {
            assert_eq!(body["ID"], "9");
            members[1].as_object_mut().unwrap().remove("isLearner");
        }
        other => panic!("{other}"),
    }
    Answer::Full(200, json!({"members": members}).to_string())
}

fn node(root: &Path, object: &str) -> World {
    machine(root, object);
    World::below(root, Clock::Fake(AtomicI64::new(0)))
}

fn prepared(world: &World) -> Result<()> {
    let bootstrap = object::read(world, Duration::ZERO)?.expect("a cluster");
    let further = bootstrap.object.further.clone().expect("a further one");
    prepare(world, &bootstrap, further.fetched.as_ref(), LIMITS, REQUEST)
}

/// The lines of what was asked since the last call.
fn lines(asked: &Receiver<Request>) -> Vec<String> {
    asked.try_iter().map(|request| request.line).collect()
}

/// etcd starts on the node.
fn has_data(world: &World) {
    fs::create_dir_all(world.in_initrd(ETCD).join("member")).unwrap();
}

fn manifests(world: &World) -> Vec<String> {
    let folder = fs::read_dir(world.in_initrd("/etc/kubernetes/manifests")).unwrap();
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

fn unchanged(before: &Files, folder: &Path) {
    let after = files(folder);
    let paths = before.keys().chain(after.keys());
    let changed: Vec<_> = paths
        .filter(|path| !path.starts_with(folder.join("run")))
        .filter(|path| before.get(*path) != after.get(*path))
        .collect();
    assert!(changed.is_empty(), "written again: {changed:?}");
}

#[test]
fn a_further_control_plane_is_a_learner_first_and_has_an_api_server_once_it_votes() {
    let cluster = Cluster::new(2);
    let folder = tempfile::tempdir().unwrap();
    let world = node(folder.path(), &cluster.fetching());
    prepared(&world).unwrap();
    assert_eq!(manifests(&world), ["etcd.yaml"]);
    let read = |path: &str| fs::read_to_string(world.in_initrd(path)).unwrap();
    let etcd = read("/etc/kubernetes/manifests/etcd.yaml");
    for argument in [
        "--initial-cluster-state=existing",
        "--initial-cluster=node1=https://10.0.0.7:2380,node2=https://10.0.0.8:2380",
        "--name=node2",
    ] {
        assert!(etcd.contains(argument), "{argument} is not in {etcd}");
    }
    for file in shared_keys::FILES {
        let path = format!("{PKI}/{file}");
        assert_eq!(read(&path), cluster.plane.file(&path), "{file}");
    }
    let own = format!("{PKI}/apiserver.crt");
    assert_ne!(read(&own), cluster.plane.file(&own));
    assert!(!world.in_initrd("/etc/kubernetes/super-admin.conf").exists());
    // The first node's subnets are its pods', which this one's would have the addresses of.
    assert!(!world.in_initrd(cni::FILE).exists());
    lines(&cluster.asked);
    lines(&cluster.etcd);
    // A second boot before it votes, once etcd has started.
    has_data(&world);
    let before = files(folder.path());
    prepared(&world).unwrap();
    unchanged(&before, folder.path());
    assert!(lines(&cluster.asked).is_empty() && lines(&cluster.etcd).is_empty());

    cluster.members.lock().unwrap()[1]["name"] = "node2".into();
    let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
    let mut journal = Journal::read(&world).unwrap().unwrap();
    promote(&world, &bootstrap, &mut journal, LIMITS).unwrap();
    assert_eq!(manifests(&world), ["etcd.yaml", "kube-apiserver.yaml"]);
    let asked = lines(&cluster.etcd);
    let promotions = asked.iter().filter(|line| line.ends_with("promote"));
    assert_eq!(promotions.count(), 3, "{asked:?}");
    // And after.
    let before = files(folder.path());
    prepared(&world).unwrap();
    unchanged(&before, folder.path());
    promote(&world, &bootstrap, &mut journal, LIMITS).unwrap();
    assert!(lines(&cluster.etcd).is_empty());
}

#[test]
fn a_join_that_is_cut_off_is_not_added_a_second_time() {
    let cluster = Cluster::new(0);
    let folder = tempfile::tempdir().unwrap();
    let world = node(folder.path(), &cluster.fetching());
    prepared(&world).unwrap();
    // As after a cut between etcd's answer and the journal.
    let mut journal = Journal::read(&world).unwrap().unwrap();
    journal.member = None;
    journal.write(&world).unwrap();
    fs::remove_file(world.in_initrd("/etc/kubernetes/manifests/etcd.yaml")).unwrap();
    prepared(&world).unwrap();
    let asked = lines(&cluster.etcd);
    let added = asked.iter().filter(|line| line.ends_with("/add"));
    assert_eq!(added.count(), 1, "{asked:?}");
    assert_eq!(manifests(&world), ["etcd.yaml"]);
}

/// A lease that ended while the node was off: its place is an address's that it has no more.
#[test]
fn a_place_that_was_got_at_an_earlier_address_is_taken_along() {
    let cluster = Cluster::new(0);
    let folder = tempfile::tempdir().unwrap();
    let object = cluster.fetching();
    let world = node(folder.path(), &object);
    let etcd = || {
        let file = world.in_initrd("/etc/kubernetes/manifests/etcd.yaml");
        fs::read_to_string(file).unwrap()
    };
    let moved = |address: &str| {
        let text = object.replace("10.0.0.8", address);
        put(&world.in_initrd(image::paths::CLUSTER), &text);
    };
    prepared(&world).unwrap();
    // Before etcd has started.
    moved("10.0.0.9");
    prepared(&world).unwrap();
    let expected = "--initial-cluster=node1=https://10.0.0.7:2380,node2=https://10.0.0.9:2380";
    assert!(etcd().contains(expected), "{}", etcd());
    let asked = lines(&cluster.etcd);
    let added = asked.iter().filter(|line| line.ends_with("/add"));
    assert_eq!(added.count(), 1, "{asked:?}");
    // And before it votes.
    has_data(&world);
    cluster.members.lock().unwrap()[1]["name"] = "node2".into();
    moved("10.0.0.10");
    prepared(&world).unwrap();
    let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
    let mut journal = Journal::read(&world).unwrap().unwrap();
    promote(&world, &bootstrap, &mut journal, LIMITS).unwrap();
    assert!(journal.member.unwrap().promoted);
    let members = cluster.members.lock().unwrap();
    assert_eq!(members[1]["peerURLs"], json!(["https://10.0.0.10:2380"]));
}

/// What this program uploads is what this program fetches.
#[test]
fn a_further_control_plane_opens_our_upload() {
    let cluster = Cluster::new(0);
    let key = CertificateKey::parse(KEY).unwrap();
    let texts = shared_keys::FILES.map(|file| cluster.plane.file(&format!("{PKI}/{file}")));
    let sealed = shared_keys::seal(&texts, &key).unwrap();
    let owner = json!({"metadata": {"name": "bootstrap-token-abcdef", "uid": "1"}});
    let secret = cluster::objects::upload::secret(sealed, &owner);
    *cluster.uploaded.lock().unwrap() = Some(secret);
    let folder = tempfile::tempdir().unwrap();
    let world = node(folder.path(), &cluster.fetching());
    prepared(&world).unwrap();
    for (file, text) in shared_keys::FILES.iter().zip(&texts) {
        let path = world.in_initrd(&format!("{PKI}/{file}"));
        assert_eq!(fs::read_to_string(path).unwrap(), *text, "{file}");
    }
}

/// Keys in PKCS#1, sealed, read back, and used for TLS to the API server and to etcd.
#[test]
fn a_cluster_of_rsa_keys_is_joined() {
    const RSA: &str = "[certificates]\nalgorithm = \"RSA-2048\"\n";
    let cluster = Cluster::of(ControlPlane::with(RSA), 0);
    let folder = tempfile::tempdir().unwrap();
    let world = node(folder.path(), &(cluster.fetching() + "\n" + RSA));
    prepared(&world).unwrap();
    let read = |path: &str| fs::read_to_string(world.in_initrd(path)).unwrap();
    for file in shared_keys::FILES {
        let path = format!("{PKI}/{file}");
        assert_eq!(read(&path), cluster.plane.file(&path), "{file}");
    }
    for file in ["ca.key", "sa.key", "etcd/peer.key", "apiserver.key"] {
        let key = read(&format!("{PKI}/{file}"));
        assert!(key.starts_with("-----BEGIN RSA PRIVATE KEY-----"), "{file}");
    }
    let before = files(folder.path());
    prepared(&world).unwrap();
    unchanged(&before, folder.path());
}

#[test]
fn a_bring_up_before_the_node_has_a_place_waits_for_it() {
    let cluster = Cluster::new(0);
    let folder = tempfile::tempdir().unwrap();
    let world = node(folder.path(), &cluster.fetching());
    prepared(&world).unwrap();
    let whole = Journal::read(&world).unwrap().unwrap();
    // As while an attempt of the preparation waits for the control plane.
    let mut early = whole.clone();
    early.member = None;
    early.write(&world).unwrap();
    let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
    let error = promote(&world, &bootstrap, &mut early, LIMITS).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("kubelet-prepare asks for one"), "{error}");
    assert_eq!(manifests(&world), ["etcd.yaml"]);
    whole.write(&world).unwrap();
    cluster.members.lock().unwrap()[1]["name"] = "node2".into();
    has_data(&world);
    promote(&world, &bootstrap, &mut early, LIMITS).unwrap();
    assert!(early.member.unwrap().promoted);
    assert_eq!(manifests(&world), ["etcd.yaml", "kube-apiserver.yaml"]);
}

/// The error of a preparation after which nothing but the line of the wait is there that was not before.
fn refused(world: &World, root: &Path) -> String {
    let of_node = || {
        let mut files = files(root);
        files.retain(|path, _| !path.starts_with(root.join("run")));
        files
    };
    let before = of_node();
    let error = format!("{:#}", prepared(world).unwrap_err());
    assert!(of_node() == before, "{error}: something was written");
    error
}

#[test]
fn keys_that_are_missing_sealed_otherwise_or_of_another_cluster_are_named() {
    let cluster = Cluster::new(0);
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let world = node(root, &cluster.object(""));
    let error = refused(&world, root);
    assert!(
        error.contains("/etc/kubernetes/pki/ca.crt does not exist"),
        "{error}"
    );
    let other = cluster.fetching().replace("000102", "ffffff");
    put(&world.in_initrd(image::paths::CLUSTER), &other);
    let error = refused(&world, root);
    assert!(
        error.contains("the certificate key does not open ca.crt"),
        "{error}"
    );
    // Keys of another cluster, brought by the config: its endpoint does not have them.
    let stranger = ControlPlane::new();
    for file in shared_keys::FILES {
        let path = format!("{PKI}/{file}");
        put(&world.in_initrd(&path), &stranger.file(&path));
    }
    put(&world.in_initrd(image::paths::CLUSTER), &cluster.fetching());
    let error = refused(&world, root);
    assert!(error.contains("ca.crt is another cluster's"), "{error}");
    put(&world.in_initrd(image::paths::CLUSTER), &cluster.object(""));
    let error = format!("{:#}", prepared(&world).unwrap_err());
    assert!(error.contains("invalid peer certificate"), "{error}");
    assert!(lines(&cluster.etcd).is_empty());
}
