//! Cluster objects: what they come to, and what is wrong with them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;

use cluster::host::Host;
use cluster::object::{Cni, Image, Object, read};
use cluster::render::render;
use serde_json::json;

const WHOLE: &str = r#"
name = "blue"
version = "1.36.3"
endpoint = "api.example.test"
cni = "none"
tokens = ["abcdef.0123456789abcdef"]
feature-gates = { InPlacePodVerticalScaling = true }

[networks]
pods = ["10.5.0.0/16", "fd00:5::/48"]
services = ["10.6.0.0/16", "fd00:6::/112"]
domain = "blue.test"

[node]
name = "one"
address = "10.0.0.7"
taints = []
labels = { zone = "a" }

[api-server]
port = 8443
sans = ["blue.example.test"]
args = { audit-log-maxage = 7, "tls-sni-cert-key" = ["a,b", "c,d"] }

[controller-manager]
args = { v = "3" }

[etcd]
args = { "quota-backend-bytes" = "8589934592" }

[kubelet.config]
maxPods = 50
evictionHard = { "memory.available" = "1Mi" }

[proxy]
mode = "nftables"

[dns]
enabled = false
"#;

fn image() -> Image {
    let images = [
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kube-proxy",
    ];
    let images = images.map(|name| (name.to_owned(), format!("slipway.local/{name}:v1.36.3")));
    let etcd = ("etcd".to_owned(), "slipway.local/etcd:3.5.16-0".to_owned());
    Image {
        version: "v1.36.3".to_owned(),
        images: images.into_iter().chain([etcd]).collect(),
        kubelet: json!({"volumePluginDir": "/plugins"})
            .as_object()
            .unwrap()
            .clone(),
        flexvolume: "/plugins".to_owned(),
    }
}

fn host() -> Host {
    let mut host = Host::debian("node1");
    host.address = Some([10, 0, 0, 5].into());
    host
}

fn taken(text: &str) -> Object {
    read(text, &image(), &host()).unwrap_or_else(|report| panic!("{:?}", report.mistakes))
}

fn refused(text: &str) -> Vec<String> {
    let report = read(text, &image(), &host()).unwrap_err();
    report.mistakes.iter().map(ToString::to_string).collect()
}

/// The manifests by the names of their pods.
fn pods(object: &Object) -> BTreeMap<String, String> {
    struct Moment;
    impl cluster::objects::Moment for Moment {
        fn authority(&self) -> String {
            "X".to_owned()
        }
        fn expiry(&self, _: cluster::duration::Duration) -> String {
            "X".to_owned()
        }
        fn token(&self) -> String {
            panic!("every token is named")
        }
    }
    let files = render(&object.config, &host(), &Moment).files.into_iter();
    files.map(|file| (file.path, file.text)).collect()
}

#[test]
fn an_empty_object_is_a_cluster_of_the_images_version() {
    let object = taken("");
    let cluster = &object.config.cluster;
    assert_eq!(object.name(), "kubernetes");
    assert_eq!(object.cni, Cni::Bridge);
    assert_eq!(cluster.kubernetes_version, "v1.36.3");
    assert_eq!(cluster.image_repository, "slipway.local");
    assert_eq!(cluster.networking.pod_subnet, "10.244.0.0/16");
    assert_eq!(cluster.encryption_algorithm, "ECDSA-P256");
    // A token is made for nobody.
    assert!(object.config.init.bootstrap_tokens.is_empty());
    assert!(cluster.dns.disabled && !cluster.proxy.disabled);
    let note = "coredns is left out: the image does not bring it";
    assert_eq!(object.notes, [note]);
    let subnets: Vec<String> = object
        .first_pod_subnets()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(subnets, ["10.244.0.0/24"]);
    let files = pods(&object);
    let etcd = &files["/etc/kubernetes/manifests/etcd.yaml"];
    assert!(
        etcd.contains("image: slipway.local/etcd:3.5.16-0\n"),
        "{etcd}"
    );
    // etcd 3.5 refuses the flags of 3.6, which kubeadm 1.36 gives it in any case.
    assert!(
        etcd.contains("--experimental-initial-corrupt-check=true\n"),
        "{etcd}"
    );
    assert!(!etcd.contains("--feature-gates"), "{etcd}");
    let kubelet = &files["/var/lib/kubelet/config.yaml"];
    assert!(kubelet.contains("volumePluginDir: /plugins\n"), "{kubelet}");
    // Without it the kubelet asks name servers for the node's name.
    let flags = "KUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.5\"\n";
    assert_eq!(files["/var/lib/kubelet/kubeadm-flags.env"], flags);
    let object = taken("[kubelet]\nargs = { node-ip = \"10.0.0.5,fd00::5\" }\n");
    let flags = "KUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.5,fd00::5\"\n";
    assert_eq!(pods(&object)["/var/lib/kubelet/kubeadm-flags.env"], flags);
}

