//! Config: found, fetched, verified, merged and validated whole before the first write.
//!
//! The base config is baked into the initramfs; over it comes what the machine says of itself (host name, keys), and over
//! that the user's, from `ignition.config.url=` or `ignition.config.device=`, else from the platform. A mistake in something
//! that came from a server is told, and the server is asked again, for as long as it takes; a mistake in what cannot change
//! ends the boot with the report.

pub(crate) mod change;
mod contents;
pub(crate) mod foreign;
mod gather;
mod place;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use ignition::{Config, model};
use platform::Metadata;

use crate::boot::Boot;
use crate::failure::Fault;
use crate::root::Root;
use crate::world::World;
pub(crate) use contents::Contents;
use gather::{Gather, Settings, Wrong};
pub(crate) use place::Place;

/// A config with everything that it names in memory.
pub(crate) struct Fetched {
    /// Base and user merged.
    pub(crate) config: Config,
    /// The same, typed.
    pub(crate) model: model::Config,
    /// The contents of `storage.files`, in the same order.
    pub(crate) files: Vec<Contents>,
    /// What opens the volumes of `storage.luks`, in the same order.
    pub(crate) keys: Vec<Keys>,
    /// Whether there was a config of the user's.
    pub(crate) user_config: bool,
    /// What is strange about it.
    pub(crate) warnings: Vec<String>,
    /// The texts that it was made of and that later boots can see again: name → SHA-256.
    pub(crate) sources: change::Sources,
}

/// What was fetched for an encrypted volume.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Keys {
    /// Its key file.
    pub(crate) file: Option<Vec<u8>>,
    /// The advertisements of its tang servers, in their order; none where the config itself has it.
    pub(crate) advertisements: Vec<Option<Vec<u8>>>,
}

/// A key is never shown.
impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys")
            .field("file", &self.file.is_some())
            .field("advertisements", &self.advertisements.len())
            .finish()
    }
}

impl Fetched {
    /// SHA-256 of the merged config, in hexadecimal digits: what journals and markers know it by.
    pub(crate) fn hash(&self) -> String {
        hash(self.config.to_json().to_string().as_bytes())
    }
}

/// SHA-256 in hexadecimal digits.
fn hash(text: &[u8]) -> String {
    use sha2::Digest as _;
    let digest = sha2::Sha256::digest(text);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A config may hold secrets: only how much there is of it is shown.
impl std::fmt::Debug for Fetched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetched")
            .field("files", &self.files)
            .field("user_config", &self.user_config)
            .finish_non_exhaustive()
    }
}

/// Waits between two attempts, each with a line every five seconds.
const WAITS: [u64; 4] = [5, 10, 20, 60];
/// How often a wait says what it waits for.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Finds the config and all that it names, and what the machine says of itself. Brings the network up if, and only if, a
/// source needs it.
///
/// # Errors
/// All mistakes of a config that came from no server.
pub(crate) fn obtain(boot: &Boot, root: &Root) -> Result<(Fetched, Metadata)> {
    let base = place::base(&boot.world)?;
    let world = Arc::clone(&boot.world);
    let settings = Settings {
        ca_bundle: ca_bundle(&boot.world, &root.sysroot),
        on_wait: Arc::new(move |text| {
            world.watchdog.feed();
            tracing::warn!("config: {text}");
        }),
        ..Settings::default()
    };
    let network = || crate::net::up(&boot.world, &boot.modules, &boot.cmdline.network);
    for attempt in 0.. {
        let wrong = match once(boot, &settings, &network, base.as_ref()) {
            Ok((fetched, metadata)) => {
                for warning in &fetched.warnings {
                    tracing::warn!("config: {warning}");
                }
                return Ok((fetched, metadata));
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
        wait(&boot.world, WAITS[attempt.min(WAITS.len() - 1)]);
    }
    unreachable!("the attempts have no end")
}

/// One attempt: the machine is asked anew, since what it has may have been corrected.
fn once(
    boot: &Boot,
    settings: &Settings,
    network: &dyn Fn() -> Result<()>,
    base: Option<&Place>,
) -> Result<(Fetched, Metadata), Wrong> {
    let user = place::user(boot, settings.patience)?;
    let mut gather = Gather::new(settings, network, boot.identity.platform);
    let fetched = gather.all(base, boot.identity.platform, &user)?;
    Ok((fetched, user.metadata))
}

fn wait(world: &World, seconds: u64) {
    let mut left = Duration::from_secs(seconds);
    while !left.is_zero() {
        tracing::warn!(
            "config: nothing was written; the source is asked again in {} s",
            left.as_secs()
        );
        let piece = left.min(LINE_EVERY);
        world.sleep(piece);
        left -= piece;
    }
}

/// The certificates of the initramfs, else those of the root.
pub(crate) fn ca_bundle(world: &World, sysroot: &Path) -> Option<Vec<u8>> {
    const BUNDLE: &str = "etc/ssl/certs/ca-certificates.crt";
    let read = |root: &Path| std::fs::read(root.join(BUNDLE)).ok();
    read(&world.initrd).or_else(|| read(sysroot))
}

/// The node settings that the config brings, if it does.
pub(crate) fn node_settings(fetched: &Fetched) -> Option<&[u8]> {
    let files = fetched.model.storage.as_ref()?.files.as_ref()?;
    let index = files
        .iter()
        .position(|file| file.path == image::paths::NODE_SETTINGS)?;
    fetched.files.get(index)?.contents.as_deref()
}
