//! The kubeconfigs of a control plane, as specifications.

use crate::certs::{Certificate, client};
use crate::config::Config;

/// What a kubeconfig is to be. Its one cluster, context and user are named as kubeadm names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubeconfig {
    /// The file below `/etc/kubernetes`.
    pub file: &'static str,
    /// The URL of the API server.
    pub server: String,
    /// The cluster's name.
    pub cluster: String,
    /// The user, whose certificate has the same name.
    pub user: String,
    /// The user's certificate.
    pub certificate: Certificate,
}

impl Kubeconfig {
    /// The context's name.
    #[must_use]
    pub fn context(&self) -> String {
        format!("{}@{}", self.user, self.cluster)
    }
}

/// The kubeconfigs.
#[must_use]
pub fn kubeconfigs(config: &Config) -> Vec<Kubeconfig> {
    let cluster = config.control_plane_url();
    let here = config.init.local_api_endpoint.url();
    let node = format!("system:node:{}", config.init.node_registration.name);
    let known = config
        .kubeadm
        .release
        .gates
        .iter()
        .any(|(name, _)| *name == "ControlPlaneKubeletLocalMode");
    let local = !known || config.gate("ControlPlaneKubeletLocalMode");
    let kubelet = if local { &here } else { &cluster };
    let all = [
        (
            "admin",
            "kubernetes-admin",
            Some("kubeadm:cluster-admins"),
            &cluster,
        ),
        (
            "super-admin",
            "kubernetes-super-admin",
            Some("system:masters"),
            &cluster,
        ),
        ("kubelet", &node, Some("system:nodes"), kubelet),
        (
            "controller-manager",
            "system:kube-controller-manager",
            None,
            &here,
        ),
        ("scheduler", "system:kube-scheduler", None, &here),
    ];
    let wanted = all
        .into_iter()
        .filter(|(name, ..)| !config.skips(&format!("kubeconfig/{name}")));
    wanted
        .map(|(name, user, organisation, server)| Kubeconfig {
            file: file(name),
            server: server.clone(),
            cluster: config.cluster.cluster_name.clone(),
            user: user.to_owned(),
            certificate: client(config, user, organisation),
        })
        .collect()
}

fn file(name: &str) -> &'static str {
    match name {
        "admin" => "admin.conf",
        "super-admin" => "super-admin.conf",
        "kubelet" => "kubelet.conf",
        "controller-manager" => "controller-manager.conf",
        _ => "scheduler.conf",
    }
}
