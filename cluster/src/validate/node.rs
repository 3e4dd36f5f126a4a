//! The rules of `InitConfiguration`.

use super::arguments;
use crate::address;
use crate::report::Report;
use crate::types::{Init, NodeRegistration, Token};
use crate::wording::either;

/// What a bootstrap token may be used for.
const USAGES: [&str; 2] = ["signing", "authentication"];
/// The phases of `kubeadm init`, with those below them.
const PHASES: [(&str, &[&str]); 14] = [
    ("preflight", &[]),
    (
        "certs",
        &[
            "all",
            "ca",
            "apiserver",
            "apiserver-kubelet-client",
            "front-proxy-ca",
            "front-proxy-client",
            "etcd-ca",
            "etcd-server",
            "etcd-peer",
            "etcd-healthcheck-client",
            "apiserver-etcd-client",
            "sa",
        ],
    ),
    (
        "kubeconfig",
        &[
            "all",
            "admin",
            "super-admin",
            "kubelet",
            "controller-manager",
            "scheduler",
        ],
    ),
    ("etcd", &["local"]),
    (
        "control-plane",
        &["all", "apiserver", "controller-manager", "scheduler"],
    ),
    ("kubelet-start", &[]),
    ("wait-control-plane", &[]),
    ("upload-config", &["all", "kubeadm", "kubelet"]),
    ("upload-certs", &[]),
    ("mark-control-plane", &[]),
    ("bootstrap-token", &[]),
    ("kubelet-finalize", &["all", "enable-client-cert-rotation"]),
    ("addon", &["all", "coredns", "kube-proxy"]),
    ("show-join-command", &[]),
];

pub(super) fn check(init: &Init, report: &mut Report) {
    registration(&init.node_registration, report);
    for (number, token) in init.bootstrap_tokens.iter().enumerate() {
        bootstrap_token(token, &format!("bootstrapTokens.{number}"), report);
    }
}

/// What kubeadm checks after the cluster.
pub(super) fn bring_up(init: &Init, report: &mut Report) {
    let port = init.local_api_endpoint.bind_port;
    if !(1..=65535).contains(&port) {
        report.refuse(
            "localAPIEndpoint.bindPort",
            format!("{port} is not a port; expected 1 to 65535"),
        );
    }
    certificate_key(&init.certificate_key, report);
    for (number, phase) in init
        .skip_phases
        .iter()
        .enumerate()
        .filter(|(_, phase)| !is_phase(phase))
    {
        let message = format!("{phase:?} is not a phase of kubeadm init");
        report.refuse_item("skipPhases", number, message);
    }
    needed(&init.skip_phases, report);
}

/// The last phase shows what two others make: it is left out with them.
fn needed(skipped: &[String], report: &mut Report) {
    const LAST: &str = "show-join-command";
    if skipped.iter().any(|phase| phase == LAST) {
        return;
    }
    for (number, phase) in skipped.iter().enumerate() {
        if matches!(phase.as_str(), "bootstrap-token" | "upload-certs") {
            let message = format!("{LAST} needs {phase}; expected both to be left out");
            report.refuse_item("skipPhases", number, message);
        }
    }
}

fn registration(node: &NodeRegistration, report: &mut Report) {
    let field = |name: &str| format!("nodeRegistration.{name}");
    if !address::is_name(&node.name) {
        let message = format!(
            "{:?} is not a name of lower-case letters, digits, '-' and '.'",
            node.name
        );
        report.refuse(&field("name"), message);
    }
    if !node.cri_socket.starts_with("unix:") {
        let message = format!(
            "{:?} has another scheme; expected unix://PATH",
            node.cri_socket
        );
        report.refuse(&field("criSocket"), message);
    } else if let Err(wrong) = address::url_parts(&node.cri_socket) {
        let message = format!("{:?} {wrong}; expected unix://PATH", node.cri_socket);
        report.refuse(&field("criSocket"), message);
    }
    arguments(&node.kubelet_extra_args, &field("kubeletExtraArgs"), report);
    if !["Always", "IfNotPresent", "Never"].contains(&node.image_pull_policy.as_str()) {
        let message = format!(
            "{:?}: expected Always, IfNotPresent or Never",
            node.image_pull_policy
        );
        report.refuse(&field("imagePullPolicy"), message);
    }
    let mut ignored: Vec<String> = node
        .ignore_preflight_errors
        .iter()
        .map(|name| name.to_lowercase())
        .collect();
    ignored.sort();
    ignored.dedup();
    if ignored.len() > 1 && ignored.iter().any(|name| name == "all") {
        let message = "names single checks beside 'all', which ignores each of them";
        report.refuse(&field("ignorePreflightErrors"), message);
    }
}

fn bootstrap_token(token: &Token, field: &str, report: &mut Report) {
    let unknown = token
        .usages
        .iter()
        .find(|usage| !USAGES.contains(&usage.as_str()));
    if let Some(usage) = unknown {
        let message = format!("{usage:?} is not a usage; expected {}", either(&USAGES));
        report.refuse(&format!("{field}.usages"), message);
    }
    let groups = format!("{field}.groups");
    if !token.groups.is_empty() && !token.usages.iter().any(|usage| usage == "authentication") {
        let message = "a token has groups only if its usages include \"authentication\"; \
                       without groups it has kubeadm's own";
        report.refuse(&groups, message);
    }
    for group in token.groups.iter().filter(|group| !is_group(group)) {
        let message = format!(
            "{group:?} is not a group of bootstrap tokens; expected system:bootstrappers:NAME"
        );
        report.refuse(&groups, message);
    }
    if token.expires.is_some() {
        // kubeadm gives each token a TTL, also beside this field.
        report.refuse(field, "expires is not taken beside ttl; expected ttl");
    }
}

/// `system:bootstrappers:` and lower-case letters, digits, colons and hyphens, the last one no hyphen or colon.
fn is_group(group: &str) -> bool {
    let sign = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    group
        .strip_prefix("system:bootstrappers:")
        .is_some_and(|name| {
            let bytes = name.as_bytes();
            let inside = bytes.iter().all(|c| sign(*c) || matches!(c, b':' | b'-'));
            inside && name.len() <= 256 && bytes.last().is_some_and(|c| sign(*c))
        })
}

fn certificate_key(key: &str, report: &mut Report) {
    let digits = key.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !key.is_empty() && (key.len() != 64 || !digits) {
        let message = "not a key of AES-256; expected 64 hexadecimal digits";
        report.refuse("certificateKey", message);
    }
}

fn is_phase(phase: &str) -> bool {
    let (name, child) = phase
        .split_once('/')
        .map_or((phase, None), |(name, child)| (name, Some(child)));
    let known = PHASES.iter().find(|(known, _)| *known == name);
    known.is_some_and(|(_, children)| child.is_none_or(|child| children.contains(&child)))
}
