//! The sources of the config: the image, the command line, the platform.

use std::fs;

use anyhow::{Context, Result};
use fetch::Patience;
use platform::config_source::Source;
use platform::metadata::Metadata;
use platform::problem::Problem;

use super::machine;
use crate::context::Boot;
use apply::config_source::ConfigSource;
use linux::world::World;

/// The name of the recipe's base config in messages.
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

/// The user's config, and the machine's metadata.
#[derive(Default)]
pub(super) struct User {
    /// The config, if there is one.
    pub(super) place: Option<ConfigSource>,
    /// The machine's metadata.
    pub(super) metadata: Metadata,
}

/// The user's config: the one that the kernel command line names, else the platform's.
pub(super) fn user(boot: &Boot, patience: Patience) -> Result<User, Problem> {
    let found = machine::user_config(boot, patience)?;
    for note in &found.notes {
        tracing::warn!("config: {note}");
    }
    // From now on the platform's network data configures the network.
    if let Some(own) = &found.metadata.network {
        boot.network.set_platform_data(own.plan());
    }
    Ok(User {
        place: found.source.map(|source| match source {
            Source::Url(url) => ConfigSource::Url(url),
            Source::Text(config) => ConfigSource::Text(config.text, config.name),
        }),
        metadata: found.metadata,
    })
}
