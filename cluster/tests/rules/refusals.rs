//! What kubeadm refuses is refused, by the name of its field and with its position.

use super::{INIT, KUBELET, cluster, errors, init, refused};

/// Fields, and the one that is refused.
const CLUSTERS: &[(&str, &str)] = &[
    ("kubernetesVersion: v1.34.0", "kubernetesVersion"),
    ("kubernetesVersion: newest", "kubernetesVersion"),
    ("kubernetesVersion: stable-next", "kubernetesVersion"),
    ("kubernetesVersion: v1.35", "kubernetesVersion"),
    (
        "controlPlaneEndpoint: 'API.example.test'",
        "controlPlaneEndpoint",
    ),
    (
        "controlPlaneEndpoint: 'api.example.test:0'",
        "controlPlaneEndpoint",
    ),
    (
        "controlPlaneEndpoint: 'https://api.example.test'",
        "controlPlaneEndpoint",
    ),
    ("certificatesDir: pki", "certificatesDir"),
    ("imageRepository: Registry/K8s", "imageRepository"),
    (
        "imageRepository: 'registry.test/k8s:tag'",
        "imageRepository",
    ),
    ("dns: {imageRepository: 'a b'}", "dns.imageRepository"),
    ("encryptionAlgorithm: DSA", "encryptionAlgorithm"),
    ("featureGates: {Other: true}", "featureGates"),
    (
        "networking: {dnsDomain: Cluster_Local}",
        "networking.dnsDomain",
    ),
    (
        "networking: {serviceSubnet: 10.96.0.0}",
        "networking.serviceSubnet",
    ),
    (
        "networking: {serviceSubnet: 10.0.0.0/8}",
        "networking.serviceSubnet",
    ),
    (
        "networking: {serviceSubnet: 10.0.0.0/30}",
        "networking.serviceSubnet",
    ),
    (
        "networking: {serviceSubnet: '10.96.0.0/16,10.97.0.0/16'}",
        "networking.serviceSubnet",
    ),
    (
        "networking: {serviceSubnet: '10.96.0.0/16,fd00::/112,fd01::/112'}",
        "networking.serviceSubnet",
    ),
    (
        "networking: {serviceSubnet: 'fd00::/64'}",
        "networking.serviceSubnet",
    ),
    (
        "networking: {podSubnet: 10.244.0.0/27}",
        "networking.podSubnet",
    ),
    (
        "networking: {podSubnet: 10.244.0.0/25}",
        "networking.podSubnet",
    ),
    ("networking: {podSubnet: 8.0.0.0/7}", "networking.podSubnet"),
    (
        "networking: {podSubnet: 'fd00::/40'}",
        "networking.podSubnet",
    ),
    ("apiServer: {certSANs: ['a_b']}", "apiServer.certSANs"),
    ("apiServer: {certSANs: ['*']}", "apiServer.certSANs"),
    (
        "apiServer: {extraArgs: [{value: x}]}",
        "apiServer.extraArgs",
    ),
    (
        "scheduler: {extraArgs: [{name: '', value: x}]}",
        "scheduler.extraArgs",
    ),
    ("etcd: {local: {dataDir: data}}", "etcd.local.dataDir"),
    (
        "etcd: {local: {serverCertSANs: ['-a']}}",
        "etcd.local.serverCertSANs",
    ),
    (
        "etcd: {local: {peerCertSANs: ['a..b']}}",
        "etcd.local.peerCertSANs",
    ),
    (
        "etcd: {local: {imageRepository: A}, external: {endpoints: []}}",
        "etcd",
    ),
    (
        "etcd: {external: {endpoints: ['https://a'], certFile: /c}}",
        "etcd.external",
    ),
    (
        "etcd: {external: {endpoints: ['https://a'], certFile: /c, keyFile: /k}}",
        "etcd.external",
    ),
    (
        "etcd: {external: {endpoints: ['http://a'], caFile: /a}}",
        "etcd.external.endpoints",
    ),
    (
        "etcd: {external: {endpoints: ['a:2379']}}",
        "etcd.external.endpoints",
    ),
    (
        "etcd: {external: {endpoints: ['https://a'], caFile: a}}",
        "etcd.external.caFile",
    ),
    (
        "etcd: {external: {endpoints: ['https://a'], httpEndpoints: [a]}}",
        "etcd.external.httpEndpoints",
    ),
];

#[test]
fn clusters_are_refused_by_kubeadms_rules() {
    for (fields, expected) in CLUSTERS {
        assert_eq!(refused(&cluster(fields)), [*expected], "{fields}");
    }
}

