//! What a status says of a node.

use image::kubelet::{BOOTSTRAP_KUBECONFIG, CREDENTIAL_PROVIDERS, KUBECONFIG};
use image::paths::{CLUSTER, STATE, STATE_LEDGER};
use serde_json::{Value, json};

use super::*;
use crate::join;
use crate::samples::{Answer, ControlPlane, machine, put, serve_by_tls, worker};
use crate::waiting::Limits;

/// Two attempts, by the world's clock, which waits alone advance.
const TWICE: Limits = Limits {
    patience: Duration::from_secs(1),
    every: Duration::from_secs(1),
};
/// A request that must be answered, by the host's clock: as long as a busy machine may need.
const ANSWERED: Duration = Duration::from_mins(1);

/// What a worker waits for, and whether its API server is well.
fn waits(world: &World) -> (String, Option<String>) {
    let status = status(world, None).unwrap();
    assert!(status.etcd.is_none());
    // No kubelet listens here.
    assert_eq!(status.state, State::Waiting);
    assert_eq!(status.cluster.as_deref(), Some("blue"));
    let server = status.api_server.unwrap();
    (status.waits_for.unwrap_or_default(), server.reason)
}

#[test]
fn a_worker_says_what_it_waits_for() {
    let plane = ControlPlane::new();
    let identity = plane.file("/etc/kubernetes/kubelet.conf");
    let folder = tempfile::tempdir().unwrap();
    let world = worker(folder.path(), &plane.worker());
    let absent = "/etc/kubernetes/kubelet.conf does not exist";
    let (waits_for, server) = waits(&world);
    assert_eq!(waits_for, absent);
    assert!(server.unwrap().contains("bootstrap-kubelet.conf"));
    let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
    let join_of = bootstrap.object.join.as_ref().unwrap();
    // The endpoint is the fixture's and nobody answers behind it: the line of the wait says it.
    let (listener, pair) = (plane.listener(), plane.certificate());
    let server = format!("https://{}", listener.local_addr().unwrap());
    let prepared = |request| join::prepare(&world, &bootstrap, join_of, TWICE, request);
    prepared(Duration::from_millis(100)).unwrap_err();
    let (waits_for, _) = waits(&world);
    assert!(
        waits_for.starts_with("the cluster at https://127.0.0.1:"),
        "{waits_for}"
    );
    let mut ready =
        json!({"type": "Ready", "status": "False", "reason": "NotReady", "message": "no network"});
    let _requests = serve_by_tls(
        listener,
        move || pair.clone(),
        move |request| {
            let full = |value: Value| Answer::Full(200, value.to_string());
            match request.line.as_str() {
                "GET /readyz" => Answer::Full(200, "ok".to_owned()),
                "GET /api/v1/nodes/node1" if request.authorization.is_empty() => {
                    let node = full(json!({"status": {"conditions": [ready]}}));
                    ready["status"] = "True".into();
                    node
                }
                line if line.contains("certificatesigningrequests") => full(json!({"items": []})),
                _ => plane.answer(request),
            }
        },
    );
    prepared(ANSWERED).unwrap();
    let well = |waits_for: &str| (waits_for.to_owned(), None);
    let expected = format!("{absent}: the kubelet has not requested one");
    assert_eq!(waits(&world), well(&expected));
    put(
        &world.in_initrd("/etc/kubernetes/kubelet.conf"),
        &fits(&world, &identity),
    );
    assert_eq!(waits(&world), well("NotReady: no network"));
    assert_eq!(waits(&world), well(""));

    // Without the object it is a node as kubeadm leaves it, whatever the host's name is.
    fs::remove_file(world.in_initrd(CLUSTER)).unwrap();
    put(&world.proc.join("sys/kernel/hostname"), "ip-10-0-0-8\n");
    let joined = status(&world, None).unwrap();
    assert_eq!((joined.cluster, joined.joined), (None, Some(server)));
    assert_eq!(joined.api_server, Some(Health::of(Ok(()))));
    assert_eq!(joined.node, Some(Health::of(Ok(()))));
    assert_eq!(joined.name, "ip-10-0-0-8");
    for path in [KUBECONFIG, BOOTSTRAP_KUBECONFIG] {
        drop(fs::remove_file(world.in_initrd(path)));
    }
    let alone = status(&world, None).unwrap();
    assert_eq!((alone.joined, alone.node), (None, None));
}

/// A control plane's kubeconfig of its kubelet, which leads to its own address, with the endpoint of this worker.
fn fits(world: &World, identity: &str) -> String {
    let bootstrap = object::read(world, Duration::ZERO).unwrap().unwrap();
    let server = bootstrap.object.config.control_plane_url();
    identity.replace("https://10.0.0.7:6443", &server)
}

/// The keys of the JSON that earlier releases have.
const KEYS: [&str; 9] = [
    "name",
    "addresses",
    "cluster",
    "kubernetes",
    "kubelet",
    "etcd",
    "apiServer",
    "node",
    "waitsFor",
];

