//! The cluster object on machines with other names, addresses and clouds.

use image::paths::{HOSTNAME, RUN_METADATA};
use linux::world::Clock;

use super::facts::provider_id;
use super::*;
use crate::samples::{machine, put, worker};

/// kubeadm's documents of a first node, without its address, and those of nodes that join.
const INIT: &str = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n";
const JOIN: &str = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\ndiscovery:\n  bootstrapToken:\n    \
    token: abcdef.0123456789abcdef\n    apiServerEndpoint: api.example.test:6443\n    caCertHashes: \
    [\"sha256:7c2e69131a36ae2a042a339b33381c6d0d43887e2de83720eff5359e26aec866\"]\n";
const PLANE: &str = "controlPlane: {}\n";
const CLUSTER_V4: &str = "---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\ncontrolPlaneEndpoint: api.example.test\nnetworking: { serviceSubnet: 10.96.0.0/12 }\n";
const CLUSTER_V6: &str = "---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\ncontrolPlaneEndpoint: api.example.test\nnetworking: { serviceSubnet: \"fd00:6::/112\" }\n";
/// A cluster object of a worker.
const WORKER: &str = "endpoint = \"api.example.test:6443\"\n[join]\ntoken = \"abcdef.0123456789abcdef\"\n\
    ca-hashes = [\"sha256:7c2e69131a36ae2a042a339b33381c6d0d43887e2de83720eff5359e26aec866\"]\n";

/// The address that a text has on a machine whose kernel has these source addresses from so many seconds on, and after how many it is
/// known.
fn settled(text: &str, addresses: &[(i64, &str)]) -> (Result<IpAddr>, i64) {
    let folder = tempfile::tempdir().unwrap();
    let world = worker(folder.path(), text);
    let seconds = || world.micros() / 1_000_000;
    let source = |version| {
        let now = addresses.iter().filter(|(since, _)| *since <= seconds());
        let mut all = now.map(|(_, text)| text.parse().unwrap());
        all.rfind(|address| IpVersion::of(*address) == version)
    };
    let (image, role) = (image(&world).unwrap(), Role::Worker);
    let read = |host: &Host| match from_kubeadm::is(text) {
        true => from_kubeadm::read(text, &image, host, role).map(|asked| asked.object),
        false => object::read(text, &image, host, role),
    };
    let mut wait = Wait {
        name: CLUSTER,
        waiter: Waiter::until(&world, PATIENCE),
        second: SECOND,
        source: &source,
    };
    let found = wait.until_read(&world, read, |object| object);
    let address = found.map(|(object, _)| object.address().unwrap());
    (address, seconds())
}

/// A router's advertisement brings its route before the address is proven to be unique; a lease comes later still.
#[test]
fn an_address_that_other_machines_cannot_reach_does_not_end_the_wait() {
    for (addresses, expected) in [
        (&[(0, "fe80::5"), (3, "10.0.0.5")][..], 3),
        (&[(2, "169.254.7.5"), (4, "10.0.0.5")], 4),
        (&[(0, "fe80::5"), (1, "fd00::5"), (9, "10.0.0.5")], 9),
    ] {
        let (address, after) = settled(INIT, addresses);
        let own: IpAddr = "10.0.0.5".parse().unwrap();
        assert_eq!((address.unwrap(), after), (own, expected), "{addresses:?}");
    }
    let text = format!("{INIT}{CLUSTER_V6}");
    let (address, after) = settled(&text, &[(0, "fe80::5"), (2, "fd00::5")]);
    assert_eq!(
        (address.unwrap().to_string().as_str(), after),
        ("fd00::5", 2)
    );
    let (address, after) = settled(INIT, &[(0, "fe80::5")]);
    let error = address.unwrap_err();
    assert_eq!(after, 60);
    assert!(error.downcast_ref::<Refused>().unwrap().lacks_address);
    assert!(
        error.to_string().contains("only a link-local address"),
        "{error}"
    );
}

/// A kubelet would try to register its node for ever: the API server refuses the name as a label.
#[test]
fn a_name_that_is_too_long_for_a_label_is_refused_before_anything_is_written() {
    for (length, is_taken) in [(63, true), (64, false)] {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(folder.path(), "[node]\naddress = \"10.0.0.7\"\n");
        put(&world.in_initrd(HOSTNAME), &"n".repeat(length));
        match read(&world, Duration::ZERO) {
            Ok(_) => assert!(is_taken, "{length}"),
            Err(error) => {
                assert!(!is_taken && !error.downcast_ref::<Refused>().unwrap().lacks_address);
                let said = format!("{error:#}");
                assert!(
                    said.contains("has 64 characters; expected 63 at most"),
                    "{said}"
                );
            }
        }
    }
    let text = format!("{INIT}nodeRegistration: {{ name: {} }}\n", "n".repeat(64));
    let (address, after) = settled(&text, &[(0, "10.0.0.5")]);
    assert!(address.is_err() && after == 0);
}

/// The API server ends at its start where its address is of another version than its services.
#[test]
fn the_default_address_is_of_the_version_of_services_where_the_machine_gets_one() {
    let both = &[(0, "10.0.0.5"), (0, "fd00::5")][..];
    let (late_v4, late_v6) = (
        &[(0, "fd00::5"), (8, "10.0.0.5")][..],
        &[(0, "10.0.0.5"), (8, "fd00::5")][..],
    );
    let own = format!("{INIT}localAPIEndpoint: {{ advertiseAddress: \"fd00::5\" }}\n");
    let plane = format!("{JOIN}{PLANE}");
    let named = format!("{WORKER}[networks]\nservices = \"10.96.0.0/12\"\n");
    let given = format!("{named}[kubelet]\nargs = {{ node-ip = \"fd00::5\" }}\n");
    for (text, addresses, expected) in [
        (INIT, both, ("10.0.0.5", 0)),
        (INIT, late_v4, ("10.0.0.5", 8)),
        (&format!("{INIT}{CLUSTER_V6}"), both, ("fd00::5", 0)),
        (&format!("{INIT}{CLUSTER_V6}"), late_v6, ("fd00::5", 8)),
        // As kubeadm, if there is no other one.
        (INIT, &late_v4[..1], ("fd00::5", 60)),
        (
            &format!("{INIT}{CLUSTER_V6}"),
            &late_v6[..1],
            ("10.0.0.5", 60),
        ),
        // Of the text.
        (&own, late_v4, ("fd00::5", 0)),
        // The cluster's subnets are not known before it is asked.
        (&plane, late_v4, ("fd00::5", 0)),
        (&format!("{plane}{CLUSTER_V4}"), late_v4, ("10.0.0.5", 8)),
        (JOIN, late_v4, ("fd00::5", 0)),
        (WORKER, late_v4, ("fd00::5", 0)),
        (&named, late_v4, ("10.0.0.5", 8)),
        // A worker's next start takes what has come since.
        (
            &format!("{JOIN}{CLUSTER_V4}"),
            &late_v4[..1],
            ("fd00::5", 20),
        ),
        (&given, late_v4, ("fd00::5", 0)),
    ] {
        let (address, after) = settled(text, addresses);
        let address = address.unwrap_or_else(|error| panic!("{text}: {error:#}"));
        let found = (address.to_string(), after);
        assert_eq!((found.0.as_str(), found.1), expected, "{text}");
    }
}

/// The controller finds the machine of a node by it; half of it would be that of another one.
#[test]
fn amazons_machines_have_the_id_that_their_cloud_calls_them_by() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::below(folder.path(), Clock::Real);
    assert_eq!(provider_id(&world).unwrap(), None);
    let file = world.in_run(RUN_METADATA);
    let said = |text: &str| {
        put(&file, text);
        provider_id(&world).unwrap()
    };
    let whole = "SLIPWAY_PLATFORM=aws\nAFTERBURN_AWS_AVAILABILITY_ZONE=eu-central-1a\nAFTERBURN_AWS_INSTANCE_ID=\"i-0abc\"\n";
    assert_eq!(said(whole).as_deref(), Some("aws:///eu-central-1a/i-0abc"));
    for half in [
        "AFTERBURN_AWS_INSTANCE_ID=i-0abc\n",
        "AFTERBURN_AWS_AVAILABILITY_ZONE=eu-central-1a\nAFTERBURN_AWS_INSTANCE_ID=\n",
        "AFTERBURN_GCP_INSTANCE_ID=1\n",
    ] {
        assert_eq!(said(half), None, "{half}");
    }
    let object = "[node]\naddress = \"10.0.0.7\"\n[cloud]\nprovider = \"external\"\n";
    let world = machine(folder.path(), object);
    said(whole);
    let read = read(&world, Duration::ZERO).unwrap().unwrap();
    assert_eq!(
        read.object.config.provider_id.as_deref(),
        Some("aws:///eu-central-1a/i-0abc")
    );
}
