//! `[containers]`: the images that are baked in.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::composed::{Composed, RawComposed};
use super::references::{is_name, is_pinned, is_pinned_name};
use super::{Check, composed, names};
use crate::oci::has_login;
use crate::recipe::mistakes::{Mistake, Place};
use crate::recipe::tree::Node;

/// Container images that are baked into the image.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawContainers {
    /// Images that are built from Debian packages or programs of the Kubernetes release, and known to containerd at boot.
    pub images: Vec<ContainerImage>,
    /// Where `images` come from.
    pub images_from: ImagesFrom,
    /// The release of the image etcd that the build makes: "3.5" (Debian's package) or "3.6" (the version of the release of
    /// Kubernetes, compiled from its Go module). A node whose etcd was 3.6 once does not start an image with 3.5 any more. Default: 3.5.
    pub etcd: Option<EtcdRelease>,
    /// Images that others built, in the root under their own names.
    pub prebuilt: Vec<RawPrebuilt>,
    /// Images that the build makes of Debian packages.
    pub composed: Vec<RawComposed>,
}

/// A release of etcd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EtcdRelease {
    /// Debian's.
    #[default]
    #[serde(rename = "3.5")]
    Of35,
    /// That of the release of Kubernetes.
    #[serde(rename = "3.6")]
    Of36,
}

/// The images of a recipe.
#[derive(Debug)]
pub(super) struct Containers {
    pub(super) images: Vec<ContainerImage>,
    pub(super) images_from: ImagesFrom,
    pub(super) etcd: EtcdRelease,
    pub(super) prebuilt: Vec<Prebuilt>,
    pub(super) composed: Vec<Composed>,
}

/// Where the images of a release come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ImagesFrom {
    /// The build makes them of Debian packages and programs of the release.
    #[default]
    Build,
    /// The registry has them, by the digests of the release table.
    Registry,
}

/// Its layers are merged into a folder of the root. Exactly one of `oci` and `layout` is given.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawPrebuilt {
    /// Its reference with a digest, as registry.example/name:tag@sha256:…; the build pulls it.
    pub oci: Option<String>,
    /// A folder that is an OCI layout; a path relative to this recipe.
    pub layout: Option<String>,
    /// The name by which pods find it, as registry.example/name:tag. Required with `layout`; with `oci` its own is the default.
    pub name: Option<String>,
}

/// A container image that somebody else built.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Prebuilt {
    /// Where it comes from.
    #[serde(skip)]
    pub from: PrebuiltFrom,
    /// Its name, if it is not that of the reference.
    pub name: Option<String>,
}

