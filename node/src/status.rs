//! `status`: name, addresses, kubelet, etcd, API server, and what the node waits for; plain or as JSON.

use std::fs;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use cluster::object::Join;
use image::paths::{RUN_ADDONS, RUN_CLUSTER};
use linux::world::World;
use nix::ifaddrs::getifaddrs;
use serde::Serialize;

use crate::administrator::api;
use crate::object::{self, Bootstrap};
use crate::own_node::{self, node, readiness};
use crate::{identity, worker};
use api::Api;

/// The command's name.
pub(crate) const COMMAND: &str = "status";
/// Its line in the usage.
pub(crate) const DESCRIPTION: &str = "[--json]: what runs on this node, and what it waits for";

/// The kubelet's health check (its default).
const KUBELET: (&str, &str) = ("http://127.0.0.1:10248", "/healthz");
/// etcd's health check, as its static pod has it.
const ETCD: (&str, &str) = ("http://127.0.0.1:2381", "/readyz");

/// How long each question may take: somebody waits for the answer, and a server that is not well may never give one.
const SOON: Duration = Duration::from_secs(5);

/// The status of this node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    name: String,
    addresses: Vec<String>,
    /// The cluster's name; none if the kubelet runs alone.
    cluster: Option<String>,
    kubernetes: Option<String>,
    kubelet: Health,
    /// None on a node without a control plane.
    etcd: Option<Health>,
    /// None on a node without a cluster, as the node's own readiness.
    api_server: Option<Health>,
    node: Option<Health>,
    waits_for: Option<String>,
    /// What the cluster's addons wait for.
    addons: Option<String>,
}

/// Whether something is well, and why not.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Health {
    healthy: bool,
    reason: Option<String>,
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

/// Prints the status; `program` is the name before an error.
pub(crate) fn run(program: &str, json: bool) -> ExitCode {
    let printed = status(&World::real()).and_then(|status| {
        let text = match json {
            true => serde_json::to_string(&status).context("writing the status as JSON")? + "\n",
            false => plain(&status),
        };
        std::io::stdout()
            .write_all(text.as_bytes())
            .context("writing the status")
    });
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {COMMAND}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn status(world: &World) -> Result<Status> {
    let bootstrap = object::read(world, Duration::ZERO);
    let line = fs::read_to_string(world.in_run(RUN_CLUSTER)).ok();
    let addons = fs::read_to_string(world.in_run(RUN_ADDONS)).ok();
    let refused = bootstrap.as_ref().err().map(|error| format!("{error:#}"));
    let bootstrap = bootstrap.ok().flatten();
    let joins = bootstrap
        .as_ref()
        .is_some_and(|bootstrap| bootstrap.object.join.is_some());
    let server = bootstrap.as_ref().map(|bootstrap| server(world, bootstrap));
    let (api_server, node) = server.unzip();
    // The bring-up begins after the kubelet has its certificate: what a worker waits for before is nobody's line.
    let waits = node
        .as_ref()
        .filter(|_| joins)
        .and_then(|node: &Health| node.reason.clone());
    let config = bootstrap.as_ref().map(|bootstrap| &bootstrap.object.config);
    Ok(Status {
        name: object::name(world)?,
        addresses: addresses()?,
        cluster: config.map(|config| config.cluster.cluster_name.clone()),
        kubernetes: config.map(|config| config.cluster.kubernetes_version.clone()),
        kubelet: Health::of(plain_health(KUBELET)),
        etcd: config
            .filter(|config| config.cluster.etcd.local.is_some() && !joins)
            .map(|_| Health::of(plain_health(ETCD))),
        api_server,
        node,
        waits_for: refused
            .or(line)
            .or(waits)
            .map(|line| line.trim().to_owned()),
        addons: addons.map(|line| line.trim().to_owned()),
    })
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
    let all = getifaddrs().context("listing the addresses")?;
    let mut addresses: Vec<String> = all
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|address| address.ip().into());
            v4.or_else(|| address.as_sockaddr_in6().map(|address| address.ip().into()))
        })
        .filter(|address| cluster::address::is_global_unicast(*address))
        .map(|address: std::net::IpAddr| address.to_string())
        .collect();
    addresses.dedup();
    Ok(addresses)
}