#[test]
fn the_status_has_image_clock_and_failures_beside_its_earlier_keys() {
    let folder = tempfile::tempdir().unwrap();
    let world = machine(
        folder.path(),
        "name = \"blue\"\nendpoint = \"10.0.0.7\"\n[node]\naddress = \"10.0.0.7\"\n",
    );
    let gate = world.in_run(RUN_ETCD_GATE);
    put(
        &gate,
        r#"{"required": true, "reason": "no disk has the serial number etcd"}"#,
    );
    let ledger = world.in_initrd(STATE).join(STATE_LEDGER);
    put(
        &ledger,
        r#"{"time":1790000000,"report":{"step":"var","what":"mounting /var"}}"#,
    );
    let missing = status(&world, None).unwrap();
    assert_eq!(missing.state, State::Failed);
    let json = serde_json::to_value(&missing).unwrap();
    for key in KEYS {
        assert!(json.get(key).is_some(), "{key}");
    }
    assert_eq!(
        json["waitsFor"],
        "the etcd volume was not mounted: no disk has the serial number etcd"
    );
    assert_eq!(json["state"], "failed");
    let remedy = json["remedy"].as_str().unwrap();
    assert!(remedy.starts_with("attach the volume"), "{remedy}");
    assert_eq!(json["image"], json!({"name": "demo", "version": "1.2.3"}));
    assert_eq!(json["clock"]["synchronized"], Value::Null);
    assert_eq!(json["lastFailure"]["what"], "mounting /var");
    // No systemd answers here.
    assert_eq!(json["failedUnits"], Value::Null);
    // An API server that does not answer is not asked.
    assert_eq!(json["objectsAppliedBy"], Value::Null);
    assert_eq!(json.get("gettys"), None);
    // With the volume the API server counts: its answer is the earlier one's.
    put(&gate, r#"{"required": false}"#);
    put(&world.in_run(RUN_CLUSTER), "the API server: not yet\n");
    let mut known = status(&world, None).unwrap();
    known.api_server = Some(Health::of(Ok(())));
    known.objects_applied_by = Some("one".to_owned());
    let later = status(&world, Some(&known)).unwrap();
    assert_eq!(later.api_server, known.api_server);
    let json = serde_json::to_value(&later).unwrap();
    assert_eq!(json["objectsAppliedBy"], "one");
    assert_eq!(json["objectsLeft"], Value::Null);
    let row = |status: &Status| {
        let mut rows = crate::status_rows::rows(status).into_iter();
        rows.find(|row| row.label == "objects").unwrap().text
    };
    assert_eq!(row(&later), "applied by one");
    known.objects_left = Some("node two is newer".to_owned());
    let left = status(&world, Some(&known)).unwrap();
    assert_eq!(row(&left), "left by this node: node two is newer");
    assert_ne!(status(&world, None).unwrap().api_server, known.api_server);
}

/// The network may still bring the address: the page would tell people to correct what is right.
#[test]
fn an_address_that_is_not_there_yet_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let world = machine(folder.path(), "name = \"blue\"\n");
    put(&world.in_run(RUN_ETCD_GATE), r#"{"required": false}"#);
    let of = |lacks_address| {
        let text = "x is refused".to_owned();
        let error = anyhow::Error::new(Refused {
            text,
            lacks_address,
        });
        let waiting = waiting(&world, None, Some(Refusal::of(&error)), false, None, None);
        (
            waiting.line.unwrap(),
            waiting.failed,
            waiting.remedy.is_some(),
        )
    };
    let line = "an address: this machine has no default route".to_owned();
    assert_eq!(of(true), (line, false, false));
    assert_eq!(of(false), ("x is refused".to_owned(), true, true));
}

#[test]
fn a_cluster_object_with_mistakes_and_a_kubelet_that_fails_are_failures() {
    let folder = tempfile::tempdir().unwrap();
    let world = machine(folder.path(), "nme = \"blue\"\n");
    put(&world.in_run(RUN_CLUSTER), "the API server\n");
    let refused = status(&world, None).unwrap();
    assert_eq!(refused.state, State::Failed);
    let line = refused.waits_for.unwrap();
    assert!(
        line.starts_with("/etc/slipway/cluster.toml is refused"),
        "{line}"
    );
    let of = |units: Option<&Units>, line: Option<&str>| {
        put(&world.in_run(RUN_ETCD_GATE), r#"{"required": false}"#);
        put(&world.in_run(RUN_CLUSTER), line.unwrap_or_default());
        let waiting = waiting(&world, None, None, false, None, units);
        (waiting.failed, waiting.remedy)
    };
    let unit = |name: &str| Units {
        failed: vec![Unit::failed(name)],
        gettys: Vec::new(),
    };
    let remedy = Some("`journalctl -u kubelet.service` says why".to_owned());
    assert_eq!(of(Some(&unit(UNIT)), None), (true, remedy.clone()));
    let api = Some("the API server: Connection refused");
    assert_eq!(of(Some(&unit(UNIT)), api), (true, remedy));
    assert_eq!(of(Some(&unit("other.service")), api), (false, None));
    assert_eq!(of(None, api), (false, None));
}

#[test]
fn a_credential_provider_without_its_program_is_a_failure_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let world = machine(folder.path(), "");
    put(&world.in_run(RUN_ETCD_GATE), r#"{"required": false}"#);
    let text = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: login\n";
    put(&world.in_initrd(CREDENTIAL_PROVIDERS), text);
    let waiting = waiting(&world, None, None, false, None, None);
    let line = waiting.line.unwrap();
    assert!(line.contains("no executable \"login\""), "{line}");
    assert!(waiting.failed);
    assert!(waiting.remedy.unwrap().contains(CREDENTIAL_PROVIDERS));
}

#[test]
fn a_full_disk_is_what_a_node_waits_for() {
    let folder = tempfile::tempdir().unwrap();
    let world = machine(folder.path(), "");
    put(&world.in_run(RUN_CLUSTER), "the API server\n");
    let disk = Disk {
        path: "/var",
        size: 4 << 30,
        free: 4096,
    };
    let waiting = waiting(&world, Some(&disk), None, false, None, None);
    let line = "room: /var has 0 of 4096 MiB left";
    assert_eq!(waiting.line.as_deref(), Some(line));
    assert!(waiting.failed && waiting.remedy.unwrap().contains("du -xh -d 3 /var"));
}
