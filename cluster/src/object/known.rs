//! Arguments and feature gates of an object against what its version of Kubernetes knows.

use super::image::Image;
use super::translate::scalar;
use crate::flags;
use crate::release::{Kubeadm, Version};
use crate::report::Report;
use crate::yaml::{Content, Node};

/// The tables with arguments, and whose they are.
const COMPONENTS: [(&str, &str); 5] = [
    ("etcd", flags::ETCD),
    ("api-server", "kube-apiserver"),
    ("controller-manager", "kube-controller-manager"),
    ("scheduler", "kube-scheduler"),
    ("kubelet", "kubelet"),
];
/// The tables of feature gates.
const GATES: [&[&str]; 3] = [
    &["feature-gates"],
    &["kubelet", "config", "featureGates"],
    &["proxy", "config", "featureGates"],
];

/// Refuses arguments and gates that none of these minor versions knows, and values that are not of their type. Without a version
/// of etcd its arguments may be those of any; one that is not in the table is not checked.
pub(super) fn check(root: &Node, own: &[u32], etcd: Option<&Version>, report: &mut Report) {
    let etcd = match etcd.map(|version| version.numbers) {
        None => &flags::ETCD_MINORS[..],
        Some([3, minor, _]) => flags::ETCD_MINORS
            .iter()
            .position(|known| *known == minor)
            .map_or(&[][..], |at| &flags::ETCD_MINORS[at..=at]),
        Some(_) => &[],
    };
    for (table, component) in COMPONENTS {
        let minors = match component {
            flags::ETCD => etcd,
            _ => own,
        };
        for (name, node) in entries(root, &[table, "args"]) {
            let values = match &node.content {
                Content::List(items) => items.iter().collect(),
                _ => vec![node],
            };
            for value in values {
                // What is no scalar is refused where it is translated.
                let text = scalar(&value.content);
                let results = text.iter().flat_map(|text| {
                    let one = |minor: &u32| flags::check(component, *minor, name, text);
                    minors.iter().map(one)
                });
                // The newest one is named if none fits.
                if let Some(Err(message)) = results.reduce(Result::or) {
                    report.refuse_at(&format!("{table}.args.{name}"), value.at, message);
                }
            }
        }
    }
    for path in GATES {
        for (name, node) in entries(root, path) {
            let Content::Bool(on) = node.content else {
                continue;
            };
            let results = own.iter().map(|minor| flags::gate(*minor, name, on));
            if let Some(Err(message)) = results.reduce(Result::or) {
                report.refuse_at(&format!("{}.{name}", path.join(".")), node.at, message);
            }
        }
    }
}

/// The version of etcd by the tag of its image, if it is known: that of the object, of the node's image, or of kubeadm, if its
/// version is known, for another repository.
pub(super) fn etcd(root: &Node, image: &Image, kubeadm: Option<&Kubeadm>) -> Option<Version> {
    let tag = root.get("etcd").and_then(|table| table.get("image-tag"));
    let tag = match tag.and_then(|node| scalar(&node.content)) {
        Some(tag) => tag,
        None if root.get("image-repository").is_some() => {
            let kubeadm = kubeadm?;
            kubeadm.etcd_tag(&kubeadm.version).to_owned()
        }
        None => image
            .images
            .get(flags::ETCD)?
            .rsplit_once(':')?
            .1
            .to_owned(),
    };
    // The static pod of another tag gets the flags of 3.5.
    Version::parse(&tag).or_else(|| Version::parse("3.5.0"))
}

/// The entries of a table, if it is there and one.
fn entries<'a>(root: &'a Node, path: &[&str]) -> &'a [(String, Node)] {
    let table = path.iter().try_fold(root, |node, key| node.get(key));
    match table.map(|node| &node.content) {
        Some(Content::Map(entries)) => entries,
        _ => &[],
    }
}
