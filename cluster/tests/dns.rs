//! `[dns] addresses`: the Service of CoreDNS and the kubelets of a cluster have the same ones.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use cluster::host::Host;
use cluster::object::{Image, Object, Role, read};
use cluster::render::{Rendered, render};
use serde_json::{Value, json};

const BOTH: &str = "[networks]\npods = [\"10.5.0.0/16\", \"fd00:5::/56\"]\nservices = [\"10.6.0.0/16\", \"fd00:6::/112\"]\n";

struct Moment;

impl cluster::objects::Moment for Moment {
    fn authority(&self) -> String {
        "X".to_owned()
    }
    fn expiry(&self, _: cluster::duration::Duration) -> String {
        "X".to_owned()
    }
    fn token(&self) -> String {
        panic!("no token is made")
    }
}

fn image() -> Image {
    Image {
        version: "v1.36.3".to_owned(),
        ..Image::default()
    }
}

fn taken(text: &str) -> Object {
    let object = read(
        text,
        &image(),
        &Host::of_documentation(),
        Role::ControlPlane,
    );
    object.unwrap_or_else(|report| panic!("{:?}", report.mistakes))
}

fn rendered(text: &str) -> Rendered {
    render(&taken(text).config, &Host::of_documentation(), &Moment)
}

/// Where a Service and the cluster's and this node's kubelets have the addresses.
fn addresses(rendered: &Rendered) -> (Value, Value, Value) {
    let named = |kind: &str, name: &str| {
        let found = rendered.objects.iter().find(|object| {
            object.value["kind"] == kind && object.value["metadata"]["name"] == name
        });
        found.unwrap().value.clone()
    };
    let mut spec = named("Service", "kube-dns")["spec"].clone();
    let spec_fields = spec.as_object_mut().unwrap();
    spec_fields.retain(|field, _| field.contains("IP") || field.contains("ip"));
    let dns = |text: &str| {
        let mut report = Vec::new();
        let mut inside = false;
        for line in text.lines() {
            match line.strip_prefix("- ").filter(|_| inside) {
                Some(address) => report.push(address.to_owned()),
                None => inside = line == "clusterDNS:",
            }
        }
        json!(report)
    };
    let uploaded = named("ConfigMap", "kubelet-config")["data"]["kubelet"].clone();
    let path = "/var/lib/kubelet/config.yaml";
    let file = rendered.files.iter().find(|file| file.path == path);
    (
        spec,
        dns(uploaded.as_str().unwrap()),
        dns(&file.unwrap().text),
    )
}

#[test]
fn the_service_and_the_kubelets_have_the_objects_addresses() {
    for (text, service, kubelet) in [
        (
            "".to_owned(),
            json!({"clusterIP": "10.96.0.10"}),
            json!(["10.96.0.10"]),
        ),
        (
            "[dns]\naddresses = \"10.96.3.4\"\n".to_owned(),
            json!({"clusterIP": "10.96.3.4"}),
            json!(["10.96.3.4"]),
        ),
        (
            format!("{BOTH}[dns]\naddresses = [\"FD00:6::0:35\", \"10.6.0.53\"]\n"),
            json!({"clusterIP": "fd00:6::35", "clusterIPs": ["fd00:6::35", "10.6.0.53"], "ipFamilyPolicy": "RequireDualStack"}),
            json!(["fd00:6::35", "10.6.0.53"]),
        ),
        (
            format!("{BOTH}[dns]\naddresses = [\"fd00:6::35\"]\n"),
            json!({"clusterIP": "fd00:6::35"}),
            json!(["fd00:6::35"]),
        ),
    ] {
        let (spec, uploaded, own) = addresses(&rendered(&text));
        assert_eq!(spec, service, "{text}");
        assert_eq!((&uploaded, &own), (&kubelet, &kubelet), "{text}");
    }
}

/// Nothing else of a rendering changes.
#[test]
fn addresses_that_are_kubeadms_change_nothing() {
    let kubeadms = rendered("");
    assert_eq!(rendered("[dns]\naddresses = [\"10.96.0.10\"]\n"), kubeadms);
    let mut other = rendered("[dns]\naddresses = \"10.96.3.4\"\n");
    for object in &mut other.objects {
        let text = object.value.to_string().replace("10.96.3.4", "10.96.0.10");
        object.value = serde_json::from_str(&text).unwrap();
    }
    for file in &mut other.files {
        file.text = file.text.replace("10.96.3.4", "10.96.0.10");
    }
    assert_eq!(other, kubeadms);
}

/// A cache of names on each node stands before the Service.
#[test]
fn a_kubelets_own_list_counts_more() {
    let text =
        "[dns]\naddresses = \"10.96.3.4\"\n[kubelet.config]\nclusterDNS = [\"169.254.20.10\"]\n";
    let (service, uploaded, own) = addresses(&rendered(text));
    assert_eq!(service, json!({"clusterIP": "10.96.3.4"}));
    let cache = json!(["169.254.20.10"]);
    assert_eq!((uploaded, own), (cache.clone(), cache));
}

#[test]
fn addresses_that_no_service_may_have_are_refused_at_their_place() {
    let refused = |text: &str| -> Vec<String> {
        let report = read(
            text,
            &image(),
            &Host::of_documentation(),
            Role::ControlPlane,
        );
        let mistakes = report.unwrap_err().mistakes;
        mistakes.iter().map(ToString::to_string).collect()
    };
    for (addresses, expected) in [
        (
            "\"10.95.0.10\"",
            "10.95.0.10 is not in networks.services, 10.96.0.0/12 (line 2, column 13)",
        ),
        (
            "[\"fd00:6::35\"]",
            "fd00:6::35 is not in networks.services, 10.96.0.0/12 (line 2, column 14)",
        ),
        (
            "\"10.96.0.1\"",
            "10.96.0.1 is the API server's own in networks.services; expected another one (line 2, column 13)",
        ),
        (
            "\"10.96.0.0\"",
            "no Service may have 10.96.0.0, the first or the last one of 10.96.0.0/12 (line 2, column 13)",
        ),
        (
            "\"10.111.255.255\"",
            "no Service may have 10.111.255.255, the first or the last one of 10.96.0.0/12 (line 2, column 13)",
        ),
        (
            "[]",
            "expected an address, or one of each IP version (line 2, column 13)",
        ),
        (
            "[\"10.96.0.11\", \"10.96.0.12\"]",
            "10.96.0.12 is a second one; expected one of each IP version (line 2, column 28)",
        ),
        (
            "\"dns\"",
            "\"dns\" is not an address of IPv4 or IPv6 (line 2, column 13)",
        ),
        ("10", "expected an address in quotes (line 2, column 13)"),
    ] {
        let mistakes = refused(&format!("[dns]\naddresses = {addresses}\n"));
        assert_eq!(mistakes, [format!("dns.addresses: {expected}")]);
    }
    // Of the second subnet the API server has no address, and its last one is a Service's.
    for fine in ["fd00:6::1", "fd00:6::ffff"] {
        taken(&format!("{BOTH}[dns]\naddresses = \"{fine}\"\n"));
    }
    // Nothing is held against subnets that are refused themselves.
    for services in ["\"x\"", "5"] {
        let text = format!("[networks]\nservices = {services}\n[dns]\naddresses = \"10.6.0.10\"\n");
        let mistakes = refused(&text);
        assert!(
            mistakes.len() == 1 && mistakes[0].starts_with("networks.services: "),
            "{mistakes:?}"
        );
    }
}
