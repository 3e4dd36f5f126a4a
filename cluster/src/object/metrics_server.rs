//! `addons.metrics-server`: metrics-server, by the image that the node's image brings.

use super::image::Image;
use crate::report::Report;
use crate::yaml::{Content, Node};

/// The field.
pub(super) const FIELD: &str = "addons.metrics-server";
/// The name of its image.
const NAME: &str = "metrics-server";
/// The field of the kubelet's configuration by which it requests a certificate of the cluster's authority.
pub(super) const REQUESTS: &str = "serverTLSBootstrap";

/// Reads the field.
pub(super) fn read(node: &Node, report: &mut Report) -> bool {
    match node.content {
        Content::Bool(wanted) => wanted,
        _ => {
            report.refuse_at(FIELD, node.at, "expected true or false");
            false
        }
    }
}

/// The reference of its image, if the object has it (`wanted`). Refuses it where the node's image does not bring it, and where kubelets are not to
/// have certificates that it could check.
pub(super) fn image(
    wanted: bool,
    root: &Node,
    image: &Image,
    report: &mut Report,
) -> Option<String> {
    if !wanted {
        return None;
    }
    let found = image.images.get(NAME);
    if image.known && found.is_none() {
        let at = at(root, &["addons", NAME]).unwrap_or(root).at;
        let message = "the image brings no metrics-server; expected \"metrics-server\" among `images` of its recipe's [containers]";
        report.refuse_at(FIELD, at, message);
    }
    let own = at(root, &["kubelet", "config", REQUESTS]);
    if let Some(node) = own.filter(|node| matches!(node.content, Content::Bool(false))) {
        let field = format!("kubelet.config.{REQUESTS}");
        let message = format!(
            "metrics-server asks kubelets with certificates of the cluster's authority alone; expected true, the default with {FIELD}"
        );
        report.refuse_at(&field, node.at, message);
    }
    Some(found.cloned().unwrap_or_default())
}

/// The node at a path.
fn at<'a>(root: &'a Node, path: &[&str]) -> Option<&'a Node> {
    path.iter().try_fold(root, |node, key| node.get(key))
}
