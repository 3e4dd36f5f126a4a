//! `cluster-up`: waits for the API server of this control plane, applies the objects of its cluster, and waits until the
//! node is Ready.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cluster::address::Subnet;
use cluster::object::Cni;
use image::paths::RUN_CLUSTER;
use linux::atomic_file;
use linux::log;
use linux::waiter::Waiter;
use linux::world::World;
use serde_json::Value;

use crate::administrator::{api, node, readiness};
use crate::api::Api;
use crate::journal::Journal;
use crate::object::{self, Bootstrap};
use crate::{apply, cni, control_plane};

/// How long one run waits for the API server, and for the node. systemd starts the unit anew afterwards, without limit.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often they are asked.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Brings the cluster up, if this node is a control plane with a cluster object.
///
/// # Errors
/// What was waited for, and the last reason why it is not there.
pub(crate) fn run(world: &World) -> Result<()> {
    let Some(bootstrap) = object::read(world, object::PATIENCE)? else {
        tracing::info!("no cluster to bring up on this node");
        return Ok(());
    };
    let done = bring_up(world, &bootstrap);
    if done.is_ok() {
        atomic_file::remove(&world.in_run(RUN_CLUSTER)).context("removing the line of the wait")?;
    }
    done
}

fn bring_up(world: &World, bootstrap: &Bootstrap) -> Result<()> {
    let object = &bootstrap.object;
    let name = object.config.init.node_registration.name.clone();
    let journal = Journal::read(world)?;
    // What keeps the keys from being written is said here too: this unit is the one that people look at.
    control_plane::refuse_another(world, object, journal.as_ref())?;
    let mut journal = journal
        .filter(|journal| journal.authority.is_some())
        .context("the keys of this control plane are not written yet: kubelet-prepare does it")?;
    let api = api(world, bootstrap)?;
    wait(world, "the API server", || api.healthy("/livez"))?;
    let sent = apply::run(world, &api, bootstrap, &mut journal)?;
    tracing::info!("{sent} objects of the cluster were applied");
    let path = format!("/api/v1/nodes/{name}");
    wait(world, &format!("node {name} to be registered"), || {
        registered(&api, &path)
    })?;
    if !journal.marked {
        wait(world, &format!("the marks of node {name}"), || {
            mark(&api, &path, bootstrap)
        })?;
        journal.marked = true;
        journal.write(world)?;
    }
    if object.cni == Cni::Bridge {
        wait(world, &format!("the pod subnets of node {name}"), || {
            subnets(world, &api, &path)
        })?;
    }
    wait(world, &format!("node {name} to be Ready"), || {
        ready(&api, &path)
    })?;
    log::announce(
        world,
        &format!(
            "slipway: node {name} of the cluster {} is Ready",
            object.name()
        ),
    );
    Ok(())
}

/// Tries until it succeeds; the console shows the reason every five seconds.
fn wait(world: &World, what: &str, mut attempt: impl FnMut() -> Result<()>) -> Result<()> {
    let mut waiter = Waiter::until(world, PATIENCE);
    let line = world.in_run(RUN_CLUSTER);
    let mut shown = String::new();
    loop {
        let Err(error) = attempt() else {
            return Ok(());
        };
        if waiter.is_over() {
            return Err(error.context(format!("waiting for {what} for {} s", PATIENCE.as_secs())));
        }
        let text = format!("{what}: {error:#}");
        if text != shown {
            // Not synced: it lies in memory, and a reader sees the old line or the new one.
            fs::write(&line, format!("{text}\n"))
                .with_context(|| format!("writing {}", line.display()))?;
            shown.clone_from(&text);
        }
        waiter.say(&text);
        waiter.attempted();
        waiter.sleep(LOOK_EVERY);
    }
}

fn registered(api: &Api, path: &str) -> Result<()> {
    node(api, path).map(drop)
}

fn mark(api: &Api, path: &str, bootstrap: &Bootstrap) -> Result<()> {
    match apply::marks(&bootstrap.object, &node(api, path)?) {
        Some(change) => api.merge(path, &change),
        None => Ok(()),
    }
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

#[cfg(test)]
mod tests {
    use image::paths::{ETCD, ETCD_IDENTITY};

    use super::*;
    use crate::samples::{machine, put};

    /// The unit that people look at names the reason for which the keys are not there.
    #[test]
    fn a_bring_up_says_what_keeps_the_keys_from_being_written() {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(
            folder.path(),
            "name = \"blue\"\n[node]\naddress = \"10.0.0.7\"\n",
        );
        let error = format!("{:#}", run(&world).unwrap_err());
        assert!(error.contains("kubelet-prepare"), "{error}");
        put(
            &world.in_initrd(ETCD).join(ETCD_IDENTITY),
            "{\"version\": 1, \"cluster\": \"red\", \"filesystem\": \"x\", \"created\": 1, \"machineId\": \"y\"}",
        );
        let error = format!("{:#}", run(&world).unwrap_err());
        assert!(error.contains("belongs to the cluster \"red\""), "{error}");
    }
}
