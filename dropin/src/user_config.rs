//! The source of the user's config: the kernel command line, a file of this system, or the platform.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Result, bail};
use fetch::{Links, Patience};
use image::modules::FW_CFG;
use platform::config_source::{self, Source};
use platform::machine::{LOOK_EVERY, MEDIA_WAIT, Machine};
use platform::medium::Medium;

use apply::config_source::ConfigSource;
use linux::media::Media;
use linux::modules::Modules;
use linux::programs::Programs;
use linux::tools::load_module;
use linux::world::World;

use crate::environment::Environment;
use crate::flags::{Flags, Stage};

/// The location of the user's config.
pub(crate) enum UserConfig {
    /// At this source; none if there is no config.
    Source(Option<ConfigSource>),
    /// At a metadata service, and the network is not up.
    NeedsNetwork,
}

/// Finds the user's config: the one that the kernel command line names, else a file of this system, else the
/// platform's.
pub(crate) fn find(flags: &Flags, environment: &Environment) -> Result<UserConfig> {
    let named = environment.cmdline_config()?;
    let source = with_machine(flags, environment, |machine| Ok(named.find(machine)?))?;
    if let Some(source) = source {
        return Ok(UserConfig::Source(Some(match source {
            Source::Url(url) => ConfigSource::Url(url),
            Source::Text(config) => ConfigSource::Text(config.text, config.name),
        })));
    }
    if let Some(source) = environment.user_config()? {
        return Ok(UserConfig::Source(Some(source)));
    }
    if flags.stage == Stage::FetchOffline && flags.platform.needs_network {
        return Ok(UserConfig::NeedsNetwork);
    }
    let found = with_machine(flags, environment, |machine| {
        Ok(config_source::obtain(flags.platform, machine)?)
    })?;
    for note in &found.notes {
        tracing::warn!("{note}");
    }
    let config = found.config;
    let source = config.map(|config| ConfigSource::Text(config.text, config.name));
    Ok(UserConfig::Source(source))
}

/// Calls `work` with the machine in the form that the platforms' providers take.
fn with_machine<T>(
    flags: &Flags,
    environment: &Environment,
    work: impl FnOnce(&Machine<'_>) -> Result<T>,
) -> Result<T> {
    let world = Arc::new(World::real());
    let modules = Modules::none(Arc::clone(&world));
    let media = Media::new(&world, &modules);
    let offline = flags.stage == Stage::FetchOffline;
    let network = move |_: &AtomicBool| match offline {
        true => bail!("the network is not up in the stage fetch-offline"),
        false => Ok(()),
    };
    let timeout = flags.fetch_timeout;
    work(&Machine {
        service: None,
        sys: &world.sys,
        dev: &world.dev,
        file: &environment.config_file,
        patience: Patience {
            attempts: None,
            total: (!timeout.is_zero()).then_some(timeout),
            ..Patience::default()
        },
        look_every: LOOK_EVERY,
        media_wait: MEDIA_WAIT,
        load_modules: &|names: &[&str]| load_modules(&world, names),
        // The initrd's own network decides.
        links: &Links::default(),
        network: &network,
        mount: &|medium: &Medium<'_>| {
            media.mount(match medium {
                Medium::Labels(labels) => linux::media::Medium::Labels(labels),
                Medium::Disc(file) => linux::media::Medium::Disc(file),
            })
        },
        say: &|text: &str| tracing::warn!("{text}"),
        received: &|_, _| (),
    })
}

/// Loads the modules that a platform needs. Only the driver of QEMU's configuration device can be missing: udev has
/// loaded those of other devices. Best effort: without the device there is no config in it.
fn load_modules(world: &Arc<World>, names: &[&str]) {
    // The driver may be built in.
    if names.contains(&FW_CFG)
        && !world.sys.join("firmware/qemu_fw_cfg").exists()
        && let Err(error) = load_module(&Programs::of_host(Arc::clone(world)), FW_CFG)
    {
        tracing::warn!("{error:#}");
    }
}
