//! This node as the API server has it, until it is Ready.

use anyhow::{Context, Result, bail};
use cluster::address::Subnet;
use cluster::object::{Cni, Object};
use linux::log;
use linux::world::World;
use serde_json::{Value, json};

use crate::cni;
use crate::steps::{self, step};
use crate::waiting::{Limits, wait};
use api::Api;

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
    let list = api.get("/api/v1/nodes")?.unwrap_or_default();
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
    if object.cni == Cni::Bridge {
        let what = format!("the pod subnets of node {name}");
        step(world, "pod-network", || {
            wait(world, limits, &what, || subnets(world, api, &path))
        })?;
    }
    let what = format!("node {name} to be Ready");
    step(world, "ready", || {
        wait(world, limits, &what, || ready(api, &path))
    })?;
    steps::ready(world);
    let cluster = object.name();
    let line = format!("slipway: node {name} of the cluster {cluster} is Ready");
    log::announce(world, &line);
    Ok(())
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
fn subnets(world: &World, api: &Api, path: &str) -> Result<()> {
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
    if cni::write(world, &given)? {
        let shown: Vec<String> = given.iter().map(ToString::to_string).collect();
        tracing::info!("the subnets of this node's pods are {}", shown.join(", "));
    }
    Ok(())
}

fn ready(api: &Api, path: &str) -> Result<()> {
    match readiness(&node(api, path)?) {
        None => Ok(()),
        Some(reason) => bail!(reason),
    }
}
