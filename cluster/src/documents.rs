//! The documents of a configuration, by their kinds.

mod v1beta3;

use crate::report::Report;
use crate::yaml::{self, Node};

/// The group of kubeadm's kinds.
const KUBEADM: &str = "kubeadm.k8s.io";
/// Versions of kubeadm's API that are no longer read.
const OLD: [&str; 6] = [
    "v1alpha1", "v1alpha2", "v1alpha3", "v1beta1", "v1beta2", "v1",
];

/// The documents that a rendering takes.
#[derive(Debug, Default)]
pub(crate) struct Documents {
    pub(crate) init: Option<Node>,
    pub(crate) cluster: Option<Node>,
    pub(crate) kubelet: Option<Node>,
    pub(crate) proxy: Option<Node>,
    /// Of a node that joins. A rendering does not take it.
    pub(crate) join: Option<Node>,
}

/// Reads the documents of a text for `kubeadm init`. Other kinds than the four are ignored, with a warning.
pub(crate) fn documents(text: &str, report: &mut Report) -> Documents {
    let mut documents = all(text, report);
    if let Some(join) = documents.join.take() {
        let version = join.get("apiVersion").and_then(Node::text);
        let version = version.unwrap_or_default();
        let message = format!("JoinConfiguration of {version} is ignored");
        report.warn_at("kind", join.at, message);
    }
    if documents.init.is_none() && documents.cluster.is_none() && report.mistakes.is_empty() {
        report.refuse(
            "",
            "expected a document of the kind InitConfiguration or ClusterConfiguration",
        );
    }
    documents
}

/// Reads the documents of a text, for `kubeadm init` and `kubeadm join`. Other kinds are ignored, with a warning.
pub(crate) fn all(text: &str, report: &mut Report) -> Documents {
    let mut documents = Documents::default();
    let mut kinds: Vec<String> = Vec::new();
    for (before, text) in yaml::split(text) {
        let Some(node) = yaml::document(&text, before, report) else {
            continue;
        };
        let Some((version, kind)) = identity(&node, report) else {
            continue;
        };
        if kinds.contains(&kind) {
            report.refuse_at(
                "kind",
                node.at,
                format!("{kind} is there twice; expected it once"),
            );
            continue;
        }
        documents.take(&version, &kind, node, report);
        kinds.push(kind);
    }
    v1beta3::move_timeout(&mut documents);
    documents
}

/// `apiVersion` and `kind`.
fn identity(node: &Node, report: &mut Report) -> Option<(String, String)> {
    let text = |key| node.get(key).and_then(Node::text).map(str::to_owned);
    match (text("apiVersion"), text("kind")) {
        (Some(version), Some(kind)) if version.contains('/') && !kind.is_empty() => {
            Some((version, kind))
        }
        _ => {
            report.refuse_at(
                "",
                node.at,
                "expected a mapping with apiVersion (GROUP/VERSION) and kind",
            );
            None
        }
    }
}

impl Documents {
    /// Whether some of them are of the whole cluster.
    pub(crate) const fn has_cluster(&self) -> bool {
        self.cluster.is_some() || self.kubelet.is_some() || self.proxy.is_some()
    }

    fn take(&mut self, version: &str, kind: &str, node: Node, report: &mut Report) {
        match (version, kind) {
            ("kubeadm.k8s.io/v1beta4", "InitConfiguration") => self.init = Some(node),
            ("kubeadm.k8s.io/v1beta4", "ClusterConfiguration") => self.cluster = Some(node),
            ("kubeadm.k8s.io/v1beta3", "InitConfiguration") => {
                self.init = Some(v1beta3::init(node, report));
            }
            ("kubeadm.k8s.io/v1beta3", "ClusterConfiguration") => {
                self.cluster = Some(v1beta3::cluster(node, report));
            }
            ("kubeadm.k8s.io/v1beta4", "JoinConfiguration") => self.join = Some(node),
            ("kubeadm.k8s.io/v1beta3", "JoinConfiguration") => {
                self.join = Some(v1beta3::join(node, report));
            }
            ("kubelet.config.k8s.io/v1beta1", "KubeletConfiguration") => self.kubelet = Some(node),
            ("kubeproxy.config.k8s.io/v1alpha1", "KubeProxyConfiguration") => {
                self.proxy = Some(node);
            }
            _ => other(version, kind, &node, report),
        }
    }
}

/// Refuses another version of a known kind, and passes over other kinds.
fn other(version: &str, kind: &str, node: &Node, report: &mut Report) {
    let at = node.get("apiVersion").map_or(node.at, |node| node.at);
    let (group, number) = version.split_once('/').unwrap_or((version, ""));
    let ours = matches!(kind, "InitConfiguration" | "ClusterConfiguration");
    let expected = match group {
        KUBEADM if ours || OLD.contains(&number) => "kubeadm.k8s.io/v1beta4",
        "kubelet.config.k8s.io" => "kubelet.config.k8s.io/v1beta1 and KubeletConfiguration",
        "kubeproxy.config.k8s.io" => "kubeproxy.config.k8s.io/v1alpha1 and KubeProxyConfiguration",
        _ => {
            report.warn_at("kind", node.at, format!("{kind} of {version} is ignored"));
            return;
        }
    };
    let message = format!("{kind} of {version} is not read; expected {expected}");
    report.refuse_at("apiVersion", at, message);
}
