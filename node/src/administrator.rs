//! The API server of this control plane as its administrator.

use std::fs;

use anyhow::{Context, Result, bail};
use image::kubelet::{ADMIN_KUBECONFIG, FIRST_KUBECONFIG};
use linux::world::World;

use crate::object::Bootstrap;
use api::Api;

/// The administrator's kubeconfigs: the first one works before any role is bound, and may be taken away afterwards.
const KUBECONFIGS: [&str; 2] = [FIRST_KUBECONFIG, ADMIN_KUBECONFIG];

/// The client of the API server on this node.
///
/// # Errors
/// If neither kubeconfig of the administrator can be used.
pub(crate) fn api(world: &World, bootstrap: &Bootstrap) -> Result<Api> {
    let server = bootstrap.object.config.init.local_api_endpoint.url();
    for path in KUBECONFIGS {
        let file = world.in_initrd(path);
        let Ok(text) = fs::read_to_string(&file) else {
            continue;
        };
        return Api::new(&text, &server).with_context(|| format!("reading {}", file.display()));
    }
    bail!("none of {} exists", KUBECONFIGS.join(", "))
}
