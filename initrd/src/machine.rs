//! Machine: which of the image's platforms this is, and what it says of itself and gives as config.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use image::cmdline::Cmdline;
use image::manifest::Manifest;
use image::modules::{FW_CFG, PORTS};
use image::paths;
use image::platform::Platform;
use platform::detect;
use platform::dmi::Dmi;
use platform::network::Described;
use platform::{Endpoints, Found, Machine, Medium, Problem};

use crate::context::Boot;
use linux::atomic_file;
use linux::media::{LOOK_EVERY, Media, WAIT};
use linux::mount;
use linux::world::World;

/// How long the metadata may take when the config comes from elsewhere.
const METADATA_ONLY: Duration = Duration::from_secs(10);
/// The file of the platform `file`, inside the initramfs.
const CONFIG_FILE: &str = "/config.ign";

/// Which machine this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The platform.
    pub(crate) platform: Platform,
    /// What names this instance without asking anybody: the SMBIOS UUID.
    pub(crate) instance: Option<String>,
}

/// Names the platform: what `ignition.platform.id=` says, else that of the image's platforms which the firmware's tables
/// speak for, else `metal`.
pub(crate) fn identify(world: &World, cmdline: &Cmdline, manifest: &Manifest) -> Identity {
    let dmi = Dmi::read(&world.sys);
    let chosen = || detect::choose(&manifest.platforms, &dmi);
    Identity {
        platform: cmdline.platform.unwrap_or_else(chosen),
        instance: dmi.uuid.clone(),
    }
}

/// What the machine gives. With `only_metadata` its config is not wanted, so nothing is waited for long.
pub(crate) fn obtain(
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
pub(crate) fn shown_name(boot: &Boot) -> Option<String> {
    match boot.identity.platform {
        Platform::Qemu => Some("fw_cfg".to_owned()),
        Platform::File => Some(boot.world.in_initrd(CONFIG_FILE).display().to_string()),
        _ => None,
    }
}

/// The user's config that the machine shows again without being asked for it over a network, if it is one that does.
pub(crate) fn shown(boot: &Boot) -> Result<Option<platform::UserConfig>> {
    let platform = boot.identity.platform;
    if platform == Platform::Qemu && boot.modules.index().module(FW_CFG).is_some() {
        boot.modules.load(&[FW_CFG])?;
    }
    let file = boot.world.in_initrd(CONFIG_FILE);
    Ok(platform::shown(platform, &boot.world.sys, &file)?)
}

/// The file that `ignition.config.device=` and `ignition.config.path=` name.
pub(crate) fn on_device(
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
        world.watchdog.feed();
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

/// Keeps what the machine said of itself in `state`, for the boots that ask nobody.
///
/// # Errors
/// If `state` cannot be written.
pub(crate) fn keep(state: &Path, env: &str) -> Result<()> {
    put(&state.join(paths::STATE_METADATA), env.as_bytes())
}

/// Keeps what the machine said of its network, or that it said nothing.
///
/// # Errors
/// If `state` cannot be written.
pub(crate) fn keep_network(state: &Path, described: Option<&Described>) -> Result<()> {
    let path = state.join(paths::STATE_NETWORK);
    match described {
        Some(described) => put(&path, &described.text),
        None => atomic_file::remove(&path).with_context(|| format!("removing {}", path.display())),
    }
}

/// What was kept of the machine's network.
///
/// # Errors
/// If it cannot be read; all mistakes in it.
pub(crate) fn kept_network(state: &Path) -> Result<Option<Described>> {
    let path = state.join(paths::STATE_NETWORK);
    let text = atomic_file::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let Some(text) = text else {
        return Ok(None);
    };
    let wrong = |lines: Vec<String>| anyhow::anyhow!(lines.join("; "));
    Described::read(text, &path.display().to_string()).map_err(wrong)
}

/// Shows to the running node what was kept.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn show(world: &World, state: &Path) -> Result<()> {
    let Ok(env) = fs::read_to_string(state.join(paths::STATE_METADATA)) else {
        return Ok(());
    };
    let path = world.in_run(paths::RUN_METADATA);
    mount::folder(path.parent().unwrap_or(&path), 0o755)?;
    put(&path, env.as_bytes())
}

fn put(path: &Path, text: &[u8]) -> Result<()> {
    atomic_file::write(path, text, 0o644).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::world::Clock;

    #[test]
    fn the_command_line_has_the_first_word_and_the_image_the_second() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let dmi = world.sys.join("class/dmi/id");
        fs::create_dir_all(&dmi).unwrap();
        fs::write(dmi.join("sys_vendor"), "QEMU\n").unwrap();
        fs::write(dmi.join("product_uuid"), "ABCD-1\n").unwrap();
        let mut manifest = Manifest {
            contract: image::manifest::CONTRACT,
            image: image::manifest::ImageId {
                name: "demo".into(),
                version: "1".into(),
            },
            architecture: image::layout::Architecture::X86_64,
            kernel: "6.12".into(),
            epoch: 0,
            sizes: image::layout::Sizes::default(),
            kubernetes: None,
            platforms: vec![Platform::Aws, Platform::Qemu],
            node: image::node::NodeSettings::default(),
        };
        let told = |text: &str, manifest: &Manifest| {
            identify(&world, &Cmdline::parse(text).unwrap(), manifest)
        };
        let found = told("quiet", &manifest);
        assert_eq!(found.platform, Platform::Qemu);
        assert_eq!(found.instance.as_deref(), Some("abcd-1"));
        let found = told("ignition.platform.id=metal", &manifest);
        assert_eq!(found.platform, Platform::Metal);
        // The firmware cannot name what the image is not for.
        manifest.platforms = vec![Platform::Aws];
        assert_eq!(told("quiet", &manifest).platform, Platform::Metal);
    }

    #[test]
    fn what_is_kept_is_shown_at_every_boot() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let state = folder.path().join("state");
        fs::create_dir_all(&state).unwrap();
        show(&world, &state).unwrap();
        assert!(!world.run.join("metadata").exists());
        keep(&state, "SLIPWAY_PLATFORM=qemu\n").unwrap();
        show(&world, &state).unwrap();
        show(&world, &state).unwrap();
        let path = world.run.join("metadata/afterburn");
        assert_eq!(fs::read_to_string(path).unwrap(), "SLIPWAY_PLATFORM=qemu\n");
        assert_eq!(fs::read_dir(world.run.join("metadata")).unwrap().count(), 1);
    }

    #[test]
    fn a_described_network_is_kept_until_the_machine_describes_none() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path();
        assert_eq!(kept_network(state).unwrap(), None);
        let text = br#"{"links": [{"id": "a", "type": "phy", "ethernet_mac_address": "52:54:00:00:00:0a"}],
            "networks": [{"link": "a", "type": "ipv4_dhcp"}]}"#;
        let described = Described::read(text.to_vec(), "n").unwrap();
        assert!(described.is_some());
        keep_network(state, described.as_ref()).unwrap();
        assert_eq!(kept_network(state).unwrap(), described);
        fs::write(state.join(paths::STATE_NETWORK), b"{\"links\": 1}").unwrap();
        let wrong = kept_network(state).unwrap_err().to_string();
        assert!(
            wrong.contains("network_data.json: links: found 1"),
            "{wrong}"
        );
        keep_network(state, None).unwrap();
        assert_eq!(kept_network(state).unwrap(), None);
    }
}
