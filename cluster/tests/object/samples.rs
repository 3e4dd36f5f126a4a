//! Objects, the image and the host that the tests share.

use std::collections::BTreeMap;

use cluster::host::Host;
use cluster::object::{Image, Object, Role, read};
use cluster::render::render;
use serde_json::json;
pub(crate) const WHOLE: &str = r#"
name = "blue"
version = "1.36.3"
endpoint = "api.example.test"
cni = "none"
start-timeout = "10m"
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

pub(crate) fn image() -> Image {
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
        has_kubelet: false,
        images: images.into_iter().chain([etcd]).collect(),
        baked: BTreeMap::new(),
        known: false,
        kubelet: json!({"volumePluginDir": "/plugins"})
            .as_object()
            .unwrap()
            .clone(),
        flexvolume: "/plugins".to_owned(),
    }
}

/// The same with a name server.
pub(crate) fn image_with_coredns() -> Image {
    let mut image = image();
    let reference = "slipway.local/coredns:v1.14.2".to_owned();
    image.images.insert("coredns".to_owned(), reference);
    image
}

pub(crate) fn host() -> Host {
    let mut host = Host::debian("node1");
    host.address = Some([10, 0, 0, 5].into());
    host
}

pub(crate) fn taken(text: &str) -> Object {
    let object = read(text, &image(), &host(), Role::ControlPlane);
    object.unwrap_or_else(|report| panic!("{:?}", report.mistakes))
}

pub(crate) fn worker(text: &str) -> Object {
    let object = read(text, &image(), &host(), Role::Worker);
    object.unwrap_or_else(|report| panic!("{:?}", report.mistakes))
}

pub(crate) fn refused(text: &str) -> Vec<String> {
    refused_of(Role::ControlPlane, text)
}

pub(crate) fn refused_of(role: Role, text: &str) -> Vec<String> {
    let report = read(text, &image(), &host(), role).unwrap_err();
    report.mistakes.iter().map(ToString::to_string).collect()
}

/// A moment of which nothing is asked but constants.
pub(crate) struct Moment;

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

/// The manifests by the names of their pods.
pub(crate) fn pods(object: &Object) -> BTreeMap<String, String> {
    let files = render(&object.config, &host(), &Moment).files.into_iter();
    files.map(|file| (file.path, file.text)).collect()
}

/// A pin, made of one digit.
pub(crate) fn pin(digit: char) -> String {
    format!("sha256:{}", String::from(digit).repeat(64))
}

pub(crate) fn joining(rest: &str) -> String {
    format!(
        "endpoint = \"api.example.test\"\n[join]\ntoken = \"abcdef.0123456789abcdef\"\nca-hashes = [\"{}\", \"{}\"]\n{rest}",
        pin('0'),
        pin('a')
    )
}

/// Objects by the names of their kinds in URLs, and their own.
pub(crate) fn paths(objects: &[cluster::objects::Object]) -> Vec<String> {
    let named = objects.iter().map(|object| {
        let name = object.value["metadata"]["name"].as_str().unwrap();
        format!("{}/{name}", object.resource())
    });
    named.collect()
}
