//! Documents of `kubeadm.k8s.io/v1beta3` as those of `v1beta4`: arguments were mappings, and the timeout of the control
//! plane belonged to the API server.

use super::Documents;
use crate::duration::Duration;
use crate::report::{Position, Report};
use crate::yaml::{Content, Node};

/// What v1beta3 did not have, of each mapping.
const NEWER: [(&str, &[&str]); 9] = [
    (
        "",
        &[
            "timeouts",
            "encryptionAlgorithm",
            "certificateValidityPeriod",
            "caCertificateValidityPeriod",
            "proxy",
        ],
    ),
    ("nodeRegistration", &["imagePullSerial"]),
    ("dns", &["disabled"]),
    ("apiServer", &["extraEnvs"]),
    ("controllerManager", &["extraEnvs"]),
    ("scheduler", &["extraEnvs"]),
    ("etcd.local", &["extraEnvs"]),
    ("etcd.external", &["httpEndpoints"]),
    ("networking", &[]),
];

/// How long the control plane may take to start, if the configuration says nothing.
const CONTROL_PLANE: Duration = Duration(240_000_000_000);

/// `InitConfiguration`.
pub(super) fn init(mut node: Node, report: &mut Report) -> Node {
    without_newer(&mut node, report);
    arguments(&mut node, "nodeRegistration", "kubeletExtraArgs", report);
    node
}

/// `JoinConfiguration`, whose limit of the discovery belonged to the discovery.
pub(super) fn join(mut node: Node, report: &mut Report) -> Node {
    without_newer(&mut node, report);
    arguments(&mut node, "nodeRegistration", "kubeletExtraArgs", report);
    let timeout = take(find(&mut node, "discovery"), "timeout");
    if let (Some(timeout), Content::Map(entries)) = (timeout, &mut node.content) {
        let at = timeout.at;
        let content = Content::Map(vec![("discovery".to_owned(), timeout)]);
        entries.push(("timeouts".to_owned(), Node { at, content }));
    }
    node
}

/// Takes a field out of a mapping.
fn take(node: Option<&mut Node>, name: &str) -> Option<Node> {
    let Content::Map(entries) = &mut node?.content else {
        return None;
    };
    let index = entries.iter().position(|(key, _)| key == name)?;
    Some(entries.remove(index).1)
}

/// `ClusterConfiguration`.
pub(super) fn cluster(mut node: Node, report: &mut Report) -> Node {
    without_newer(&mut node, report);
    for path in ["apiServer", "controllerManager", "scheduler", "etcd.local"] {
        arguments(&mut node, path, "extraArgs", report);
    }
    node
}

fn without_newer(node: &mut Node, report: &mut Report) {
    for (path, names) in NEWER {
        let Some(node) = find(node, path) else {
            continue;
        };
        let Content::Map(entries) = &mut node.content else {
            continue;
        };
        entries.retain(|(name, value)| {
            let newer = names.contains(&name.as_str());
            if newer {
                report.warn_at(name, value.at, "unknown field of v1beta3: it is ignored");
            }
            !newer
        });
    }
}

/// Makes a mapping of arguments a list, in the order of their names. A list of them is of v1beta4 alone.
fn arguments(node: &mut Node, path: &str, name: &str, report: &mut Report) {
    let Some(Content::Map(entries)) = find(node, path).map(|node| &mut node.content) else {
        return;
    };
    let Some((_, list)) = entries.iter_mut().find(|(key, _)| key == name) else {
        return;
    };
    match &mut list.content {
        Content::Map(arguments) => {
            arguments.sort_by(|(a, _), (b, _)| a.cmp(b));
            let arguments = std::mem::take(arguments);
            list.content = Content::List(arguments.into_iter().map(argument).collect());
        }
        Content::Null => {}
        _ => {
            let message = "expected a mapping of names and values in v1beta3; lists are of v1beta4";
            report.refuse_at(&format!("{path}.{name}"), list.at, message);
            list.content = Content::Null;
        }
    }
}

fn argument((name, value): (String, Node)) -> Node {
    let at = value.at;
    let name = Node {
        at,
        content: Content::Text(name),
    };
    let content = Content::Map(vec![("name".to_owned(), name), ("value".to_owned(), value)]);
    Node { at, content }
}

/// The mapping at a path of names with dots between them.
fn find<'a>(node: &'a mut Node, path: &str) -> Option<&'a mut Node> {
    path.split('.')
        .filter(|name| !name.is_empty())
        .try_fold(node, |node, name| {
            let Content::Map(entries) = &mut node.content else {
                return None;
            };
            entries
                .iter_mut()
                .find(|(key, _)| key == name)
                .map(|(_, node)| node)
        })
}

/// Moves `apiServer.timeoutForControlPlane` of a cluster of v1beta3 to the timeouts of the bootstrap, where it replaces one that is there.
/// Zero and the default decide nothing. v1beta4 does not know the field: it stays, and is ignored as any unknown one.
pub(super) fn move_timeout(documents: &mut Documents) {
    let cluster = documents.cluster.as_mut();
    let server = cluster
        .filter(|cluster| is_v1beta3(cluster))
        .and_then(|cluster| find(cluster, "apiServer"));
    let Some(timeout) = take(server, "timeoutForControlPlane").filter(decides) else {
        return;
    };
    let at = timeout.at;
    let map = |at: Position, entries| Node {
        at,
        content: Content::Map(entries),
    };
    let init = documents.init.get_or_insert_with(|| map(at, Vec::new()));
    let name = "controlPlaneComponentHealthCheck";
    let mut timeouts = match take(Some(&mut *init), "timeouts") {
        Some(timeouts) if timeouts.content != Content::Null => timeouts,
        _ => map(at, Vec::new()),
    };
    take(Some(&mut timeouts), name);
    if let Content::Map(entries) = &mut timeouts.content {
        entries.push((name.to_owned(), timeout));
    }
    if let Content::Map(entries) = &mut init.content {
        entries.push(("timeouts".to_owned(), timeouts));
    }
}

fn is_v1beta3(node: &Node) -> bool {
    node.get("apiVersion").and_then(Node::text) == Some("kubeadm.k8s.io/v1beta3")
}

/// Whether a timeout of the control plane is another one than the default, or is wrong and to be refused.
fn decides(timeout: &Node) -> bool {
    let default = [Some(Duration(0)), Some(CONTROL_PLANE)];
    match &timeout.content {
        Content::Null => false,
        Content::Text(text) => !default.contains(&Duration::parse(text)),
        _ => true,
    }
}
