//! Where configs come from.

use std::fs;

use anyhow::{Context, Result};

use crate::boot::Boot;
use crate::world::World;

/// A config, or where it is.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// Its text, and what messages call it.
    Text(Vec<u8>, String),
    /// A URL.
    Url(String),
}

/// QEMU's file of the config, below sysfs.
const FW_CFG: &str = "firmware/qemu_fw_cfg/by_name/opt/com.coreos/config/raw";

/// The config that the recipe bakes in.
pub(super) fn base(world: &World) -> Result<Option<Place>> {
    let path = world.in_initrd(image::paths::INITRD_CONFIG);
    if !path.exists() {
        return Ok(None);
    }
    let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok(Some(Place::Text(
        text,
        "the image's base config".to_owned(),
    )))
}

/// The user's config: what the kernel command line names, else what the platform has.
pub(super) fn user(boot: &Boot) -> Result<Option<Place>> {
    if let Some(url) = &boot.cmdline.config_url {
        return Ok(Some(Place::Url(url.clone())));
    }
    match boot.platform.id.as_str() {
        "qemu" => {
            if let Err(error) = boot.modules.load(&[image::modules::FW_CFG]) {
                tracing::warn!("config: no fw_cfg: {error:#}");
            }
            fw_cfg(&boot.world)
        }
        "metal" => Ok(None),
        other => {
            let key = image::cmdline::CONFIG_URL;
            tracing::warn!("config: no source for the platform {other} yet; give {key}=");
            Ok(None)
        }
    }
}

/// QEMU's `-fw_cfg name=opt/com.coreos/config,file=…`.
pub(super) fn fw_cfg(world: &World) -> Result<Option<Place>> {
    let path = world.sys.join(FW_CFG);
    match fs::read(&path) {
        Ok(text) => Ok(Some(Place::Text(text, "fw_cfg".to_owned()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
    }
}
