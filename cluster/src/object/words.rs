//! The fields of a cluster object, and where kubeadm's documents have them.

/// A document of kubeadm's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Document {
    Init,
    Cluster,
    Kubelet,
    Proxy,
}

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// As kubeadm has it.
    Same,
    /// A table that is copied field by field, before what other fields set in the same document.
    Fields,
    /// The opposite.
    Not,
    /// A subnet, or a list of them: text with commas.
    Subnets,
    /// Names to values or lists of values: arguments of a component.
    Arguments,
    /// Bootstrap tokens.
    Tokens,
    /// Read by Slipway alone.
    Own,
}

/// A field.
#[derive(Debug)]
pub(super) struct Word {
    /// Its path in the object.
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    /// Its document and its path there, if it is a field of kubeadm's.
    pub(super) to: Option<(Document, &'static str)>,
}

const fn word(name: &'static str, shape: Shape, to: Document, path: &'static str) -> Word {
    Word {
        name,
        shape,
        to: Some((to, path)),
    }
}

const fn own(name: &'static str) -> Word {
    Word {
        name,
        shape: Shape::Own,
        to: None,
    }
}

/// The networks of pods.
pub(super) const CNI: [&str; 3] = ["bridge", "flannel", "none"];

use Document::{Cluster, Init, Kubelet, Proxy};
use Shape::{Arguments, Fields, Not, Same, Subnets, Tokens};

/// The fields.
pub(super) const WORDS: &[Word] = &[
    word("name", Same, Cluster, "clusterName"),
    word("version", Same, Cluster, "kubernetesVersion"),
    word("endpoint", Same, Cluster, "controlPlaneEndpoint"),
    word("image-repository", Same, Cluster, "imageRepository"),
    word(
        "start-timeout",
        Same,
        Init,
        "timeouts.controlPlaneComponentHealthCheck",
    ),
    own("cni"),
    own("feature-gates"),
    word("certificate-key", Same, Init, "certificateKey"),
    own("sentinel"),
    own("join.token"),
    own("join.ca-hashes"),
    own("join.certificate-key"),
    own("balancer.enabled"),
    own("balancer.port"),
    own("balancer.servers"),
    word("tokens", Tokens, Init, "bootstrapTokens"),
    word("networks.pods", Subnets, Cluster, "networking.podSubnet"),
    word(
        "networks.services",
        Subnets,
        Cluster,
        "networking.serviceSubnet",
    ),
    word("networks.domain", Same, Cluster, "networking.dnsDomain"),
    word(
        "certificates.algorithm",
        Same,
        Cluster,
        "encryptionAlgorithm",
    ),
    word(
        "certificates.validity",
        Same,
        Cluster,
        "certificateValidityPeriod",
    ),
    word(
        "certificates.ca-validity",
        Same,
        Cluster,
        "caCertificateValidityPeriod",
    ),
    word("node.name", Same, Init, "nodeRegistration.name"),
    word(
        "node.address",
        Same,
        Init,
        "localAPIEndpoint.advertiseAddress",
    ),
    word("node.taints", Same, Init, "nodeRegistration.taints"),
    own("node.labels"),
    word("api-server.port", Same, Init, "localAPIEndpoint.bindPort"),
    word("api-server.sans", Same, Cluster, "apiServer.certSANs"),
    word("api-server.args", Arguments, Cluster, "apiServer.extraArgs"),
    word(
        "controller-manager.args",
        Arguments,
        Cluster,
        "controllerManager.extraArgs",
    ),
    word("scheduler.args", Arguments, Cluster, "scheduler.extraArgs"),
    word("etcd.args", Arguments, Cluster, "etcd.local.extraArgs"),
    word("etcd.sans", Same, Cluster, "etcd.local.serverCertSANs"),
    word(
        "etcd.image-repository",
        Same,
        Cluster,
        "etcd.local.imageRepository",
    ),
    word("etcd.image-tag", Same, Cluster, "etcd.local.imageTag"),
    word(
        "kubelet.args",
        Arguments,
        Init,
        "nodeRegistration.kubeletExtraArgs",
    ),
    word("kubelet.config", Fields, Kubelet, ""),
    own("kubelet.image"),
    word("proxy.enabled", Not, Cluster, "proxy.disabled"),
    word("proxy.mode", Same, Proxy, "mode"),
    word("proxy.config", Fields, Proxy, ""),
    word("dns.enabled", Not, Cluster, "dns.disabled"),
    word("dns.image-repository", Same, Cluster, "dns.imageRepository"),
    word("dns.image-tag", Same, Cluster, "dns.imageTag"),
];
