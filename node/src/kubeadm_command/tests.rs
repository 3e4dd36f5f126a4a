//! The arguments, what a join leaves, and what is refused.

use std::sync::atomic::AtomicI64;

use image::paths::RUN_ETCD_GATE;
use linux::world::Clock;

use super::*;
use crate::samples::{Answer, ControlPlane, TOKEN, files, machine, put, serve_by_tls};

/// Where the provider's config has the documents.
const FILE: &str = "/etc/kubeadm.yml";

#[test]
fn the_arguments_are_those_of_the_providers_script() {
    for arguments in [
        &["init", "--config", FILE][..],
        &["init", "--config=/etc/kubeadm.yml", "--v", "5"],
        &[
            "init",
            "-v=5",
            "--ignore-preflight-errors=all",
            "--config",
            FILE,
        ],
        &[
            "init",
            "--config",
            FILE,
            "--ignore-preflight-errors",
            "Swap,Mem",
        ],
    ] {
        assert_eq!(read(arguments), Ok((Verb::Init, FILE)), "{arguments:?}");
    }
    assert_eq!(read(&["join", "--config", FILE]), Ok((Verb::Join, FILE)));
    for (arguments, expected) in [
        (&[][..], "expected init or join"),
        (&["reset"], "\"reset\" is not done"),
        (&["init"], "no --config"),
        (&["init", "--config"], "--config: expected a file"),
        (
            &["init", "--config", FILE, "--v", "many"],
            "--v: expected a number",
        ),
        (&["init", "phase", "certs"], "\"phase\" is not known"),
        (
            &["join", "10.0.0.1:6443", "--token", TOKEN],
            "\"10.0.0.1:6443\" is not known",
        ),
        (
            &["join", "--config", FILE, "--patches=/a"],
            "\"--patches=/a\" is not known",
        ),
    ] {
        let message = read(arguments).unwrap_err();
        assert!(message.starts_with(expected), "{message}");
    }
}

/// A unit that the boot passed over, since the documents were not there yet, does not start by itself.
#[test]
fn every_unit_that_the_documents_are_a_condition_of_is_started() {
    let workspace = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mut units = std::collections::BTreeMap::new();
    for folder in ["initrd/src/kubelet", "src/node_files"] {
        for entry in fs::read_dir(format!("{workspace}/{folder}")).unwrap() {
            let entry = entry.unwrap();
            // Beside the units there are folders.
            if let Ok(text) = fs::read_to_string(entry.path()) {
                units.insert(entry.file_name().into_string().unwrap(), text);
            }
        }
    }
    let mut waiting = Vec::new();
    for (name, text) in &units {
        // The bring-up starts those that need the node's credentials, and a timer its service.
        let timer = name.replace(".service", ".timer");
        let by_others = text.contains("ConditionPathExists=@KUBECONFIG@")
            || (timer != *name && units.contains_key(&timer));
        if text.contains("ConditionPathExists=@CLUSTER@") && !by_others {
            waiting.push(name.as_str());
        }
    }
    let mut started = UNITS.to_vec();
    started.sort_unstable();
    assert_eq!(waiting, started);
}

/// The machine of a worker without an object, with the provider's file. Waits cost no time.
fn worker(root: &std::path::Path, text: &str) -> World {
    let world = crate::samples::worker(root, "");
    fs::remove_file(world.in_initrd(CLUSTER)).unwrap();
    put(&world.in_initrd(FILE), text);
    world
}

