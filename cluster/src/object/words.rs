//! The fields of a cluster object, and where kubeadm's documents have them.

use super::cloud::PROVIDERS;
use crate::release::ALGORITHMS;
use crate::schema::Kind;

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
    /// A text, or a list of them: kubeadm has commas between them.
    Several,
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
    /// What it holds, where kubeadm's table of fields does not say it, or allows more than the rules do.
    pub(super) kind: Option<Kind>,
    /// The pattern of its text, or of each text of its list, as JSON Schema has it.
    pub(super) pattern: Option<&'static str>,
    /// What it is for, as the schema says it.
    pub(super) about: &'static str,
}

impl Word {
    /// The field, which holds this.
    const fn of(self, kind: Kind) -> Self {
        let kind = Some(kind);
        Self { kind, ..self }
    }

    /// The field, which may also hold a list of what it holds.
    const fn several(self) -> Self {
        let shape = Shape::Several;
        Self { shape, ..self }
    }

    /// The field, whose texts have this pattern.
    const fn like(self, pattern: &'static str) -> Self {
        let pattern = Some(pattern);
        Self { pattern, ..self }
    }
}

const fn word(
    name: &'static str,
    shape: Shape,
    document: Document,
    path: &'static str,
    about: &'static str,
) -> Word {
    Word {
        name,
        shape,
        to: Some((document, path)),
        kind: None,
        pattern: None,
        about,
    }
}

const fn own(name: &'static str, kind: Kind, about: &'static str) -> Word {
    Word {
        name,
        shape: Shape::Own,
        to: None,
        kind: Some(kind),
        pattern: None,
        about,
    }
}

/// The networks of pods.
pub(super) const CNI: [&str; 3] = ["bridge", "flannel", "none"];

/// A list of texts.
const TEXTS: Kind = Kind::List(&Kind::Text);
/// A subnet, or two with a comma between them.
const SUBNETS: &str = "^[0-9A-Fa-f.:]+/[0-9]{1,3}(,[0-9A-Fa-f.:]+/[0-9]{1,3})?$";
/// The key of uploaded certificates.
const KEY: &str = "^[0-9A-Fa-f]{64}$";
/// A version of Kubernetes.
const VERSION: &str = "^v?1\\.[0-9]+\\.[0-9]+([-+][0-9A-Za-z.+_-]*)?$";
/// A name by RFC 1123; kubeadm writes capital letters in lower case.
const NAME: &str = "^\\s*[0-9A-Za-z]([0-9A-Za-z.-]*[0-9A-Za-z])?\\s*$";

use Document::{Cluster, Init, Kubelet, Proxy};
use Shape::{Arguments, Fields, Not, Same, Several, Tokens};

/// The tables, and what each is for.
pub(super) const TABLES: &[(&str, &str)] = &[
    (
        "join",
        "The cluster that this node joins; required on a worker, left out on a first \
         control plane.",
    ),
    (
        "balancer",
        "The node-local balancer of the cluster's API servers.",
    ),
    ("networks", "The cluster's networks."),
    (
        "cloud",
        "The cloud that the cluster's nodes are machines of.",
    ),
    ("certificates", "Keys and certificates that are made."),
    ("node", "This node."),
    ("api-server", "The API server. Refused on a worker."),
    (
        "controller-manager",
        "The controller manager. Refused on a worker.",
    ),
    ("scheduler", "The scheduler. Refused on a worker."),
    ("etcd", "etcd. Refused on a worker."),
    ("kubelet", "The kubelet."),
    ("proxy", "kube-proxy."),
    ("dns", "CoreDNS, and the addresses at which pods ask it."),
    (
        "addons",
        "What the cluster has besides, by images that the image brings.",
    ),
];

