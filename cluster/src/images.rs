//! The images of a cluster.

use crate::config::Config;

/// The repository that has CoreDNS below a name of its own.
const OFFICIAL: &str = "registry.k8s.io";

/// The image of a component of Kubernetes itself.
pub(crate) fn kubernetes(config: &Config, component: &str) -> String {
    let repository = &config.cluster.image_repository;
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let tag = config
        .cluster
        .kubernetes_version
        .replace(|c| !allowed(c), "_");
    format!("{repository}/{component}:{tag}")
}

/// The tag of etcd's image.
pub(crate) fn etcd_tag(config: &Config) -> &str {
    let local = config.cluster.etcd.local.as_ref();
    match local.map(|local| local.image_tag.as_str()) {
        None | Some("") => config.kubeadm.etcd_tag(&config.kubernetes),
        Some(tag) => tag,
    }
}

/// etcd's image.
pub(crate) fn etcd(config: &Config) -> String {
    let local = config.cluster.etcd.local.as_ref();
    let repository = match local.map(|local| local.image_repository.as_str()) {
        None | Some("") => &config.cluster.image_repository,
        Some(repository) => repository,
    };
    format!("{repository}/etcd:{}", etcd_tag(config))
}

/// CoreDNS's image.
pub(crate) fn coredns(config: &Config) -> String {
    let dns = &config.cluster.dns;
    let repository = match dns.image_repository.as_str() {
        "" => config.cluster.image_repository.as_str(),
        repository => repository,
    };
    let repository = match repository {
        OFFICIAL => "registry.k8s.io/coredns",
        repository => repository,
    };
    let tag = if dns.image_tag.is_empty() {
        config.kubeadm.release.coredns
    } else {
        &dns.image_tag
    };
    format!("{repository}/coredns:{tag}")
}

/// The pause image, if the kubelet is given one.
pub(crate) fn pause(config: &Config) -> Option<String> {
    let tag = config.kubeadm.release.pause?;
    Some(format!("{}/pause:{tag}", config.cluster.image_repository))
}
