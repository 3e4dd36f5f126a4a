//! `slipway cluster validate`: whether a running cluster is well, asked of its API server.

use anyhow::{Context as _, Result};
use api::Api;
use cluster::kubeconfigs;
use serde::Serialize;
use serde_json::Value;

/// The API server's own check.
const READY: &str = "/readyz";
/// All nodes.
const NODES: &str = "/api/v1/nodes";
/// The pods that the cluster itself consists of.
const PODS: &str = "/api/v1/namespaces/kube-system/pods";
/// The labels of a node's roles begin so.
const ROLE: &str = "node-role.kubernetes.io/";
/// The condition that says whether a node or a pod can be used.
const CONDITION: &str = "Ready";
/// The taint of a node that waits for its cloud's controller.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// A condition of a node that has not been told yet.
const UNKNOWN: &str = "Unknown";
/// The kinds that make another pod in place of one that has failed, and leave that one where it is.
const REPLACING: [&str; 2] = ["ReplicaSet", "ReplicationController"];

/// What is known of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Whether everything below is well.
    pub valid: bool,
    /// Why the API server cannot be used, if it cannot.
    pub api_server: Option<String>,
    /// The nodes, by name.
    pub nodes: Vec<Node>,
    /// How many nodes are missing.
    pub missing: usize,
    /// The cluster's own pods that are not well.
    pub pods: Vec<Pod>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its roles, with commas; empty for a worker.
    pub roles: String,
    /// The version of its kubelet.
    pub version: String,
    /// Whether it is Ready.
    pub ready: bool,
    /// Whether its cloud's controller knows its machine, if it waits for one: before, it takes no pods.
    pub initialized: bool,
    /// Why it is not Ready, or what is to be known of one that is.
    pub reason: Option<String>,
}

/// A pod that is not well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// The node that it was given; none before it has one.
    pub node: Option<String>,
    /// What is wrong.
    pub reason: String,
}

/// Asks the API server that a kubeconfig names. `expected` is the number of nodes that there should be at least.
///
/// # Errors
/// If the kubeconfig has mistakes. A server that does not answer is part of the report.
pub fn validate(kubeconfig: &str, expected: usize) -> Result<Report> {
    let server = kubeconfigs::read(kubeconfig)
        .context("not a kubeconfig")?
        .server;
    let api = Api::new(kubeconfig, &server)?;
    let asked = (|| {
        api.healthy(READY)?;
        let list = |path| {
            let mut all = Vec::new();
            api.list(path, |object| all.push(object.clone()))?;
            Ok::<_, anyhow::Error>(all)
        };
        Ok::<_, anyhow::Error>((list(NODES)?, list(PODS)?))
    })();
    Ok(match asked {
        Ok((nodes, pods)) => report(&nodes, &pods, expected),
        Err(error) => Report {
            api_server: Some(format!("{error:#}")),
            missing: expected,
            ..Report::default()
        },
    })
}

