//! Versions of kubeadm before those of cluster objects: what they write is known, the flags of their components are not.

use super::{EtcdFlags, Release};

/// What a minor version does in its own way, from one of its patch versions on.
#[derive(Debug)]
pub(super) struct Older {
    /// The first patch version that the row is of.
    pub(super) first_patch: u32,
    /// The row.
    pub(super) release: Release,
}

/// The versions of kubeadm that `render` alone follows, oldest first. The patch versions before them sort arguments of the configuration
/// among their own (`cmd/kubeadm/app/util/arguments.go` of 1.32.2 and 1.33.6; Kubernetes' change log has it at 1.32.12). 1.32.2 deployed
/// etcd 3.5.16-0, and 1.33.6 still gave the API server's client certificate for kubelets the organisation `kubeadm:cluster-admins`
/// (`cmd/kubeadm/app/constants/constants.go`, `cmd/kubeadm/app/phases/certs/certlist.go`).
pub(super) const OLDER: [Older; 2] = [
    Older {
        first_patch: 13,
        release: Release {
            minor: 32,
            etcd: &[(29, 0, "3.5.24-0")],
            etcd_flags: EtcdFlags::Experimental,
            coredns: "v1.11.3",
            pause: Some("3.10"),
            gates: &[
                ("ControlPlaneKubeletLocalMode", false),
                ("EtcdLearnerMode", true),
                ("NodeLocalCRISocket", false),
                ("PublicKeysECDSA", false),
                ("RootlessControlPlane", false),
                ("WaitForAllControlPlaneComponents", false),
            ],
            algorithms: WITHOUT_P384,
            http_endpoints: false,
            flexvolume: true,
            kubelet_client: Some("kubeadm:cluster-admins"),
            marks_socket: true,
            annotates_socket: true,
            named_probes: false,
            writes_empty: true,
        },
    },
    Older {
        first_patch: 13,
        release: Release {
            minor: 33,
            etcd: &[(30, 0, "3.5.24-0")],
            etcd_flags: EtcdFlags::Experimental,
            coredns: "v1.12.0",
            pause: Some("3.10"),
            gates: &[
                ("ControlPlaneKubeletLocalMode", true),
                ("NodeLocalCRISocket", false),
                ("PublicKeysECDSA", false),
                ("RootlessControlPlane", false),
                ("WaitForAllControlPlaneComponents", true),
            ],
            algorithms: WITHOUT_P384,
            http_endpoints: false,
            flexvolume: true,
            kubelet_client: None,
            marks_socket: true,
            annotates_socket: true,
            named_probes: false,
            writes_empty: true,
        },
    },
];

const WITHOUT_P384: &[&str] = &["ECDSA-P256", "RSA-2048", "RSA-3072", "RSA-4096"];
