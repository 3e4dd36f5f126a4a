//! `routes`: the ways to the pods of other nodes, each behind its node's address, for the bridge of `cni = "bridge"`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use cluster::address::{self, Subnet};
use cluster::object::Cni;
use linux::world::World;
use net::routes::{Behind, keep};
use serde_json::Value;

use crate::client;
use crate::object::{self, Bootstrap};

/// All nodes.
const NODES: &str = "/api/v1/nodes";

/// Asks the control plane for the nodes, and sets the routes that differ.
///
/// # Errors
/// A mistake in the object, or of the kernel. A control plane that does not answer is none: nothing changes then.
pub(crate) fn run(world: &World) -> Result<()> {
    let Some(bootstrap) = object::read(world, Duration::ZERO)? else {
        return Ok(());
    };
    if bootstrap.object.cni != Cni::Bridge {
        return Ok(());
    }
    let name = &bootstrap.object.config.init.node_registration.name;
    let nodes = match nodes(world, &bootstrap) {
        Ok(nodes) => nodes,
        Err(error) => {
            // A control plane that is away takes nobody's routes away.
            tracing::warn!("the routes stay as they are: {error:#}");
            return Ok(());
        }
    };
    let changes = keep(&behind(&nodes, name))?;
    for route in &changes.added {
        tracing::info!("pods at {route}");
    }
    for route in &changes.removed {
        tracing::info!("no more pods at {route}");
    }
    for (route, reason) in &changes.refused {
        tracing::warn!(
            "pods at {route} cannot be reached: {reason}; nodes with cni = \"bridge\" are to be on one network"
        );
    }
    Ok(())
}

fn nodes(world: &World, bootstrap: &Bootstrap) -> Result<Value> {
    let api = client::of_node(world, bootstrap)?;
    api.get(NODES)?
        .context("the control plane has no list of nodes")
}

/// The subnets of the other nodes' pods, each behind an address of its node of the same version.
fn behind(nodes: &Value, own: &str) -> BTreeSet<Behind> {
    let nodes = nodes["items"].as_array().into_iter().flatten();
    let others = nodes.filter(|node| node["metadata"]["name"] != own);
    others.flat_map(of_node).collect()
}

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
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_pods_of_each_other_node_are_behind_its_address_of_their_version() {
        let node = |name: &str, addresses: &[&str], subnets: &[&str]| {
            let internal = |address: &&str| json!({"type": "InternalIP", "address": address});
            let mut addresses: Vec<_> = addresses.iter().map(internal).collect();
            addresses.insert(0, json!({"type": "Hostname", "address": name}));
            json!({
                "metadata": {"name": name},
                "spec": {"podCIDRs": subnets},
                "status": {"addresses": addresses},
            })
        };
        let list = json!({"items": [
            node("own", &["10.0.0.1"], &["10.244.0.0/24"]),
            node("both", &["10.0.0.2", "fd00::2"], &["10.244.1.0/24", "fd01::/64"]),
            node("new", &["10.0.0.3"], &[]),
            node("four", &["10.0.0.4"], &["fd02::/64"]),
        ]});
        let shown: Vec<_> = behind(&list, "own")
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(shown, ["10.244.1.0/24 by 10.0.0.2", "fd01::/64 by fd00::2"]);
    }
}
