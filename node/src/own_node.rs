//! This node as the API server has it, until it is Ready.

use anyhow::{Context, Result, bail};
use cluster::address::Subnet;
use cluster::flannel::{self, SUBNET_FILE};
use cluster::object::{Cni, Object};
use linux::atomic_file;
use linux::log;
use linux::world::World;
use serde_json::{Value, json};

use crate::cni;
use crate::steps::{self, step};
use crate::waiting::{Limits, wait};
use api::Api;

/// The leases of those of a control plane of whom one works at a time.
const LEASES: [&str; 2] = ["kube-controller-manager", "kube-scheduler"];

/// The path of a node in the API.
pub(crate) fn path(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}

/// Gives the only node of a new cluster the subnets that the controller manager would give it, which takes over what a node has. It
/// starts behind the API server and has to be elected: seconds, and a minute on a slow machine, in which the node is not Ready.
/// Where there are other nodes, or the controller manager has settings of its own, nothing is sent.
///
/// # Errors
/// If the API server does not answer, or takes no subnet since the controller manager was faster.
pub(crate) fn give_first_subnets(api: &Api, object: &Object) -> Result<()> {
    let own = &object.config.init.node_registration.name;
    // Two say that it is not the only one.
    let list = api.get("/api/v1/nodes?limit=2")?.unwrap_or_default();
    let nodes = list["items"].as_array().map_or(&[][..], Vec::as_slice);
    let [node] = nodes else {
        return Ok(());
    };
    if node["metadata"]["name"] != own.as_str()
        || node["spec"]["podCIDR"].is_string()
        || !object.has_usual_pod_subnets()
    {
        return Ok(());
    }
    let subnets: Vec<String> = object
        .first_pod_subnets()
        .iter()
        .map(ToString::to_string)
        .collect();
    let change = json!({"spec": {"podCIDR": subnets.first(), "podCIDRs": subnets}});
    api.merge(&path(own), &change)
}

/// Waits until the kubelet has registered the node.
///
/// # Errors
/// The last reason why it has not.
pub(crate) fn registered(world: &World, limits: Limits, api: &Api, name: &str) -> Result<()> {
    let what = format!("node {name} to be registered");
    step(world, "registered", || {
        wait(world, limits, &what, || node(api, &path(name)).map(drop))
    })
}

/// Sets up the network of the node's pods, and waits until the node is Ready.
///
/// # Errors
/// What was waited for, and the last reason why it is not there.
pub(crate) fn up(world: &World, limits: Limits, api: &Api, object: &Object) -> Result<()> {
    let name = &object.config.init.node_registration.name;
    let path = path(name);
    if object.cni.has_subnets() {
        let what = format!("the pod subnets of node {name}");
        step(world, "pod-network", || {
            wait(world, limits, &what, || {
                subnets(world, api, &path, object.cni)
            })
        })?;
    }
    let what = format!("node {name} to be Ready");
    step(world, "ready", || {
        wait(world, limits, &what, || ready(world, api, &path))
    })?;
    steps::ready(world);
    let cluster = object.name();
    let line = format!("slipway: node {name} of the cluster {cluster} is Ready");
    log::announce(world, &line);
    Ok(())
}

/// Gives back the leases that the controller manager and the scheduler of this node held before it was restarted: nobody takes
/// one over for 15 s otherwise, and in this time no pod is made or placed. To be called while neither runs here.
///
/// # Errors
/// If the API server does not answer, or refuses.
pub(crate) fn give_leases_back(api: &Api, host: &str) -> Result<()> {
    for name in LEASES {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{name}");
        let lease = api.get(&path)?.unwrap_or_default();
        // A holder is the host's name and something that is another one at each start.
        let holder = lease["spec"]["holderIdentity"].as_str();
        let own = holder.and_then(|holder| holder.rsplit_once('_'));
        if own.is_some_and(|(holder, _)| holder.eq_ignore_ascii_case(host)) {
            // With its version: whoever took it in between keeps it.
            let version = &lease["metadata"]["resourceVersion"];
            let change = json!({
                "metadata": {"resourceVersion": version},
                "spec": {"holderIdentity": null, "leaseDurationSeconds": 1},
            });
            api.merge(&path, &change)?;
            tracing::info!("the lease of {name} from before the restart is given back");
        }
    }
    Ok(())
}

/// Waits a moment for the node to be Ready.
pub(crate) fn soon(world: &World, limits: Limits, api: &Api, path: &str) {
    let what = "the node to be Ready before the cluster's objects are made";
    if let Err(error) = wait(world, limits, what, || ready(world, api, path)) {
        tracing::info!("the cluster's objects are made before the node is Ready: {error:#}");
    }
}

/// The node's object.
///
/// # Errors
/// If there is none, or the API server does not give it.
pub(crate) fn node(api: &Api, path: &str) -> Result<Value> {
    api.get(path)?.context("the kubelet has not registered it")
}