#[test]
fn every_field_arrives() {
    let object = taken(WHOLE);
    let (init, cluster) = (&object.config.init, &object.config.cluster);
    assert_eq!((object.name(), object.cni), ("blue", Cni::None));
    assert_eq!(
        object.labels,
        BTreeMap::from([("zone".to_owned(), "a".to_owned())])
    );
    assert_eq!(init.node_registration.name, "one");
    assert!(init.node_registration.taints.is_empty());
    assert_eq!(init.local_api_endpoint.host_and_port(), "10.0.0.7:8443");
    assert_eq!(init.bootstrap_tokens[0].token, "abcdef.0123456789abcdef");
    assert_eq!(cluster.control_plane_endpoint, "api.example.test:8443");
    assert_eq!(cluster.networking.pod_subnet, "10.5.0.0/16,fd00:5::/48");
    assert_eq!(
        cluster.networking.service_subnet,
        "10.6.0.0/16,fd00:6::/112"
    );
    assert_eq!(cluster.networking.dns_domain, "blue.test");
    assert_eq!(object.config.kube_proxy.value["mode"], "nftables");
    assert_eq!(object.config.kubelet.value["maxPods"], 50);
    let gates = json!({"InPlacePodVerticalScaling": true});
    assert_eq!(object.config.kubelet.value["featureGates"], gates);
    let files = pods(&object);
    let server = &files["/etc/kubernetes/manifests/kube-apiserver.yaml"];
    for argument in [
        "--audit-log-maxage=7",
        "--tls-sni-cert-key=a,b",
        "--tls-sni-cert-key=c,d",
        "--feature-gates=InPlacePodVerticalScaling=true",
        "--secure-port=8443",
    ] {
        assert!(server.contains(argument), "{argument}: {server}");
    }
    let etcd = &files["/etc/kubernetes/manifests/etcd.yaml"];
    assert!(etcd.contains("--quota-backend-bytes=8589934592"), "{etcd}");
}

#[test]
fn json_is_the_same_object() {
    let value: toml::Value = toml::from_str::<toml::Table>(WHOLE).unwrap().into();
    let text = serde_json::to_string_pretty(&value).unwrap();
    let (one, other) = (taken(WHOLE), taken(&text));
    assert_eq!(one.config.uploaded, other.config.uploaded);
    assert_eq!(pods(&one), pods(&other));
    assert_eq!(one.labels, other.labels);
}

#[test]
fn all_mistakes_are_named_at_once_by_the_objects_own_fields() {
    let text = "nmae = \"x\"
cni = \"flannel\"
[networks]
pods = [\"10.5.0.0/16\", \"x\"]
[networks.more]
a = 1
[api-server]
sans = [\"A_b\"]
args = 3
[node]
labels = { a = 1 }
";
    let mistakes = refused(text);
    for expected in [
        "nmae: unknown field; did you mean \"name\"? (line 1, column 8)",
        "cni: expected \"bridge\" or \"none\" (line 2, column 7)",
        "networks.more: unknown field (line 5, column 11)",
        "api-server.args: expected a table of arguments (line 9, column 8)",
        "node.labels.a: expected text (line 11, column 16)",
    ] {
        assert!(
            mistakes.iter().any(|mistake| mistake == expected),
            "{expected}: {mistakes:#?}"
        );
    }
}

#[test]
fn kubeadms_rules_name_the_objects_fields_and_positions() {
    let wrong = |text: &str, expected: &str| {
        let mistakes = refused(text);
        assert!(
            mistakes.iter().any(|mistake| mistake.starts_with(expected)),
            "{expected}: {mistakes:#?}"
        );
    };
    wrong("[networks]\npods = \"10.5.0.0/40\"\n", "networks.pods: ");
    wrong(
        "[networks]\nservices = 5\n",
        "networks.services: expected text, found a number",
    );
    wrong(
        "tokens = [\"secret\"]\n",
        "tokens.0.token: not a bootstrap token",
    );
    wrong("[node]\naddress = \"127.0.0.1\"\n", "node.address: ");
    wrong("[api-server]\nport = 70000\n", "api-server.port: ");
    wrong(
        "[kubelet.config]\nmaxPodz = 5\n",
        "kubelet.config.maxPodz: unknown field",
    );
    wrong(
        "version = \"1.35.4\"\n",
        "version: v1.35.4 is not in the image, which brings v1.36.3",
    );
    wrong(
        "version = \"1.20.0\"\n",
        "version: \"1.20.0\" is not a known version",
    );
    wrong("name = [\n", "not valid TOML");
    wrong("{\"name\": \"a\", \"name\": \"b\"}", "duplicate key");
}

#[test]
fn a_token_is_not_repeated_in_a_message() {
    let mistakes = refused("tokens = [\"abcdef.0123456789abcdeG\"]\n");
    assert!(!mistakes.concat().contains("0123456789"), "{mistakes:?}");
}

#[test]
fn a_repository_of_the_objects_own_takes_any_version() {
    let object = taken("version = \"v1.35.4\"\nimage-repository = \"registry.example.test\"\n");
    let files = pods(&object);
    let etcd = &files["/etc/kubernetes/manifests/etcd.yaml"];
    assert!(
        etcd.contains("image: registry.example.test/etcd:3.6.6-0\n"),
        "{etcd}"
    );
    assert!(!object.config.cluster.dns.disabled);
    // `/usr` cannot be written.
    let manager = &files["/etc/kubernetes/manifests/kube-controller-manager.yaml"];
    assert!(manager.contains("path: /plugins\n"), "{manager}");
}

/// The example of the page has every field at its place.
#[test]
fn the_example_of_the_documentation_is_read() {
    let page = include_str!("../../docs/cluster.md");
    let (_, rest) = page.split_once("```toml\n").unwrap();
    let object = taken(rest.split("```").next().unwrap());
    assert_eq!(object.name(), "demo");
    assert_eq!(object.config.cluster.image_repository, "registry.k8s.io");
    assert_eq!(object.config.kube_proxy.value["mode"], "nftables");
}
