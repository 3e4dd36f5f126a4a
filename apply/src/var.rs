//! The file system that a config puts at `/var`, as `state` records it: later boots, which read no config, find and
//! mount it by this record.

pub mod layers;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::{device, filesystems, mounts};
use image::fault::Fault;
use layers::VarLayer;
use linux::disk_answers::with_silent;
use linux::filesystem::Kind;
use linux::modprobe::Serving;
use linux::modules::Modules;
use linux::programs::Programs;

/// A file system of the config in place of the partition `var`, as `state` records it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VarFilesystem {
    /// Its kind, by the config's word for it.
    pub format: String,
    /// Its UUID.
    pub uuid: String,
    /// Mount options.
    pub options: Vec<String>,
    /// The arrays and volumes below it, the lowest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<VarLayer>,
}

impl VarFilesystem {
    fn kind(&self) -> Result<Kind> {
        filesystems::kind(&self.format)
            .ok()
            .flatten()
            .with_context(|| format!("there is no file system {:?}", self.format))
    }

    /// Stores in `state` the keys of the volumes below it.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn store_keys(&self, state: &Path) -> Result<()> {
        self.layers
            .iter()
            .try_for_each(|layer| layer.store_key(state))
    }

    /// Starts the arrays and volumes below it, or waits for its device.
    ///
    /// # Errors
    /// If the device does not appear, or a layer does not start.
    pub fn find(&self, modules: &Modules, root: &Programs, state: &Path) -> Result<PathBuf> {
        let world = &root.world;
        if !self.layers.is_empty() {
            let _serving = Serving::begin(world)?;
            let mut device = None;
            for layer in &self.layers {
                device = Some(layer.start(modules, root, state, device)?);
            }
            return device.context("nothing is below /var");
        }
        let what = format!("the file system of /var, UUID {}", self.uuid);
        device::wait_for_uuid(root, modules, &what, &self.uuid)?.ok_or_else(|| {
            let fault = Fault::new("the file system of /var was not found")
                .expected(format!(
                    "{} with UUID {}, which the node's config made",
                    self.format, self.uuid
                ))
                .found("no device with it")
                .fix("attach its disk again; if it is there, its superblock is damaged: repair it from a rescue system");
            with_silent(world, fault).into()
        })
    }

    /// Mounts it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn mount(&self, root: &Programs, device: &Path, target: &Path) -> Result<()> {
        mounts::attach(root, device, target, self.kind()?, &self.options)
    }
}
