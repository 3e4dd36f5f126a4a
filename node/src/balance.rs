//! `balance`, which a unit runs: the balancer of the cluster's API servers.

use std::net::TcpListener;

use anyhow::{Context, Result};
use cluster::object::balancer::LISTEN;
use linux::world::World;

use crate::balancer::serve;
use crate::balancer::shared::TIMES;
use crate::notify::ready;
use crate::object;

/// Serves for ever, if this node is to have a balancer.
///
/// # Errors
/// A cluster object with mistakes, and a port that is in use.
pub(crate) fn run(world: &World) -> Result<()> {
    let bootstrap = object::read(world, object::PATIENCE)?;
    let Some(bootstrap) = bootstrap.filter(|bootstrap| bootstrap.object.balancer.enabled) else {
        tracing::info!("no balancer on this node");
        return ready();
    };
    let balancer = &bootstrap.object.balancer;
    let port = balancer.port;
    let listener = TcpListener::bind((LISTEN, port)).with_context(|| {
        format!(
            "listening on {LISTEN}:{port}; [balancer] port of the cluster object names another one"
        )
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the balancer's runtime")?;
    // Connections wait in the kernel's queue from now on.
    ready()?;
    tracing::info!("API servers are reached by {}", balancer.url());
    runtime.block_on(serve(world, &bootstrap, listener, TIMES))
}
