//! Joins of a control plane on loopback that answers by TLS as the API server does, faults included.

mod refusals;

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::mpsc::Receiver;

use serde_json::json;

use super::*;
use crate::discover::{INFO, KUBELET, NODE, VERSION};
use crate::journal;
use crate::object;
use crate::samples::{Answer, ControlPlane, Request, TOKEN, files, put, serve_by_tls, worker};

/// The files of a worker in the order in which they are written, with their modes.
const FILES: [(&str, u32); 6] = [
    (journal::FILE, 0o600),
    (AUTHORITY, 0o644),
    (JOINED_CONFIG, 0o644),
    ("/var/lib/kubelet/kubeadm-flags.env", 0o644),
    ("/var/lib/kubelet/instance-config.yaml", 0o644),
    (BOOTSTRAP_KUBECONFIG, 0o600),
];
/// Six attempts, by a clock of their own.
const SHORT: Limits = Limits {
    patience: Duration::from_secs(5),
    every: Duration::from_secs(1),
};
/// After this time of the host's clock a request is given up, in one test; a busy host answers all others within it.
const SOON: Duration = Duration::from_secs(4);
const ATTEMPTS: usize = 6;

fn prepared(world: &World) -> Result<()> {
    let bootstrap = object::read(world, Duration::ZERO)?.unwrap();
    let join = bootstrap.object.join.as_ref().unwrap();
    prepare(world, &bootstrap, join, SHORT, SOON)
}

/// The error of a preparation that must change nothing but the line of what is waited for.
fn refused(world: &World, root: &Path) -> String {
    let line = world.in_run(image::paths::RUN_CLUSTER);
    let before = files(root);
    let error = format!("{:#}", prepared(world).unwrap_err());
    drop(fs::remove_file(line));
    assert!(files(root) == before, "{error}: something was written");
    error
}

fn read(world: &World, path: &str) -> String {
    fs::read_to_string(world.in_initrd(path)).unwrap()
}

/// The lines of the requests, and whether each had the token.
fn seen(requests: &Receiver<Request>) -> Vec<(String, bool)> {
    let token = format!("Bearer {TOKEN}");
    let seen = |request: Request| (request.line, request.authorization == token);
    requests.try_iter().map(seen).collect()
}

/// A control plane that gives each answer to this function first.
fn serving(
    change: impl Fn(&ControlPlane, &Request, usize) -> Option<Answer> + Send + 'static,
) -> (String, Receiver<Request>) {
    let plane = ControlPlane::new();
    let (object, pair) = (plane.worker(), plane.certificate());
    let mut number = 0;
    let requests = serve_by_tls(
        plane.listener(),
        move || pair.clone(),
        move |request| {
            number += 1;
            change(&plane, request, number).unwrap_or_else(|| plane.answer(request))
        },
    );
    (object, requests)
}

