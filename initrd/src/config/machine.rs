//! What the machine gives: its config and its metadata, by the provider of its platform.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Result;
use image::modules::{FW_CFG, PORTS};
use image::platform::Platform;
use linux::media::{LOOK_EVERY, Media, WAIT};
use linux::waiter::Waiter;
use platform::{Endpoints, Found, Machine, Medium, Problem};

use crate::context::Boot;

/// How long the metadata may take when the config comes from elsewhere.
const METADATA_ONLY: Duration = Duration::from_secs(10);
/// The file of the platform `file`, inside the initramfs.
const CONFIG_FILE: &str = "/config.ign";

/// What the machine gives. With `only_metadata` its config is not wanted, so nothing is waited for long.
pub(super) fn obtain(
    boot: &Boot,
    media: &Media<'_>,
    patience: fetch::Patience,
    only_metadata: bool,
) -> Result<Found, Problem> {
    let platform = boot.identity.platform;
    if platform == Platform::Qemu {
        let modules = boot.modules.index();
        let there = |name: &&str| modules.module(name).is_some();
        for module in [FW_CFG, PORTS].into_iter().filter(there) {
            if let Err(error) = boot.modules.load(&[module]) {
                tracing::warn!("config: {error:#}");
            }
        }
    }
    ask(boot, media, patience, only_metadata, |machine| {
        platform::obtain(platform, machine)
    })
}

/// What messages call that config.
pub(super) fn shown_name(boot: &Boot) -> Option<String> {
    match boot.identity.platform {
        Platform::Qemu => Some("fw_cfg".to_owned()),
        Platform::File => Some(boot.world.in_initrd(CONFIG_FILE).display().to_string()),
        _ => None,
    }
}

/// The user's config that the machine shows again without being asked for it over a network, if it is one that does.
pub(super) fn shown(boot: &Boot) -> Result<Option<platform::UserConfig>> {
    let platform = boot.identity.platform;
    if platform == Platform::Qemu && boot.modules.index().module(FW_CFG).is_some() {
        boot.modules.load(&[FW_CFG])?;
    }
    let file = boot.world.in_initrd(CONFIG_FILE);
    Ok(platform::shown(platform, &boot.world.sys, &file)?)
}

/// The file that `ignition.config.device=` and `ignition.config.path=` name.
pub(super) fn on_device(
    boot: &Boot,
    media: &Media<'_>,
    label: &str,
    path: &str,
) -> Result<Vec<u8>, Problem> {
    let wrong = |what: String| Problem {
        what,
        remote: false,
    };
    let labels = [label];
    let medium = Medium::Labels(&labels);
    let until = Instant::now() + WAIT;
    let found = ask(boot, media, fetch::Patience::default(), false, |machine| {
        machine.wait_for(&medium, Some(until))
    })?;
    let key = image::cmdline::CONFIG_DEVICE;
    let folder = found.ok_or_else(|| {
        wrong(format!(
            "{key}: {medium} did not appear within {} s",
            WAIT.as_secs()
        ))
    })?;
    // Nothing outside of the medium, wherever its links point.
    let below = |file: &Path| {
        let folder = fs::canonicalize(&folder)?;
        let file = fs::canonicalize(folder.join(file))?;
        match file.starts_with(&folder) {
            true => fs::read(file),
            false => Err(std::io::Error::other("it is not on the medium")),
        }
    };
    below(Path::new(path.trim_start_matches('/')))
        .map_err(|error| wrong(format!("{key}: reading {path} of {label}: {error}")))
}

fn ask<T>(
    boot: &Boot,
    media: &Media<'_>,
    mut patience: fetch::Patience,
    only_metadata: bool,
    work: impl FnOnce(&Machine<'_>) -> Result<T, Problem>,
) -> Result<T, Problem> {
    let world = &boot.world;
    let network = |stop: &AtomicBool| boot.network.up_unless(&boot.modules, stop);
    let mount = |medium: &Medium<'_>| {
        media.mount(match medium {
            Medium::Labels(labels) => linux::media::Medium::Labels(labels),
            Medium::Disc => linux::media::Medium::Disc,
        })
    };
    let say = |text: &str| {
        Waiter::for_ever(world).attempted();
        tracing::warn!("config: {text}");
    };
    // A service is asked without end: the boot cannot do without its answer.
    patience.total = only_metadata.then_some(METADATA_ONLY);
    work(&Machine {
        endpoints: &Endpoints::default(),
        sys: &world.sys,
        dev: &world.dev,
        file: &world.in_initrd(CONFIG_FILE),
        patience,
        look_every: LOOK_EVERY,
        media_wait: WAIT,
        network: &network,
        mount: &mount,
        say: &say,
    })
}
