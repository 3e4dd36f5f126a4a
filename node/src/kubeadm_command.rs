//! `kubeadm init` and `kubeadm join`, in place of kubeadm: the same documents bring the node up by Slipway's own way. An image without
//! kubeadm has this as `/usr/bin/kubeadm`, where the script of Cluster API's kubeadm bootstrap provider calls it. The script's own commands
//! run before and behind it, and it writes the sentinel file once this has succeeded.
//!
//! The arguments are those of that script; others are refused. The documents take the place of the cluster object, so that every later
//! boot goes on with them. What is refused before is refused without a change: mistakes of the documents, a cluster that is not proven.
//! A second call with the same documents goes on where the first one was cut.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cluster::duration;
use cluster::from_kubeadm::{self, Asked};
use cluster::object::{Join, Object};
use image::kubelet::{
    ADDONS_UNIT, BALANCER_UNIT, CERTS_TIMER, CLOCK_PATH, CLOCK_TIMER, CLUSTER_UNIT, ELECTION_UNIT,
    UNIT,
};
use image::paths::{CLUSTER, RUN_CLUSTER, SYSTEMCTL};
use linux::atomic_file;
use linux::log;
use linux::programs::{self, Programs};
use linux::waiter::Waiter;
use linux::world::World;

use crate::administrator::api;
use crate::control_plane;
use crate::discover::{Discovered, Name, discover};
use crate::identity;
use crate::journal::Journal;
use crate::object::{self, Bootstrap};
use crate::own_node::{self, node};
use crate::waiting::{self, Limits, wait};
use crate::{console, join};
use api::{Api, Trust};

/// The command's name, and that of the link to this program.
pub(crate) const COMMAND: &str = "kubeadm";
/// Its line in the usage.
pub(crate) const DESCRIPTION: &str = "init|join --config FILE [--v N] [--ignore-preflight-errors CHECKS]: brings this node up by \
     kubeadm's documents";

/// Exit code of arguments that are not known.
const USAGE: u8 = 2;
/// The map with the cluster's `ClusterConfiguration`, for nodes and those that join.
const CONFIG: &str = "/api/v1/namespaces/kube-system/configmaps/kubeadm-config";
/// The map with kube-proxy's configuration.
const PROXY: &str = "/api/v1/namespaces/kube-system/configmaps/kube-proxy";
/// Between the documents of the node and those of its cluster.
const SEPARATOR: &str = "---\n# Of the cluster, as it was when this node joined.\n";
/// Where systemd is.
const SYSTEMD: &str = "/run/systemd/system";
/// The units that the documents are a condition of, beside the kubelet's. Others are started by the bring-up.
const UNITS: [&str; 7] = [
    BALANCER_UNIT,
    ELECTION_UNIT,
    CLUSTER_UNIT,
    ADDONS_UNIT,
    CERTS_TIMER,
    CLOCK_PATH,
    CLOCK_TIMER,
];
/// How often the bring-up is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often a cluster is asked.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// kubeadm's own patience, in seconds: with the kubelet, a component, the API server, etcd, the kubelet's certificate, a cluster.
const KUBELET: u64 = 240;
const COMPONENT: u64 = 240;
const OBJECTS: u64 = 60;
const ETCD: u64 = 120;
const CERTIFICATE: u64 = 300;
const DISCOVERY: u64 = 300;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Init,
    Join,
}

