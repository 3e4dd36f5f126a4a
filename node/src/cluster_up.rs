//! `cluster-up`: waits until the node is Ready. On a control plane it waits for the API server and applies the objects of
//! the cluster before, on a worker it waits for the node's certificate.

use std::time::Duration;

use anyhow::{Context, Result};
use linux::world::World;

use crate::administrator::api;
use crate::journal::Journal;
use crate::object::{self, Bootstrap};
use crate::own_node::{self, node};
use crate::steps::step;
use crate::waiting::{self, Limits, wait};
use crate::{apply, control_plane, further, key_upload, worker};
use api::Api;

/// How long one run waits for the API server, and for the node. systemd starts the unit anew afterwards, without limit.
const LIMITS: Limits = Limits {
    patience: Duration::from_secs(600),
    every: Duration::from_millis(200),
};

/// Brings the cluster up, if this node has a cluster object.
///
/// # Errors
/// What was waited for, and the last reason why it is not there.
pub(crate) fn run(world: &World) -> Result<()> {
    let Some(bootstrap) = object::read(world, object::PATIENCE)? else {
        tracing::info!("no cluster to bring up on this node");
        return Ok(());
    };
    match &bootstrap.object.join {
        Some(join) => worker::bring_up(world, &bootstrap, join, LIMITS)?,
        None => bring_up(world, &bootstrap)?,
    }
    waiting::done(world)
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
    if object.further.is_some() {
        step(world, "etcd-member", || {
            further::promote(world, bootstrap, &mut journal, LIMITS)
        })?;
    }
    let api = api(world, bootstrap)?;
    step(world, "api-server", || {
        wait(world, LIMITS, "the API server", || api.healthy("/livez"))
    })?;
    control_plane::served(world, bootstrap, &journal)?;
    // Those of a further control plane are there.
    if object.further.is_none() {
        let sent = step(world, "objects", || {
            apply::run(world, &api, bootstrap, &mut journal)
        })?;
        tracing::info!("{sent} objects of the cluster were applied");
        if !object.config.init.certificate_key.is_empty() {
            step(world, "shared-keys", || {
                key_upload::once(world, &api, bootstrap, &mut journal, LIMITS)
            })?;
        }
    }
    let path = own_node::path(&name);
    own_node::registered(world, LIMITS, &api, &name)?;
    if !journal.marked {
        wait(world, LIMITS, &format!("the marks of node {name}"), || {
            mark(&api, &path, bootstrap)
        })?;
        journal.marked = true;
        journal.write(world)?;
    }
    own_node::up(world, LIMITS, &api, object)
}

fn mark(api: &Api, path: &str, bootstrap: &Bootstrap) -> Result<()> {
    match apply::marks(&bootstrap.object, &node(api, path)?) {
        Some(change) => api.merge(path, &change),
        None => Ok(()),
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
