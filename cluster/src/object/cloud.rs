//! `[cloud]`: the cloud whose controller initializes the nodes, and makes its load balancers for Services.

use super::image::Image;
use super::{CloudController, Role};
use crate::report::Report;
use crate::wording::nearest;
use crate::yaml::{Content, Node};

/// The field of the cloud, and what it may hold: those whose controller is one of the cluster's own objects, and the word for one that an
/// addon brings.
pub(super) const PROVIDER: &str = "cloud.provider";
pub(super) const PROVIDERS: [&str; 2] = [AWS, EXTERNAL];
/// The field of the controller's own configuration.
pub(super) const CONFIG: &str = "cloud.config";

const AWS: &str = "aws";
const EXTERNAL: &str = "external";
/// The name of the image of Amazon's controller.
const AWS_IMAGE: &str = "aws-cloud-controller-manager";
/// The kubelet's argument by which its node waits for the controller, with the one value that it has left. The configuration has no field for
/// it.
pub(super) const ARGUMENT: (&str, &str) = ("cloud-provider", "external");
/// The field of the kubelet's arguments.
const ARGUMENTS: &str = "kubelet.args.cloud-provider";

/// Reads the field of the cloud.
pub(super) fn provider(node: &Node, report: &mut Report) -> Option<&'static str> {
    let found = node
        .text()
        .and_then(|text| PROVIDERS.into_iter().find(|known| *known == text));
    if found.is_none() {
        let near = node
            .text()
            .and_then(|text| nearest(text, PROVIDERS.into_iter()));
        let near = near.map_or_else(String::new, |near| format!("; did you mean {near:?}?"));
        let message = format!(
            "expected {AWS:?}, or {EXTERNAL:?} for a controller that an addon brings{near}"
        );
        report.refuse_at(PROVIDER, node.at, message);
    }
    found
}

/// Reads the field of the controller's configuration.
pub(super) fn config(node: &Node, report: &mut Report) -> String {
    match &node.content {
        Content::Text(text) => text.clone(),
        _ => {
            report.refuse_at(CONFIG, node.at, "expected a text");
            String::new()
        }
    }
}

/// The controller that a control plane has by an object with these words. Refuses it where the image does not bring it, a configuration that no
/// controller of ours reads, and another value of the kubelet's argument.
pub(super) fn controller(
    (provider, config): (Option<&'static str>, Option<&str>),
    root: &Node,
    image: &Image,
    role: Role,
    report: &mut Report,
) -> Option<CloudController> {
    let at = |path: &[&str]| {
        let node = path.iter().try_fold(root, |node, key| node.get(key));
        node.map_or(root.at, |node| node.at)
    };
    if provider != Some(AWS) && config.is_some() {
        let message = format!("nobody reads it; expected provider = {AWS:?} beside it");
        report.refuse_at(CONFIG, at(&["cloud", "config"]), message);
    }
    let provider = provider?;
    let (name, value) = ARGUMENT;
    let arguments = root.get("kubelet").and_then(|node| node.get("args"));
    let own = arguments.and_then(|node| node.get(name));
    if let Some(node) = own.filter(|node| node.text() != Some(value)) {
        let message = format!("expected {value:?}, the default with {PROVIDER}");
        report.refuse_at(ARGUMENTS, node.at, message);
    }
    if provider != AWS || role == Role::Worker {
        return None;
    }
    let found = image.images.get(AWS_IMAGE);
    if image.known && found.is_none() {
        let message = format!(
            "the image brings no {AWS_IMAGE}; expected {AWS_IMAGE:?} among `images` of its recipe's [containers], or {EXTERNAL:?} and an addon"
        );
        report.refuse_at(PROVIDER, at(&["cloud", "provider"]), message);
    }
    Some(CloudController {
        image: found.cloned().unwrap_or_default(),
        config: config.unwrap_or_default().to_owned(),
    })
}
