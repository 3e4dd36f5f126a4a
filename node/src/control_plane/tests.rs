//! What a control plane is written as, and what is refused, in a folder that stands for the machine.

use image::paths::RUN_ETCD_GATE;
use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::journal;
use crate::object;
use crate::samples::{files, machine, put};

const OBJECT: &str = "name = \"blue\"\n[node]\naddress = \"10.0.0.7\"\n";

fn prepared(world: &World) -> Result<()> {
    let bootstrap = object::read(world, Duration::ZERO)?.expect("a control plane");
    prepare(world, &bootstrap, |_| Ok(()))
}

#[test]
fn a_control_plane_is_written_once_and_a_second_boot_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let world = machine(folder.path(), OBJECT);
    prepared(&world).unwrap();
    answered(&world);
    let before = files(folder.path());
    for (path, mode) in [
        ("/etc/kubernetes/pki/ca.key", 0o600),
        ("/etc/kubernetes/pki/etcd/server.crt", 0o644),
        ("/etc/kubernetes/super-admin.conf", 0o600),
        ("/etc/kubernetes/kubelet.conf", 0o600),
        ("/etc/kubernetes/manifests/kube-scheduler.yaml", 0o600),
        ("/var/lib/kubelet/config.yaml", 0o644),
        ("/var/lib/kubelet/kubeadm-flags.env", 0o644),
        ("/var/lib/kubelet/instance-config.yaml", 0o644),
        (cni::FILE, 0o644),
        (journal::FILE, 0o600),
    ] {
        let metadata = world.in_initrd(path).metadata().unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, mode, "{path}");
    }
    prepared(&world).unwrap();
    assert!(files(folder.path()) == before, "a file was written again");
    // Its pods run before the kubelet, which is of 1.36.
    let config = fs::read_to_string(world.in_initrd("/var/lib/kubelet/config.yaml")).unwrap();
    let gate = "  ChangeContainerStatusOnKubeletRestart: true\n";
    assert!(config.contains(gate), "{config}");
}

/// kubeadm's documents alone can have the gate, which decides in place of `encryptionAlgorithm`.
#[test]
fn the_gate_decides_the_service_accounts_key_too() {
    for (gate, algorithm, is_elliptic) in [(true, "RSA-2048", true), (false, "ECDSA-P256", false)] {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nlocalAPIEndpoint: {{ advertiseAddress: 10.0.0.7 }}\n\
             ---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nencryptionAlgorithm: {algorithm}\n\
             featureGates: {{ PublicKeysECDSA: {gate} }}\n"
        );
        let world = machine(folder.path(), &text);
        prepared(&world).unwrap();
        for file in ["ca.key", "sa.key"] {
            let path = format!("/etc/kubernetes/pki/{file}");
            let key = fs::read_to_string(world.in_initrd(&path)).unwrap();
            assert_eq!(!key.contains("RSA"), is_elliptic, "{gate} {file}");
        }
    }
}

#[test]
fn the_api_server_ends_soon_unless_the_object_has_it_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    let world = machine(folder.path(), OBJECT);
    let manifest = world.in_initrd("/etc/kubernetes/manifests/kube-apiserver.yaml");
    for (more, expected) in [
        ("", ["true"].as_slice()),
        (
            "[api-server]\nargs = { shutdown-send-retry-after = false }\n",
            &["false"],
        ),
    ] {
        put(&world.in_initrd(CLUSTER), &format!("{OBJECT}{more}"));
        prepared(&world).unwrap();
        let text = fs::read_to_string(&manifest).unwrap();
        let lines = text.lines();
        let found: Vec<&str> = lines
            .filter_map(|line| line.trim().strip_prefix("- --shutdown-send-retry-after="))
            .collect();
        assert_eq!(found, expected, "{text}");
    }
}

