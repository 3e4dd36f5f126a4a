//! The status of this node: what runs on it, what it waits for, and what has failed.

use std::fs;
use std::time::Duration;

use anyhow::Result;
use cluster::object::Join;
use cluster::static_pods::metrics_server;
use image::kubelet::UNIT;
use image::manifest::ImageId;
use image::paths::{RUN_ADDONS, RUN_CLUSTER, RUN_ETCD_GATE};
use linux::world::World;
use serde::Serialize;

use crate::administrator::api;
use crate::balancer::record::{self, Record};
use crate::disk_room::{self, Disk};
use crate::object::{self, Bootstrap, Refused};
use crate::own_node::{self, node, readiness};
use crate::remedies::{Trouble, remedy};
use crate::systemd::{self, Unit, Units};
use crate::this_boot::{self, BootEntry, FailedBoot, WallClock};
use crate::{bundle, credential_providers, gate, identity, objects_owner, pinned_kubelet, worker};
use api::Api;

/// The kubelet's health check (its default).
const KUBELET: (&str, &str) = ("http://127.0.0.1:10248", "/healthz");
/// etcd's health check, as its static pod has it.
const ETCD: &str = "/readyz";

/// Why the kubelet of an image without one is not healthy.
const NO_KUBELET: &str = "this image has none";

/// How long each question may take: somebody waits for the answer, and a server that is not well may never give one.
const SOON: Duration = Duration::from_secs(5);

/// The status of this node. The keys of the JSON stay: programs read them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    pub(crate) name: String,
    pub(crate) state: State,
    pub(crate) addresses: Vec<String>,
    /// None if the manifest cannot be read.
    pub(crate) image: Option<ImageId>,
    /// The slot of the root, `a` or `b`; none if the root is on no disk.
    pub(crate) slot: Option<&'static str>,
    /// None without UEFI.
    pub(crate) boot_entry: Option<BootEntry>,
    pub(crate) uptime_seconds: u64,
    pub(crate) clock: WallClock,
    /// The node's own file systems.
    pub(crate) disks: Vec<Disk>,
    /// The name of the cluster object's cluster; none without an object.
    pub(crate) cluster: Option<String>,
    /// The API server of a node that no object made one, as `kubeadm join` does: that of the kubelet's kubeconfig.
    pub(crate) joined: Option<String>,
    pub(crate) kubernetes: Option<String>,
    pub(crate) kubelet: Health,
    /// The kubelet's container that the cluster object pins; none if it pins none.
    pub(crate) pinned_kubelet: Option<PinnedKubelet>,
    /// None on a node without a control plane.
    pub(crate) etcd: Option<Health>,
    /// None on a node without a cluster, as the node's own readiness.
    pub(crate) api_server: Option<Health>,
    pub(crate) node: Option<Health>,
    /// The node that applies the objects of the cluster, on a control plane; none if its API server does not say it.
    pub(crate) objects_applied_by: Option<String>,
    /// Why this node, whose turn it is, leaves them as they are: its version is older than that of the node that applied them.
    pub(crate) objects_left: Option<String>,
    /// What the balancer knows of the API servers; none on a node without one.
    pub(crate) balancer: Option<Record>,
    pub(crate) waits_for: Option<String>,
    /// What to do about it, if that is known.
    pub(crate) remedy: Option<String>,
    /// What the cluster's addons wait for.
    pub(crate) addons: Option<String>,
    /// Units that have failed, or fail again and again; none if systemd does not answer.
    pub(crate) failed_units: Option<Vec<Unit>>,
    /// The last boot that failed before this one.
    pub(crate) last_failure: Option<FailedBoot>,
    /// Terminals that ask for a login; none if systemd does not answer.
    #[serde(skip)]
    pub(crate) gettys: Option<Vec<String>>,
}

/// The kubelet's container that the cluster object pins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PinnedKubelet {
    pub(crate) image: String,
    /// Why the image's own kubelet runs in its place; none if the pinned one does.
    pub(crate) refused: Option<String>,
}

/// The sum of a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum State {
    /// All parts are healthy.
    Ready,
    /// Some part is not healthy yet, or not any more.
    Waiting,
    /// The node does not become Ready until somebody does something.
    Failed,
}

/// Whether something is well, and why not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Health {
    pub(crate) healthy: bool,
    pub(crate) reason: Option<String>,
}

impl Health {
    fn of(result: Result<()>) -> Self {
        Self {
            healthy: result.is_ok(),
            reason: result.err().map(|error| format!("{error:#}")),
        }
    }

    fn not(reason: String) -> Self {
        Self {
            healthy: false,
            reason: Some(reason),
        }
    }
}

