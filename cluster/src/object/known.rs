//! Arguments and feature gates of an object against what its version of Kubernetes knows.

use super::translate::scalar;
use crate::flags;
use crate::report::Report;
use crate::yaml::{Content, Node};

/// The tables with arguments, and whose they are.
const COMPONENTS: [(&str, &str); 4] = [
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

/// Refuses arguments and gates that this minor version does not know, and values that are not of their type.
pub(super) fn check(root: &Node, minor: u32, report: &mut Report) {
    for (table, component) in COMPONENTS {
        for (name, node) in entries(root, &[table, "args"]) {
            let values = match &node.content {
                Content::List(items) => items.iter().collect(),
                _ => vec![node],
            };
            for value in values {
                // What is no scalar is refused where it is translated.
                let text = scalar(&value.content);
                let result = text.map(|text| flags::check(component, minor, name, &text));
                if let Some(Err(message)) = result {
                    report.refuse_at(&format!("{table}.args.{name}"), value.at, message);
                }
            }
        }
    }
    for path in GATES {
        for (name, node) in entries(root, path) {
            if let Content::Bool(on) = node.content
                && let Err(message) = flags::gate(minor, name, on)
            {
                report.refuse_at(&format!("{}.{name}", path.join(".")), node.at, message);
            }
        }
    }
}

/// The entries of a table, if it is there and one.
fn entries<'a>(root: &'a Node, path: &[&str]) -> &'a [(String, Node)] {
    let table = path.iter().try_fold(root, |node, key| node.get(key));
    match table.map(|node| &node.content) {
        Some(Content::Map(entries)) => entries,
        _ => &[],
    }
}
