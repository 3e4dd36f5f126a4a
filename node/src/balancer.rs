//! The node-local balancer of the cluster's API servers: TCP on a loopback address, TLS goes through it as it is, so that no
//! other balancer, name or address has to stand before them.

mod backends;
mod cache;
mod checks;
mod connections;
mod endpoint_slice;
pub(crate) mod record;
mod relay;
pub(crate) mod shared;
mod sources;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, Result};
use cluster::object::Object;
use linux::world::World;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinHandle, spawn, spawn_blocking};
use tokio::time::sleep;

use crate::control_plane::authority;
use crate::object::Bootstrap;
use cache::Kept;
use checks::check_for_ever;
use connections::accept;
use record::Record;
use shared::{Shared, Times, jittered};
use sources::{Look, Sources};

/// The API servers that the cluster gave last, or somebody named, and then those that it gave before; none if there is no file, or one that
/// cannot be used.
pub(crate) fn remembered(world: &World, object: &Object) -> Vec<SocketAddr> {
    let Kept { servers, former } = kept(world, object);
    servers.into_iter().chain(former).collect()
}

fn kept(world: &World, object: &Object) -> Kept {
    let read = sources::of(world, object).map(|of| cache::read(world, &of));
    match read {
        Some(Ok(kept)) => kept,
        Some(Err(error)) => {
            tracing::warn!("the list of API servers is not used: {error:#}");
            Kept::default()
        }
        None => Kept::default(),
    }
}

/// Keeps an API server beside those.
///
/// # Errors
/// If the cluster's authority is not known yet, or the file cannot be written.
pub(crate) fn remember(world: &World, object: &Object, server: SocketAddr) -> Result<()> {
    let of = sources::of(world, object).context("the cluster has no authority yet")?;
    let mut kept = kept(world, object);
    if !kept.servers.contains(&server) {
        kept.servers.push(server);
        kept.former.retain(|former| *former != server);
        cache::write(world, &of, &kept)?;
    }
    Ok(())
}

/// Serves on the listener for ever.
///
/// # Errors
/// If the listener cannot be used.
pub(crate) async fn serve(
    world: &World,
    bootstrap: &Bootstrap,
    listener: std::net::TcpListener,
    times: Times,
) -> Result<()> {
    let object = &bootstrap.object;
    listener.set_nonblocking(true).context("the listener")?;
    let listener = TcpListener::from_std(listener).context("the listener")?;
    let listen = listener.local_addr().context("the listener's address")?;
    let mut sources = Sources::begin(world, object);
    let shared = Arc::new(Shared {
        times,
        authority: world.in_initrd(&authority(object)),
        backends: Mutex::default(),
        changed: Notify::new(),
        look: Notify::new(),
        check: Notify::new(),
    });
    let mut checks = HashMap::new();
    take_list(&shared, &sources, &mut checks);
    spawn(accept(listener, Arc::clone(&shared)));
    let (every, soon) = times.look;
    let mut next = Instant::now();
    let mut looking: Option<JoinHandle<Look>> = None;
    loop {
        let record = Record::of(listen, sources.list, &shared.backends());
        if let Err(error) = record.write(world) {
            tracing::warn!("{error:#}");
        }
        let idle = looking.is_none();
        let looked = async {
            match &mut looking {
                Some(task) => task.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            look = looked => {
                looking = None;
                sources.take(world, look.context("looking for the API servers")?);
                take_list(&shared, &sources, &mut checks);
                next = Instant::now() + jittered(every);
            }
            () = shared.changed.notified() => {}
            () = shared.look.notified(), if idle => {
                next = next.min(Instant::now() + jittered(soon));
            }
            () = sleep(next.saturating_duration_since(Instant::now())), if idle => {
                let looker = sources.looker();
                looking = Some(spawn_blocking(move || looker.look()));
            }
        }
    }
}

/// Gives the list of addresses to the backends, and each address its checks. Where all of them have failed, those count too that the cluster
/// had before.
fn take_list(
    shared: &Arc<Shared>,
    sources: &Sources,
    checks: &mut HashMap<SocketAddr, AbortHandle>,
) {
    let listed = {
        let mut backends = shared.backends();
        let mut addresses = sources.addresses();
        if backends.have_failed(&addresses) {
            addresses.extend(sources.former());
        }
        backends.replace(&addresses, sources.own);
        backends.list()
    };
    checks.retain(|address, check| {
        let stays = listed.iter().any(|(listed, ..)| listed == address);
        if !stays {
            check.abort();
        }
        stays
    });
    for (address, ..) in listed {
        checks
            .entry(address)
            .or_insert_with(|| spawn(check_for_ever(Arc::clone(shared), address)).abort_handle());
    }
}

#[cfg(test)]
mod tests;
