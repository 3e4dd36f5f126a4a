//! The objects that a bootstrap makes in the cluster, so that nodes can join it.

mod rbac;
mod tokens;
pub mod upload;

use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::config::{ComponentConfig, Config};
use crate::duration::Duration;
use crate::yaml;

pub(crate) use rbac::{
    authentication_reader, cluster_binding, cluster_role, group, reader, service_account,
};

/// The group of nodes.
const NODES: &str = "system:nodes";
/// The group that a bootstrap token authenticates as, if the configuration names no other.
pub(crate) const NEW_NODES: &str = "system:bootstrappers:kubeadm:default-node-token";

/// What only the moment of a bootstrap knows.
pub trait Moment {
    /// The certificate of the cluster's authority: PEM in base 64.
    fn authority(&self) -> String;
    /// The time at which a token ends that is valid for so long: RFC 3339 in base 64.
    fn expiry(&self, validity: Duration) -> String;
    /// A new token, for one that the configuration leaves open.
    fn token(&self) -> String;
}

/// What is done with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is made.
    Create,
    /// It is changed.
    Patch,
}

/// An object.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// What is done with it.
    pub action: Action,
    /// The object; that of a change as kubeadm's dry run shows it.
    pub value: Value,
}

impl Object {
    pub(crate) const fn create(value: Value) -> Self {
        Self {
            action: Action::Create,
            value,
        }
    }

    /// Writes what is empty: its time of creation, and that of the pods that it describes.
    pub(crate) fn write_empty(&mut self) {
        for at in ["/metadata", "/spec/template/metadata"] {
            if let Some(metadata) = self.value.pointer_mut(at) {
                metadata["creationTimestamp"] = Value::Null;
            }
        }
    }

    /// The name of its kind in URLs.
    #[must_use]
    pub fn resource(&self) -> String {
        let kind = self.value["kind"].as_str().unwrap_or_default();
        format!("{}s", kind.to_lowercase())
    }

    /// Its group and version.
    #[must_use]
    pub fn group(&self) -> String {
        match self.value["apiVersion"].as_str().unwrap_or_default() {
            "v1" => "core/v1".to_owned(),
            group => group.to_owned(),
        }
    }
}

/// How the node of a control plane is marked.
#[derive(Clone, Debug, PartialEq)]
pub struct Marks {
    /// Labels without values.
    pub labels: [&'static str; 2],
    /// Taints.
    pub taints: Vec<Value>,
    /// The socket of the container runtime, if it is an annotation.
    pub socket: Option<String>,
}

/// The marks of this node.
#[must_use]
pub fn marks(config: &Config) -> Marks {
    let node = &config.init.node_registration;
    let annotated = marks_socket(config);
    Marks {
        labels: [
            "node-role.kubernetes.io/control-plane",
            "node.kubernetes.io/exclude-from-external-load-balancers",
        ],
        taints: node.taints.clone(),
        socket: annotated.then(|| node.cri_socket.clone()),
    }
}

/// The objects, in the order in which kubeadm makes them; without the addons.
#[must_use]
pub fn objects(config: &Config, moment: &dyn Moment) -> Vec<Object> {
    let mut objects = Vec::new();
    if !config.skips("upload-config/kubeadm") {
        objects.extend(kubeadm_config(config));
    }
    if !config.skips("upload-config/kubelet") {
        objects.extend(kubelet_config(config));
    }
    if !config.skips("mark-control-plane") {
        objects.push(marked_node(config));
    }
    if !config.skips("bootstrap-token") {
        objects.extend(tokens::objects(config, moment));
    }
    objects
}

/// The administrators' binding, which `admin.conf` works by. It is the first of all objects, made by `super-admin.conf`.
#[must_use]
pub fn administrators() -> Object {
    let admins = "kubeadm:cluster-admins";
    cluster_binding(admins, "cluster-admin", &group(admins))
}

/// The path of the `EndpointSlice` of the API servers: they write it themselves, by this name
/// (<https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/>).
pub const API_SERVERS: &str =
    "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";

/// Lets nodes read [`API_SERVERS`], which the node authorizer does not, for their balancers. kubeadm has no such objects.
#[must_use]
pub fn api_servers_readers() -> [Object; 2] {
    let rule = json!({
        "apiGroups": ["discovery.k8s.io"],
        "resourceNames": ["kubernetes"],
        "resources": ["endpointslices"],
        "verbs": ["get"],
    });
    rbac::bound("default", "slipway:api-servers", &rule, &[group(NODES)])
}

/// What lets a node read the addresses and the pods' subnets of the others, for the routes between them; kubeadm has none of it.
/// The authorizer of nodes lets each read its own Node only, since 1.32
/// (<https://kubernetes.io/docs/reference/access-authn-authz/node/>).
#[must_use]
pub fn pod_routes() -> [Object; 2] {
    let name = "slipway:pod-routes";
    let rules = json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}]);
    [
        cluster_role(name, &rules),
        cluster_binding(name, name, &group(NODES)),
    ]
}

