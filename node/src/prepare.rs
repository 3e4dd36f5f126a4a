//! Preparations before each start of the kubelet: folders, the container's bundle, the clock.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::bundle;
use crate::{control_plane, join, object};
use linux::waiter::Waiter;
use linux::world::World;

/// How long the kubelet waits for a synchronized clock.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often the clock is examined.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// systemd-timesyncd makes this file once a server has answered (systemd-timesyncd.service(8)).
const SYNCHRONIZED: &str = "/run/systemd/timesync/synchronized";

/// Makes the folders that the container expects, and the files of a node with a cluster object; writes the container's
/// bundle, and waits for the clock if the kubelet has an identity: it then connects to an API server by TLS.
pub(crate) fn run(world: &World) -> Result<()> {
    let root: &Path = &world.initrd;
    bundle::make_folders(root)?;
    let bootstrap = object::read(world, object::PATIENCE)?;
    if let Some(bootstrap) = &bootstrap {
        for note in &bootstrap.object.notes {
            tracing::info!("{note}");
        }
        match &bootstrap.object.join {
            // Its certificates are made by its own clock, which is not compared with another one.
            None => control_plane::prepare(world, bootstrap)?,
            Some(join) => {
                wait_for_clock(world);
                join::prepare(world, bootstrap, join, join::LIMITS, join::REQUEST)?;
            }
        }
    }
    bundle::write(world)?;
    if bootstrap.is_none() && bundle::has_identity(world) {
        wait_for_clock(world);
    }
    Ok(())
}

/// With a clock that is behind, a certificate is not valid yet. A clock that is never synchronized must not keep the
/// node down, so the wait ends with a warning.
fn wait_for_clock(world: &World) {
    let mut waiter = Waiter::until(world, PATIENCE);
    while !world.in_run(SYNCHRONIZED).exists() {
        if waiter.is_over() {
            tracing::warn!(
                "the clock is not synchronized after {} s; starting the kubelet anyway",
                PATIENCE.as_secs()
            );
            return;
        }
        if let Some(waited) = waiter.line() {
            tracing::info!("waiting for a synchronized clock ({waited})");
        }
        waiter.examined();
        waiter.sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::kubelet::KUBECONFIG;
    use linux::world::Clock;

    #[test]
    fn only_a_node_with_an_identity_waits_for_the_clock() {
        let folder = tempfile::tempdir().unwrap();
        // On the running node the root is `/`.
        let clock = Clock::Fake(std::sync::atomic::AtomicI64::new(0));
        let world = World::below(folder.path(), clock);
        run(&world).unwrap();
        let volumes = world.in_initrd("/var/lib/kubelet/volumeplugins");
        assert!(volumes.is_dir());
        assert_eq!(world.micros(), 0);
        let kubeconfig = world.in_initrd(KUBECONFIG);
        std::fs::create_dir_all(kubeconfig.parent().unwrap()).unwrap();
        std::fs::write(kubeconfig, "").unwrap();
        run(&world).unwrap();
        assert_eq!(world.micros(), 30_000_000);
        let synchronized = world.in_run(SYNCHRONIZED);
        std::fs::create_dir_all(synchronized.parent().unwrap()).unwrap();
        std::fs::write(synchronized, "").unwrap();
        run(&world).unwrap();
        assert_eq!(world.micros(), 30_000_000);
    }
}
