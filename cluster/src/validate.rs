//! kubeadm's rules for a complete configuration, and what a node needs beyond them. All mistakes are reported at once.

mod beyond;
mod cluster;
mod network;
mod node;
pub(crate) mod ports;

pub(crate) use beyond::{of_node, wrong_label};

use crate::address;
use crate::release::Release;
use crate::report::Report;
use crate::types::{Arg, Cluster, Init};

/// Checks both kinds.
pub(crate) fn validate(init: &Init, cluster: &Cluster, release: &Release, report: &mut Report) {
    node::check(init, report);
    cluster::dns(cluster, report);
    network::check(cluster, report);
    cluster::check(cluster, release, report);
    node::bring_up(init, report);
}

fn arguments(arguments: &[Arg], field: &str, report: &mut Report) {
    for (number, _) in arguments
        .iter()
        .enumerate()
        .filter(|(_, arg)| arg.name.is_empty())
    {
        report.refuse_item(field, number, "an argument without a name");
    }
}

fn absolute(path: &str, field: &str, report: &mut Report) {
    if !path.starts_with('/') {
        report.refuse(field, format!("{path:?} is not an absolute path"));
    }
}

/// Names and addresses of a certificate.
fn names(names: &[String], field: &str, report: &mut Report) {
    for (number, name) in names.iter().enumerate() {
        let known = address::is_name(name)
            || address::is_wildcard_name(name)
            || address::parse(name).is_some();
        if !known {
            let message = format!(
                "{name:?} is neither an address nor a name in lower case, with or without *. before it"
            );
            report.refuse_item(field, number, message);
        }
    }
}

/// A registry with a path: the part of an image before its last name.
fn repository(repository: &str, field: &str, report: &mut Report) {
    let mut parts = repository.split('/');
    let first = parts.next().unwrap_or_default();
    let valid = (is_domain(first) || is_path(first)) && parts.all(is_path);
    if !valid {
        report.refuse(
            field,
            format!(
                "{repository:?} is not an image repository; expected one like registry.k8s.io/path"
            ),
        );
    }
}

/// Names with dots between them, or an address of version 6 in brackets, and perhaps a port.
fn is_domain(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    };
    let digits = |port: &str| !port.is_empty() && port.bytes().all(|c| c.is_ascii_digit());
    let label = |label: &str| {
        let inside = label
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || c == b'-');
        inside && !label.is_empty() && !label.starts_with('-') && !label.ends_with('-')
    };
    let six = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let host = match six {
        Some(six) => six.bytes().all(|c| c.is_ascii_hexdigit() || c == b':') && !six.is_empty(),
        None => host.split('.').all(label),
    };
    host && port.is_none_or(digits)
}

/// Words of lower-case letters and digits with `.`, `_`, `__` or hyphens between them.
fn is_path(text: &str) -> bool {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let between = |text: &str| matches!(text, "." | "_" | "__") || text.bytes().all(|c| c == b'-');
    let ends = text.starts_with(word) && text.ends_with(word);
    ends && text
        .split(word)
        .all(|signs| signs.is_empty() || between(signs))
}

#[cfg(test)]
mod tests;