#[test]
fn the_kubelet_of_a_control_plane_asks_its_own_api_server_unless_the_object_has_a_balancer() {
    let folder = tempfile::tempdir().unwrap();
    let world = machine(folder.path(), OBJECT);
    let given = |file: &str| {
        let text = fs::read_to_string(world.in_initrd(&format!("/etc/kubernetes/{file}")));
        let given = cluster::kubeconfigs::read(&text.unwrap()).unwrap();
        (given.server, given.server_name)
    };
    prepared(&world).unwrap();
    let own = ("https://10.0.0.7:6443".to_owned(), None);
    assert_eq!(given(KUBELET), own);
    put(
        &world.in_initrd(CLUSTER),
        &format!("{OBJECT}[balancer]\nenabled = true\n"),
    );
    prepared(&world).unwrap();
    let name = Some("kubernetes.default.svc".to_owned());
    assert_eq!(given(KUBELET), ("https://127.0.0.1:7443".to_owned(), name));
    for file in ["admin.conf", "controller-manager.conf", "scheduler.conf"] {
        assert_eq!(given(file), own, "{file}");
    }
    let before = files(folder.path());
    prepared(&world).unwrap();
    assert!(files(folder.path()) == before, "a file was written again");
    // Its pods run before the kubelet, which is of 1.36.
    let config = fs::read_to_string(world.in_initrd("/var/lib/kubelet/config.yaml")).unwrap();
    let gate = "  ChangeContainerStatusOnKubeletRestart: true\n";
    assert!(config.contains(gate), "{config}");
    put(&world.in_initrd(CLUSTER), OBJECT);
    prepared(&world).unwrap();
    assert_eq!(given(KUBELET), own);
}

/// As the bring-up, once the API server answers.
fn answered(world: &World) {
    let bootstrap = object::read(world, Duration::ZERO).unwrap().unwrap();
    let journal = Journal::read(world).unwrap().unwrap();
    served(world, &bootstrap, &journal).unwrap();
}

