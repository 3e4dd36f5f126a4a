//! Layers: all files that are laid over the packages' tree, lowest first.

mod credential_providers;
mod found;
mod iscsi;
mod modules;
mod node;
mod overlay;
mod words;

use anyhow::Result;

use found::Found;

use super::identity::Identity;
use super::kernel::Kernel;
use super::kubelet::Kubelet;
use crate::NODE_PROGRAM;
use crate::host::session::Session;
use crate::install::Rootfs;
use crate::layer::{Entry, Layer};
use crate::lock::LockedRecipe;

/// The layers of the root: the kernel's modules, `os-release`, the node's files, the kubelet, and last the recipe's
/// files, so that a user's file replaces every other.
///
/// # Errors
/// If a file cannot be read; all words of the recipe that name what the packages and the kernel do not have, as
/// [`crate::recipe::Mistakes`].
pub fn collect(
    session: &Session,
    locked: &LockedRecipe,
    identity: &Identity,
    rootfs: &Rootfs,
    kernel: &Kernel,
    kubelet: &Kubelet,
) -> Result<Vec<Layer>> {
    let (cache, recipe) = (&session.cache, &locked.recipe);
    let os_release = Entry::file("/usr/lib/os-release", 0o644, identity.os_release.as_str());
    // Later layers win, so the order is the precedence.
    let mut layers = vec![
        kernel.layer.clone(),
        Layer::new(cache, vec![os_release])?,
        node::layer(cache, recipe, NODE_PROGRAM)?,
        Layer::new(cache, iscsi::entries(recipe))?,
    ];
    layers.extend(kubelet.layers.iter().cloned());
    let below = Found::below(rootfs, &layers)?;
    let with_files = words::check(recipe, rootfs, kernel, &below)?;
    layers.push(overlay::layer(cache, recipe, &below, &with_files)?);
    Ok(layers)
}