fn plain(status: &Status) -> String {
    let mut lines = vec![
        ("name", status.name.clone()),
        ("addresses", status.addresses.join(", ")),
        (
            "cluster",
            status
                .cluster
                .clone()
                .unwrap_or_else(|| "none: the kubelet runs alone".to_owned()),
        ),
    ];
    lines.extend(
        status
            .kubernetes
            .clone()
            .map(|version| ("kubernetes", version)),
    );
    let parts = [
        ("kubelet", Some(&status.kubelet)),
        ("etcd", status.etcd.as_ref()),
        ("API server", status.api_server.as_ref()),
        ("node", status.node.as_ref()),
    ];
    for (name, health) in parts {
        lines.extend(health.map(|health| (name, shown(health))));
    }
    lines.extend(status.waits_for.clone().map(|line| ("waits for", line)));
    let addons = status.addons.as_ref();
    lines.extend(addons.map(|line| ("addons", format!("waiting for {line}"))));
    lines
        .iter()
        .map(|(name, text)| format!("{name:12} {text}\n"))
        .collect()
}

fn shown(health: &Health) -> String {
    match &health.reason {
        None => "healthy".to_owned(),
        Some(reason) => reason.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::join;
    use crate::samples::{Answer, ControlPlane, put, serve_by_tls, worker};
    use crate::waiting::Limits;

    const ONCE: Limits = Limits {
        patience: Duration::from_secs(1),
        every: Duration::from_secs(1),
    };

    /// What a worker waits for, and whether its API server is well.
    fn waits(world: &World) -> (String, Option<String>) {
        let status = status(world).unwrap();
        assert!(status.etcd.is_none());
        assert_eq!(status.cluster.as_deref(), Some("blue"));
        let server = status.api_server.unwrap();
        (status.waits_for.unwrap_or_default(), server.reason)
    }

    #[test]
    fn a_worker_says_what_it_waits_for() {
        let plane = ControlPlane::new();
        let identity = plane.file("/etc/kubernetes/kubelet.conf");
        let folder = tempfile::tempdir().unwrap();
        let world = worker(folder.path(), &plane.worker());
        let absent = "/etc/kubernetes/kubelet.conf does not exist";
        let (waits_for, server) = waits(&world);
        assert_eq!(waits_for, absent);
        assert!(server.unwrap().contains("bootstrap-kubelet.conf"));
        let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
        let join_of = bootstrap.object.join.as_ref().unwrap();
        // The endpoint is the fixture's and nobody answers behind it: the line of the wait says it.
        let (listener, pair) = (plane.listener(), plane.certificate());
        let prepared = || {
            join::prepare(
                &world,
                &bootstrap,
                join_of,
                ONCE,
                Duration::from_millis(100),
            )
        };
        prepared().unwrap_err();
        let (waits_for, _) = waits(&world);
        assert!(
            waits_for.starts_with("the cluster at https://127.0.0.1:"),
            "{waits_for}"
        );
        let mut ready = json!({"type": "Ready", "status": "False", "reason": "NotReady", "message": "no network"});
        let _requests = serve_by_tls(
            listener,
            move || pair.clone(),
            move |request| {
                let full = |value: Value| Answer::Full(200, value.to_string());
                match request.line.as_str() {
                    "GET /readyz" => Answer::Full(200, "ok".to_owned()),
                    "GET /api/v1/nodes/node1" => {
                        let node = full(json!({"status": {"conditions": [ready]}}));
                        ready["status"] = "True".into();
                        node
                    }
                    line if line.contains("certificatesigningrequests") => {
                        full(json!({"items": []}))
                    }
                    _ => plane.answer(request),
                }
            },
        );
        prepared().unwrap();
        let well = |waits_for: &str| (waits_for.to_owned(), None);
        let expected = format!("{absent}: the kubelet has not requested one");
        assert_eq!(waits(&world), well(&expected));
        put(
            &world.in_initrd("/etc/kubernetes/kubelet.conf"),
            &fits(&world, &identity),
        );
        assert_eq!(waits(&world), well("NotReady: no network"));
        assert_eq!(waits(&world), well(""));
    }

    /// A control plane's kubeconfig of its kubelet, which leads to its own address, with the endpoint of this worker.
    fn fits(world: &World, identity: &str) -> String {
        let bootstrap = object::read(world, Duration::ZERO).unwrap().unwrap();
        let server = bootstrap.object.config.control_plane_url();
        identity.replace("https://10.0.0.7:6443", &server)
    }
}
