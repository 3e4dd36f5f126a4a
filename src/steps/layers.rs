//! Layers: all files that are laid over the packages' tree, lowest first.

mod accounts;
mod certificates;
mod credential_providers;
mod enable;
mod found;
mod inputs;
mod locales;
mod modules;
mod overlay;
mod runs;
mod trees;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use found::Found;

use super::identity::Identity;
use super::kernel::Kernel;
use super::kubelet::Kubelet;
use crate::NODE_PROGRAM;
use crate::host::cache::Key;
use crate::host::session::Session;
use crate::install::Rootfs;
use crate::layer::{Entry, Layer};
use crate::lock::LockedRecipe;
use crate::node_files::{self, Contents};

/// The layers of the root: the kernel's modules, the node's files, the kubelet, and last the recipe's files, which replace
/// those of packages and are refused where Slipway has one, and the links of its units.
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
    let contents = Contents {
        program: NODE_PROGRAM,
        os_release: &identity.os_release,
    };
    let node = node_files::entries(recipe.features(), contents);
    // Later layers win, so the order is the precedence.
    let mut layers = vec![kernel.layer.clone(), Layer::new(cache, node)?];
    layers.extend(kubelet.layers.iter().cloned());
    let made = made(session, locked, rootfs, &layers)?;
    layers.extend(made);
    let below = Found::below(rootfs, &layers)?;
    let with_files = words::check(cache, recipe, rootfs, kernel, &below)?;
    layers.extend(overlay::layers(cache, recipe, &below, &with_files)?);
    Ok(layers)
}

/// The recipe's locales, what it has made of archives and container images, its certificate authorities, and what its programs change of all
/// this: in this order, over `lower`, of which the programs see nothing.
fn made(
    session: &Session,
    locked: &LockedRecipe,
    rootfs: &Rootfs,
    lower: &[Layer],
) -> Result<Vec<Layer>> {
    let recipe = &locked.recipe;
    let mut layers: Vec<Layer> = locales::layer(session, locked, rootfs)?
        .into_iter()
        .collect();
    if recipe.trees.is_empty() && recipe.authorities.is_empty() && recipe.runs.is_empty() {
        return Ok(layers);
    }
    let below = Found::below(rootfs, lower)?;
    layers.extend(trees::layers(session, locked, &below)?);
    let below = Found::below(rootfs, &[lower, &layers].concat())?;
    layers.extend(certificates::layer(
        &session.cache,
        &recipe.authorities,
        &below,
    )?);
    let runs = runs::layers(session, locked, rootfs, &layers)?;
    layers.extend(runs);
    Ok(layers)
}

/// The links by which enabling a unit of a tree has systemd start it, by their paths, without those of units that are `off`; or why it
/// cannot be enabled. For tests that compare them with systemctl's.
///
/// # Errors
/// If the entries are not a tree.
pub fn enabled(
    entries: Vec<Entry>,
    unit: &str,
    off: &[&str],
) -> Result<Result<BTreeMap<String, String>, String>> {
    Ok(enable::links(&of_entries(entries)?, unit, off))
}

/// The links of a tree that disabling a unit removes. For the same tests.
///
/// # Errors
/// If the entries are not a tree.
pub fn disabled(entries: Vec<Entry>, unit: &str) -> Result<BTreeSet<String>> {
    let found = of_entries(entries)?;
    let links = enable::disabled(&found, &found, unit, &[]);
    Ok(links.into_iter().collect())
}

fn of_entries(entries: Vec<Entry>) -> Result<Found> {
    let layer = Layer::with_key(entries, Key::of_data("units", 1).finish())?;
    Found::of_layers(&[layer])
}
