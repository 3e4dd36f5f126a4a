//! The files of a worker: its cluster's authority, the kubelet's configuration, and the credentials with which the kubelet
//! requests its certificate.
//!
//! Nothing is written before the cluster is proven to be the one that the object pins; then the journal, before the first
//! file, and the credentials last, as they are what the kubelet begins with. A cut at any point begins anew.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use cluster::discovery::{AUTHORITY, trusted};
use cluster::kubeconfigs;
use cluster::kubelet;
use cluster::object::{Cni, Join, Object, own_skew};
use cluster::release::Version;
use cluster::report::Report;
use cluster::static_pods::File;
use image::kubelet::{BOOTSTRAP_KUBECONFIG, JOINED_CONFIG};
use linux::atomic_file;
use linux::world::World;

use crate::cni;
use crate::control_plane::{sha256, write_changed};
use crate::discover::{Discovered, Name, discover};
use crate::identity;
use crate::journal::Journal;
use crate::object::Bootstrap;
use crate::this_boot;
use crate::waiting::{self, Limits, wait};

/// How long one run waits for the control plane: less than systemd lets the kubelet's start take, with what comes before.
/// systemd starts the unit anew afterwards, without limit.
pub(crate) const LIMITS: Limits = Limits {
    patience: Duration::from_secs(180),
    every: Duration::from_secs(1),
};
/// How long a request may take.
pub(crate) const REQUEST: Duration = Duration::from_secs(10);

/// Joins the cluster, unless the node has an identity that is valid; `request` limits each request.
///
/// # Errors
/// The last reason why the cluster is not to be trusted or does not answer, and a node of another cluster: nothing is
/// changed then.
pub(crate) fn prepare(
    world: &World,
    bootstrap: &Bootstrap,
    join: &Join,
    limits: Limits,
    request: Duration,
) -> Result<()> {
    let object = &bootstrap.object;
    let journal = Journal::read(world)?;
    refuse_another(world, object, join, journal.as_ref())?;
    let name = &object.config.init.node_registration.name;
    match identity::read(world, name)? {
        Ok(_) if world.in_initrd(JOINED_CONFIG).exists() => {}
        found => {
            // The configuration may have been removed from a node that has joined.
            let own = match found {
                Ok(_) => Name::Own,
                Err(_) => Name::Unproven,
            };
            let reason = found.err();
            let reason = reason.unwrap_or_else(|| format!("{JOINED_CONFIG} does not exist"));
            let endpoint = object.config.control_plane_url();
            tracing::info!("joining the cluster at {endpoint}: {reason}");
            let what = format!("the cluster at {endpoint}");
            let found = wait(world, limits, &what, || {
                let found = discover(object, join, request, own)?;
                fits(world, object, &found)?;
                Ok(found)
            })?;
            write(world, bootstrap, join, &found)?;
            waiting::done(world)?;
        }
    }
    own_files(world, bootstrap)
}

/// Refuses to join with a kubelet of the image that the control plane's version does not allow. A pinned one is held against it when it
/// is fetched. It is waited for as the control plane is: an upgrade there makes it right.
fn fits(world: &World, object: &Object, found: &Discovered) -> Result<()> {
    let own = this_boot::manifest(world)?.kubernetes;
    let own = own.and_then(|kubernetes| Version::parse(&kubernetes.version));
    match (own, &found.version) {
        (Some(own), Some(served)) if object.kubelet_image.is_none() => {
            own_skew(&own, served).map_err(anyhow::Error::msg)
        }
        _ => Ok(()),
    }
}

/// Writes what is this node's own, if it has changed.
fn own_files(world: &World, bootstrap: &Bootstrap) -> Result<()> {
    for File { path, text } in kubelet::of_node(&bootstrap.object.config, &bootstrap.host) {
        write_changed(world, &path, &text, 0o644)?;
    }
    provider_id(world, &bootstrap.object)?;
    match bootstrap.object.cni {
        Cni::Flannel => cni::withdraw(world),
        Cni::Bridge | Cni::None => Ok(()),
    }
}

/// Brings what the cloud calls this machine into the kubelet's configuration, which is as the node joined: the object may have got `[cloud]`
/// later. The rest of it stays.
fn provider_id(world: &World, object: &Object) -> Result<()> {
    let there = atomic_file::read(&world.in_initrd(JOINED_CONFIG));
    let Some(text) = there.with_context(|| format!("reading {JOINED_CONFIG}"))? else {
        return Ok(());
    };
    let text = String::from_utf8(text).with_context(|| format!("reading {JOINED_CONFIG}"))?;
    let changed = kubelet::with_provider_id(&object.config, &text)
        .map_err(|report| refused(JOINED_CONFIG, &report))?;
    match changed {
        Some(text) => write_changed(world, JOINED_CONFIG, &text, 0o644),
        None => Ok(()),
    }
}

/// The mistakes of a kubelet's configuration.
fn refused(what: &str, report: &Report) -> anyhow::Error {
    let lines: Vec<String> = report.mistakes.iter().map(ToString::to_string).collect();
    anyhow!("{what} is refused: {}", lines.join("; "))
}

/// Writes what discovery found.
fn write(world: &World, bootstrap: &Bootstrap, join: &Join, found: &Discovered) -> Result<()> {
    let object = &bootstrap.object;
    let info = &found.info;
    let config = kubelet::joined(&object.config, join, &found.kubelet)
        .map_err(|report| refused("the map kube-system/kubelet-config", &report))?;
    let authority = Some(sha256(info.authority.as_bytes()));
    // Files of this authority are there, and stay so: one after the other has what is new.
    let there = Journal::read(world)?.filter(|journal| journal.authority == authority);
    let mut journal = there.unwrap_or_else(|| Journal::of_worker(object.name()));
    journal.write(world)?;
    let token = join.token.text();
    let credentials = kubeconfigs::bootstrap(object.name(), &info.server, &info.authority, &token);
    write_changed(world, AUTHORITY, &info.authority, 0o644)?;
    write_changed(world, &config.path, &config.text, 0o644)?;
    own_files(world, bootstrap)?;
    write_changed(world, BOOTSTRAP_KUBECONFIG, &credentials, 0o600)?;
    journal.authority = authority;
    journal.write(world)
}

/// Refuses to join where another cluster, or a control plane, is.
///
/// # Errors
/// Names it, and where it was found.
pub(crate) fn refuse_another(
    world: &World,
    object: &Object,
    join: &Join,
    journal: Option<&Journal>,
) -> Result<()> {
    let name = object.name();
    if let Some(journal) = journal {
        journal.refuse_another(name, true)?;
    }
    let file = world.in_initrd(AUTHORITY);
    let there = atomic_file::read(&file).with_context(|| format!("reading {AUTHORITY}"))?;
    let there = there.map(|text| String::from_utf8_lossy(&text).into_owned());
    match there.map(|text| trusted(&text, &join.pins)) {
        Some(Err(refusal)) => {
            bail!("{AUTHORITY} is another cluster's: {refusal}; nothing is changed")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
