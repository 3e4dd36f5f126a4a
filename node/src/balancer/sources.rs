//! Where the API servers of the cluster are known from: the cluster object, the file of an earlier boot, the cluster itself.
//!
//! *Unknown* is never *none*: a source that does not answer, or that answers without an address, changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use cluster::object::Object;
use cluster::object::balancer::Server;
use cluster::objects::API_SERVERS;
use linux::atomic_file;
use linux::world::{Clock, World};

use super::cache::{self, Kept, Of};
use super::endpoint_slice;
use super::record::List;
use crate::control_plane::{authority, sha256};
use crate::identity;

/// How many API servers are remembered that the cluster's list has no more.
const FORMER: usize = 8;
/// How long a request may take: less than the time between two.
const REQUEST: Duration = Duration::from_secs(10);

/// What a look found of the servers that the object names, and of the cluster's own list; of each the reason why there is none.
#[derive(Debug)]
pub(super) struct Look {
    resolved: Vec<(Server, Result<Vec<SocketAddr>, String>)>,
    /// None on a node that has no identity yet, and cannot ask.
    listed: Result<Option<Vec<SocketAddr>>>,
}

/// The sources.
#[derive(Debug)]
pub(super) struct Sources {
    /// The root of the node's files.
    root: PathBuf,
    node: String,
    cluster: String,
    /// The file of the cluster's authority.
    authority: String,
    known: Vec<Server>,
    /// This node's API server.
    pub(super) own: Option<SocketAddr>,
    resolved: BTreeMap<String, Vec<SocketAddr>>,
    kept: Kept,
    pub(super) list: List,
    /// Lines of the log that were written, each once until it changes.
    said: BTreeSet<String>,
}

/// What a look needs, for a thread that may wait for name servers.
#[derive(Clone, Debug)]
pub(super) struct Looker {
    root: PathBuf,
    node: String,
    known: Vec<Server>,
}

impl Sources {
    /// The sources of a node with this object; of an earlier boot's file what it has.
    pub(super) fn begin(world: &World, object: &Object) -> Self {
        let own = object.address().filter(|_| object.join.is_none());
        let port = u16::try_from(object.config.init.local_api_endpoint.bind_port).ok();
        let mut sources = Self {
            root: world.initrd.clone(),
            node: object.config.init.node_registration.name.clone(),
            cluster: object.name().to_owned(),
            authority: authority(object),
            known: object.known_servers(),
            own: own
                .zip(port)
                .map(|(address, port)| SocketAddr::new(address, port)),
            resolved: BTreeMap::new(),
            kept: Kept::default(),
            list: List::Object,
            said: BTreeSet::new(),
        };
        // Names are resolved by the first look: a name server that does not answer must not hold up the start.
        for server in &sources.known {
            if let Some(address) = cluster::address::parse(&server.host) {
                let address = SocketAddr::new(address, server.port);
                sources.resolved.insert(server.to_string(), vec![address]);
            }
        }
        sources.read_cache(world);
        sources
    }

    fn read_cache(&mut self, world: &World) {
        let Some(of) = self.of(world) else {
            return;
        };
        match cache::read(world, &of) {
            Ok(kept) if kept.servers.is_empty() => {}
            Ok(kept) => {
                self.kept = kept;
                self.list = List::Cache;
            }
            Err(error) => tracing::warn!("the list of an earlier boot is not used: {error:#}"),
        }
    }

    /// The cluster, once its authority is known here.
    fn of(&self, world: &World) -> Option<Of> {
        of_files(world, &self.cluster, &self.authority)
    }

