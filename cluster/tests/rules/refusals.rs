//! What kubeadm refuses is refused, by the name of its field and with its position.

use super::{CLUSTER, INIT, KUBELET, cluster, errors, init, refused};

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
        "etcd: {external: {endpoints: ['a:2379'], caFile: /a}}",
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
        "nodeRegistration: {criSocket: 'unix://run containerd/x'}",
        "nodeRegistration.criSocket",
    ),
    (
        "nodeRegistration: {criSocket: 'unix:///run/%zz'}",
        "nodeRegistration.criSocket",
    ),
    (
        "nodeRegistration: {criSocket: 'unix://host:x/run'}",
        "nodeRegistration.criSocket",
    ),
    (
        "nodeRegistration: {criSocket: \"unix:///run\\tx\"}",
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

#[test]
fn what_go_takes_as_the_url_of_a_socket_is_taken() {
    for socket in [
        "/run/a b",
        "unix:///a b?%zz#c",
        "unix://:@/x",
        "unix://host:/x",
        "unix://[::1]:5/x",
        "unix:x%zz",
        "unix:",
    ] {
        let config = init(&format!("nodeRegistration: {{criSocket: '{socket}'}}"));
        assert_eq!(errors(&config), [""; 0], "{socket}");
    }
}

/// A subnet of all addresses is too large, and counts as none.
#[test]
fn a_subnet_of_all_addresses_is_refused_twice() {
    for subnet in ["0.0.0.0/0", "128.0.0.0/1", "::/0"] {
        let config = cluster(&format!("networking: {{serviceSubnet: '{subnet}'}}"));
        assert_eq!(errors(&config).len(), 2, "{subnet}");
    }
}

#[test]
fn documents_are_refused_by_kubeadms_rules() {
    let flow = "{apiVersion: kubelet.config.k8s.io/v1beta1, kind: KubeletConfiguration}\n";
    let json = "{\"apiVersion\": \"kubeadm.k8s.io/v1beta4\", \"kind\": \"ClusterConfiguration\"";
    for config in [
        format!("{INIT}---\n{flow}"),
        format!("{INIT}---\n{json},}}\n"),
        format!("--- !!map\n{INIT}"),
        format!("{INIT}---{CLUSTER}"),
        format!("{INIT}---\napiVersion: a/b/c\nkind: X\n"),
        format!("{INIT}---\napiVersion: a/\nkind: X\n"),
        format!("{INIT}---\napiVersion: /v1\nkind: X\n"),
        cluster("other: {x: .nan}"),
        cluster("clusterName: \"a\u{1}\""),
    ] {
        assert_eq!(errors(&config).len(), 1, "{config}");
    }
    for config in [
        format!("---\n{flow}---\n{INIT}"),
        format!("{INIT}---\n{json}}}\n"),
        format!("{INIT}---\n{{apiVersion: kubeadm.k8s.io/v1beta4, kind: ResetConfiguration}}\n"),
        format!("{INIT}---\napiVersion: apps/v1\nkind: 5\n"),
    ] {
        assert_eq!(errors(&config), [""; 0], "{config}");
    }
}

/// Endpoints for HTTP are those of etcd, unless others are given: a mistake is one of both.
#[test]
fn endpoints_of_etcd_are_what_go_takes_as_urls() {
    let external = |fields: &str| errors(&cluster(&format!("etcd: {{external: {{{fields}}}}}")));
    for endpoint in ["https://a:x", "https://a b", "//a:1", "1a:2", ""] {
        let errors = external(&format!("endpoints: ['{endpoint}']"));
        let fields = errors.iter().map(|error| error.split(": ").next());
        let expected = ["etcd.external.endpoints", "etcd.external.httpEndpoints"];
        assert!(fields.eq(expected.map(Some)), "{errors:?}");
    }
    assert_eq!(external("endpoints: [''], caFile: /a").len(), 3);
    for endpoint in ["a:2379", "http://a", "HTTPS://[fd00::1]:2379/p?q"] {
        let errors = external(&format!("endpoints: ['{endpoint}']"));
        assert_eq!(errors, [""; 0], "{endpoint}");
    }
}

#[test]
fn a_subnet_of_pods_has_14_addresses() {
    let manager = "controllerManager: {extraArgs: [{name: allocate-node-cidrs, value: 'false'}]}";
    let pods = |subnet: &str| cluster(&format!("networking: {{podSubnet: {subnet}}}\n{manager}"));
    assert!(errors(&pods("10.244.0.0/28")).is_empty());
    assert_eq!(refused(&pods("10.244.0.0/29")), ["networking.podSubnet"]);
}
