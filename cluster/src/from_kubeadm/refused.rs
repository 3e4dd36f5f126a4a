//! What of kubeadm's documents Slipway's bring-up does not do.

use crate::documents::Documents;
use crate::host::Host;
use crate::report::Report;
use crate::wording::either;
use crate::yaml::{Content, Node};

/// The phases of `kubeadm init` that can be left out: what they make is left out.
const INIT: [&str; 5] = [
    "preflight",
    "addon",
    "addon/coredns",
    "addon/kube-proxy",
    "show-join-command",
];
/// Those of `kubeadm join`.
const JOIN: [&str; 1] = ["preflight"];
/// What begins a name in a template that nobody filled in: cloud-init's, and a shell's.
const OPEN: [&str; 2] = ["{{", "${"];

/// Refuses it.
pub(super) fn check(documents: &Documents, joins: bool, host: &Host, report: &mut Report) {
    let Some(init) = &documents.init else {
        return;
    };
    let given = |name: &str| init.get(name).filter(|node| node.content != Content::Null);
    if let Some(node) = given("patches") {
        let message =
            "patches of manifests are not applied; expected extraArgs, extraVolumes and extraEnvs";
        report.refuse_at("patches", node.at, message);
    }
    if let Some(node) = given("dryRun").filter(|node| node.content == Content::Bool(true)) {
        report.refuse_at("dryRun", node.at, "not done; expected false");
    }
    if let Some(node) = given("skipPhases") {
        phases(node, if joins { &JOIN } else { &INIT }, report);
    }
    if let Some(node) = given("nodeRegistration") {
        filled_in(node, "nodeRegistration", report);
        socket(node, host, report);
    }
}

fn phases(node: &Node, known: &[&str], report: &mut Report) {
    let Content::List(items) = &node.content else {
        return;
    };
    for item in items {
        if let Some(phase) = item.text().filter(|phase| !known.contains(phase)) {
            let message = format!(
                "the phase {phase:?} is not left out; expected {}",
                either(known)
            );
            report.refuse_at("skipPhases", item.at, message);
        }
    }
}

/// Refuses texts of templates. The provider's commands before kubeadm fill them in, for which the image has `envsubst`.
fn filled_in(node: &Node, path: &str, report: &mut Report) {
    match &node.content {
        Content::Text(text) if OPEN.iter().any(|open| text.contains(open)) => {
            let message = format!(
                "{text:?} is not filled in; expected preKubeadmCommands that do it (envsubst, with /run/metadata)"
            );
            report.refuse_at(path, node.at, message);
        }
        Content::List(items) => items.iter().for_each(|item| filled_in(item, path, report)),
        Content::Map(entries) => entries
            .iter()
            .for_each(|(name, node)| filled_in(node, &format!("{path}.{name}"), report)),
        _ => {}
    }
}

/// The image has one container runtime.
fn socket(registration: &Node, host: &Host, report: &mut Report) {
    let plain = |text: &str| {
        let path = text.strip_prefix("unix://").unwrap_or(text);
        // The same folder.
        path.strip_prefix("/var/run/")
            .map_or_else(|| path.to_owned(), |rest| format!("/run/{rest}"))
    };
    let Some(node) = registration.get("criSocket") else {
        return;
    };
    let given = node.text().filter(|text| !text.is_empty());
    if given.is_some_and(|given| plain(given) != plain(&host.cri_socket)) {
        let message = format!(
            "the image's container runtime is at {}; expected that, or nothing",
            host.cri_socket
        );
        report.refuse_at("nodeRegistration.criSocket", node.at, message);
    }
}