fn document(plane: &ControlPlane, token: &str) -> String {
    format!(
        "---
apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery:
  bootstrapToken: {{ token: {token}, apiServerEndpoint: \"{}\", caCertHashes: [\"{}\"] }}
nodeRegistration: {{ name: node1, kubeletExtraArgs: [{{ name: node-ip, value: 10.0.0.8 }}] }}
timeouts: {{ discovery: 20s, tlsBootstrap: 1m, kubeletHealthCheck: 1m }}
",
        plane.listener().local_addr().unwrap(),
        plane.pin()
    )
}

#[test]
fn a_join_by_another_token_changes_nothing_and_says_so() {
    let plane = ControlPlane::new();
    let folder = tempfile::tempdir().unwrap();
    let world = worker(folder.path(), &document(&plane, "zzzzzz.0123456789abcdef"));
    let before = files(&folder.path().join("etc"));
    let pair = plane.certificate();
    let _requests = serve_by_tls(
        plane.listener(),
        move || pair.clone(),
        move |request| plane.answer(request),
    );
    let error = format!("{:#}", run(&world, Verb::Join, FILE).unwrap_err());
    assert!(
        error.contains("for 20 s: cluster-info is not signed for the token \"zzzzzz\""),
        "{error}"
    );
    assert!(
        files(&folder.path().join("etc")) == before,
        "a file was changed"
    );
    assert!(Journal::read(&world).unwrap().is_none());
}

/// The documents are there for every later boot, with the cluster's; a second call goes on, and other documents take their place only as
/// long as nothing has begun.
#[test]
fn a_join_leaves_the_documents_and_waits_for_the_node() {
    let plane = ControlPlane::new();
    let folder = tempfile::tempdir().unwrap();
    let text = document(&plane, TOKEN);
    let world = worker(folder.path(), &text);
    let pair = plane.certificate();
    let config = plane.object(CONFIG).to_string();
    let _requests = serve_by_tls(
        plane.listener(),
        move || pair.clone(),
        move |request| match request.line.strip_prefix("GET ") {
            Some(CONFIG) if !request.authorization.is_empty() => Answer::Full(200, config.clone()),
            _ => plane.answer(request),
        },
    );
    let failed = || format!("{:#}", run(&world, Verb::Join, FILE).unwrap_err());
    let error = failed();
    let expected = "this node is not in its cluster after 120 s; the bring-up goes on: /etc/kubernetes/kubelet.conf does not exist";
    assert_eq!(error, expected);
    let there = fs::read_to_string(world.in_initrd(CLUSTER)).unwrap();
    assert!(there.starts_with(text.trim_end()) && there.contains("kind: ClusterConfiguration"));
    // The cluster's name is its own, although the provider's file is beside it.
    let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
    assert_eq!(bootstrap.object.name(), "blue");
    assert!(bootstrap.object.join.is_some());
    assert_eq!(failed(), expected);
    assert_eq!(fs::read_to_string(world.in_initrd(CLUSTER)).unwrap(), there);
    put(
        &world.in_run(RUN_CLUSTER),
        "the certificate of node node1: not approved\n",
    );
    assert!(failed().contains("waits for the certificate of node node1: not approved"));
    Journal::of_worker("blue").write(&world).unwrap();
    put(
        &world.in_initrd(FILE),
        &text.replace("10.0.0.8", "10.0.0.9"),
    );
    assert!(failed().contains("brought up by other documents"));
}

/// The files are those of a bring-up. Waits cost no time.
#[test]
fn a_second_init_with_other_documents_is_refused_and_with_the_same_ones_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let document = |address: &str| {
        format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nlocalAPIEndpoint: {{ advertiseAddress: {address} }}\n\
             ---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nencryptionAlgorithm: ECDSA-P256\n"
        )
    };
    machine(folder.path(), &document("10.0.0.7"));
    let world = World::below(folder.path(), Clock::Fake(AtomicI64::new(0)));
    let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
    control_plane::prepare(&world, &bootstrap, |_| Ok(())).unwrap();
    let journal = Journal::read(&world).unwrap().unwrap();
    assert!(journal.authority.is_some() && !journal.joined);
    let written = || ["etc", "var"].map(|name| files(&folder.path().join(name)));
    for (address, expected) in [
        (
            "10.0.0.7",
            "the bring-up goes on: the cluster's objects are not made yet",
        ),
        (
            "10.0.0.9",
            "this node was brought up by other documents, /etc/slipway/cluster.toml; nothing is changed",
        ),
    ] {
        put(&world.in_initrd(FILE), &document(address));
        let before = written();
        let error = format!("{:#}", run(&world, Verb::Init, FILE).unwrap_err());
        assert!(error.ends_with(expected), "{error}");
        assert!(written() == before, "a file was changed");
    }
}

#[test]
fn documents_of_the_other_command_and_a_cluster_object_are_refused() {
    let plane = ControlPlane::new();
    let folder = tempfile::tempdir().unwrap();
    let world = worker(folder.path(), &document(&plane, TOKEN));
    let refused = |verb| format!("{:#}", run(&world, verb, FILE).unwrap_err());
    assert!(refused(Verb::Init).contains("has JoinConfiguration; expected InitConfiguration"));
    let more = format!(
        "{}---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n",
        document(&plane, TOKEN)
    );
    put(&world.in_initrd(FILE), &more);
    assert!(refused(Verb::Join).contains("more than JoinConfiguration"));
    let init = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nlocalAPIEndpoint: { advertiseAddress: 10.0.0.7 }\n";
    put(&world.in_initrd(FILE), init);
    assert!(refused(Verb::Join).contains("no JoinConfiguration"));
    put(
        &world.in_initrd(FILE),
        &format!("{init}patches: {{ directory: /a }}\n"),
    );
    let error = refused(Verb::Init);
    assert!(
        error.contains("/etc/kubeadm.yml is refused:\n  patches: ")
            && error.contains("(line 4, column 10)"),
        "{error}"
    );
    let folder = tempfile::tempdir().unwrap();
    let world = machine(folder.path(), "name = \"blue\"\n");
    put(&world.in_run(RUN_ETCD_GATE), "{\"required\": true}");
    put(&world.in_initrd(FILE), init);
    let error = format!("{:#}", run(&world, Verb::Init, FILE).unwrap_err());
    assert!(
        error.contains("this node has the cluster object"),
        "{error}"
    );
}
