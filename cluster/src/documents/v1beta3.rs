//! Documents of `kubeadm.k8s.io/v1beta3` as those of `v1beta4`: arguments were mappings, and the timeout of the control
//! plane belonged to the API server.

use super::Documents;
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

/// `InitConfiguration`.
pub(super) fn init(mut node: Node, report: &mut Report) -> Node {
    without_newer(&mut node, report);
    arguments(&mut node, "nodeRegistration", "kubeletExtraArgs");
    node
}

/// `JoinConfiguration`, whose limit of the discovery belonged to the discovery.
pub(super) fn join(mut node: Node, report: &mut Report) -> Node {
    without_newer(&mut node, report);
    arguments(&mut node, "nodeRegistration", "kubeletExtraArgs");
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
        arguments(&mut node, path, "extraArgs");
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

/// Makes a mapping of arguments a list, in the order of their names.
fn arguments(node: &mut Node, path: &str, name: &str) {
    let Some(Content::Map(entries)) = find(node, path).map(|node| &mut node.content) else {
        return;
    };
    let Some((_, list)) = entries.iter_mut().find(|(key, _)| key == name) else {
        return;
    };
    if let Content::Map(arguments) = &mut list.content {
        arguments.sort_by(|(a, _), (b, _)| a.cmp(b));
        let arguments = std::mem::take(arguments);
        list.content = Content::List(arguments.into_iter().map(argument).collect());
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

/// Moves `apiServer.timeoutForControlPlane` of the cluster to the timeouts of the bootstrap.
pub(super) fn move_timeout(documents: &mut Documents) {
    let cluster = documents.cluster.as_mut();
    let server = cluster.and_then(|cluster| find(cluster, "apiServer"));
    let Some(timeout) = take(server, "timeoutForControlPlane") else {
        return;
    };
    let at = timeout.at;
    let map = |at: Position, entries| Node {
        at,
        content: Content::Map(entries),
    };
    let init = documents.init.get_or_insert_with(|| map(at, Vec::new()));
    if let Content::Map(entries) = &mut init.content {
        let timeout = ("controlPlaneComponentHealthCheck".to_owned(), timeout);
        entries.push(("timeouts".to_owned(), map(at, vec![timeout])));
    }
}
