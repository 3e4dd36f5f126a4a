//! What of a cluster of ours is not as kubeadm has it, each with its reason.

/// A difference.
#[derive(Clone, Copy, Debug)]
pub(super) struct Declared {
    /// The fields' paths; `*` stands for any text.
    pub(super) paths: &'static str,
    /// Why they differ.
    pub(super) _reason: &'static str,
}

impl Declared {
    /// Whether a field is one of these.
    pub(super) fn fits(&self, field: &str) -> bool {
        let (first, rest) = self.paths.split_once('*').unwrap_or((self.paths, ""));
        let Some(mut left) = field.strip_prefix(first) else {
            return false;
        };
        if !self.paths.contains('*') {
            return left.is_empty();
        }
        let mut parts: Vec<&str> = rest.split('*').collect();
        let last = parts.pop().unwrap_or_default();
        for part in parts {
            match left.split_once(part) {
                Some((_, behind)) => left = behind,
                None => return false,
            }
        }
        left.ends_with(last)
    }
}

const fn row(paths: &'static str, reason: &'static str) -> Declared {
    Declared {
        paths,
        _reason: reason,
    }
}

pub(super) const DECLARED: &[Declared] = &[
    row(
        "*/slipway:pod-routes *",
        "nodes read each other's ranges of pods for the network `bridge`",
    ),
    row(
        "*/slipway:api-servers *",
        "nodes read the addresses of API servers for their balancer",
    ),
    row(
        "ConfigMap/kube-system/slipway-objects *",
        "the record of what is applied, and by which node",
    ),
    row(
        "DaemonSet/kube-system/kube-proxy spec template spec containers kube-proxy image",
        "each node runs the kube-proxy of its own image, also in the middle of an update",
    ),
    row(
        "* spec containers etcd command --experimental-*",
        "the etcd of this image is 3.5; kubeadm's flags are of 3.6, and the test takes them out of its manifest",
    ),
    row(
        "* startupProbe failureThreshold",
        "ten minutes instead of four: a machine that is emulated needs more",
    ),
    row(
        "* etc-ca-certificates *",
        "the kubelet checks a pod's folder where it runs, in a container that does not have this one",
    ),
    row(
        "* metadata annotations slipway.local/kubeconfig",
        "a pod whose kubeconfig is made anew starts anew",
    ),
    row(
        "file /var/lib/kubelet/config.yaml featureGates ChangeContainerStatusOnKubeletRestart",
        "a pod that ran ahead of the kubelet has the time of its startup probe",
    ),
    row(
        "* spec containers kube-apiserver command --shutdown-send-retry-after*",
        "the API server ends in seconds and not in a minute",
    ),
    row(
        "file /etc/kubernetes/manifests/* metadata uid",
        "a pod that ran ahead of the kubelet is the one that it finds",
    ),
    row(
        "certificate *.crt hours",
        "valid from the time of the image on: a node's clock may be behind",
    ),
    row(
        "certificate *.key form",
        "PKCS #8, which every program reads that reads kubeadm's",
    ),
    row(
        "certificate sa.pub mode",
        "public, and read by none but those that may read the key",
    ),
    row(
        "certificate kubelet.conf *",
        "the kubelet's first certificate is in it; those that it renews are where kubeadm's are",
    ),
    row(
        "file /etc/kubernetes/kubelet.conf users * client-*",
        "the same",
    ),
    row(
        "* containerRuntimeEndpoint",
        "the socket without the link /var/run",
    ),
];
