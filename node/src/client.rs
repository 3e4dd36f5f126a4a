//! The API server as this node may ask it: a control plane as the administrator, a worker by its own certificate.

use anyhow::{Result, anyhow};
use linux::world::World;

use crate::object::Bootstrap;
use crate::{administrator, identity};
use api::Api;

/// The client of this node.
///
/// # Errors
/// If it has no credentials yet, or they cannot be used.
pub(crate) fn of_node(world: &World, bootstrap: &Bootstrap) -> Result<Api> {
    if bootstrap.object.join.is_none() {
        return administrator::api(world, bootstrap);
    }
    let name = &bootstrap.object.config.init.node_registration.name;
    let identity = identity::read(world, name)?;
    identity.map_err(|reason| anyhow!(reason))?.api()
}