/// Why a node is not Ready; none if it is.
pub(crate) fn readiness(node: &Value) -> Option<String> {
    let conditions = node["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let Some(ready) = conditions.find(|condition| condition["type"] == "Ready") else {
        return Some("it has no condition yet".to_owned());
    };
    let text = |key: &str| ready[key].as_str().unwrap_or_default().to_owned();
    (ready["status"] != "True").then(|| format!("{}: {}", text("reason"), text("message")))
}

/// Writes the network of pods with the subnets that the controller manager gave the node.
fn subnets(world: &World, api: &Api, path: &str, cni: Cni) -> Result<()> {
    let node = node(api, path)?;
    let all = node["spec"]["podCIDRs"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let given: Vec<Subnet> = all
        .iter()
        .filter_map(Value::as_str)
        .filter_map(Subnet::parse)
        .collect();
    if given.is_empty() {
        bail!("the controller manager has not given it one");
    }
    let flannel = match cni {
        Cni::Flannel => Some(flannel_mtu(world)?),
        Cni::Bridge | Cni::None => None,
    };
    if cni::write(world, &given, flannel)? {
        let shown: Vec<String> = given.iter().map(ToString::to_string).collect();
        tracing::info!("the subnets of this node's pods are {}", shown.join(", "));
    }
    Ok(())
}

/// The largest packet of pods, bytes, once flannel works on this node.
fn flannel_mtu(world: &World) -> Result<u32> {
    let file = world.in_run(SUBNET_FILE);
    let text = atomic_file::read(&file).with_context(|| format!("reading {}", file.display()))?;
    let text =
        text.context("flannel does not work on it yet (pods of the namespace kube-flannel)")?;
    let mtu = flannel::mtu(&String::from_utf8_lossy(&text));
    mtu.with_context(|| format!("{} has no MTU", file.display()))
}

fn ready(world: &World, api: &Api, path: &str) -> Result<()> {
    let node = node(api, path)?;
    // What the kubelet said before the reboot stays for some time.
    let reported = node["status"]["nodeInfo"]["bootID"].as_str();
    let boot = world.boot_id();
    if reported.is_some_and(|reported| !boot.is_empty() && reported != boot) {
        bail!("the kubelet of this boot has not reported yet");
    }
    match readiness(&node) {
        None => Ok(()),
        Some(reason) => bail!(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{put, server};
    use linux::world::Clock;

    #[test]
    fn what_a_kubelet_said_before_a_reboot_does_not_count() {
        let node = json!({
            "status": {
                "nodeInfo": {"bootID": "before"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        let (url, _requests) = server(move |_| (200, node.to_string()));
        let api = Api::plain(&url).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let boot = world.proc.join("sys/kernel/random/boot_id");
        put(&boot, "before\n");
        ready(&world, &api, "/api/v1/nodes/a").unwrap();
        put(&boot, "now\n");
        let error = ready(&world, &api, "/api/v1/nodes/a").unwrap_err();
        assert!(error.to_string().contains("this boot"), "{error}");
    }

    #[test]
    fn pods_wait_for_flannel_and_have_its_largest_packet() {
        let node = json!({"spec": {"podCIDRs": ["10.244.3.0/24"]}});
        let (url, _requests) = server(move |_| (200, node.to_string()));
        let api = Api::plain(&url).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let written = world.in_initrd(cni::FILE);
        let set = || subnets(&world, &api, "/api/v1/nodes/a", Cni::Flannel);
        for (text, expected) in [
            (None, "flannel does not work on it yet"),
            (Some("FLANNEL_SUBNET=10.244.3.1/24\n"), "has no MTU"),
        ] {
            if let Some(text) = text {
                put(&world.in_run(SUBNET_FILE), text);
            }
            let error = format!("{:#}", set().unwrap_err());
            assert!(error.contains(expected), "{error}");
            assert!(!written.exists());
        }
        put(&world.in_run(SUBNET_FILE), "FLANNEL_MTU=1430\n");
        set().unwrap();
        let text = std::fs::read_to_string(&written).unwrap();
        assert!(text.contains("\"mtu\": 1430"), "{text}");
    }

    #[test]
    fn only_this_hosts_leases_are_given_back() {
        let (url, requests) = server(move |request| {
            let holder = match request.line.contains("scheduler") {
                true => "node2_5b0c",
                false => "Node1_1f9a",
            };
            let lease = json!({
                "metadata": {"resourceVersion": "7"},
                "spec": {"holderIdentity": holder},
            });
            (200, lease.to_string())
        });
        give_leases_back(&Api::plain(&url).unwrap(), "node1").unwrap();
        let requests: Vec<_> = requests.try_iter().collect();
        let changes: Vec<_> = requests
            .iter()
            .filter(|request| request.line.starts_with("PATCH"))
            .collect();
        let [change] = changes[..] else {
            panic!("{requests:?}");
        };
        assert!(change.line.contains("kube-controller-manager"));
        let body: Value = serde_json::from_str(&change.body).unwrap();
        assert_eq!(body["metadata"]["resourceVersion"], "7");
        assert!(body["spec"]["holderIdentity"].is_null());
    }
}
