//! `routes`: the ways to the pods of other nodes, each behind its node's address, for the bridge of `cni = "bridge"`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use api::{Api, Event, goes_on};
use cluster::address::{self, Subnet};
use cluster::object::Cni;
use linux::world::World;
use net::routes::{Behind, keep};
use reqwest::StatusCode;
use serde_json::Value;

use crate::balancer::shared::random;
use crate::client;
use crate::object;

/// All nodes.
const NODES: &str = "/api/v1/nodes";
/// The same, watched: also the version that the API server has come to is named, without which it knows an old one no more.
const WATCHED: &str = "/api/v1/nodes?allowWatchBookmarks=true";
/// How long the control plane is asked for what changes, at the least, before the routes are set again: somebody may have deleted one. Half
/// of it more at the most.
const WATCH: Duration = Duration::from_secs(50);
/// The time to the next request after one that failed, at the least.
const RETRY: Duration = Duration::from_secs(5);
/// The same after one that this node may not make: an earlier control plane lets nodes list each other, and not watch.
const FORBIDDEN: Duration = Duration::from_secs(30);
/// How much longer it may be for each node where all of them are to be listed: each node does so after the API server's restart.
const EACH: Duration = Duration::from_millis(50);

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
    let mut known = Known::default();
    let mut refused = BTreeSet::new();
    let mut said = None;
    loop {
        let (begin, time) = (Instant::now(), WATCH + a_part_of(WATCH / 2));
        let followed = client::of_node(world, &bootstrap)
            .and_then(|api| known.follow(&api, own, time, &mut |others| set(others, &mut refused)));
        // A control plane that is away takes nobody's routes away.
        let Err(error) = followed else {
            said = None;
            // An API server that goes down ends the watches of all nodes at once.
            if begin.elapsed() < time {
                thread::sleep(a_part_of(RETRY));
            }
            continue;
        };
        let line = match api::status(&error) {
            Some(StatusCode::GONE) => format!("all nodes are read anew: {error:#}"),
            _ => format!("the routes stay as they are: {error:#}"),
        };
        if said.as_ref() != Some(&line) {
            tracing::warn!("{line}");
        }
        said = Some(line);
        thread::sleep(known.pause(&error));
    }
}

/// The other nodes as far as this one knows them.
#[derive(Debug, Default)]
struct Known {
    others: Others,
    /// The version up to which they are known. None before they are listed, and once it is in doubt.
    version: Option<String>,
}

impl Known {
    /// Lists the nodes unless they are known, and follows their changes for so long. Calls `set` with the others' subnets at first, and
    /// when they change.
    fn follow(
        &mut self,
        api: &Api,
        own: &str,
        time: Duration,
        set: &mut dyn FnMut(&Others) -> Result<()>,
    ) -> Result<()> {
        let version = match self.version.clone() {
            Some(version) => version,
            None => self.list(api, own)?,
        };
        set(&self.others)?;
        let (begin, mut is_named, mut result) = (Instant::now(), false, Ok(()));
        let watched = api.watch(WATCHED, &version, time, |event| {
            if let Some(version) = event.version() {
                self.version = Some(version.to_owned());
                is_named = true;
            }
            let is_changed = match &event {
                Event::Kept(node) => take(&mut self.others, own, node, true),
                Event::Deleted(node) => take(&mut self.others, own, node, false),
                Event::Bookmark(_) => false,
            };
            if is_changed {
                result = set(&self.others);
            }
            match result {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        });
        let is_in_doubt = match &watched {
            // Before its end an API server names the version that it has come to, unless that is not beyond the one that it was asked
            // for: its data may be those of an earlier snapshot.
            Ok(()) => !is_named && begin.elapsed() >= time,
            Err(error) => !goes_on(error),
        };
        if is_in_doubt {
            self.version = None;
        }
        watched?;
        result
    }

    /// Reads all nodes. Returns the version of the list.
    fn list(&mut self, api: &Api, own: &str) -> Result<String> {
        let mut others = Others::new();
        let version = api.list(NODES, |node| {
            take(&mut others, own, node, true);
        })?;
        self.others = others;
        self.version = Some(version.clone());
        Ok(version)
    }

    /// The time to the next request after one that failed so: another one at each node, so that they do not come together.
    fn pause(&self, error: &Error) -> Duration {
        let least = match api::status(error) {
            Some(StatusCode::FORBIDDEN) => FORBIDDEN,
            _ => RETRY,
        };
        // What a list costs the API server grows with the nodes, as does the number of nodes that ask for one.
        let nodes = match self.version {
            Some(_) => 0,
            None => u32::try_from(self.others.len()).unwrap_or(u32::MAX),
        };
        least + a_part_of(least + EACH.saturating_mul(nodes))
    }
}

/// A random part of a time.
fn a_part_of(time: Duration) -> Duration {
    let thousandths = u32::try_from(random() % 1001).unwrap_or_default();
    time.saturating_mul(thousandths) / 1000
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
