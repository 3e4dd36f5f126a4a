//! What is done before each start of the kubelet on the running node.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use image::kubelet::{BOOTSTRAP_KUBECONFIG, KUBECONFIG};

use super::bundle;
use crate::world::World;

/// How long the kubelet waits for a clock that is right.
const PATIENCE: Duration = Duration::from_secs(30);
/// What systemd-timesyncd makes once a server has answered.
const SYNCHRONIZED: &str = "/run/systemd/timesync/synchronized";

/// Makes the folders that the container expects, checks the bundle again, and waits for the clock where certificates
/// are involved.
///
/// # Errors
/// If a folder cannot be made or the bundle breaks a rule.
pub(crate) fn run(world: &World) -> Result<()> {
    let root: &Path = &world.initrd;
    bundle::make_folders(root)?;
    bundle::verify(world, root)?;
    let identity = [KUBECONFIG, BOOTSTRAP_KUBECONFIG]
        .iter()
        .any(|path| world.in_initrd(path).exists());
    if identity {
        wait_for_clock(world);
    }
    Ok(())
}

/// A clock that is behind makes good certificates look as if they were not valid yet; one that never becomes right must
/// not keep the node down.
fn wait_for_clock(world: &World) {
    let mut waited = Duration::ZERO;
    while !world.in_run(SYNCHRONIZED).exists() && waited < PATIENCE {
        let step = Duration::from_millis(250);
        world.sleep(step);
        waited += step;
    }
    if waited >= PATIENCE {
        tracing::warn!("the clock is not synchronized after 30 s; the kubelet starts nevertheless");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::Clock;

    #[test]
    fn only_a_node_with_an_identity_waits_for_the_clock() {
        let folder = tempfile::tempdir().unwrap();
        let build = World::below(folder.path(), Clock::Real);
        bundle::tests::sysroot(&build);
        // On the running node the root is `/`.
        let clock = Clock::Told(std::sync::atomic::AtomicI64::new(0));
        let mut world = World::below(folder.path(), clock);
        world.initrd.clone_from(&build.sysroot);
        bundle::write(&world, &build.sysroot).unwrap();
        run(&world).unwrap();
        assert_eq!(world.micros(), 0);
        std::fs::write(world.in_initrd(KUBECONFIG), "").unwrap();
        run(&world).unwrap();
        assert_eq!(world.micros(), 30_000_000);
        let synchronized = world.in_run(SYNCHRONIZED);
        std::fs::create_dir_all(synchronized.parent().unwrap()).unwrap();
        std::fs::write(synchronized, "").unwrap();
        run(&world).unwrap();
        assert_eq!(world.micros(), 30_000_000);
    }
}