/// The status now. `known` is an earlier one, whose answers of the API server still count: it is not asked again.
///
/// # Errors
/// If the machine does not give its name or its addresses.
pub(crate) fn status(world: &World, known: Option<&Status>) -> Result<Status> {
    let bootstrap = object::read(world, Duration::ZERO);
    let refused = bootstrap.as_ref().err().map(Refusal::of);
    let bootstrap = bootstrap.ok().flatten();
    let joins = bootstrap
        .as_ref()
        .is_some_and(|bootstrap| bootstrap.object.join.is_some());
    let (api_server, node) = match known {
        Some(known) => (known.api_server.clone(), known.node.clone()),
        None => match &bootstrap {
            Some(bootstrap) => Some(server(world, bootstrap)),
            None if refused.is_none() && bundle::has_identity(world) => Some(joined(world)),
            None => None,
        }
        .unzip(),
    };
    let (objects_applied_by, objects_left) = match known {
        Some(known) => (known.objects_applied_by.clone(), known.objects_left.clone()),
        None => owner(world, bootstrap.as_ref(), api_server.as_ref()),
    };
    let manifest = this_boot::manifest(world).ok();
    let kubelet = match &manifest {
        Some(manifest) if manifest.kubernetes.is_none() => None,
        _ => Some(Health::of(plain_health(KUBELET))),
    };
    let config = bootstrap.as_ref().map(|bootstrap| &bootstrap.object.config);
    let etcd = config.filter(|_| !joins).and_then(metrics_server);
    let etcd = etcd.map(|server| Health::of(plain_health((&server, ETCD))));
    let balanced = bootstrap
        .as_ref()
        .is_some_and(|bootstrap| bootstrap.object.balancer.enabled);
    let units = systemd::units(world).ok();
    let disks = disk_room::disks(world);
    let full = disks.iter().find(|disk| disk.is_full());
    let waiting = waiting(world, full, refused, joins, node.as_ref(), units.as_ref());
    let parts = [&kubelet, &etcd, &api_server, &node];
    let healthy = parts.into_iter().flatten().all(|part| part.healthy);
    Ok(Status {
        name: object::name(world)?,
        state: match (waiting.failed, healthy && waiting.line.is_none()) {
            (true, _) => State::Failed,
            (false, true) => State::Ready,
            (false, false) => State::Waiting,
        },
        addresses: addresses()?,
        image: manifest.map(|manifest| manifest.image),
        slot: this_boot::slot(world),
        boot_entry: this_boot::entry(world),
        uptime_seconds: u64::try_from(world.micros() / 1_000_000).unwrap_or(0),
        clock: this_boot::clock(world),
        disks,
        cluster: config.map(|config| config.cluster.cluster_name.clone()),
        joined: bootstrap
            .is_none()
            .then(|| identity::server(world))
            .flatten(),
        kubernetes: config.map(|config| config.cluster.kubernetes_version.clone()),
        kubelet: kubelet.unwrap_or_else(|| Health::not(NO_KUBELET.to_owned())),
        pinned_kubelet: pinned_kubelet::record(world).map(|record| PinnedKubelet {
            image: record.image,
            refused: record.refused,
        }),
        etcd,
        api_server,
        node,
        objects_applied_by,
        objects_left,
        balancer: balanced.then(|| record::read(world)).flatten(),
        waits_for: waiting.line,
        remedy: waiting.remedy,
        addons: line(world, RUN_ADDONS),
        failed_units: units.as_ref().map(|units| units.failed.clone()),
        last_failure: this_boot::failed_boot(world),
        gettys: units.map(|units| units.gettys),
    })
}

/// Why a cluster object cannot be used.
struct Refusal {
    line: String,
    /// Whether it is so until somebody changes the object: an address may still come.
    stays: bool,
}

impl Refusal {
    fn of(error: &anyhow::Error) -> Self {
        let refused = error.downcast_ref::<Refused>();
        match refused.is_some_and(|refused| refused.lacks_address) {
            true => Self {
                line: "an address: this machine has no default route".to_owned(),
                stays: false,
            },
            false => Self {
                line: format!("{error:#}"),
                stays: true,
            },
        }
    }
}

/// What a node waits for.
struct Waiting {
    line: Option<String>,
    remedy: Option<String>,
    /// Whether it waits in vain until somebody does something.
    failed: bool,
}