    /// All addresses: this node's own, the cluster's list, and last those of the object.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        let known = self.resolved.values().flatten();
        let mut addresses = Vec::new();
        for address in self.own.iter().chain(&self.kept.servers).chain(known) {
            if !addresses.contains(address) {
                addresses.push(*address);
            }
        }
        addresses
    }

    /// Those that earlier lists of the cluster had. One that was stopped for a moment, for an update, is back before the next look at the
    /// list: it is all that is left if the others are stopped in that time.
    pub(super) fn former(&self) -> &[SocketAddr] {
        &self.kept.former
    }

    pub(super) fn looker(&self) -> Looker {
        Looker {
            root: self.root.clone(),
            node: self.node.clone(),
            known: self.known.clone(),
        }
    }

    /// Takes what a look found, and keeps the cluster's list on the disk.
    pub(super) fn take(&mut self, world: &World, look: Look) {
        let mut said = BTreeSet::new();
        for (server, addresses) in look.resolved {
            match addresses {
                Ok(addresses) => drop(self.resolved.insert(server.to_string(), addresses)),
                Err(reason) => drop(said.insert(format!("{server} is not resolved: {reason}"))),
            }
        }
        match look.listed {
            Ok(None) => {}
            Ok(Some(servers)) => {
                let before = self.list;
                self.list = List::Cluster;
                if self.kept.servers != servers || before != List::Cluster {
                    let all: Vec<String> = servers.iter().map(ToString::to_string).collect();
                    tracing::info!("API servers of the cluster: {}", all.join(", "));
                    self.kept.replace(servers);
                    if let Err(reason) = self.keep(world) {
                        said.insert(format!("{reason:#}"));
                    }
                }
            }
            Err(reason) => {
                said.insert(format!(
                    "the list of API servers stays as it is: {reason:#}"
                ));
            }
        }
        for line in said.difference(&self.said) {
            tracing::warn!("{line}");
        }
        self.said = said;
    }

    fn keep(&self, world: &World) -> Result<()> {
        let of = self.of(world).context("the cluster has no authority yet")?;
        cache::write(world, &of, &self.kept)
    }
}

impl Kept {
    /// Takes another list of the cluster.
    fn replace(&mut self, servers: Vec<SocketAddr>) {
        let mut former = std::mem::replace(&mut self.servers, servers);
        former.append(&mut self.former);
        former.retain(|address| !self.servers.contains(address));
        former.truncate(FORMER);
        self.former = former;
    }
}

/// The cluster of an object, once its authority is known here.
pub(super) fn of(world: &World, object: &Object) -> Option<Of> {
    of_files(world, object.name(), &authority(object))
}

fn of_files(world: &World, cluster: &str, authority: &str) -> Option<Of> {
    let text = atomic_file::read(&world.in_initrd(authority)).ok()??;
    Some(Of {
        cluster: cluster.to_owned(),
        authority: sha256(&text),
    })
}

impl Looker {
    /// Looks once; this may wait for name servers, and for an API server.
    pub(super) fn look(&self) -> Look {
        let resolve = |server: &Server| {
            let addresses = (server.host.as_str(), server.port).to_socket_addrs();
            let addresses = addresses.map_err(|error| error.to_string());
            (server.clone(), addresses.map(Iterator::collect))
        };
        Look {
            resolved: self.known.iter().map(resolve).collect(),
            listed: self.listed(),
        }
    }

    /// The cluster's own list, with the identity of this node, through the balancer itself.
    fn listed(&self) -> Result<Option<Vec<SocketAddr>>> {
        let world = World::below(&self.root, Clock::Real);
        let Ok(identity) = identity::read(&world, &self.node)? else {
            return Ok(None);
        };
        let api = identity.api()?;
        let slice = api.within(REQUEST).get(API_SERVERS).map_err(|error| {
            match api::status(&error).is_some_and(|status| status == 403) {
                // A cluster that kubeadm made.
                true => error.context(
                    "nodes may not read it; docs/cluster.md has the Role that a control plane of Slipway applies",
                ),
                false => error,
            }
        })?;
        let slice = slice.context("the cluster has no EndpointSlice of its API servers")?;
        let addresses = endpoint_slice::addresses(&slice);
        addresses.map(Some).map_err(|reason| anyhow!(reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_the_list_has_no_more_are_remembered_the_last_ones_first() {
        let addresses = |lasts: &[u8]| -> Vec<SocketAddr> {
            let address = |last: &u8| SocketAddr::from(([10, 0, 0, *last], 6443));
            lasts.iter().map(address).collect()
        };
        let mut kept = Kept::default();
        for (list, former) in [
            (&[1, 2, 3][..], &[][..]),
            (&[1, 2], &[3]),
            (&[2], &[1, 3]),
            (&[3], &[2, 1]),
            (&[1, 2, 3], &[]),
        ] {
            kept.replace(addresses(list));
            assert_eq!(kept.servers, addresses(list));
            assert_eq!(kept.former, addresses(former), "{list:?}");
        }
        for number in 10..30 {
            kept.replace(addresses(&[number]));
        }
        assert_eq!(kept.former, addresses(&[28, 27, 26, 25, 24, 23, 22, 21]));
    }
}