/// As after a power cut, when the DHCP server comes later than the router: its API server would end at its start, for good.
#[test]
fn an_api_server_keeps_the_ip_version_of_its_services() {
    let folder = tempfile::tempdir().unwrap();
    let world = machine(folder.path(), OBJECT);
    let with = |world: &World, address: &str| {
        let mut bootstrap = object::read(world, Duration::ZERO).unwrap().unwrap();
        let endpoint = &mut bootstrap.object.config.init.local_api_endpoint;
        endpoint.advertise_address = address.to_owned();
        prepare(world, &bootstrap, |_| Ok(()))
    };
    prepared(&world).unwrap();
    let before = files(folder.path());
    let error = format!("{:#}", with(&world, "fd00::9").unwrap_err());
    for part in ["no default route of IPv4", "10.0.0.7:6443", "fd00::9"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(files(folder.path()) == before, "something was written");
    // Another lease is followed.
    with(&world, "10.0.0.9").unwrap();
    assert_eq!(known_address(&world).as_deref(), Some("10.0.0.9:6443"));
    // A machine that never had an address of that version is taken as kubeadm takes it.
    let folder = tempfile::tempdir().unwrap();
    let world = machine(folder.path(), OBJECT);
    with(&world, "fd00::9").unwrap();
    with(&world, "fd00::9").unwrap();
}

#[test]
fn what_ends_without_an_api_server_starts_behind_it_on_every_boot() {
    let folder = tempfile::tempdir().unwrap();
    let world = machine(folder.path(), OBJECT);
    let there = || {
        let all = fs::read_dir(world.in_initrd("/etc/kubernetes/manifests")).unwrap();
        let mut names: Vec<String> = all
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let first = ["etcd.yaml", "kube-apiserver.yaml"];
    prepared(&world).unwrap();
    assert_eq!(there(), first);
    answered(&world);
    let [two @ .., _, _] = there().try_into().unwrap_or([const { String::new() }; 4]);
    assert_eq!(two, first);
    let whole = files(folder.path());
    // A kubelet that starts again on the same boot.
    prepared(&world).unwrap();
    assert!(files(folder.path()) == whole);
    // A reboot.
    fs::remove_file(world.in_run(RUN_API_SERVER)).unwrap();
    prepared(&world).unwrap();
    assert_eq!(there(), first);
    answered(&world);
    let again: Vec<_> = files(folder.path()).into_keys().collect();
    assert!(again.iter().eq(whole.keys()));
}

#[test]
fn a_worker_needs_a_join_and_a_node_without_an_object_is_alone() {
    let folder = tempfile::tempdir().unwrap();
    let world = machine(folder.path(), OBJECT);
    put(&world.in_run(RUN_ETCD_GATE), "{\"required\": false}");
    let error = format!("{:#}", object::read(&world, Duration::ZERO).unwrap_err());
    assert!(error.contains("the role of this node is worker"), "{error}");
    fs::remove_file(world.in_initrd(CLUSTER)).unwrap();
    fs::remove_file(world.in_run(RUN_ETCD_GATE)).unwrap();
    assert!(object::read(&world, Duration::ZERO).unwrap().is_none());
}

#[test]
fn a_bootstrap_that_was_cut_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let world = machine(folder.path(), OBJECT);
    prepared(&world).unwrap();
    let whole: Vec<_> = files(folder.path()).into_keys().collect();
    let key = world.in_initrd("/etc/kubernetes/pki/front-proxy-ca.key");
    let kept = world.in_initrd("/etc/kubernetes/pki/ca.crt");
    let authority = fs::read(&kept).unwrap();
    // As after a cut behind the third key: the journal is begun, and nothing that follows is there.
    Journal::new("blue").write(&world).unwrap();
    fs::remove_file(key.with_extension("crt")).unwrap();
    for rest in ["pki/etcd", "manifests"] {
        fs::remove_dir_all(world.in_initrd(&format!("/etc/kubernetes/{rest}"))).unwrap();
    }
    prepared(&world).unwrap();
    assert_eq!(files(folder.path()).into_keys().collect::<Vec<_>>(), whole);
    assert_eq!(fs::read(&kept).unwrap(), authority);
    let journal = Journal::read(&world).unwrap().unwrap();
    assert_eq!(journal.authority, Some(sha256(&authority)));
}

/// The error of a preparation that must change nothing.
fn refused(world: &World, root: &Path) -> String {
    let before = files(root);
    let error = format!("{:#}", prepared(world).unwrap_err());
    assert!(files(root) == before, "{error}: something was written");
    error
}

#[test]
fn another_cluster_is_named_and_nothing_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let world = machine(root, OBJECT);
    // Data of etcd without its keys.
    fs::create_dir_all(world.in_initrd(ETCD).join(MEMBER)).unwrap();
    let error = refused(&world, root);
    assert!(
        error.contains(
            "/var/lib/etcd/member holds the data of a cluster whose keys are not on this node"
        ),
        "{error}"
    );
    fs::remove_dir(world.in_initrd(ETCD).join(MEMBER)).unwrap();
    // A volume of another cluster.
    let identity = world.in_initrd(ETCD).join(ETCD_IDENTITY);
    put(
        &identity,
        "{\"version\": 1, \"cluster\": \"red\", \"filesystem\": \"x\", \"created\": 1, \"machineId\": \"y\"}",
    );
    let error = refused(&world, root);
    assert!(
        error.contains(
            "belongs to the cluster \"red\", and /etc/slipway/cluster.toml names \"blue\""
        ),
        "{error}"
    );
    fs::remove_file(&identity).unwrap();
    prepared(&world).unwrap();
    // An object of another cluster.
    put(&world.in_initrd(CLUSTER), &OBJECT.replace("blue", "red"));
    let error = refused(&world, root);
    assert!(
        error.contains("this node belongs to the cluster \"blue\""),
        "{error}"
    );
    put(&world.in_initrd(CLUSTER), OBJECT);
    // Another authority's certificate.
    let other = tempfile::tempdir().unwrap();
    let there = machine(other.path(), OBJECT);
    prepared(&there).unwrap();
    for end in ["crt", "key"] {
        let file = format!("/etc/kubernetes/pki/ca.{end}");
        fs::copy(there.in_initrd(&file), world.in_initrd(&file)).unwrap();
    }
    let error = refused(&world, root);
    assert!(
        error.contains("is not the authority that this node's cluster \"blue\" began with"),
        "{error}"
    );
}

#[test]
fn a_mistake_in_the_object_is_named_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let world = machine(folder.path(), &format!("{OBJECT}naem = \"x\"\n"));
    let error = format!("{:#}", object::read(&world, Duration::ZERO).unwrap_err());
    let expected = "/etc/slipway/cluster.toml is refused:\n  node.naem: unknown field; did you mean \"name\"? (line 4, column 8)";
    assert_eq!(error, expected);
}
