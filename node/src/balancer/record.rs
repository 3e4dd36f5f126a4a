//! What the balancer knows of the API servers, for the node's status.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use image::paths::RUN_BALANCER;
use linux::atomic_file;
use linux::world::World;
use serde::{Deserialize, Serialize};

use super::backends::{Backends, Health};

/// The record. The keys stay: programs read them in the status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    /// Where the balancer listens.
    pub(crate) listen: SocketAddr,
    /// Where the list is from.
    pub(crate) list: List,
    /// The API servers, by their addresses.
    pub(crate) servers: Vec<Server>,
}

/// Where the list of API servers is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum List {
    /// The cluster object alone.
    Object,
    /// The file of an earlier boot.
    Cache,
    /// The cluster's own list.
    Cluster,
}

/// An API server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// Whether it is this node's.
    pub(crate) own: bool,
    /// None until it was asked.
    pub(crate) healthy: Option<bool>,
    pub(crate) reason: Option<String>,
}

impl Record {
    pub(super) fn of(listen: SocketAddr, list: List, backends: &Backends) -> Self {
        let server = |(address, health, own)| {
            let (healthy, reason) = match health {
                Health::Well => (Some(true), None),
                Health::Unknown => (None, None),
                Health::NotReady(reason) | Health::Away(reason) => (Some(false), Some(reason)),
            };
            Server {
                address,
                own,
                healthy,
                reason,
            }
        };
        Self {
            listen,
            list,
            servers: backends.list().into_iter().map(server).collect(),
        }
    }

    pub(super) fn write(&self, world: &World) -> Result<()> {
        let text = serde_json::to_vec(self).context("writing the record as JSON")?;
        atomic_file::write(&world.in_run(RUN_BALANCER), &text, 0o644)
            .with_context(|| format!("writing {RUN_BALANCER}"))
    }
}

/// The record; none before the balancer has written one. Whether it still runs is systemd's to say.
pub(crate) fn read(world: &World) -> Option<Record> {
    let text = std::fs::read(world.in_run(RUN_BALANCER)).ok()?;
    serde_json::from_slice(&text).ok()
}