/// The source of a container image that somebody else built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrebuiltFrom {
    /// A registry, by a reference with a digest.
    Oci(String),
    /// A folder of the building host that is an OCI layout.
    Layout(PathBuf),
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
    /// The way to services on each node, by nftables, iptables or IPVS.
    KubeProxy,
    /// The cluster's name server, compiled from its Go module: it is in no Kubernetes release.
    Coredns,
    /// The network of pods of cni = "flannel", compiled from its Go module: it is in no Kubernetes release.
    Flannel,
    /// metrics-server of addons.metrics-server, compiled from its Go module: it is in no Kubernetes release.
    MetricsServer,
    /// Amazon's cloud controller of cloud.provider = "aws", compiled from its Go module: it is in no Kubernetes release.
    AwsCloudControllerManager,
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
            | Self::Coredns
            | Self::MetricsServer
            | Self::AwsCloudControllerManager => &[],
            Self::KubeProxy => &["ipset", "iptables", "nftables"],
            Self::Flannel => &["nftables"],
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
            Self::Flannel => "flannel",
            Self::MetricsServer => "metrics-server",
            Self::AwsCloudControllerManager => "aws-cloud-controller-manager",
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
    pub(super) fn containers(&mut self, raw: RawContainers) -> Containers {
        let RawContainers {
            images,
            images_from,
            etcd,
            prebuilt,
            composed,
        } = raw;
        self.unique("containers.images");
        for (list, is_empty) in [
            ("containers.images", images.is_empty()),
            ("containers.prebuilt", prebuilt.is_empty()),
            ("containers.composed", composed.is_empty()),
        ] {
            if self.find("kubernetes").is_none()
                && let Some(node) = self.find(list)
                && !is_empty
            {
                let place = node.place.clone();
                self.add(Mistake::at(
                    &place,
                    "container images without a kubelet that runs them",
                    "expected a table [kubernetes], or no images",
                ));
            }
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
        if images.contains(&ContainerImage::Coredns) && images_from == ImagesFrom::Build {
            let found = "the image coredns is in no Kubernetes release: it is compiled";
            self.compiled("containers.images", found);
        }
        for image in [
            ContainerImage::Flannel,
            ContainerImage::MetricsServer,
            ContainerImage::AwsCloudControllerManager,
        ] {
            if images.contains(&image) {
                self.of_own_module(image.name(), images_from);
            }
        }
        let makes_etcd = images.contains(&ContainerImage::Etcd) && images_from == ImagesFrom::Build;
        if let Some(node) = self.find("containers.etcd")
            && !makes_etcd
        {
            let place = node.place.clone();
            self.add(Mistake::at(
                &place,
                "a release of etcd, and no image of it that the build makes",
                "expected \"etcd\" in `images`, and images-from = \"build\"",
            ));
        }
        let etcd = etcd.unwrap_or_default();
        if makes_etcd && etcd == EtcdRelease::Of36 {
            let found = "Debian has no etcd 3.6: it is compiled";
            self.compiled("containers.etcd", found);
        }
        let (prebuilt, names) = self.prebuilt(&prebuilt);
        Containers {
            images,
            images_from,
            etcd,
            prebuilt,
            composed: composed::check(self, &composed, &names),
        }
    }

    /// The image of this name is made of its program's Go module alone: no release of Kubernetes names a version of it.
    fn of_own_module(&mut self, name: &str, from: ImagesFrom) {
        if from == ImagesFrom::Build {
            let found = format!("the image {name} is in no Kubernetes release: it is compiled");
            self.compiled("containers.images", &found);
        } else if let Some(node) = self.find("containers.images") {
            let place = node.place.clone();
            self.add(Mistake::at(
                &place,
                format!("{name} with the images of a Kubernetes release, which has none of it"),
                format!("expected images-from = \"build\", or {name}'s image in `prebuilt` and its manifest as an addon"),
            ));
        }
    }

    /// The images that others built, and the places of their names.
    fn prebuilt(&mut self, raw: &[RawPrebuilt]) -> (Vec<Prebuilt>, BTreeMap<String, Place>) {
        let items = self.find("containers.prebuilt");
        let items = items.map_or(&[][..], Node::items);
        let mut found = Vec::new();
        let mut named: BTreeMap<String, Place> = BTreeMap::new();
        for (raw, item) in raw.iter().zip(items) {
            let Some(image) = self.one_prebuilt(raw, item) else {
                continue;
            };
            let of_reference = raw.oci.as_deref().map(tagged);
            let name = image.name.as_deref().or(of_reference);
            let name = name.unwrap_or_default().to_owned();
            let mistake = named.get(&name).map(|before| {
                Mistake::at(
                    &item.place,
                    format!("`{name}` is given twice in `containers.prebuilt`"),
                    "expected each name once",
                )
                .also(before, "first given here")
            });
            match mistake {
                Some(mistake) => self.add(mistake),
                None => {
                    named.insert(name, item.place.clone());
                    found.push(image);
                }
            }
        }
        (found, named)
    }

    fn one_prebuilt(&mut self, raw: &RawPrebuilt, item: &Node) -> Option<Prebuilt> {
        let RawPrebuilt { oci, layout, name } = raw;
        let place = |key: &str| {
            let node = item.at(&[key]);
            node.map_or(&item.place, |node| &node.place).clone()
        };
        if let Some(name) = name
            && let Err(why) = is_name(name)
        {
            self.add(Mistake::at(
                &place("name"),
                format!("{name:?} is not the name of an image: {why}"),
                "expected registry.example/name:tag",
            ));
        }
        let from = match (oci, layout) {
            (Some(reference), None) => {
                let checked = match name {
                    Some(_) => is_pinned(reference),
                    // Pods find it by this one.
                    None => is_pinned_name(reference),
                };
                if has_login(reference) {
                    self.add(names::of_login(&place("oci"), "the reference"));
                    // Its parts are shown nowhere.
                    return None;
                } else if let Err(why) = checked {
                    self.add(Mistake::at(
                        &place("oci"),
                        format!("{reference:?} does not say which image it is: {why}"),
                        "expected registry.example/name:tag@sha256: and 64 hexadecimal digits",
                    ));
                }
                PrebuiltFrom::Oci(reference.clone())
            }
            (None, Some(layout)) => {
                let path = self.host_path(&place("layout"), layout);
                if !path.join("index.json").is_file() {
                    self.add(Mistake::at(
                        &place("layout"),
                        format!(
                            "{} is not an OCI layout: it has no index.json",
                            path.display()
                        ),
                        "expected a folder that is one, relative to this recipe",
                    ));
                }
                if name.is_none() {
                    self.add(Mistake::at(
                        &item.place,
                        "an image of a layout without a name",
                        "expected name = \"registry.example/name:tag\" beside it",
                    ));
                }
                PrebuiltFrom::Layout(path)
            }
            (oci, layout) => {
                let given = usize::from(oci.is_some()) + usize::from(layout.is_some());
                let lost = |gone: &String| gone.starts_with("containers.prebuilt[]");
                if given > 0 || !self.gone.iter().any(lost) {
                    self.add(Mistake::at(
                        &item.place,
                        format!("an image has {given} of its sources"),
                        "expected exactly one of oci and layout",
                    ));
                }
                return None;
            }
        };
        Some(Prebuilt {
            from,
            name: name.clone(),
        })
    }

    /// CoreDNS needs the toolchain of Go, wherever the kubelet comes from.
    pub(super) fn compiled(&mut self, word: &str, found: &str) {
        let sources = self.find("kubernetes.kubelet");
        let sources = sources.map_or(&[][..], Node::items);
        let from_module = |source: &Node| source.at(&["go-module"]).is_some();
        if sources.is_empty() || sources.iter().any(from_module) {
            return;
        }
        if let Some(node) = self.find(word) {
            let place = node.place.clone();
            self.add(Mistake::at(
                &place,
                found,
                "expected { go-module = true } among the sources of the kubelet",
            ));
        }
    }
}

/// The name by which pods find the image of a reference: without the digest, if it has a tag.
fn tagged(reference: &str) -> &str {
    match reference.rsplit_once('@') {
        // A colon before the last slash is of the registry's port.
        Some((name, _))
            if name
                .rsplit('/')
                .next()
                .is_some_and(|last| last.contains(':')) =>
        {
            name
        }
        _ => reference,
    }
}
