//! Kubelet: the locked program, its container, and the container images of the static pods.

mod container;
mod images;

use std::path::PathBuf;

use anyhow::Result;

use super::rootfs;
use crate::host::session::Session;
use crate::install::{self, Purpose};
use crate::layer::Layer;
use crate::lock;
use crate::lock::LockedRecipe;
use crate::lock::kubelet::Program;
use crate::recipe::{SET_ETCD, SET_KUBELET};

/// The kubelet and its layers of the root. Empty if the recipe has none.
#[derive(Clone, Debug, Default)]
pub struct Kubelet {
    /// The program.
    pub program: Option<Program>,
    /// Its container, and the images of the static pods.
    pub layers: Vec<Layer>,
    /// Its container as an OCI layout.
    pub layout: Option<PathBuf>,
}

/// Installs the kubelet of the lock, if it has one.
///
/// # Errors
/// If the program or a package cannot be fetched, or an image cannot be made of them.
pub fn install(session: &Session, locked: &LockedRecipe) -> Result<Kubelet> {
    let lock = &locked.lock;
    let Some(kubelet) = &lock.kubelet else {
        return Ok(Kubelet::default());
    };
    let program = lock::kubelet::obtain(session, locked, kubelet)?;
    let options = rootfs::options(locked, Purpose::Container);
    let debs = locked.fetch(session, SET_KUBELET)?;
    let rootfs = install::install(session, "kubelet rootfs", &debs, &options)?;
    let mut layers = vec![container::layer(&rootfs, &program)?];
    if lock.sets.contains_key(SET_ETCD) {
        let debs = locked.fetch(session, SET_ETCD)?;
        layers.push(images::layer(session, &locked.recipe, &debs, lock.epoch)?);
    }
    let architecture = locked.recipe.image.architecture.debian();
    let layout = container::image(session, &rootfs, &program, architecture, lock.epoch)?;
    Ok(Kubelet {
        program: Some(program),
        layers,
        layout: Some(layout),
    })
}
