//! Where configs come from.

use std::fs;

use anyhow::{Context, Result};
use fetch::Patience;
use platform::{Found, Metadata, Problem};

use super::machine;
use crate::context::Boot;
use apply::config_source::ConfigSource;
use linux::media::Media;
use linux::world::World;

/// What messages call the config that the recipe bakes in.
pub(super) const BASE: &str = "the image's base config";

/// The config that the recipe bakes in.
pub(super) fn base(world: &World) -> Result<Option<ConfigSource>> {
    let path = world.in_initrd(image::paths::INITRD_CONFIG);
    if !path.exists() {
        return Ok(None);
    }
    let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok(Some(ConfigSource::Text(text, BASE.to_owned())))
}

/// The user's config, and what the machine says of itself.
#[derive(Default)]
pub(super) struct User {
    /// The config, if there is one.
    pub(super) place: Option<ConfigSource>,
    /// What the machine says of itself.
    pub(super) metadata: Metadata,
}

/// The user's config: what the kernel command line names, else what the platform has.
pub(super) fn user(boot: &Boot, patience: Patience) -> Result<User, Problem> {
    let media = Media::new(&boot.world, &boot.modules);
    let named = if let Some(url) = &boot.cmdline.config_url {
        Some(ConfigSource::Url(url.clone()))
    } else if let (Some(label), Some(path)) =
        (&boot.cmdline.config_device, &boot.cmdline.config_path)
    {
        let text = machine::on_device(boot, &media, label, path)?;
        Some(ConfigSource::Text(text, format!("{path} of {label}")))
    } else {
        None
    };
    let Some(place) = named else {
        let found = machine::obtain(boot, &media, patience, false)?;
        heed(boot, &found);
        return Ok(User {
            place: found
                .config
                .map(|config| ConfigSource::Text(config.text, config.name)),
            metadata: found.metadata,
        });
    };
    // What is missing of the machine's own words does not hold up a config that comes from elsewhere.
    let metadata = match machine::obtain(boot, &media, patience, true) {
        Ok(found) => {
            heed(boot, &found);
            if let Some(config) = found.config {
                let name = config.name;
                tracing::warn!("config: {name} is passed over: the command line names a config");
            }
            found.metadata
        }
        Err(problem) => {
            tracing::warn!("config: the machine says nothing of itself: {problem}");
            Metadata::default()
        }
    };
    Ok(User {
        place: Some(place),
        metadata,
    })
}

/// Tells what was passed over, and has the network that the machine describes used from here on.
fn heed(boot: &Boot, found: &Found) {
    for note in &found.notes {
        tracing::warn!("config: {note}");
    }
    if let Some(own) = &found.metadata.network {
        boot.network.describe(platform::network::plan(&own.network));
    }
}
