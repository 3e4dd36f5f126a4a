//! `status`: name, addresses, kubelet, etcd, API server, and what the node waits for; plain or as JSON.

use std::fs;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use image::paths::RUN_CLUSTER;
use linux::world::World;
use nix::ifaddrs::getifaddrs;
use serde::Serialize;

use crate::administrator::{api, node, readiness};
use crate::api::Api;
use crate::object::{self, Bootstrap};

/// The command's name.
pub(crate) const COMMAND: &str = "status";
/// Its line in the usage.
pub(crate) const DESCRIPTION: &str = "[--json]: what runs on this node, and what it waits for";

/// The kubelet's health check (its default).
const KUBELET: (&str, &str) = ("http://127.0.0.1:10248", "/healthz");
/// etcd's health check, as its static pod has it.
const ETCD: (&str, &str) = ("http://127.0.0.1:2381", "/readyz");

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
    /// None on a node without a control plane, as the API server and the node's own readiness.
    etcd: Option<Health>,
    api_server: Option<Health>,
    node: Option<Health>,
    waits_for: Option<String>,
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
    let refused = bootstrap.as_ref().err().map(|error| format!("{error:#}"));
    let bootstrap = bootstrap.ok().flatten();
    let server = bootstrap.as_ref().map(|bootstrap| server(world, bootstrap));
    let (api_server, node) = server.unzip();
    let config = bootstrap.as_ref().map(|bootstrap| &bootstrap.object.config);
    Ok(Status {
        name: object::name(world)?,
        addresses: addresses()?,
        cluster: config.map(|config| config.cluster.cluster_name.clone()),
        kubernetes: config.map(|config| config.cluster.kubernetes_version.clone()),
        kubelet: Health::of(plain_health(KUBELET)),
        etcd: config
            .filter(|config| config.cluster.etcd.local.is_some())
            .map(|_| Health::of(plain_health(ETCD))),
        api_server,
        node,
        waits_for: refused.or(line).map(|line| line.trim().to_owned()),
    })
}

fn plain_health((server, path): (&str, &str)) -> Result<()> {
    Api::plain(server)?.healthy(path)
}

/// The health of the API server, and the readiness of this node.
fn server(world: &World, bootstrap: &Bootstrap) -> (Health, Health) {
    let name = &bootstrap.object.config.init.node_registration.name;
    let api = match api(world, bootstrap) {
        Ok(api) => api,
        Err(error) => {
            let reason = format!("{error:#}");
            let unknown = || Health {
                healthy: false,
                reason: Some(reason.clone()),
            };
            return (unknown(), unknown());
        }
    };
    let node = node(&api, &format!("/api/v1/nodes/{name}"))
        .and_then(|node| readiness(&node).map_or(Ok(()), |reason| Err(anyhow::Error::msg(reason))));
    (Health::of(api.healthy("/readyz")), Health::of(node))
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