#[test]
fn a_worker_joins_by_a_pinned_authority_and_asks_nobody_once_it_has_its_certificate() {
    let plane = ControlPlane::new();
    let authority = plane.file(AUTHORITY);
    let identity = plane.file("/etc/kubernetes/kubelet.conf");
    let folder = tempfile::tempdir().unwrap();
    let object = plane.worker() + "[kubelet.config]\nmaxPods = 50\n";
    let world = worker(folder.path(), &object);
    let requests = serving_plane(plane);
    prepared(&world).unwrap();
    let get = |path: &str, token: bool| (format!("GET {path}"), token);
    let expected = [
        get(INFO, false),
        get(INFO, false),
        get(KUBELET, true),
        get(&format!("{NODE}node1"), true),
        get(VERSION, true),
    ];
    assert_eq!(seen(&requests), expected);
    for (path, mode) in FILES {
        let metadata = world.in_initrd(path).metadata().unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, mode, "{path}");
    }
    assert_eq!(read(&world, AUTHORITY), authority);
    let config = read(&world, JOINED_CONFIG);
    for line in [
        "rotateCertificates: true\n",
        "maxPods: 50\n",
        "kubeletCgroups: ",
    ] {
        assert!(config.contains(line), "{line}: {config}");
    }
    let flags = read(&world, "/var/lib/kubelet/kubeadm-flags.env");
    assert_eq!(flags, "KUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.8\"\n");
    let credentials = read(&world, BOOTSTRAP_KUBECONFIG);
    assert!(
        credentials.contains(&format!("token: {TOKEN}\n")),
        "{credentials}"
    );
    let journal = Journal::read(&world).unwrap().unwrap();
    assert!(journal.joined && journal.authority == Some(sha256(authority.as_bytes())));
    // The kubelet has got its certificate.
    put(&world.in_initrd("/etc/kubernetes/kubelet.conf"), &identity);
    fs::remove_file(world.in_initrd(BOOTSTRAP_KUBECONFIG)).unwrap();
    let before = files(folder.path());
    prepared(&world).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(files(folder.path()) == before, "a file was written again");
    // What the kubelet is started with follows the object; an identity without a certificate is none.
    let renamed = object.replace("10.0.0.8", "10.0.0.9");
    put(&world.in_initrd(image::paths::CLUSTER), &renamed);
    prepared(&world).unwrap_or_else(|error| panic!("{error:#}"));
    let flags = read(&world, "/var/lib/kubelet/kubeadm-flags.env");
    assert!(flags.contains("--node-ip=10.0.0.9"), "{flags}");
    assert!(!world.in_initrd(BOOTSTRAP_KUBECONFIG).exists());
    assert_eq!(seen(&requests), []);
    let without = identity.replace("client-certificate-data", "client-certificate");
    put(&world.in_initrd("/etc/kubernetes/kubelet.conf"), &without);
    prepared(&world).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(world.in_initrd(BOOTSTRAP_KUBECONFIG).exists());
    assert_eq!(seen(&requests).len(), 5);
}

/// The endpoint's control plane is gone, and the object names another one.
#[test]
fn a_worker_joins_by_another_server_of_its_object_where_the_endpoint_does_not_answer() {
    let plane = ControlPlane::new();
    let gone = TcpListener::bind("127.0.0.1:0").unwrap();
    let gone_at = gone.local_addr().unwrap().to_string();
    drop(gone);
    let there = plane.listener().local_addr().unwrap().to_string();
    let object = plane.worker().replace(&there, &gone_at).replace(
        "[balancer]\n",
        &format!("[balancer]\nservers = [\"{there}\"]\n"),
    );
    let folder = tempfile::tempdir().unwrap();
    let world = worker(folder.path(), &object.replace(&there, &gone_at));
    let error = refused(&world, folder.path());
    assert_eq!(error.matches("refused").count(), 2, "{error}");
    put(&world.in_initrd(image::paths::CLUSTER), &object);
    let requests = serving_plane(plane);
    prepared(&world).unwrap();
    assert_eq!(seen(&requests).len(), 5);
    assert!(read(&world, BOOTSTRAP_KUBECONFIG).contains(TOKEN));
}

/// Serves a whole control plane as it is.
fn serving_plane(plane: ControlPlane) -> Receiver<Request> {
    let pair = plane.certificate();
    serve_by_tls(
        plane.listener(),
        move || pair.clone(),
        move |request| plane.answer(request),
    )
}

/// Somebody removed the kubelet's configuration. The node's own certificate proves that the Ready node is this one.
#[test]
fn a_worker_whose_configuration_is_gone_joins_anew_while_its_node_is_ready() {
    let plane = ControlPlane::new();
    let identity = plane.file("/etc/kubernetes/kubelet.conf");
    let (object, pair) = (plane.worker(), plane.certificate());
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let requests = serve_by_tls(
        plane.listener(),
        move || pair.clone(),
        move |request| match request.line.contains(NODE) {
            true => Answer::Full(200, ready.to_string()),
            false => plane.answer(request),
        },
    );
    let folder = tempfile::tempdir().unwrap();
    let world = worker(folder.path(), &object);
    let error = refused(&world, folder.path());
    assert!(error.contains("that is Ready"), "{error}");
    drop(seen(&requests));
    put(&world.in_initrd("/etc/kubernetes/kubelet.conf"), &identity);
    prepared(&world).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(world.in_initrd(JOINED_CONFIG).exists());
    let asked = seen(&requests);
    assert!(
        !asked.iter().any(|(line, _)| line.contains(NODE)),
        "{asked:?}"
    );
}

