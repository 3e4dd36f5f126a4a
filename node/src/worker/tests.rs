//! A worker's way to Ready, asked of a control plane on loopback.

use std::time::Duration;

use cluster::object::Object;
use serde_json::json;

use super::*;
use crate::samples::{Answer, ControlPlane, TOKEN, put, serve_by_tls, worker};
use crate::{cni, object};

/// A request of a kubelet for the certificate of `system:node:node1`, made by
/// `openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /O=system:nodes/CN=system:node:node1`.
const CSR: &str = include_str!("node1.csr");
/// Where the kubelet keeps its certificate and key, as a link to the last one.
const CURRENT: &str = "/var/lib/kubelet/pki/kubelet-client-current.pem";
const SHORT: Limits = Limits {
    patience: Duration::from_secs(30),
    every: Duration::from_millis(200),
};

fn request(name: &str, created: &str, conditions: &Value) -> Value {
    json!({
        "metadata": {"name": name, "creationTimestamp": created},
        "spec": {"request": BASE64.encode(CSR.as_bytes())},
        "status": {"conditions": conditions},
    })
}

#[test]
fn the_last_request_of_this_node_decides_what_is_said() {
    let other = json!({"metadata": {"name": "other"}, "spec": {"request": BASE64.encode(b"x")}});
    let old = request("old", "2026-01-01T00:00:00Z", &json!([{"type": "Denied"}]));
    for (conditions, expected) in [
        (json!(null), "its request new is not approved yet"),
        (
            json!([{"type": "Approved"}]),
            "its request new is approved; the kubelet has not taken it yet",
        ),
        (
            json!([{"type": "Denied", "reason": "No", "message": "not here"}]),
            "its request new is denied: No: not here",
        ),
        (
            json!([{"type": "Approved"}, {"type": "Failed", "reason": "Signer", "message": "usages"}]),
            "its request new has failed: Signer: usages",
        ),
    ] {
        let new = request("new", "2026-01-02T00:00:00Z", &conditions);
        let mut all = vec![new, old.clone(), other.clone()];
        assert!(!all.iter().any(|request| is_of(request, "node2")));
        all.retain(|request| is_of(request, "node1"));
        assert_eq!(state(&all), expected);
    }
    assert_eq!(state(&[]), "the kubelet has not requested one");
}

fn up(world: &World) -> Result<()> {
    let bootstrap = object::read(world, Duration::ZERO)?.unwrap();
    let join = bootstrap.object.join.as_ref().unwrap();
    bring_up(world, &bootstrap, join, SHORT)
}

fn joined(world: &World) -> Object {
    let bootstrap = object::read(world, Duration::ZERO).unwrap().unwrap();
    let join = bootstrap.object.join.as_ref().unwrap();
    join::prepare(world, &bootstrap, join, SHORT, Duration::from_secs(5)).unwrap();
    bootstrap.object
}

/// The kubelet writes its certificate and key into one file, and a kubeconfig that names it.
fn identify(world: &World, given: &str) {
    let given = kubeconfigs::read(given).unwrap();
    let pair = given.certificate.unwrap() + &given.key.unwrap();
    put(&world.in_initrd(CURRENT), &pair);
    let authority = BASE64.encode(given.authority.unwrap().as_bytes());
    let text =
        kubeconfigs::read(&std::fs::read_to_string(world.in_initrd(BOOTSTRAP_KUBECONFIG)).unwrap())
            .unwrap();
    let kubeconfig = json!({
        "clusters": [{"name": "default-cluster", "cluster": {"server": text.server, "certificate-authority-data": authority}}],
        "users": [{"name": "default-auth", "user": {"client-certificate": CURRENT, "client-key": CURRENT}}],
    });
    put(
        &world.in_initrd("/etc/kubernetes/kubelet.conf"),
        &kubeconfig.to_string(),
    );
}

#[test]
fn a_worker_waits_for_its_certificate_its_node_its_subnets_and_ready() {
    let plane = ControlPlane::new();
    let folder = tempfile::tempdir().unwrap();
    let world = worker(folder.path(), &plane.worker());
    let error = format!("{:#}", up(&world).unwrap_err());
    assert!(error.contains("kubelet-prepare"), "{error}");
    let identity = plane.file("/etc/kubernetes/kubelet.conf");
    let (listener, pair) = (plane.listener(), plane.certificate());
    let mut asked = 0;
    let condition = |status: &str| json!([{"type": "Ready", "status": status, "reason": "KubeletNotReady", "message": "no network"}]);
    let requests = serve_by_tls(
        listener,
        move || pair.clone(),
        move |request| {
            let full = |value: Value| Answer::Full(200, value.to_string());
            match request.line.as_str() {
                "GET /api/v1/nodes/node1" if request.authorization.is_empty() => {
                    asked += 1;
                    match asked {
                        1 => Answer::Full(404, String::new()),
                        2 | 3 => full(json!({"spec": {}, "status": {}})),
                        4 | 5 => full(json!({
                            "spec": {"podCIDRs": ["10.244.3.0/24"]},
                            "status": {"conditions": condition("False")},
                        })),
                        _ => full(json!({"status": {"conditions": condition("True")}})),
                    }
                }
                line if line.contains(REQUESTS) => full(json!({"items": [
                    self::request("csr-1", "2026-01-01T00:00:00Z", &Value::Null)
                ]})),
                _ => plane.answer(request),
            }
        },
    );
    let object = joined(&world);
    assert_eq!(object.name(), "blue");
    // Nobody approves the request: the reason is said, and the credentials stay.
    let error = format!("{:#}", up(&world).unwrap_err());
    let expected =
        "waiting for the certificate of node node1 for 30 s: its request csr-1 is not approved yet";
    assert_eq!(error, expected);
    let line = std::fs::read_to_string(world.in_run(image::paths::RUN_CLUSTER)).unwrap();
    assert!(
        line.ends_with("its request csr-1 is not approved yet\n"),
        "{line}"
    );
    let credentials = world.in_initrd(BOOTSTRAP_KUBECONFIG);
    assert!(credentials.exists());
    let tokens: Vec<_> = requests
        .try_iter()
        .filter(|request| request.line.contains(REQUESTS))
        .collect();
    assert!(
        tokens
            .iter()
            .all(|request| request.authorization == format!("Bearer {TOKEN}"))
    );
    // It is asked less often than the file is looked for.
    assert_eq!(tokens.len(), 16);
    identify(&world, &identity);
    up(&world).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(!credentials.exists());
    let network = std::fs::read_to_string(world.in_initrd(cni::FILE)).unwrap();
    assert!(network.contains("\"10.244.3.0/24\""), "{network}");
    let rest: Vec<_> = requests.try_iter().collect();
    assert_eq!(rest.len(), 6, "{rest:#?}");
    assert!(rest.iter().all(|request| request.authorization.is_empty()));
}