/// The fields.
pub(super) const WORDS: &[Word] = &[
    word(
        "name",
        Same,
        Cluster,
        "clusterName",
        "The cluster's name. Default: kubernetes.",
    ),
    word(
        "version",
        Same,
        Cluster,
        "kubernetesVersion",
        "The version of Kubernetes, with or without a v before it. Default: the \
         image's; another one needs image-repository.",
    )
    .like(VERSION),
    word(
        "endpoint",
        Same,
        Cluster,
        "controlPlaneEndpoint",
        "HOST or HOST:PORT of the whole control plane; required with [join]. Default: \
         this node's API server.",
    ),
    word(
        "image-repository",
        Same,
        Cluster,
        "imageRepository",
        "The registry and path that the images of the control plane and the addons \
         come from. Default: the images in the image.",
    ),
    word(
        "start-timeout",
        Same,
        Init,
        "timeouts.controlPlaneComponentHealthCheck",
        "How long a component of the control plane may take to start before it is \
         started anew. Default: 4m.",
    ),
    own(
        "cni",
        Kind::OneOf(&CNI),
        "The network of pods: a bridge on each node, for nodes on one network; \
         flannel, for nodes that reach each other over routers; none, where an addon \
         brings it. Default: bridge.",
    ),
    own(
        "cloud.provider",
        Kind::OneOf(&PROVIDERS),
        "The cloud that its nodes are machines of: aws, whose controller runs on the \
         control planes; or external, for a controller that an addon brings. Kubelets \
         leave their node's addresses to it, and nothing else runs on a node before it \
         knows the machine. Default: none.",
    ),
    own(
        "cloud.config",
        Kind::Text,
        "Lines of the configuration of that controller (cloud.conf), beside the \
         cluster's name.",
    ),
    own(
        "feature-gates",
        Kind::Map(&Kind::Bool),
        "Feature gates of Kubernetes, for all components.",
    ),
    word(
        "certificate-key",
        Same,
        Init,
        "certificateKey",
        "64 hexadecimal digits, which seal the keys that are uploaded for further \
         control planes. Default: they are not uploaded. Refused on a worker.",
    )
    .like(KEY),
    own(
        "sentinel",
        Kind::Bool,
        "Whether the file that Cluster API waits for is written once the node is \
         Ready. Default: false.",
    ),
    own("join.token", Kind::Token, "The bootstrap token."),
    own(
        "join.ca-hashes",
        TEXTS,
        "SHA-256 of the public keys of which the cluster's authorities must have one, \
         as sha256: and 64 hexadecimal digits.",
    )
    .like("^sha256:[0-9A-Fa-f]{64}$"),
    own(
        "join.certificate-key",
        Kind::Text,
        "On a further control plane, the key that opens the uploaded keys: 64 \
         hexadecimal digits.",
    )
    .like(KEY),
    own(
        "balancer.enabled",
        Kind::Bool,
        "Whether this node runs it. Default: true on a worker, false on a control \
         plane.",
    ),
    own(
        "balancer.port",
        Kind::Int(1024, 65535),
        "Its port on 127.0.0.1. Default: 7443.",
    ),
    own(
        "balancer.servers",
        TEXTS,
        "HOST:PORT of API servers that are known before the cluster was asked, beside \
         endpoint.",
    ),
    word(
        "tokens",
        Tokens,
        Init,
        "bootstrapTokens",
        "Bootstrap tokens: texts, valid for 24 hours each, or kubeadm's tables. \
         Default: none. Refused on a worker.",
    ),
    word(
        "networks.pods",
        Several,
        Cluster,
        "networking.podSubnet",
        "The subnet of pods, or a list of one of each IP version. Default: \
         10.244.0.0/16.",
    )
    .like(SUBNETS),
    word(
        "networks.services",
        Several,
        Cluster,
        "networking.serviceSubnet",
        "The subnet of services, or a list of one of each IP version. Default: \
         10.96.0.0/12.",
    )
    .like(SUBNETS),
    word(
        "networks.domain",
        Same,
        Cluster,
        "networking.dnsDomain",
        "The domain of services. Default: cluster.local.",
    ),
    word(
        "certificates.algorithm",
        Same,
        Cluster,
        "encryptionAlgorithm",
        "The algorithm of every key that is made. Default: ECDSA-P256.",
    )
    .of(Kind::OneOf(&ALGORITHMS)),
    word(
        "certificates.validity",
        Same,
        Cluster,
        "certificateValidityPeriod",
        "How long certificates are valid. Default: 8760h.",
    ),
    word(
        "certificates.ca-validity",
        Same,
        Cluster,
        "caCertificateValidityPeriod",
        "How long authorities are valid. Default: 87600h.",
    ),
    word(
        "node.name",
        Same,
        Init,
        "nodeRegistration.name",
        "The node's name. Default: the host name.",
    )
    .like(NAME),
    word(
        "node.address",
        Same,
        Init,
        "localAPIEndpoint.advertiseAddress",
        "The node's address. Default: of the interface with the default route.",
    ),
    word(
        "node.taints",
        Same,
        Init,
        "nodeRegistration.taints",
        "The node's taints. Default: kubeadm's of a control plane, none on a worker.",
    ),
    own("node.labels", Kind::Map(&Kind::Text), "The node's labels."),
    word(
        "api-server.port",
        Same,
        Init,
        "localAPIEndpoint.bindPort",
        "Its port. Default: 6443.",
    )
    .of(Kind::Int(0, 65535)),
    word(
        "api-server.sans",
        Same,
        Cluster,
        "apiServer.certSANs",
        "Further names and addresses of its certificate.",
    ),
    word(
        "api-server.args",
        Arguments,
        Cluster,
        "apiServer.extraArgs",
        "Flags of kube-apiserver.",
    ),
    word(
        "controller-manager.args",
        Arguments,
        Cluster,
        "controllerManager.extraArgs",
        "Flags of kube-controller-manager.",
    ),
    word(
        "scheduler.args",
        Arguments,
        Cluster,
        "scheduler.extraArgs",
        "Flags of kube-scheduler.",
    ),
    word(
        "etcd.args",
        Arguments,
        Cluster,
        "etcd.local.extraArgs",
        "Flags of etcd.",
    ),
    word(
        "etcd.sans",
        Same,
        Cluster,
        "etcd.local.serverCertSANs",
        "Further names and addresses of its server's certificate.",
    ),
    word(
        "etcd.image-repository",
        Same,
        Cluster,
        "etcd.local.imageRepository",
        "The registry and path that its image comes from.",
    ),
    word(
        "etcd.image-tag",
        Same,
        Cluster,
        "etcd.local.imageTag",
        "The tag of its image.",
    ),
    word(
        "kubelet.args",
        Arguments,
        Init,
        "nodeRegistration.kubeletExtraArgs",
        "Flags of the kubelet that its configuration has no field for.",
    ),
    word(
        "kubelet.config",
        Fields,
        Kubelet,
        "",
        "Fields of KubeletConfiguration v1beta1.",
    ),
    own(
        "kubelet.image",
        Kind::Text,
        "A kubelet in place of the image's: its container's image by digest.",
    )
    .like("@sha256:[0-9a-f]{64}$"),
    word(
        "proxy.enabled",
        Not,
        Cluster,
        "proxy.disabled",
        "Whether the cluster has kube-proxy. Default: true, if the image brings it.",
    ),
    word(
        "proxy.mode",
        Same,
        Proxy,
        "mode",
        "How it programs the kernel. Default: nftables with the image's kube-proxy.",
    ),
    word(
        "proxy.config",
        Fields,
        Proxy,
        "",
        "Fields of KubeProxyConfiguration v1alpha1.",
    ),
    word(
        "dns.enabled",
        Not,
        Cluster,
        "dns.disabled",
        "Whether the cluster has CoreDNS. Default: true, if the image brings it.",
    ),
    own(
        "dns.addresses",
        Kind::Text,
        "The Service at which pods ask CoreDNS: an address of networks.services, or a \
         list of one of each IP version. Default: the tenth address of the first \
         subnet.",
    )
    .several()
    .like("^[0-9A-Fa-f.:]+$"),
    word(
        "dns.image-repository",
        Same,
        Cluster,
        "dns.imageRepository",
        "The registry and path that its image comes from.",
    ),
    word(
        "dns.image-tag",
        Same,
        Cluster,
        "dns.imageTag",
        "The tag of its image.",
    ),
    own(
        "addons.metrics-server",
        Kind::Bool,
        "Whether the cluster has metrics-server, for kubectl top and for scaling by \
         use; kubelets request certificates of the cluster's authority then. Default: \
         false.",
    ),
];