/// Runs the command with its arguments.
pub(crate) fn command(program: &'static str, arguments: &[&str]) -> ExitCode {
    let (verb, file) = match read(arguments) {
        Ok(read) => read,
        Err(message) => {
            eprintln!("{program}: {COMMAND}: {message}");
            return ExitCode::from(USAGE);
        }
    };
    // The provider's unit sends stderr to the journal.
    if let Err(error) = log::plain(program, false) {
        eprintln!("{program}: {error:#}");
    }
    let world = World::real();
    match run(&world, verb, file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            console::warn(&world, &format!("{COMMAND}: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// The arguments, as the provider's script has them.
fn read<'a>(arguments: &[&'a str]) -> Result<(Verb, &'a str), String> {
    const EXPECTED: &str =
        "init or join with --config FILE, and perhaps --v N, --ignore-preflight-errors CHECKS";
    let (verb, mut rest) = match arguments {
        ["init", rest @ ..] => (Verb::Init, rest.iter()),
        ["join", rest @ ..] => (Verb::Join, rest.iter()),
        [] => return Err(format!("expected {EXPECTED}")),
        [other, ..] => {
            return Err(format!(
                "{other:?} is not done: kubeadm is not in this image, and Slipway does its init and join alone; expected {EXPECTED}"
            ));
        }
    };
    let mut file = None;
    while let Some(argument) = rest.next() {
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (*argument, None),
        };
        let mut value = || value.or_else(|| rest.next().copied());
        match name {
            "--config" => file = Some(value().ok_or("--config: expected a file")?),
            // What is logged is the same at each level, and no check of kubeadm's is made.
            "--v" | "-v" => {
                let level = value().and_then(|value| value.parse::<u8>().ok());
                level.ok_or_else(|| format!("{name}: expected a number"))?;
            }
            "--ignore-preflight-errors" => {
                value().ok_or_else(|| format!("{name}: expected names of checks"))?;
            }
            _ => return Err(format!("{argument:?} is not known; expected {EXPECTED}")),
        }
    }
    let file = file.ok_or_else(|| format!("no --config; expected {EXPECTED}"))?;
    Ok((verb, file))
}

fn run(world: &World, verb: Verb, file: &str) -> Result<()> {
    let about = || format!("reading {file}");
    let path = match file.starts_with('/') {
        true => world.in_initrd(file),
        false => PathBuf::from(file),
    };
    let text = fs::read_to_string(path).with_context(about)?;
    let (asked, host) = object::asked(world, file, &text, object::PATIENCE)?;
    for note in &asked.object.notes {
        tracing::info!("{note}");
    }
    expect(verb, &asked, file)?;
    object::warn_of_version(&asked.object);
    // A kubelet that was started behind the documents may be at work on them.
    let (bootstrap, kubelet) = match begun(world, &text)? {
        Some(before) => {
            tracing::info!("going on with the documents in {CLUSTER}");
            let (Asked { object, .. }, host) =
                object::asked(world, CLUSTER, &before, object::PATIENCE)?;
            (Bootstrap { object, host }, "start")
        }
        None => (begin(world, &text, asked, host, file)?, "restart"),
    };
    start(world, kubelet)?;
    until_up(world, &bootstrap)
}

/// Refuses documents of the other command, which kubeadm passes over with a warning.
fn expect(verb: Verb, asked: &Asked, file: &str) -> Result<()> {
    match (verb, asked.discovery.is_some()) {
        (Verb::Init, true) => bail!("{file} has JoinConfiguration; expected InitConfiguration"),
        (Verb::Join, false) => bail!("{file} has no JoinConfiguration; expected one"),
        (Verb::Join, true) if asked.has_cluster => {
            bail!("{file} has more than JoinConfiguration; expected the rest from the cluster")
        }
        _ => Ok(()),
    }
}

/// What an earlier call with these documents left, if there was one.
///
/// # Errors
/// A cluster object, and other documents of a node that has begun.
fn begun(world: &World, text: &str) -> Result<Option<String>> {
    let there = atomic_file::read(&world.in_initrd(CLUSTER));
    let there = there.with_context(|| format!("reading {CLUSTER}"))?;
    let Some(there) = there else {
        return Ok(None);
    };
    let there = String::from_utf8_lossy(&there).into_owned();
    ensure!(
        from_kubeadm::is(&there),
        "this node has the cluster object {CLUSTER}; expected that or kubeadm's documents; nothing is changed"
    );
    let own = there.split(SEPARATOR).next().unwrap_or_default();
    if own.trim_end() == text.trim_end() {
        return Ok(Some(there));
    }
    ensure!(
        Journal::read(world)?.is_none(),
        "this node was brought up by other documents, {CLUSTER}; nothing is changed"
    );
    Ok(None)
}

/// Puts the documents in the cluster object's place, with those of a cluster that is joined, once that is proven.
fn begin(
    world: &World,
    text: &str,
    asked: Asked,
    host: cluster::host::Host,
    file: &str,
) -> Result<Bootstrap> {
    let journal = Journal::read(world)?;
    let (text, object, host) = match &asked.discovery {
        None => (text.to_owned(), asked.object, host),
        Some(discovery) => {
            let text = joined(world, text, &asked.object, discovery)?;
            let name = format!("{file} with the cluster's configuration");
            let (asked, host) = object::asked(world, &name, &text, object::PATIENCE)?;
            object::warn_of_version(&asked.object);
            (text, asked.object, host)
        }
    };
    match &object.join {
        Some(join) => join::refuse_another(world, &object, join, journal.as_ref())?,
        None => control_plane::refuse_another(world, &object, journal.as_ref())?,
    }
    control_plane::write(world, CLUSTER, &text, 0o600)?;
    Ok(Bootstrap { object, host })
}

/// The documents of a node that joins, and those of its cluster.
fn joined(world: &World, text: &str, object: &Object, join: &Join) -> Result<String> {
    let endpoint = object.config.control_plane_url();
    let limits = Limits {
        patience: patience(object.config.init.timeouts.discovery, DISCOVERY),
        every: ASK_EVERY,
    };
    let what = format!("the cluster at {endpoint}");
    let documents = wait(world, limits, &what, || {
        let found = discover(object, join, join::REQUEST, Name::Unproven)?;
        of_cluster(object, join, &found)
    })?;
    waiting::done(world)?;
    Ok(format!("{}\n{SEPARATOR}{documents}", text.trim_end()))
}

/// The cluster's configuration, and for a control plane that of its kubelets and of kube-proxy, as `kubeadm join` reads them.
fn of_cluster(object: &Object, join: &Join, found: &Discovered) -> Result<String> {
    let authority = Trust::Authority(&found.info.authority);
    let api = Api::without_certificate(&found.info.server, authority, join::REQUEST)?;
    let api = api.with_token(&join.token);
    let text = |path: &str, key: &str| -> Result<Option<String>> {
        let map = api.get(path)?;
        Ok(map.and_then(|map| map["data"][key].as_str().map(str::to_owned)))
    };
    let config = text(CONFIG, "ClusterConfiguration")?;
    let mut documents = config.context("the cluster has no map kube-system/kubeadm-config")?;
    if object.further.is_some() {
        let proxy = text(PROXY, "config.conf")?;
        for document in [Some(found.kubelet.clone()), proxy].into_iter().flatten() {
            write!(documents, "\n---\n{document}").context("joining documents")?;
        }
    }
    Ok(documents)
}

/// Starts what waits for the documents; a kubelet that ran alone has to be started anew.
fn start(world: &World, kubelet: &str) -> Result<()> {
    if !world.in_initrd(SYSTEMD).exists() {
        tracing::warn!("systemd does not run: the kubelet is to be started by something else");
        return Ok(());
    }
    let programs = Programs::of_host(Arc::new(World::real()));
    programs::succeed(&programs, SYSTEMCTL, &["--no-block", kubelet, UNIT])?;
    let units = ["--no-block", "start"].into_iter().chain(UNITS);
    programs::succeed(&programs, SYSTEMCTL, &units.collect::<Vec<_>>())?;
    Ok(())
}

/// Waits as long as kubeadm does until the node is in its cluster. It need not be Ready: its network may be an addon.
fn until_up(world: &World, bootstrap: &Bootstrap) -> Result<()> {
    let patience = whole(&bootstrap.object);
    let mut waiter = Waiter::until(world, patience);
    loop {
        let Err(error) = is_up(world, bootstrap) else {
            let name = &bootstrap.object.config.init.node_registration.name;
            tracing::info!("node {name} is in its cluster");
            return Ok(());
        };
        if waiter.is_over() {
            let line = fs::read_to_string(world.in_run(RUN_CLUSTER)).unwrap_or_default();
            let about = match line.trim() {
                "" => "the bring-up goes on".to_owned(),
                line => format!("the bring-up waits for {line}"),
            };
            let waited = patience.as_secs();
            return Err(error.context(format!(
                "this node is not in its cluster after {waited} s; {about}"
            )));
        }
        waiter.examined();
        waiter.sleep(LOOK_EVERY);
    }
}

/// Whether the node is in its cluster: its certificate works and it is registered; of a control plane the bring-up has made all objects.
fn is_up(world: &World, bootstrap: &Bootstrap) -> Result<()> {
    let name = &bootstrap.object.config.init.node_registration.name;
    let path = own_node::path(name);
    if bootstrap.object.join.is_some() {
        let identity = identity::read(world, name)?.map_err(anyhow::Error::msg)?;
        return node(&identity.api()?, &path).map(drop);
    }
    let journal = Journal::read(world)?.context("the keys are not written yet")?;
    ensure!(journal.marked, "the cluster's objects are not made yet");
    // The controller manager and the scheduler begin then.
    ensure!(
        control_plane::serves(world),
        "the API server is not well yet"
    );
    let api = api(world, bootstrap)?;
    api.healthy("/livez/ping")?;
    node(&api, &path).map(drop)
}

/// The sum of what kubeadm waits for one after the other.
fn whole(object: &Object) -> Duration {
    let limits = &object.config.init.timeouts;
    let kubelet = patience(limits.kubelet_health_check, KUBELET);
    let component = limits.control_plane_component_health_check;
    let plane = patience(component, COMPONENT) + patience(limits.kubernetes_api_call, OBJECTS);
    let joins = patience(limits.tls_bootstrap, CERTIFICATE);
    match (&object.join, &object.further) {
        (Some(_), _) => kubelet + joins,
        (None, Some(_)) => kubelet + joins + plane + patience(limits.etcd_api_call, ETCD),
        (None, None) => kubelet + plane,
    }
}

/// A limit of the documents, or kubeadm's own, in seconds.
fn patience(given: Option<duration::Duration>, default: u64) -> Duration {
    let given = given.and_then(|given| u64::try_from(given.seconds()).ok());
    Duration::from_secs(given.filter(|seconds| *seconds > 0).unwrap_or(default))
}

#[cfg(test)]
mod tests;