fn report(nodes: &[Value], pods: &[Value], expected: usize) -> Report {
    let mut nodes: Vec<Node> = nodes.iter().map(node).collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    let pods: Vec<Pod> = pods.iter().filter_map(pod).collect();
    // A cluster without nodes runs nothing.
    let missing = expected.max(1).saturating_sub(nodes.len());
    Report {
        valid: missing == 0
            && pods.is_empty()
            && nodes.iter().all(|node| node.ready && node.initialized),
        api_server: None,
        nodes,
        missing,
        pods,
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn condition<'v>(object: &'v Value, name: &str) -> Option<&'v Value> {
    let mut all = object["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    all.find(|condition| condition["type"] == name)
}

/// Reason and message of a condition or of a container's state.
fn said(of: &Value) -> String {
    let parts = [&of["reason"], &of["message"]].map(text);
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match parts[..] {
        [reason, ""] => reason.to_owned(),
        ["", message] => message.to_owned(),
        _ => parts.join(": "),
    }
}

fn node(object: &Value) -> Node {
    let labels = object["metadata"]["labels"].as_object();
    let roles = labels.into_iter().flatten();
    let roles: Vec<&str> = roles
        .filter_map(|(key, _)| key.strip_prefix(ROLE))
        .collect();
    let ready = condition(object, CONDITION);
    let is_ready = ready.is_some_and(|ready| ready["status"] == "True");
    let reason = match ready {
        None => Some("its kubelet has not told its state yet".to_owned()),
        Some(ready) if ready["status"] == UNKNOWN => Some(format!(
            "{}; last heard of at {}",
            said(ready),
            text(&ready["lastHeartbeatTime"])
        )),
        Some(ready) if !is_ready => Some(said(ready)),
        Some(_) => remarks(object),
    };
    Node {
        name: text(&object["metadata"]["name"]),
        roles: roles.join(","),
        version: text(&object["status"]["nodeInfo"]["kubeletVersion"]),
        ready: is_ready,
        initialized: is_initialized(object),
        reason,
    }
}

fn is_initialized(object: &Value) -> bool {
    let taints = object["spec"]["taints"].as_array();
    let mut taints = taints.into_iter().flatten();
    !taints.any(|taint| taint["key"] == UNINITIALIZED)
}

/// What is to be known of a node that is Ready: it takes no pods, or is short of something.
fn remarks(object: &Value) -> Option<String> {
    let pressures = [
        "MemoryPressure",
        "DiskPressure",
        "PIDPressure",
        "NetworkUnavailable",
    ];
    let is_true = |name: &&str| condition(object, name).is_some_and(|it| it["status"] == "True");
    let mut remarks: Vec<String> = Vec::new();
    if object["spec"]["unschedulable"] == true {
        remarks.push("it takes no new pods (cordoned)".to_owned());
    }
    if !is_initialized(object) {
        remarks.push("it takes no pods until its cloud's controller knows the machine".to_owned());
    }
    remarks.extend(
        pressures
            .iter()
            .filter(|name| is_true(name))
            .map(ToString::to_string),
    );
    (!remarks.is_empty()).then(|| remarks.join(", "))
}

/// Whether a pod has ended for good and another one was made in its place: so does each pod of a Deployment on a node that is
/// shut down in order. Nothing removes it soon, and the other one has a line of its own if it is not well.
fn is_replaced(object: &Value) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    let mut owners = owners.into_iter().flatten();
    let replaces = |owner: &Value| REPLACING.iter().any(|kind| owner["kind"] == *kind);
    object["status"]["phase"] == "Failed"
        && owners.any(|owner| owner["controller"] == true && replaces(owner))
}

/// What is wrong with a pod, if something is. One that has done its work is well.
fn pod(object: &Value) -> Option<Pod> {
    let is_ready = condition(object, CONDITION).is_some_and(|it| it["status"] == "True");
    if is_ready || object["status"]["phase"] == "Succeeded" || is_replaced(object) {
        return None;
    }
    let status = &object["status"];
    let containers = ["initContainerStatuses", "containerStatuses"];
    let containers = containers.iter().filter_map(|key| status[key].as_array());
    let waiting = containers.flatten().find_map(|container| {
        let state = ["waiting", "terminated"].map(|kind| &container["state"][kind]);
        let state = state.into_iter().find(|state| state.is_object())?;
        let last = &container["lastState"]["terminated"]["exitCode"];
        let ended = last.as_i64().map(|code| format!(" (it ended with {code})"));
        Some(said(state) + &ended.unwrap_or_default())
    });
    let conditions = ["PodScheduled", CONDITION].into_iter();
    let mut unmet =
        conditions.filter_map(|name| condition(object, name).filter(|it| it["status"] != "True"));
    let reason = waiting
        .or_else(|| unmet.next().map(said))
        .filter(|reason| !reason.is_empty())
        .unwrap_or_else(|| text(&status["phase"]));
    Some(Pod {
        name: text(&object["metadata"]["name"]),
        node: object["spec"]["nodeName"].as_str().map(str::to_owned),
        reason,
    })
}

impl Report {
    /// A line for each node, for each pod that is not well, and for what is missing.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let nodes = self.nodes.iter().map(|node| self.node_line(node));
        let pods = self.pods.iter().map(Pod::line);
        self.api_line()
            .into_iter()
            .chain(nodes)
            .chain(self.missing_line())
            .chain(pods)
            .collect()
    }

    /// The first of the lines that say why the cluster is not valid; none of a valid one.
    #[must_use]
    pub fn waits_for(&self) -> Option<String> {
        let mut nodes = self.nodes.iter();
        let node = nodes.find(|node| !node.ready || !node.initialized);
        self.api_line()
            .or_else(|| node.map(|node| self.node_line(node)))
            .or_else(|| self.missing_line())
            .or_else(|| self.pods.first().map(Pod::line))
    }

    fn api_line(&self) -> Option<String> {
        let reason = self.api_server.as_deref()?;
        Some(format!("the API server: {reason}"))
    }

    /// The line of one of its nodes.
    fn node_line(&self, node: &Node) -> String {
        let names = self.nodes.iter().map(|node| node.name.len());
        let name = names.max().unwrap_or(0);
        let state = if node.ready { "Ready" } else { "not Ready" };
        let roles = if node.roles.is_empty() {
            "worker"
        } else {
            &node.roles
        };
        let reason = node.reason.as_deref().map(|reason| format!("  {reason}"));
        let line = format!(
            "{:name$}  {state:9}  {roles}  {}{}",
            node.name,
            node.version,
            reason.unwrap_or_default()
        );
        line.trim_end().to_owned()
    }

    fn missing_line(&self) -> Option<String> {
        (self.missing > 0).then(|| format!("missing nodes: {}", self.missing))
    }
}

