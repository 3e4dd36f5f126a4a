//! `[containers]`: the images that are baked in.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Check;
use crate::recipe::mistakes::Mistake;
use crate::recipe::tree::Node;

/// Container images that are baked into the image.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawContainers {
    /// Images that are built from Debian packages or programs of the Kubernetes release, and known to containerd at boot.
    pub images: Vec<ContainerImage>,
}

/// Container images that the tool builds and bakes into the root.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ContainerImage {
    /// The container that holds a pod's namespaces.
    Pause,
    /// etcd's server.
    Etcd,
    /// The API server of the Kubernetes release.
    KubeApiserver,
    /// Its controllers.
    KubeControllerManager,
    /// Its scheduler.
    KubeScheduler,
    /// The way to services on each node, by nftables.
    KubeProxy,
    /// The cluster's name server, compiled from its Go module: it is in no Kubernetes release.
    Coredns,
}

impl ContainerImage {
    /// The Debian packages that the image is made of.
    #[must_use]
    pub const fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Pause => &["catatonit"],
            Self::Etcd => &["etcd-server"],
            Self::KubeApiserver
            | Self::KubeControllerManager
            | Self::KubeScheduler
            | Self::Coredns => &[],
            Self::KubeProxy => &["nftables"],
        }
    }

    /// The image's name without its registry: the component's, as kubeadm names images.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Etcd => "etcd",
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::KubeScheduler => "kube-scheduler",
            Self::KubeProxy => "kube-proxy",
            Self::Coredns => "coredns",
        }
    }

    /// The program that is in the image, if it is of no package: one of the Kubernetes release, or CoreDNS.
    #[must_use]
    pub const fn component(self) -> Option<&'static str> {
        match self {
            Self::Pause | Self::Etcd => None,
            _ => Some(self.name()),
        }
    }
}

impl Check<'_> {
    pub(super) fn containers(&mut self, raw: RawContainers) -> Vec<ContainerImage> {
        let RawContainers { images } = raw;
        self.unique("containers.images");
        if self.find("kubernetes").is_none()
            && let Some(node) = self.find("containers.images")
            && !images.is_empty()
        {
            let place = node.place.clone();
            self.add(Mistake::at(
                &place,
                "container images without a kubelet that runs them",
                "expected a table [kubernetes], or no images",
            ));
        }
        // What no list inherits, it has to name itself.
        if let Some(node) = self.find("containers.images")
            && !images.is_empty()
            && !images.contains(&ContainerImage::Pause)
        {
            let place = node.place.clone();
            self.add(Mistake::at(
                &place,
                "container images without the one that holds each pod's namespaces",
                "expected \"pause\" among them: no pod starts without it",
            ));
        }
        if images.contains(&ContainerImage::Coredns) {
            self.compiled();
        }
        images
    }

    /// CoreDNS needs the toolchain of Go, wherever the kubelet comes from.
    fn compiled(&mut self) {
        let sources = self.find("kubernetes.kubelet");
        let sources = sources.map_or(&[][..], Node::items);
        let from_module = |source: &Node| source.at(&["go-module"]).is_some();
        if sources.is_empty() || sources.iter().any(from_module) {
            return;
        }
        if let Some(node) = self.find("containers.images") {
            let place = node.place.clone();
            self.add(Mistake::at(
                &place,
                "the image coredns is in no Kubernetes release: it is compiled",
                "expected { go-module = true } among the sources of the kubelet",
            ));
        }
    }
}
