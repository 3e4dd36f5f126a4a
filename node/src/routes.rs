//! `routes`: the ways to the pods of other nodes, each behind its node's address, for the bridge of `cni = "bridge"`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use api::{Api, Event};
use cluster::address::{self, Subnet};
use cluster::object::Cni;
use linux::world::World;
use net::routes::{Behind, keep};
use reqwest::StatusCode;
use serde_json::Value;

use crate::client;
use crate::object;

/// All nodes.
const NODES: &str = "/api/v1/nodes";
/// How long the control plane is asked for what changes, before all nodes are read and all routes are set anew.
const WATCH: Duration = Duration::from_secs(50);
/// The time to the next request after one that failed.
const RETRY: Duration = Duration::from_secs(5);
/// The same after one that this node may not make: an earlier control plane lets nodes list each other, and not watch.
const FORBIDDEN: Duration = Duration::from_secs(30);

/// The pods' subnets of the other nodes, by the nodes' names.
type Others = BTreeMap<String, Vec<Behind>>;

/// Sets the routes to the pods of other nodes, and sets them anew whenever a node comes, changes or goes. Does not return, unless this
/// node has no such routes.
///
/// # Errors
/// A mistake in the object.
pub(crate) fn run(world: &World) -> Result<()> {
    let Some(bootstrap) = object::read(world, Duration::ZERO)? else {
        return Ok(());
    };
    if bootstrap.object.cni != Cni::Bridge {
        return Ok(());
    }
    let own = &bootstrap.object.config.init.node_registration.name;
    let mut refused = BTreeSet::new();
    let mut said = None;
    loop {
        let followed = client::of_node(world, &bootstrap)
            .and_then(|api| follow(&api, own, &mut |others| set(others, &mut refused)));
        // A control plane that is away takes nobody's routes away.
        let Err(error) = followed else {
            said = None;
            continue;
        };
        let line = format!("the routes stay as they are: {error:#}");
        if said.as_ref() != Some(&line) {
            tracing::warn!("{line}");
        }
        said = Some(line);
        thread::sleep(match api::status(&error) {
            Some(StatusCode::FORBIDDEN) => FORBIDDEN,
            _ => RETRY,
        });
    }
}

/// Reads all nodes, and follows their changes for a while. Calls `set` with the others' subnets at first, and when they change.
fn follow(api: &Api, own: &str, set: &mut dyn FnMut(&Others) -> Result<()>) -> Result<()> {
    let mut others = Others::new();
    let version = api.list(NODES, |node| {
        take(&mut others, own, node, true);
    })?;
    set(&others)?;
    let mut result = Ok(());
    api.watch(NODES, &version, WATCH, |event| {
        let is_changed = match event {
            Event::Kept(node) => take(&mut others, own, &node, true),
            Event::Deleted(node) => take(&mut others, own, &node, false),
        };
        if is_changed {
            result = set(&others);
        }
        match result {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })?;
    result
}

/// Takes a node as it is now. Returns whether that changes the subnets of the others.
fn take(others: &mut Others, own: &str, node: &Value, is_there: bool) -> bool {
    let name = node["metadata"]["name"].as_str().unwrap_or_default();
    if name == own {
        return false;
    }
    let subnets = if is_there { of_node(node) } else { Vec::new() };
    if subnets.is_empty() {
        return others.remove(name).is_some();
    }
    others.insert(name.to_owned(), subnets.clone()) != Some(subnets)
}

/// Sets the routes that differ. What cannot be reached is said once, until it changes.
fn set(others: &Others, said: &mut BTreeSet<String>) -> Result<()> {
    let behind = others.values().flatten().copied().collect();
    let changes = keep(&behind)?;
    for route in &changes.added {
        tracing::info!("pods at {route}");
    }
    for route in &changes.removed {
        tracing::info!("no more pods at {route}");
    }
    let lines = changes.refused.iter().map(|(route, reason)| {
        format!(
            "pods at {route} cannot be reached: {reason}; nodes with cni = \"bridge\" are to be on one network"
        )
    });
    let lines: BTreeSet<String> = lines.collect();
    for line in lines.difference(said) {
        tracing::warn!("{line}");
    }
    *said = lines;
    Ok(())
}

/// The subnets of a node's pods, each behind an address of the node of the same version.
fn of_node(node: &Value) -> Vec<Behind> {
    let addresses = node["status"]["addresses"].as_array().into_iter().flatten();
    let internal = addresses.filter(|address| address["type"] == "InternalIP");
    let gateways: Vec<IpAddr> = internal
        .filter_map(|address| address::parse(address["address"].as_str()?))
        .collect();
    let subnets = node["spec"]["podCIDRs"].as_array().into_iter().flatten();
    let subnets = subnets.filter_map(|subnet| Subnet::parse(subnet.as_str()?));
    subnets
        .filter_map(|Subnet { first, prefix }| {
            let same = |gateway: &&IpAddr| gateway.is_ipv4() == first.is_ipv4();
            Some(Behind {
                network: first,
                prefix: u8::try_from(prefix).ok()?,
                gateway: *gateways.iter().find(same)?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests;