impl Pod {
    fn line(&self) -> String {
        let place = self.node.as_deref().map(|node| format!(" on {node}"));
        format!(
            "kube-system/{}{}: {}",
            self.name,
            place.unwrap_or_default(),
            self.reason
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn a_node(name: &str, ready: &Value) -> Value {
        json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"}},
            "spec": {},
            "status": {"nodeInfo": {"kubeletVersion": "v1.36.3"}, "conditions": [ready]},
        })
    }

    fn well() -> Value {
        json!({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"})
    }

    #[test]
    fn each_node_has_a_line_with_the_reason_why_it_is_not_ready() {
        let mut first = a_node("cp1", &well());
        first["metadata"]["labels"]["node-role.kubernetes.io/control-plane"] = json!("");
        let nodes = [
            a_node(
                "w2",
                &json!({"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.", "lastHeartbeatTime": "2026-01-02T03:04:05Z"}),
            ),
            a_node(
                "w1",
                &json!({"type": "Ready", "status": "False", "reason": "KubeletNotReady",
                "message": "container runtime network not ready: cni plugin not initialized"}),
            ),
            first,
            json!({"metadata": {"name": "w3"}}),
        ];
        let report = report(&nodes, &[], 5);
        assert_eq!(
            report.lines(),
            [
                "cp1  Ready      control-plane  v1.36.3",
                "w1   not Ready  worker  v1.36.3  KubeletNotReady: container runtime network not ready: cni plugin not initialized",
                "w2   not Ready  worker  v1.36.3  NodeStatusUnknown: Kubelet stopped posting node status.; last heard of at 2026-01-02T03:04:05Z",
                "w3   not Ready  worker    its kubelet has not told its state yet",
                "missing nodes: 1",
            ]
        );
        assert!(!report.valid);
    }

    #[test]
    fn a_cluster_is_valid_with_all_nodes_ready_and_its_own_pods_well() {
        let ready =
            json!({"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"});
        let fine = json!({"metadata": {"name": "etcd-cp1"}, "status": ready});
        let done = json!({"metadata": {"name": "job"}, "status": {"phase": "Succeeded"}});
        let mut node = a_node("cp1", &well());
        let pods = [fine, done];
        assert!(report(&[node.clone()], &pods, 1).valid);
        assert!(!report(&[node.clone()], &pods, 2).valid);
        assert!(!report(&[], &pods, 0).valid);
        // Neither takes a node out of its cluster; both are told.
        node["spec"]["unschedulable"] = json!(true);
        let pressure = json!({"type": "DiskPressure", "status": "True"});
        node["status"]["conditions"]
            .as_array_mut()
            .unwrap()
            .push(pressure);
        let report = report(&[node], &pods, 1);
        assert!(report.valid);
        assert_eq!(
            report.nodes[0].reason.as_deref(),
            Some("it takes no new pods (cordoned), DiskPressure")
        );
    }

    #[test]
    fn a_node_that_no_controller_knows_is_named_and_is_not_well() {
        let mut node = a_node("w1", &well());
        node["spec"]["taints"] =
            json!([{"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"}]);
        let report = report(&[node], &[], 1);
        assert!(!report.valid);
        assert_eq!(
            report.lines()[0],
            "w1  Ready      worker  v1.36.3  it takes no pods until its cloud's controller knows the machine"
        );
    }

    #[test]
    fn the_first_reason_why_a_cluster_is_not_valid_is_what_is_waited_for() {
        let well = a_node("cp1", &well());
        let mut unknown = well.clone();
        unknown["metadata"]["name"] = json!("w1");
        unknown["spec"]["taints"] = json!([{"key": UNINITIALIZED, "effect": "NoSchedule"}]);
        // What its line says is not by which it is chosen.
        let message = "the last  Ready  was long ago";
        let not_ready = json!({"type": "Ready", "status": "False", "message": message});
        let not_ready = a_node("w2", &not_ready);
        let pod = json!({"metadata": {"name": "new"}, "spec": {}, "status": {"phase": "Pending"}});
        for (nodes, pods, expected, line) in [
            (&[&well, &unknown, &not_ready][..], &[&pod][..], 4, "w1 "),
            (&[&well, &not_ready], &[&pod], 4, "w2 "),
            (&[&well], &[&pod], 4, "missing nodes: 3"),
            (&[&well], &[&pod], 1, "kube-system/new: Pending"),
        ] {
            let owned = |all: &[&Value]| all.iter().map(|&one| one.clone()).collect::<Vec<_>>();
            let report = report(&owned(nodes), &owned(pods), expected);
            let found = report.waits_for().unwrap();
            assert!(found.starts_with(line), "{line}: {found}");
            assert!(report.lines().contains(&found), "{found}");
        }
        assert_eq!(report(&[well], &[], 1).waits_for(), None);
        let no_server = Report {
            api_server: Some("no route".to_owned()),
            missing: 2,
            ..Report::default()
        };
        let expected = "the API server: no route";
        assert_eq!(no_server.waits_for().as_deref(), Some(expected));
    }

    #[test]
    fn a_pod_that_is_not_well_is_named_with_its_reason() {
        let pods = [
            json!({"metadata": {"name": "coredns-a"}, "spec": {}, "status": {"phase": "Pending", "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}]}}),
            json!({"metadata": {"name": "kube-proxy-b"}, "spec": {"nodeName": "w1"}, "status": {"phase": "Running",
                "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}],
                "containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
                    "lastState": {"terminated": {"exitCode": 2}}}]}}),
            json!({"metadata": {"name": "new"}, "spec": {"nodeName": "w1"}, "status": {"phase": "Pending"}}),
        ];
        let report = report(&[a_node("w1", &well())], &pods, 1);
        assert_eq!(
            report.lines()[1..],
            [
                "kube-system/coredns-a: Unschedulable: 0/1 nodes are available",
                "kube-system/kube-proxy-b on w1: CrashLoopBackOff: back-off 10s (it ended with 2)",
                "kube-system/new on w1: Pending",
            ]
        );
        assert!(!report.valid);
    }

    /// As the kubelet of a node that is rebooted leaves one of CoreDNS's pods, and one that no controller made.
    #[test]
    fn a_pod_that_a_shutdown_ended_counts_only_if_nothing_was_made_in_its_place() {
        let ended = |kind: &str| {
            json!({
                "metadata": {"name": "ended", "ownerReferences": [{"kind": kind, "name": "x", "controller": true}]},
                "spec": {"nodeName": "w1"},
                "status": {"phase": "Failed", "reason": "Terminated",
                    "message": "Pod was terminated in response to imminent node shutdown.",
                    "conditions": [{"type": "Ready", "status": "False", "reason": "PodFailed"}]},
            })
        };
        let nodes = [a_node("w1", &well())];
        assert!(report(&nodes, &[ended("ReplicaSet")], 1).valid);
        // The one in its place has a line of its own.
        let mut other = ended("ReplicaSet");
        other["metadata"]["name"] = json!("other");
        other["status"] = json!({"phase": "Pending"});
        let found = report(&nodes, &[ended("ReplicaSet"), other], 1);
        assert!(!found.valid);
        assert_eq!(found.lines()[1..], ["kube-system/other on w1: Pending"]);
        for kind in ["Node", "Job"] {
            let found = report(&nodes, &[ended(kind)], 1);
            assert!(!found.valid, "{kind}");
            assert_eq!(found.lines()[1..], ["kube-system/ended on w1: PodFailed"]);
        }
    }

    #[test]
    fn a_server_that_does_not_answer_is_named() {
        let file = crate::cluster::object::ClusterFile::parse(
            std::path::Path::new("blue.toml"),
            "name = \"blue\"",
        )
        .unwrap();
        let now = std::time::SystemTime::now();
        let secrets = crate::cluster::secrets::Secrets::make(file.config(), now).unwrap();
        // A port that nobody has: it was given up just now.
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let server = format!("https://127.0.0.1:{port}");
        let kubeconfig =
            crate::cluster::administrator::kubeconfig(&file, &secrets, Some(&server), now).unwrap();
        let report = validate(&kubeconfig, 2).unwrap();
        let reason = report.api_server.as_deref().unwrap();
        assert!(
            reason.starts_with(&format!("GET {server}/readyz: ")),
            "{reason}"
        );
        assert_eq!((report.valid, report.missing), (false, 2));
    }
}
