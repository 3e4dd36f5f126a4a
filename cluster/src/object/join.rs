//! `[join]`: the cluster that a worker or a further control plane joins, and by what it trusts it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::image::Image;
use super::{Further, Join, OF_CONTROL_PLANES};
use crate::config::{Arg, Config};
use crate::discovery::{PIN_FORM, Pin, TOKEN_FORM, Token};
use crate::report::Report;
use crate::shared_keys::{CertificateKey, FORM};
use crate::types::argument;
use crate::yaml::{Content, Node};

/// The table.
const TABLE: &str = "join";
/// Its fields.
const TOKEN: &str = "join.token";
const HASHES: &str = "join.ca-hashes";
const CERTIFICATE_KEY: &str = "join.certificate-key";
/// Labels below `kubernetes.io` and `k8s.io` that a kubelet may give its node, beside those of [`PREFIXES`].
const LABELS: [&str; 10] = [
    "kubernetes.io/hostname",
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/instance-type",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];
/// Prefixes of labels that a kubelet may give its node
/// (<https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#noderestriction>).
const PREFIXES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// Reads the table of a worker. Nothing where it is refused.
pub(super) fn worker(root: &Node, image: &Image, report: &mut Report) -> Option<Join> {
    let Some(table) = root.get(TABLE) else {
        let message = "expected [join] with token and ca-hashes: the role of this node is worker";
        report.refuse_at(TABLE, root.at, message);
        return None;
    };
    control_planes_fields(root, report);
    labels(root, report);
    if let Some(node) = table.get("certificate-key") {
        let message = "a control plane's; expected no such field on a worker";
        report.refuse_at(CERTIFICATE_KEY, node.at, message);
    }
    endpoint(root, table, report);
    join(root, table, image, report)
}

/// Reads the table of a control plane. Nothing on the first one, and where it is refused. With `certificate-key` the node
/// fetches what its config does not bring, and trusts the cluster as a worker does.
pub(super) fn control_plane(root: &Node, image: &Image, report: &mut Report) -> Option<Further> {
    let table = root.get(TABLE)?;
    endpoint(root, table, report);
    let Some(node) = table.get("certificate-key") else {
        for (name, path) in [("token", TOKEN), ("ca-hashes", HASHES)] {
            if let Some(node) = table.get(name) {
                let message = "on a control plane it goes with certificate-key; expected both, or neither and the \
                               authorities' keys in the node's config";
                report.refuse_at(path, node.at, message);
            }
        }
        return Some(Further { fetched: None });
    };
    let key = node.text().and_then(CertificateKey::parse);
    if key.is_none() {
        report.refuse_at(CERTIFICATE_KEY, node.at, FORM);
    }
    let join = join(root, table, image, report);
    Some(Further {
        fetched: Some((join?, key?)),
    })
}

fn endpoint(root: &Node, table: &Node, report: &mut Report) {
    if root.get("endpoint").is_none() {
        let message = "expected HOST:PORT of the control plane that [join] leads to";
        report.refuse_at("endpoint", table.at, message);
    }
}

fn join(root: &Node, table: &Node, image: &Image, report: &mut Report) -> Option<Join> {
    let (token, pins) = (token(table, report), pins(table, report));
    Some(Join {
        token: token?,
        pins: pins?,
        kubelet: kubelet(root),
        system: image.kubelet.clone(),
    })
}

/// Refuses what only a control plane has.
fn control_planes_fields(root: &Node, report: &mut Report) {
    let Content::Map(entries) = &root.content else {
        return;
    };
    for (name, node) in entries {
        if OF_CONTROL_PLANES.contains(&name.as_str()) {
            let message = "a control plane's; expected no such field on a worker";
            report.refuse_at(name, node.at, message);
        }
    }
}

/// Refuses labels with which a kubelet does not start.
fn labels(root: &Node, report: &mut Report) {
    let table = root.get("node").and_then(|node| node.get("labels"));
    let Some(Content::Map(entries)) = table.map(|table| &table.content) else {
        return;
    };
    for (name, node) in entries.iter().filter(|(name, _)| !is_kubelets(name)) {
        let message = "a kubelet may not give its node this label; expected an administrator to";
        report.refuse_at(&format!("node.labels.{name}"), node.at, message);
    }
}

/// Whether a kubelet may give its node this label.
fn is_kubelets(label: &str) -> bool {
    let Some((prefix, _)) = label.split_once('/') else {
        return true;
    };
    let below = |domain: &str| {
        prefix
            .strip_suffix(domain)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    !(below("kubernetes.io") || below("k8s.io"))
        || LABELS.contains(&label)
        || PREFIXES.iter().any(|domain| below(domain))
}

fn token(table: &Node, report: &mut Report) -> Option<Token> {
    let Some(node) = table.get("token") else {
        report.refuse_at(TOKEN, table.at, "expected a bootstrap token");
        return None;
    };
    let token = node.text().and_then(Token::parse);
    if token.is_none() {
        report.refuse_at(TOKEN, node.at, TOKEN_FORM);
    }
    token
}

fn pins(table: &Node, report: &mut Report) -> Option<Vec<Pin>> {
    let Some(node) = table.get("ca-hashes") else {
        let message = format!("expected {PIN_FORM}; without it any server would be trusted");
        report.refuse_at(HASHES, table.at, message);
        return None;
    };
    let items = match &node.content {
        Content::List(items) if !items.is_empty() => items,
        _ => {
            report.refuse_at(HASHES, node.at, format!("expected a list of {PIN_FORM}"));
            return None;
        }
    };
    let found = items.len();
    let mut pins = Vec::new();
    for item in items {
        match item.text().and_then(Pin::parse) {
            Some(pin) => pins.push(pin),
            None => report.refuse_at(HASHES, item.at, format!("expected {PIN_FORM}")),
        }
    }
    (pins.len() == found).then_some(pins)
}

/// The fields of `[kubelet.config]`.
fn kubelet(root: &Node) -> Map<String, Value> {
    let table = root.get("kubelet").and_then(|node| node.get("config"));
    match table.map(|table| table.content.value()) {
        Some(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// Gives the kubelet the taints and labels with which it registers its node: nobody else marks a worker.
pub(super) fn register(config: &mut Config, has_taints: bool, labels: &BTreeMap<String, String>) {
    let node = &mut config.init.node_registration;
    if !has_taints {
        node.taints.clear();
    }
    let taints: Vec<String> = node.taints.iter().map(taint).collect();
    let labels: Vec<String> = labels
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    for (name, values) in [("register-with-taints", taints), ("node-labels", labels)] {
        if !values.is_empty() && argument(&node.kubelet_extra_args, name).is_none() {
            node.kubelet_extra_args.push(Arg {
                name: name.to_owned(),
                value: values.join(","),
            });
        }
    }
}

/// A taint as the kubelet's argument has it: `KEY=VALUE:EFFECT`, `KEY:EFFECT` without a value.
fn taint(taint: &Value) -> String {
    let text = |key: &str| taint[key].as_str().unwrap_or_default();
    match text("value") {
        "" => format!("{}:{}", text("key"), text("effect")),
        value => format!("{}={value}:{}", text("key"), text("effect")),
    }
}
