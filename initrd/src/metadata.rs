//! Metadata: the machine's attributes and network, kept in `state` on the first boot, shown to the running node at each.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use image::paths;
use linux::world::World;
use linux::{atomic_file, mount};
use platform::metadata::Metadata;
use platform::network::Described;
use platform::provider::Provider;

use crate::context::Boot;
use crate::state::State;

/// Stores metadata and network data in `state`, for later boots, which ask no server.
pub(crate) fn keep(state: &State, platform: &Provider, metadata: &Metadata) -> Result<()> {
    keep_env(state.dir()?, &platform::env::render(platform, metadata))?;
    keep_network(state.dir()?, metadata.network.as_ref())
}

/// Writes the metadata below `/run`, and configures the network by the stored network data. Best effort: units that
/// need the file report its absence themselves, and without network data the network is the default one.
pub(crate) fn show(boot: &Boot, state: &State) {
    let done = state
        .dir()
        .and_then(|dir| {
            show_env(&boot.world, dir)?;
            kept_network(dir)
        })
        .map(|kept| {
            if let Some(own) = kept {
                boot.network.set_platform_data(own.plan());
            }
        });
    if let Err(error) = done {
        tracing::warn!("metadata: {error:#}");
    }
}

fn keep_env(state: &Path, env: &str) -> Result<()> {
    put(&state.join(paths::STATE_METADATA), env.as_bytes())
}

fn keep_network(state: &Path, described: Option<&Described>) -> Result<()> {
    let path = state.join(paths::STATE_NETWORK);
    match described {
        Some(described) => put(&path, &described.text),
        None => atomic_file::remove(&path).with_context(|| format!("removing {}", path.display())),
    }
}

/// The stored network data; an error names all mistakes in it.
fn kept_network(state: &Path) -> Result<Option<Described>> {
    let path = state.join(paths::STATE_NETWORK);
    let text = atomic_file::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let Some(text) = text else {
        return Ok(None);
    };
    let wrong = |lines: Vec<String>| anyhow::anyhow!(lines.join("; "));
    Described::read_kept(text, &path.display().to_string()).map_err(wrong)
}

fn show_env(world: &World, state: &Path) -> Result<()> {
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
    use linux::world::Clock;

    use super::*;

    #[test]
    fn what_is_kept_is_shown_at_every_boot() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let state = folder.path().join("state");
        fs::create_dir_all(&state).unwrap();
        show_env(&world, &state).unwrap();
        assert!(!world.run.join("metadata").exists());
        keep_env(&state, "SLIPWAY_PLATFORM=qemu\n").unwrap();
        show_env(&world, &state).unwrap();
        show_env(&world, &state).unwrap();
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