/// The kubelet says it once, as it registers its node: without it in the configuration a node that is deleted comes back without it.
#[test]
fn a_worker_that_joined_before_the_cloud_was_set_gets_its_providers_id() {
    let plane = ControlPlane::new();
    let identity = plane.file("/etc/kubernetes/kubelet.conf");
    let object = plane.worker() + "[kubelet.config]\nmaxPods = 50\n";
    let folder = tempfile::tempdir().unwrap();
    let world = worker(folder.path(), &object);
    let _requests = serving_plane(plane);
    let metadata =
        "AFTERBURN_AWS_AVAILABILITY_ZONE=eu-central-1a\nAFTERBURN_AWS_INSTANCE_ID=i-0abc\n";
    put(&world.in_run(image::paths::RUN_METADATA), metadata);
    prepared(&world).unwrap_or_else(|error| panic!("{error:#}"));
    put(&world.in_initrd("/etc/kubernetes/kubelet.conf"), &identity);
    let before = read(&world, JOINED_CONFIG);
    assert!(!before.contains("providerID"), "{before}");
    let cloud = format!("{object}[cloud]\nprovider = \"aws\"\n");
    put(&world.in_initrd(image::paths::CLUSTER), &cloud);
    prepared(&world).unwrap_or_else(|error| panic!("{error:#}"));
    let config = read(&world, JOINED_CONFIG);
    let line = "providerID: aws:///eu-central-1a/i-0abc\n";
    assert_eq!(config.replace(line, ""), before);
    assert!(config.contains(line), "{config}");
    let flags = read(&world, "/var/lib/kubelet/kubeadm-flags.env");
    assert!(flags.contains("--cloud-provider=external"), "{flags}");
    let written = files(folder.path());
    prepared(&world).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(files(folder.path()) == written, "a file was written again");
    put(&world.in_initrd(JOINED_CONFIG), "- x\n");
    let error = format!("{:#}", prepared(&world).unwrap_err());
    assert!(error.contains("config.yaml is refused: "), "{error}");
}

#[test]
fn a_control_plane_that_is_late_slow_or_cut_is_waited_for() {
    // Nobody listens there.
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let plane = ControlPlane::new();
    let folder = tempfile::tempdir().unwrap();
    let right = plane.worker();
    let listening = plane.listener().local_addr().unwrap().to_string();
    let world = worker(folder.path(), &right.replace(&listening, &free.to_string()));
    let error = refused(&world, folder.path());
    assert!(
        error.contains("waiting for the cluster at https://127.0.0.1:"),
        "{error}"
    );
    assert!(
        error.ends_with("Connection refused (os error 111)"),
        "{error}"
    );
    // Nothing, half of an answer, no roles yet, no signature yet; then all.
    let (object, requests) = serving(|plane, _, number| match number {
        1 => Some(Answer::Nothing),
        2 => Some(Answer::Half(plane.object(INFO).to_string())),
        3 => Some(Answer::Full(
            403,
            json!({"message": "RBAC: role not found"}).to_string(),
        )),
        4 => {
            let mut map = plane.object(INFO);
            map["data"] = json!({"kubeconfig": plane.info()});
            Some(Answer::Full(200, map.to_string()))
        }
        _ => None,
    });
    let world = worker(folder.path(), &object);
    prepared(&world).unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(seen(&requests).len(), 9);
    assert!(!world.in_run(image::paths::RUN_CLUSTER).exists());
    assert!(FILES.iter().all(|(path, _)| world.in_initrd(path).exists()));
}

#[test]
fn a_join_that_was_cut_after_any_file_is_completed() {
    let (object, _requests) = serving(|_, _, _| None);
    let folder = tempfile::tempdir().unwrap();
    let world = worker(folder.path(), &object);
    prepared(&world).unwrap();
    let whole: Vec<String> = FILES.iter().map(|(path, _)| read(&world, path)).collect();
    for cut in 0..FILES.len() {
        for (path, _) in &FILES[cut..] {
            fs::remove_file(world.in_initrd(path)).unwrap();
        }
        if cut > 0 {
            Journal::of_worker("blue").write(&world).unwrap();
        }
        prepared(&world).unwrap_or_else(|error| panic!("{cut}: {error:#}"));
        let found: Vec<String> = FILES.iter().map(|(path, _)| read(&world, path)).collect();
        assert_eq!(found, whole, "{cut}");
    }
}
