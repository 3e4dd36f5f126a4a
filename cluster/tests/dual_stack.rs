//! The addresses of a node in a cluster of one IP version and of both.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::IpAddr;

use cluster::host::Host;
use cluster::kubelet;
use cluster::object::{Image, Role, read};
use serde_json::Map;

const BOTH: &str = "[networks]\npods = [\"10.5.0.0/16\", \"fd00:5::/56\"]\nservices = [\"10.6.0.0/16\", \"fd00:6::/112\"]\n";
const JOIN: &str = "endpoint = \"10.0.0.5\"\n[join]\ntoken = \"abcdef.0123456789abcdef\"\nca-hashes = [\"sha256:7c2e69131a36ae2a042a339b33381c6d0d43887e2de83720eff5359e26aec866\"]\n";

/// The kubelet's arguments on a machine with these interfaces, and the address whose other version is missing.
fn arguments(role: Role, text: &str, interfaces: &[&[&str]]) -> (String, Option<String>) {
    let address = |text: &&str| -> IpAddr { text.parse().unwrap() };
    let mut host = Host::debian("node1");
    host.interfaces = interfaces
        .iter()
        .map(|all| all.iter().map(address).collect())
        .collect();
    host.address = host.interfaces.first().map(|all| all[0]);
    let image = Image {
        version: "v1.36.3".to_owned(),
        has_kubelet: false,
        images: std::iter::empty().collect(),
        baked: std::iter::empty().collect(),
        known: false,
        kubelet: Map::new(),
        flexvolume: String::new(),
    };
    let text = format!("image-repository = \"r.example\"\n{text}");
    let object = read(&text, &image, &host, role);
    let object = object.unwrap_or_else(|report| panic!("{:?}", report.mistakes));
    let text = kubelet::arguments(&object.config, &host).text;
    (text, object.lacks_second)
}

#[test]
fn a_node_of_both_versions_has_an_address_of_each_on_its_interface() {
    let machine: &[&[&str]] = &[
        &["10.0.0.5", "fd00::5", "fd00::6"],
        &["10.9.0.5", "fd09::5"],
    ];
    let worker = format!("{JOIN}{BOTH}");
    let address = "[node]\naddress = \"10.9.0.5\"\n";
    for (role, text, expected) in [
        (Role::ControlPlane, BOTH, "--node-ip=10.0.0.5,fd00::5\""),
        (Role::Worker, &*worker, "--node-ip=10.0.0.5,fd00::5\""),
        (
            Role::ControlPlane,
            &format!("{BOTH}{address}"),
            "--node-ip=10.9.0.5,fd09::5\"",
        ),
        (
            Role::ControlPlane,
            &format!("{BOTH}[kubelet]\nargs = {{ node-ip = \"10.0.0.5\" }}\n"),
            "--node-ip=10.0.0.5\"",
        ),
        // A cluster of one version has one.
        (Role::ControlPlane, "", "--node-ip=10.0.0.5\""),
        (Role::Worker, JOIN, "--node-ip=10.0.0.5\""),
    ] {
        let (found, lacks) = arguments(role, text, machine);
        assert!(found.contains(expected), "{text}: {found}");
        assert_eq!(lacks, None, "{text}");
    }
}

#[test]
fn a_machine_without_the_other_version_is_named_and_works_with_one() {
    let own = "10.0.0.5".to_owned();
    for machine in [&[&["10.0.0.5"][..]][..], &[&["10.0.0.5"], &["fd09::5"]]] {
        let (found, lacks) = arguments(Role::ControlPlane, BOTH, machine);
        assert!(found.contains("--node-ip=10.0.0.5\""), "{found}");
        assert_eq!(lacks.as_ref(), Some(&own));
    }
    let (_, lacks) = arguments(Role::ControlPlane, "", &[&["10.0.0.5"]]);
    assert_eq!(lacks, None);
}