/// The first cause of all that a node waits for.
fn waiting(
    world: &World,
    full: Option<&Disk>,
    refused: Option<Refusal>,
    joins: bool,
    node: Option<&Health>,
    units: Option<&Units>,
) -> Waiting {
    // The record is slipway-init's; where there is none, nothing is known of a volume.
    let gate = world.in_run(RUN_ETCD_GATE).exists();
    let volume = || {
        let refusal = gate
            .then(|| gate::prove_in_sandbox(world).err())
            .flatten()?;
        Some(format!("{refusal:#}"))
    };
    // The bring-up begins after the kubelet has its certificate: what a worker waits for before is nobody's line.
    let reason = || node.filter(|_| joins)?.reason.clone();
    let fails = units.is_some_and(|units| units.failed.iter().any(|unit| unit.name == UNIT));
    let of_object = refused.as_ref().is_some_and(|refusal| refusal.stays);
    let of_volume = refused.is_none().then(volume).flatten();
    let of_providers = credential_providers::check(world).err();
    let of_providers = of_providers.map(|error| format!("{error:#}"));
    let trouble = match (full, of_object, &of_volume, &of_providers) {
        (Some(disk), ..) => Some(Trouble::Disk(disk.path)),
        (_, true, ..) => Some(Trouble::Object),
        (_, _, Some(_), _) => Some(Trouble::Volume),
        (.., Some(_)) => Some(Trouble::CredentialProviders),
        _ => None,
    };
    let line = full
        .map(|disk| format!("room: {}", disk.text()))
        .or(refused.map(|refusal| refusal.line))
        .or(of_volume)
        .or(of_providers)
        .or_else(|| line(world, RUN_CLUSTER))
        .or_else(reason)
        .map(|line| line.trim().to_owned());
    let failed = trouble.is_some() || fails;
    let trouble = trouble.or_else(|| match (&line, joins, fails) {
        (Some(line), true, _) => Some(Trouble::Join(line)),
        (Some(line), false, _) => Some(Trouble::Begin(line)),
        (None, _, true) => Some(Trouble::Kubelet),
        (None, _, false) => None,
    });
    let known = trouble.and_then(remedy);
    let remedy = known.or_else(|| fails.then(|| remedy(Trouble::Kubelet)).flatten());
    Waiting {
        line,
        remedy,
        failed,
    }
}

/// The line of a file below `/run`, if there is one.
fn line(world: &World, path: &str) -> Option<String> {
    let text = fs::read_to_string(world.in_run(path)).ok()?;
    // It is empty for a moment while it is written.
    Some(text.trim().to_owned()).filter(|line| !line.is_empty())
}

fn plain_health((server, path): (&str, &str)) -> Result<()> {
    Api::plain(server)?.within(SOON).healthy(path)
}

/// The health of the API server, and the readiness of this node.
fn server(world: &World, bootstrap: &Bootstrap) -> (Health, Health) {
    let name = &bootstrap.object.config.init.node_registration.name;
    let api = match &bootstrap.object.join {
        None => api(world, bootstrap),
        Some(join) => match identity::read(world, name) {
            Ok(Ok(identity)) => identity.api(),
            // Until the node has a certificate its token is the only way to ask.
            Ok(Err(reason)) => return joining(world, name, join, &reason),
            Err(error) => Err(error),
        },
    };
    ask(api, name)
}

/// The node that applies the objects of the cluster, as the API server of a control plane has it, and why this one leaves them. One that is
/// not well is not asked.
fn owner(
    world: &World,
    bootstrap: Option<&Bootstrap>,
    server: Option<&Health>,
) -> (Option<String>, Option<String>) {
    let plane = bootstrap.filter(|bootstrap| bootstrap.object.join.is_none());
    let Some((plane, _)) = plane.zip(server.filter(|server| server.healthy)) else {
        return (None, None);
    };
    let owner = api(world, plane).and_then(|api| objects_owner::owner(&api.within(SOON), plane));
    match owner {
        Ok(Some(owner)) => (Some(owner.node), owner.left),
        Ok(None) => (None, None),
        Err(error) => {
            tracing::debug!("who applies the objects of the cluster is not known: {error:#}");
            (None, None)
        }
    }
}

/// The same of a node that no cluster object made one.
fn joined(world: &World) -> (Health, Health) {
    let name = identity::node(world).unwrap_or_default();
    let found = identity::read(world, &name);
    let found = found.and_then(|found| found.map_err(anyhow::Error::msg));
    ask(found.and_then(|identity| identity.api()), &name)
}

/// What an API server says of itself and of this node.
fn ask(api: Result<Api>, name: &str) -> (Health, Health) {
    let api = match api {
        Ok(api) => api.within(SOON),
        Err(error) => {
            let reason = format!("{error:#}");
            return (Health::not(reason.clone()), Health::not(reason));
        }
    };
    let node = node(&api, &own_node::path(name))
        .and_then(|node| readiness(&node).map_or(Ok(()), |reason| Err(anyhow::Error::msg(reason))));
    (Health::of(api.healthy("/readyz")), Health::of(node))
}

/// The same of a worker without a certificate: what becomes of its request for one.
fn joining(world: &World, name: &str, join: &Join, reason: &str) -> (Health, Health) {
    let server =
        worker::bootstrap_api(world, join).and_then(|api| api.within(SOON).healthy("/readyz"));
    let request = match worker::requested(world, name, join) {
        Ok(state) => format!("{reason}: {state}"),
        Err(_) => reason.to_owned(),
    };
    (Health::of(server), Health::not(request))
}

/// The addresses of this machine, without those of loopback and link-local ones.
fn addresses() -> Result<Vec<String>> {
    let all = object::addresses()?.into_iter();
    let mut addresses: Vec<String> = all.map(|(_, address)| address.to_string()).collect();
    addresses.dedup();
    Ok(addresses)
}

#[cfg(test)]
mod tests;
