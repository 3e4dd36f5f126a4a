//! What kubeadm does not look at, and no node would run with: labels and taints that the API server refuses, so that they would never be on
//! their node, and with which a kubelet ends at its start (`ValidateKubeletFlags` of `cmd/kubelet/app/options`, `ParseTaints` of
//! `pkg/util/taints`); folders of etcd that are gone with its container.

use std::path::{Component, Path};

use serde_json::Value;

use crate::address;
use crate::report::Report;
use crate::types::{Cluster, Init, LocalEtcd};

/// The longest name without its prefix, and the longest value.
const LONGEST: usize = 63;
/// Where kubeadm has the taints.
const TAINTS: &str = "nodeRegistration.taints";
/// What a name is.
const NAME: &str = "expected at most 63 letters, digits, '-', '_' and '.', the first and the last one a letter or a digit, with or \
                    without a domain and '/' before them";
/// What a value is.
const VALUE: &str = "expected nothing, or at most 63 letters, digits, '-', '_' and '.', the first and the last one a letter or a digit";
/// Where kubeadm has etcd's arguments.
const ARGUMENTS: &str = "etcd.local.extraArgs";

/// Refuses it, by kubeadm's fields. What was refused before is not named again.
pub(crate) fn of_node(init: &Init, cluster: &Cluster, report: &mut Report) {
    taints(&init.node_registration.taints, report);
    if let Some(local) = &cluster.etcd.local {
        etcd(local, report);
    }
}

/// Why no node may have this label; none if one may.
pub(crate) fn wrong_label(name: &str, value: &str) -> Option<String> {
    if !is_name(name) {
        return Some(format!("{name:?} is not the name of a label; {NAME}"));
    }
    (!is_value(value)).then(|| format!("{value:?} is not the value of a label; {VALUE}"))
}

fn taints(taints: &[Value], report: &mut Report) {
    for (number, taint) in taints.iter().enumerate() {
        let item = format!("{TAINTS}.{number}");
        let text = |name: &str| taint[name].as_str().unwrap_or_default();
        let (key, value) = (text("key"), text("value"));
        let key_message = format!("{key:?} is not the key of a taint; {NAME}");
        let value_message = format!("{value:?} is not the value of a taint; {VALUE}");
        let effect_message = "expected NoExecute, NoSchedule or PreferNoSchedule".to_owned();
        for (name, is_right, message) in [
            ("key", is_name(key), key_message),
            ("value", is_value(value), value_message),
            ("effect", !text("effect").is_empty(), effect_message),
        ] {
            let field = format!("{item}.{name}");
            let mut known = report.mistakes.iter();
            let is_known = known.any(|known| [&item, &field].contains(&&known.field));
            if !is_right && !is_known {
                report.refuse(&field, message);
            }
        }
    }
}

/// etcd's pod has one folder of the node for its data: what it writes elsewhere is gone with its container.
fn etcd(local: &LocalEtcd, report: &mut Report) {
    let folder = Path::new(&local.data_dir);
    for (number, argument) in local.extra_args.iter().enumerate() {
        let (name, value) = (argument.name.as_str(), argument.value.as_str());
        let path = Path::new(value);
        let is_below =
            path.starts_with(folder) && path.components().all(|part| part != Component::ParentDir);
        let (is_kept, expected) = match name {
            "data-dir" => (path == folder, ""),
            // Without a value it is in the folder of the data.
            "wal-dir" => (value.is_empty() || is_below, "a folder below "),
            _ => continue,
        };
        if !is_kept {
            let message = format!(
                "what etcd writes to {value:?} (--{name}) is gone with its container; expected {expected}{}, the one folder of the node that it has for its data",
                local.data_dir
            );
            report.refuse_item(ARGUMENTS, number, message);
        }
    }
}

/// `IsQualifiedName` of Kubernetes.
fn is_name(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    prefix.is_none_or(address::is_name) && !name.is_empty() && is_value(name)
}

/// `IsValidLabelValue` of Kubernetes.
fn is_value(text: &str) -> bool {
    let end = |c: char| c.is_ascii_alphanumeric();
    let inside = |c: char| end(c) || matches!(c, '-' | '_' | '.');
    let ends = text.is_empty() || (text.starts_with(end) && text.ends_with(end));
    text.len() <= LONGEST && ends && text.chars().all(inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_those_of_labels() {
        let (long, longer) = ("a".repeat(LONGEST), "a".repeat(LONGEST + 1));
        let (long, longer) = (long.as_str(), longer.as_str());
        for name in [
            "a",
            "A.b_c-1",
            "example.test/a",
            "node.kubernetes.io/pool",
            long,
        ] {
            assert!(is_name(name), "{name}");
        }
        for name in [
            "", "a b", "-a", "a.", "/a", "a/", "A/b", "a/b/c", "é", longer,
        ] {
            assert!(!is_name(name), "{name}");
        }
        for value in ["", "a", "1", "eu-west_1.A", long] {
            assert!(is_value(value), "{value}");
        }
        for value in ["a b", "a/b", "a,b", "a=b", "-", ".a", "a_", longer] {
            assert!(!is_value(value), "{value}");
        }
    }
}
