//! Flags that were removed or renamed, and what takes their place.

use super::{ETCD, KUBELET_NAME, row};

/// The API that etcd 3.6 does not serve any more.
const V2: &str = "nothing, it serves the API v3 alone";
/// The proxy that etcd 3.6 does not have any more.
const PROXY: &str = "the command etcd grpc-proxy";
/// What etcd's experimental flags begin with.
const EXPERIMENTAL: &str = "experimental-";

/// Flags that are gone, and what takes their place (Kubernetes' change logs of 1.15 to 1.33, etcd's of 3.6).
const REMOVED: [(&str, &str, &str); 29] = [
    (
        "kube-apiserver",
        "basic-auth-file",
        "--oidc-issuer-url or client certificates",
    ),
    ("kube-apiserver", "insecure-bind-address", "--bind-address"),
    ("kube-apiserver", "insecure-port", "api-server.port"),
    (
        "kube-apiserver",
        "kubelet-https",
        "nothing, it is always so",
    ),
    (
        "kube-apiserver",
        "service-account-api-audiences",
        "--api-audiences",
    ),
    ("kube-controller-manager", "address", "--bind-address"),
    (
        "kube-controller-manager",
        "enable-taint-manager",
        "nothing, it is always so",
    ),
    (
        "kube-controller-manager",
        "experimental-cluster-signing-duration",
        "--cluster-signing-duration",
    ),
    (
        "kube-controller-manager",
        "pod-eviction-timeout",
        "default-not-ready-toleration-seconds and default-unreachable-toleration-seconds in api-server.args",
    ),
    ("kube-controller-manager", "port", "--secure-port"),
    ("kube-scheduler", "address", "--bind-address"),
    (
        "kube-scheduler",
        "algorithm-provider",
        "profiles of a KubeSchedulerConfiguration, by --config",
    ),
    (
        "kube-scheduler",
        "policy-config-file",
        "profiles of a KubeSchedulerConfiguration, by --config",
    ),
    ("kube-scheduler", "port", "--secure-port"),
    (
        "kube-scheduler",
        "scheduler-name",
        "profiles of a KubeSchedulerConfiguration, by --config",
    ),
    (
        KUBELET_NAME,
        "allow-privileged",
        "nothing, Pod Security Admission decides",
    ),
    (
        KUBELET_NAME,
        "cni-bin-dir",
        "containerd's own configuration",
    ),
    (
        KUBELET_NAME,
        "cni-conf-dir",
        "containerd's own configuration",
    ),
    (
        KUBELET_NAME,
        "container-runtime",
        "nothing, it is always remote",
    ),
    (
        KUBELET_NAME,
        "network-plugin",
        "containerd's own configuration",
    ),
    (
        KUBELET_NAME,
        "pod-infra-container-image",
        "containerd's own configuration",
    ),
    (ETCD, "enable-v2", V2),
    (ETCD, "experimental-enable-v2v3", V2),
    (ETCD, "proxy", PROXY),
    (ETCD, "proxy-dial-timeout", PROXY),
    (ETCD, "proxy-failure-wait", PROXY),
    (ETCD, "proxy-read-timeout", PROXY),
    (ETCD, "proxy-refresh-interval", PROXY),
    (ETCD, "proxy-write-timeout", PROXY),
];

/// Experimental flags of etcd that are feature gates in 3.6: it ends where a gate and its flag are both given.
pub(super) const GATES: [(&str, &str); 6] = [
    ("compact-hash-check-enabled", "CompactHashCheck"),
    ("enable-lease-checkpoint", "LeaseCheckpoint"),
    ("enable-lease-checkpoint-persist", "LeaseCheckpointPersist"),
    ("initial-corrupt-check", "InitialCorruptCheck"),
    ("stop-grpc-service-on-defrag", "StopGRPCServiceOnDefrag"),
    (
        "txn-mode-write-with-shared-buffer",
        "TxnModeWriteWithSharedBuffer",
    ),
];

/// What takes the place of a flag that is gone.
pub(super) fn removed(component: &str, flag: &str) -> Option<&'static str> {
    let found = REMOVED
        .iter()
        .find(|(of, name, _)| (*of, *name) == (component, flag));
    found.map(|(_, _, instead)| *instead)
}

/// What takes the place of an experimental flag of etcd in this minor version, if it knows another name: the next one ends
/// with the old one.
pub(super) fn of_etcd(minor: u32, flag: &str) -> Option<String> {
    let name = flag.strip_prefix(EXPERIMENTAL)?;
    let known = |flag| row(ETCD, minor, flag).is_some_and(|row| row.known.have(minor));
    let gate = GATES.iter().find(|(of, _)| *of == name);
    match gate.filter(|_| known("feature-gates")) {
        Some((_, gate)) => Some(format!("--feature-gates with {gate}=true or false")),
        None => known(name).then(|| format!("--{name}")),
    }
}

/// The experimental flag of this minor version that a later one has without that word.
pub(super) fn before(component: &str, minor: u32, flag: &str) -> Option<String> {
    let old = format!("{EXPERIMENTAL}{flag}");
    let known = row(component, minor, &old).is_some_and(|row| row.known.have(minor));
    (component == ETCD && known).then(|| format!("--{old}"))
}
