//! Config: found, fetched, verified, merged and validated completely before the first write.
//!
//! The base config is baked into the initramfs; the machine's metadata (host name, ssh keys) is merged over it, and
//! over that the user's, from `ignition.config.url=` or `ignition.config.device=`, else from the platform. A mistake in
//! a config from a server is reported and the server asked again, without a limit; a mistake in a local config ends the
//! boot with the report.

mod drift;
mod layers;
mod machine;
mod source;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use platform::metadata::Metadata;

use crate::context::Boot;
use crate::provisioned;
use crate::root::Root;
use crate::settings;
use crate::state::State;
use apply::config_source::ConfigSource;
use apply::fetched::{Content, Fetched};
use apply::gather::{ConfigProblems, Gather, Refetch, Settings, amount};
use image::fault::Fault;
use image::layout::Sizes;
use image::node::NodeSettings;
use linux::block::Disk;
use linux::certificates::ca_bundle;
use linux::log::say;
use linux::waiter::Waiter;
use linux::world::World;

/// Waits between two attempts, each with a line every five seconds.
pub(crate) const WAITS: [u64; 4] = [5, 10, 20, 60];

/// The config of this node, verified.
#[derive(Debug)]
pub(crate) struct Obtained {
    /// The config with all that it names, but what does not fit into memory.
    pub(crate) fetched: Fetched,
    /// The machine's metadata.
    pub(crate) machine: Metadata,
    /// How that is fetched again.
    pub(crate) refetch: Refetch,
}

/// Finds the config, all that it refers to, and the machine's metadata. Brings the network up if, and only if, a source
/// needs it.
///
/// # Errors
/// All mistakes of a config that no server provided.
pub(crate) fn obtain(boot: &Boot, root: &Root) -> Result<Obtained> {
    let base = source::base(&boot.world)?;
    let settings = Settings {
        links: boot.links(),
        spool: Some(space(root.disk.as_ref(), &boot.manifest.sizes)),
        ..fetch_settings(&boot.world, ca_bundle(&boot.world, &root.programs.sysroot))
    };
    let network = || boot.network.up(&boot.modules);
    for attempt in 0.. {
        let wrong = match once(boot, &settings, &network, base.as_ref()) {
            Ok(obtained) => {
                for warning in &obtained.fetched.warnings {
                    tracing::warn!("config: {warning}");
                }
                return Ok(obtained);
            }
            Err(wrong) => wrong,
        };
        if !wrong.remote {
            return Err(Fault::new("the node's config cannot be used; nothing was written")
                .found(wrong.to_string())
                .fix("correct the config; `slipway ignition validate` checks one before it is used")
                .into());
        }
        for line in &wrong.lines {
            tracing::error!("config: {line}");
        }
        // Not the first ones: a server may be corrected, or have had a bad moment.
        if attempt == WAITS.len() {
            provisioned::report_failure(boot, &wrong.to_string());
        }
        pause(&boot.world, attempt, "nothing was written");
    }
    unreachable!("the attempts have no end")
}

/// Waits before another attempt, with lines on the state of the node.
pub(crate) fn pause(world: &World, attempt: usize, state: &str) {
    let pause = Duration::from_secs(WAITS[attempt.min(WAITS.len() - 1)]);
    Waiter::until(world, pause).count_down(|left| {
        tracing::warn!(
            "config: {state}; the source is asked again in {} s",
            left.as_secs()
        );
    });
}

/// Bytes that the partition `var` can have at most: those of the disk without the image's other partitions. 0 with a root in
/// memory, where `/var` is in memory too.
fn space(disk: Option<&Disk>, sizes: &Sizes) -> u64 {
    let others = sizes.least_disk() - sizes.var_minimum;
    disk.map_or(0, |disk| disk.size.saturating_sub(others))
}

/// How a config and what it names are fetched.
fn fetch_settings(world: &Arc<World>, ca_bundle: Option<Vec<u8>>) -> Settings {
    let (waiting, receiving) = (Arc::clone(world), Arc::clone(world));
    Settings {
        ca_bundle,
        on_wait: Arc::new(move |text| {
            Waiter::for_ever(&waiting).attempted();
            tracing::warn!("config: {text}");
        }),
        on_progress: Arc::new(move |text| {
            say(&receiving, &format!("slipway: waiting for {text}"));
            tracing::debug!("config: waiting for {text}");
        }),
        world: Arc::clone(world),
        ..Settings::default()
    }
}

/// On a later boot: reports a config that is not the one that was applied, by what every boot has at hand. Gives whether it
/// is another. Best effort.
pub(crate) fn compare(boot: &Boot, state: &State) -> bool {
    drift::report(boot, state.sources())
}

/// One attempt: the machine is asked again each time, since its config may have been corrected.
fn once(
    boot: &Boot,
    settings: &Settings,
    network: &dyn Fn() -> Result<()>,
    base: Option<&ConfigSource>,
) -> Result<Obtained, ConfigProblems> {
    let user = source::user(boot, settings.patience).map_err(layers::wrong)?;
    let platform = boot.identity.platform;
    let mut gather = Gather::new(settings, network, platform.storage_identity);
    let fetched = layers::gather_all(&mut gather, base, platform, &user)?;
    check_settings(&boot.manifest.node, &fetched)?;
    let large = fetched.spooled();
    if large > 0 {
        tracing::info!(
            "config: {} do not fit into memory: they are verified, and fetched again onto /var",
            amount::text(large)
        );
    }
    Ok(Obtained {
        fetched,
        machine: user.metadata,
        refetch: gather.refetch(),
    })
}

/// Refuses node settings that are wrong or incomplete before the first write: a control plane that could not mount its volume
/// would wait for ever.
fn check_settings(defaults: &NodeSettings, fetched: &Fetched) -> Result<(), ConfigProblems> {
    let file = settings_file(fetched);
    let contents = file.and_then(|index| fetched.files.get(index)?.contents.as_ref());
    let settings = match contents.map(Content::in_memory) {
        Some(Some(text)) => settings::over(defaults, text),
        Some(None) => Err(anyhow::anyhow!(
            "{} does not fit into memory",
            image::paths::NODE_SETTINGS
        )),
        None => Ok(defaults.clone()),
    };
    let wrong = settings.and_then(|settings| settings::complete(&settings));
    wrong.map_err(|error| ConfigProblems {
        lines: vec![format!("{error:#}")],
        remote: fetched.from_server || file.is_some_and(|index| is_of_server(fetched, index)),
    })
}

/// Whether the content of a file came from a server.
fn is_of_server(fetched: &Fetched, index: usize) -> bool {
    let source = || {
        let files = fetched.model.storage.as_ref()?.files.as_ref()?;
        files.get(index)?.contents.as_ref()?.source.as_deref()
    };
    source().is_some_and(|source| !source.is_empty() && !source.starts_with("data:"))
}

/// The index of the node settings among the config's files, if it has them.
fn settings_file(fetched: &Fetched) -> Option<usize> {
    let files = fetched.model.storage.as_ref()?.files.as_ref()?;
    files
        .iter()
        .position(|file| file.path == image::paths::NODE_SETTINGS)
}
