//! The two kinds of kubeadm, complete, as what renders them takes them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::address;
use crate::duration::Duration;

/// `InitConfiguration`: this node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Init {
    /// The tokens by which nodes join.
    pub bootstrap_tokens: Vec<Token>,
    /// How this node is registered.
    pub node_registration: NodeRegistration,
    /// The API server on this node.
    #[serde(rename = "localAPIEndpoint")]
    pub local_api_endpoint: Endpoint,
    /// The key of the certificates that are uploaded, 64 hexadecimal digits, or empty.
    pub certificate_key: String,
    /// Phases that are left out.
    pub skip_phases: Vec<String>,
    /// Limits of the bootstrap.
    pub timeouts: Timeouts,
}

/// A bootstrap token.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Token {
    /// Id and secret; empty where one is to be made.
    pub token: String,
    /// What it is for.
    pub description: String,
    /// How long it is valid; 0 is for ever.
    pub ttl: Duration,
    /// When it ends, if the configuration says so.
    pub expires: Option<String>,
    /// What it may be used for.
    pub usages: Vec<String>,
    /// The groups that it authenticates as.
    pub groups: Vec<String>,
}

/// How a node is registered.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeRegistration {
    /// The node's name.
    pub name: String,
    /// The socket of the container runtime, with its scheme.
    pub cri_socket: String,
    /// The node's taints.
    pub taints: Vec<Value>,
    /// Arguments of the kubelet.
    pub kubelet_extra_args: Vec<Arg>,
    /// Checks before the bootstrap whose findings are ignored.
    pub ignore_preflight_errors: Vec<String>,
    /// When images are pulled.
    pub image_pull_policy: String,
}

/// The API server on a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    /// Its address.
    pub advertise_address: String,
    /// Its port.
    pub bind_port: i64,
}

/// Limits of the bootstrap.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Timeouts {
    /// How long a component of the control plane may take to start.
    pub control_plane_component_health_check: Option<Duration>,
    /// How long the kubelet may take to start.
    pub kubelet_health_check: Option<Duration>,
    /// How long the cluster's objects may take.
    #[serde(rename = "kubernetesAPICall")]
    pub kubernetes_api_call: Option<Duration>,
    /// How long a place among etcd's members may take.
    #[serde(rename = "etcdAPICall")]
    pub etcd_api_call: Option<Duration>,
    /// How long the kubelet's certificate may take.
    pub tls_bootstrap: Option<Duration>,
    /// How long a cluster that is joined may take to answer.
    pub discovery: Option<Duration>,
}

/// `ClusterConfiguration`: the cluster.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Cluster {
    /// Where etcd is.
    pub etcd: Etcd,
    /// The networks.
    pub networking: Networking,
    /// The version of Kubernetes, with a `v`.
    pub kubernetes_version: String,
    /// The endpoint of the whole control plane, or empty.
    pub control_plane_endpoint: String,
    /// The API server.
    pub api_server: Component,
    /// The controller manager.
    pub controller_manager: Component,
    /// The scheduler.
    pub scheduler: Component,
    /// CoreDNS.
    pub dns: Dns,
    /// kube-proxy.
    pub proxy: Proxy,
    /// The folder of certificates and keys.
    pub certificates_dir: String,
    /// Where images are pulled from.
    pub image_repository: String,
    /// Feature gates of kubeadm.
    pub feature_gates: BTreeMap<String, bool>,
    /// The cluster's name.
    pub cluster_name: String,
    /// The algorithm of all keys.
    pub encryption_algorithm: String,
    /// How long certificates are valid.
    pub certificate_validity_period: Duration,
    /// How long those of authorities are valid.
    pub ca_certificate_validity_period: Duration,
}

/// A component of the control plane.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Component {
    /// Arguments that replace and follow kubeadm's.
    pub extra_args: Vec<Arg>,
    /// Volumes of the host.
    pub extra_volumes: Vec<Volume>,
    /// Environment variables, as a container has them.
    pub extra_envs: Vec<Value>,
    /// Names and addresses of the API server's certificate.
    #[serde(rename = "certSANs")]
    pub cert_sans: Vec<String>,
}

/// An argument `--NAME=VALUE`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct Arg {
    /// Its name, without hyphens before it.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// A volume of the host.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Volume {
    /// The volume's name.
    pub name: String,
    /// The path on the host.
    pub host_path: String,
    /// The path in the container.
    pub mount_path: String,
    /// Whether the container may not write.
    pub read_only: bool,
    /// The type of the path.
    pub path_type: String,
}

/// Where etcd is: one of both.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Etcd {
    /// On this node.
    pub local: Option<LocalEtcd>,
    /// Elsewhere.
    pub external: Option<ExternalEtcd>,
}

/// etcd on this node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LocalEtcd {
    /// Where its image is pulled from, or empty.
    pub image_repository: String,
    /// Its image's tag, or empty.
    pub image_tag: String,
    /// The folder of its data.
    pub data_dir: String,
    /// Arguments that replace and follow kubeadm's.
    pub extra_args: Vec<Arg>,
    /// Environment variables, as a container has them.
    pub extra_envs: Vec<Value>,
    /// Names and addresses of its server's certificate.
    #[serde(rename = "serverCertSANs")]
    pub server_cert_sans: Vec<String>,
    /// Names and addresses of its peer's certificate.
    #[serde(rename = "peerCertSANs")]
    pub peer_cert_sans: Vec<String>,
}

/// etcd elsewhere.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExternalEtcd {
    /// Its members.
    pub endpoints: Option<Vec<String>>,
    /// Its members' endpoints for HTTP, if they have some.
    pub http_endpoints: Option<Vec<String>>,
    /// The file of its authority's certificate.
    pub ca_file: String,
    /// The file of the client's certificate.
    pub cert_file: String,
    /// The file of the client's key.
    pub key_file: String,
}

/// The networks.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Networking {
    /// The subnets of services: one, or one of each version.
    pub service_subnet: String,
    /// The subnets of pods, or empty.
    pub pod_subnet: String,
    /// The domain of services.
    pub dns_domain: String,
}

/// CoreDNS.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Dns {
    /// Where its image is pulled from, or empty.
    pub image_repository: String,
    /// Its image's tag, or empty.
    pub image_tag: String,
    /// Whether it is left out.
    pub disabled: bool,
}

/// kube-proxy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Proxy {
    /// Whether it is left out.
    pub disabled: bool,
}

impl Cluster {
    /// The path of a file below the folder of certificates, without empty parts, `.` and `..`, as Go joins paths. The folder itself is
    /// mounted as it is written.
    pub(crate) fn certificate(&self, name: &str) -> String {
        let mut parts = Vec::new();
        for part in self.certificates_dir.split('/').chain(name.split('/')) {
            match part {
                "" | "." => {}
                ".." => {
                    parts.pop();
                }
                part => parts.push(part),
            }
        }
        format!("/{}", parts.join("/"))
    }
}

impl Endpoint {
    /// `HOST:PORT`.
    #[must_use]
    pub fn host_and_port(&self) -> String {
        address::join(&self.advertise_address, self.bind_port)
    }

    /// The URL of the API server on this node.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.host_and_port())
    }

    /// The loopback address of the address's version.
    #[must_use]
    pub fn loopback(&self) -> &'static str {
        if self.advertise_address.contains(':') {
            "::1"
        } else {
            "127.0.0.1"
        }
    }
}

/// The value of the last argument of a name.
pub(crate) fn argument<'a>(arguments: &'a [Arg], name: &str) -> Option<&'a str> {
    let found = arguments.iter().rev().find(|arg| arg.name == name);
    found.map(|arg| arg.value.as_str())
}