/// Fields, and the one that is refused.
const NODES: &[(&str, &str)] = &[
    ("nodeRegistration: {name: Node_1}", "nodeRegistration.name"),
    (
        "nodeRegistration: {criSocket: 'unixgram:x'}",
        "nodeRegistration.criSocket",
    ),
    (
        "nodeRegistration: {imagePullPolicy: Sometimes}",
        "nodeRegistration.imagePullPolicy",
    ),
    (
        "nodeRegistration: {kubeletExtraArgs: [{value: x}]}",
        "nodeRegistration.kubeletExtraArgs",
    ),
    (
        "nodeRegistration: {ignorePreflightErrors: [all, Swap]}",
        "nodeRegistration.ignorePreflightErrors",
    ),
    (
        "localAPIEndpoint: {advertiseAddress: 10.0.0}",
        "localAPIEndpoint.advertiseAddress",
    ),
    (
        "localAPIEndpoint: {advertiseAddress: 127.0.0.1}",
        "localAPIEndpoint.advertiseAddress",
    ),
    (
        "localAPIEndpoint: {advertiseAddress: 'fe80::1'}",
        "localAPIEndpoint.advertiseAddress",
    ),
    (
        "localAPIEndpoint: {bindPort: 6443}",
        "localAPIEndpoint.advertiseAddress",
    ),
    (
        "localAPIEndpoint: {advertiseAddress: 10.0.0.5, bindPort: 70000}",
        "localAPIEndpoint.bindPort",
    ),
    ("certificateKey: abc", "certificateKey"),
    ("skipPhases: [addon/metrics]", "skipPhases"),
    (
        "skipPhases: [kubelet-finalize/experimental-cert-rotation]",
        "skipPhases",
    ),
    ("skipPhases: [bootstrap-token]", "skipPhases"),
    ("bootstrapTokens: [{token: ''}]", "bootstrapTokens.0.token"),
    (
        "bootstrapTokens: [{token: short}]",
        "bootstrapTokens.0.token",
    ),
    (
        "bootstrapTokens: [{token: abcdef.0123456789abcdef, usages: [joining, authentication]}]",
        "bootstrapTokens.0.usages",
    ),
    (
        "bootstrapTokens: [{token: abcdef.0123456789abcdef, groups: [admins]}]",
        "bootstrapTokens.0.groups",
    ),
    (
        "bootstrapTokens: [{token: abcdef.0123456789abcdef, usages: [signing]}]",
        "bootstrapTokens.0.groups",
    ),
    (
        "bootstrapTokens: [{token: abcdef.0123456789abcdef, ttl: 1d}]",
        "bootstrapTokens.0.ttl",
    ),
    (
        "timeouts: {kubeletHealthCheck: 30}",
        "timeouts.kubeletHealthCheck",
    ),
];

#[test]
fn nodes_are_refused_by_kubeadms_rules() {
    for (fields, expected) in NODES {
        assert_eq!(refused(&init(fields)), [*expected], "{fields}");
    }
}

#[test]
fn mistakes_come_all_at_once_with_their_positions_and_without_secrets() {
    let config = cluster(
        "certificatesDir: pki\nimageRepository: A B\napiServer:\n  certSANs:\n  - ok\n  - a_b",
    );
    assert_eq!(
        errors(&config),
        [
            "apiServer.certSANs: \"a_b\" is neither an address nor a name in lower case, with or without *. before it (line 14, column 5)",
            "certificatesDir: \"pki\" is not an absolute path (line 9, column 18)",
            "imageRepository: \"A B\" is not an image repository; expected one like registry.k8s.io/path (line 10, column 18)",
        ]
    );
    let secret = errors(&init("bootstrapTokens: [{token: ABCDEF.0123456789abcdef}]"));
    assert!(
        secret.len() == 1 && !secret[0].contains("0123456789"),
        "{secret:?}"
    );
}

#[test]
fn lists_of_arguments_are_of_v1beta4_alone() {
    let config = cluster("apiServer:\n  extraArgs:\n  - {name: v, value: '4'}");
    assert!(errors(&config).is_empty());
    let older = config.replace("v1beta4", "v1beta3");
    assert_eq!(refused(&older), ["apiServer.extraArgs"]);
}

#[test]
fn a_duration_without_a_value_is_refused_where_kubeadm_reads_text() {
    let kubelet = |field: &str| refused(&format!("{INIT}---\n{KUBELET}{field}:\n"));
    assert_eq!(kubelet("syncFrequency"), ["syncFrequency"]);
    assert_eq!(kubelet("imageGCHighThresholdPercent").len(), 0);
}
