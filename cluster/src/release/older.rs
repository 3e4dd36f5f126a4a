//! Versions of kubeadm before those of cluster objects: what they write is known, the flags of their components are not.

use super::{EtcdFlags, Release};

/// The first patch version of 1.33 that the row is of. 1.33.6 still gave the API server's client certificate for kubelets the organisation
/// `kubeadm:cluster-admins` (`cmd/kubeadm/app/phases/certs/certlist.go` of both).
pub(super) const FIRST_PATCH: u32 = 13;

/// The versions of kubeadm that `render` alone follows, oldest first.
pub(super) const OLDER: [Release; 1] = [Release {
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
    annotates_socket: true,
    named_probes: false,
    writes_empty: true,
}];

const WITHOUT_P384: &[&str] = &["ECDSA-P256", "RSA-2048", "RSA-3072", "RSA-4096"];
