//! The documents of a configuration, by their kinds.

mod v1beta3;

use serde::de::IgnoredAny;

use crate::report::{Position, Report};
use crate::yaml::{self, Content, Node};

/// The group of kubeadm's kinds.
const KUBEADM: &str = "kubeadm.k8s.io";
/// The group of the kubelet's kinds.
const KUBELET: &str = "kubelet.config.k8s.io";
/// The group of kube-proxy's.
const KUBE_PROXY: &str = "kubeproxy.config.k8s.io";
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
    if !are_divided(text, report) {
        return documents;
    }
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
        if is_read(&version, &kind) {
            check_json(&text, before, report);
        }
        documents.take(&version, &kind, node, report);
        kinds.push(kind);
    }
    v1beta3::move_timeout(&mut documents);
    documents
}

/// Whether nothing stands on a line behind the `---` between documents, but perhaps a comment. kubeadm reads no document of such a text.
fn are_divided(text: &str, report: &mut Report) -> bool {
    for (number, line) in text.lines().enumerate() {
        let rest = line.strip_prefix("---").map_or("", str::trim);
        if !rest.is_empty() && !rest.starts_with('#') {
            let at = Position {
                line: number + 1,
                column: 4,
            };
            report.refuse_at("", at, "expected nothing after ---, or a comment");
            return false;
        }
    }
    true
}

/// Whether kubeadm looks into a document of this kind for `init`. It passes over others.
fn is_read(version: &str, kind: &str) -> bool {
    match version.split('/').next() {
        Some(KUBEADM) => is_ours(kind),
        Some(KUBELET | KUBE_PROXY) => true,
        _ => false,
    }
}

fn is_ours(kind: &str) -> bool {
    matches!(kind, "InitConfiguration" | "ClusterConfiguration")
}

/// What begins with a brace is JSON to kubeadm, and no mapping of YAML.
fn check_json(text: &str, before: usize, report: &mut Report) {
    if !text.trim_start().starts_with('{') {
        return;
    }
    if let Err(error) = serde_json::from_str::<IgnoredAny>(text) {
        let at = Position {
            line: before + error.line(),
            column: error.column(),
        };
        let message = "a document that begins with { is JSON, and this is not";
        report.refuse_at("", at, message);
    }
}

/// `apiVersion` and `kind`. Numbers and truth values are text here, as in Kubernetes.
fn identity(node: &Node, report: &mut Report) -> Option<(String, String)> {
    let text = |key| match &node.get(key)?.content {
        Content::Text(text) => Some(text.clone()),
        Content::Bool(bool) => Some(bool.to_string()),
        Content::Int(int) => Some(int.to_string()),
        _ => None,
    };
    let is_version = |version: &str| {
        let parts = version.split_once('/');
        parts.is_some_and(|(group, version)| {
            !group.is_empty() && !version.is_empty() && !version.contains('/')
        })
    };
    match (text("apiVersion"), text("kind")) {
        (Some(version), Some(kind)) if is_version(&version) && !kind.is_empty() => {
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
    let expected = match group {
        KUBEADM if is_ours(kind) || OLD.contains(&number) => "kubeadm.k8s.io/v1beta4",
        KUBELET => "kubelet.config.k8s.io/v1beta1 and KubeletConfiguration",
        KUBE_PROXY => "kubeproxy.config.k8s.io/v1alpha1 and KubeProxyConfiguration",
        _ => {
            report.warn_at("kind", node.at, format!("{kind} of {version} is ignored"));
            return;
        }
    };
    let message = format!("{kind} of {version} is not read; expected {expected}");
    report.refuse_at("apiVersion", at, message);
}