fn kubeadm_config(config: &Config) -> Vec<Object> {
    let name = "kubeadm:nodes-kubeadm-config";
    let data = json!({"ClusterConfiguration": yaml::write(&config.uploaded)});
    let groups = [group(NEW_NODES), group(NODES)];
    let mut objects = vec![config_map("kube-system", "kubeadm-config", &data)];
    objects.extend(reader("kube-system", name, "kubeadm-config", &groups));
    objects
}

fn kubelet_config(config: &Config) -> Vec<Object> {
    let data = json!({"kubelet": yaml::write(&config.kubelet.value)});
    let mut map = config_map("kube-system", "kubelet-config", &data);
    sign(&mut map.value, &config.kubelet);
    let groups = [group(NODES), group(NEW_NODES)];
    let mut objects = vec![map];
    objects.extend(reader(
        "kube-system",
        "kubeadm:kubelet-config",
        "kubelet-config",
        &groups,
    ));
    if marks_socket(config) {
        objects.push(marked_node(config));
    }
    objects
}

/// Whether the container runtime's socket is an annotation of the node.
fn marks_socket(config: &Config) -> bool {
    config.kubeadm.release.marks_socket && !config.gate("NodeLocalCRISocket")
}

/// The node, as kubeadm's dry run shows one that it changes: without the change.
fn marked_node(config: &Config) -> Object {
    let name = &config.init.node_registration.name;
    let mut metadata = json!({"labels": {"kubernetes.io/hostname": name}, "name": name});
    if config.kubeadm.release.annotates_socket {
        metadata["annotations"] =
            json!({"kubeadm.alpha.kubernetes.io/cri-socket": "dry-run-cri-socket"});
    }
    let info = [
        "architecture",
        "bootID",
        "containerRuntimeVersion",
        "kernelVersion",
        "kubeProxyVersion",
        "kubeletVersion",
        "machineID",
        "operatingSystem",
        "osImage",
        "systemUUID",
    ];
    let info: Value = info
        .iter()
        .map(|name| ((*name).to_owned(), "".into()))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let status = json!({"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}, "nodeInfo": info});
    Object {
        action: Action::Patch,
        value: json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": status}),
    }
}

/// A map of texts.
pub(crate) fn config_map(namespace: &str, name: &str, data: &Value) -> Object {
    Object::create(json!({
        "apiVersion": "v1",
        "data": data,
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
    }))
}

/// Adds the hash of a component's configuration to its map, if kubeadm alone made it: an upgrade may then replace it.
pub(crate) fn sign(map: &mut Value, config: &ComponentConfig) {
    if config.supplied {
        return;
    }
    let mut hash = Sha256::new();
    // In the order of the keys.
    for text in map["data"]
        .as_object()
        .into_iter()
        .flat_map(serde_json::Map::values)
    {
        hash.update(text.as_str().unwrap_or_default());
    }
    let hash = HEXLOWER.encode(&hash.finalize());
    let name = "kubeadm.kubernetes.io/component-config.hash";
    map["metadata"]["annotations"] = json!({name: format!("sha256:{hash}")});
}
