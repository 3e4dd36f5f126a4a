//! What the node's image brings: an object is held against it, and what the object leaves open is set by it.

use super::Cni;
use super::image::Image;
use super::kubelet_image::own_skew;
use super::translate::Translation;
use super::words::Document;
use crate::release::{Kubeadm, Version};
use crate::report::Report;
use crate::yaml::Node;

/// The name of kube-proxy's image.
const PROXY: &str = "kube-proxy";
/// The name of flannel's image.
pub(super) const FLANNEL: &str = "flannel";

/// The version of Kubernetes, whose kubeadm is followed. An image brings one version only.
pub(super) fn kubeadm(
    translation: &Translation,
    root: &Node,
    image: &Image,
    report: &mut Report,
) -> Option<Kubeadm> {
    let at = root.get("version").map_or(root.at, |node| node.at);
    let text = translation.version.as_deref().unwrap_or(&image.version);
    if text.is_empty() {
        report.refuse_at(
            "version",
            at,
            "expected a version of Kubernetes: the image brings none",
        );
        return None;
    }
    let Some(kubeadm) = Kubeadm::parse(text) else {
        let message =
            format!("{text:?} is not a known version of Kubernetes; expected 1.34.x to 1.36.x");
        report.refuse_at("version", at, message);
        return None;
    };
    let own = Kubeadm::parse(&image.version);
    if let Some(own) = own.filter(|own| own.version != kubeadm.version && translation.uses_image) {
        let message = format!(
            "{} is not in the image, which brings {}; expected that, or image-repository",
            kubeadm.version, own.version
        );
        report.refuse_at("version", at, message);
    } else if let Err(message) = own_fits(translation, &kubeadm.version, image) {
        report.refuse_at("version", at, message);
    }
    Some(kubeadm)
}

/// Whether the image's own kubelet works with the API servers of an object's cluster. A pinned kubelet is held against them once its
/// image says its version.
///
/// # Errors
/// The reason why not, and what works.
fn own_fits(translation: &Translation, api_server: &Version, image: &Image) -> Result<(), String> {
    let own = Version::parse(&image.version);
    let own = own.filter(|_| image.has_kubelet && translation.kubelet_image.is_none());
    match own {
        Some(own) => own_skew(&own, api_server),
        None => Ok(()),
    }
}

/// Refuses flannel as the network of pods where the node's image does not bring its image.
pub(super) fn flannel(translation: &Translation, root: &Node, image: &Image, report: &mut Report) {
    let brings = !image.known || image.images.contains_key(FLANNEL);
    if translation.cni == Cni::Flannel && !brings {
        let at = root.get("cni").map_or(root.at, |node| node.at);
        let message = "the image brings no flannel; expected \"flannel\" among `images` of its recipe's [containers]";
        report.refuse_at("cni", at, message);
    }
}

/// Sets what the object leaves open by what the image has; returns what is left out.
pub(super) fn complete(
    translation: &mut Translation,
    kubeadm: &Kubeadm,
    image: &Image,
) -> Vec<String> {
    let version = kubeadm.version.to_string();
    translation.set(Document::Cluster, "kubernetesVersion", version.into());
    let mut notes = Vec::new();
    if translation.uses_image {
        repository_and_tags(translation, image);
        for (name, field) in [(PROXY, "proxy"), ("coredns", "dns")] {
            if !image.images.contains_key(name) {
                let disabled = format!("{field}.disabled");
                translation.replace(Document::Cluster, &disabled, true.into());
                notes.push(format!("{name} is left out: the image does not bring it"));
            }
        }
        // The image's kube-proxy has nft and iptables beside it. By nftables a change costs the same however many services there are.
        translation.set(Document::Proxy, "mode", "nftables".into());
    }
    for (name, value) in &image.kubelet {
        translation.set(Document::Kubelet, name, value.clone());
    }
    if kubeadm.release.flexvolume && !image.flexvolume.is_empty() {
        translation.argument(
            "controllerManager",
            "flex-volume-plugin-dir",
            &image.flexvolume,
        );
    }
    notes
}

/// The image of kube-proxy that each node has, if the object takes the images that its nodes bring.
pub(super) fn proxy_image(translation: &Translation, image: &Image) -> Option<String> {
    let is_own = translation.uses_image && image.images.contains_key(PROXY);
    is_own.then(|| image.own_reference(PROXY)).flatten()
}

/// Sets the repository and the tags of the images that the image brings.
fn repository_and_tags(translation: &mut Translation, image: &Image) {
    let parts = |name: &str| {
        let (rest, tag) = image.images.get(name)?.rsplit_once(':')?;
        let repository = rest.rsplit_once('/')?.0;
        Some((repository.to_owned(), tag.to_owned()))
    };
    if let Some((repository, _)) = parts("kube-apiserver") {
        translation.set(Document::Cluster, "imageRepository", repository.into());
    }
    for (name, field) in [("etcd", "etcd.local"), ("coredns", "dns")] {
        if let Some((repository, tag)) = parts(name) {
            let path = |word: &str| format!("{field}.{word}");
            translation.set(
                Document::Cluster,
                &path("imageRepository"),
                repository.into(),
            );
            translation.set(Document::Cluster, &path("imageTag"), tag.into());
        }
    }
}
