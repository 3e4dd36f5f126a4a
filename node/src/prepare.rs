//! Preparations before each start of the kubelet: folders, the container's bundle, the clock.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use image::kubelet::{BOOTSTRAP_KUBECONFIG, KUBECONFIG};

use crate::bundle;
use linux::waiter::Waiter;
use linux::world::World;

/// How long the kubelet waits for a synchronized clock.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often the clock is examined.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// systemd-timesyncd makes this file once a server has answered (systemd-timesyncd.service(8)).
const SYNCHRONIZED: &str = "/run/systemd/timesync/synchronized";

/// Makes the folders that the container expects, checks the bundle again, and waits for the clock if the kubelet has an
/// identity: it then connects to an API server by TLS.
pub(crate) fn run(world: &World) -> Result<()> {
    let root: &Path = &world.initrd;
    bundle::make_folders(root)?;
    bundle::verify(world)?;
    let identity = [KUBECONFIG, BOOTSTRAP_KUBECONFIG]
        .iter()
        .any(|path| world.in_initrd(path).exists());
    if identity {
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
    use linux::world::Clock;

    #[test]
    fn only_a_node_with_an_identity_waits_for_the_clock() {
        let folder = tempfile::tempdir().unwrap();
        // On the running node the root is `/`.
        let clock = Clock::Fake(std::sync::atomic::AtomicI64::new(0));
        let world = World::below(folder.path(), clock);
        // The spec that the init writes for a kubelet without an identity.
        let spec = image::container::kubelet(&["--v=2".to_owned()], &|_| true);
        let bundle = world.in_run(image::paths::RUN_KUBELET_BUNDLE);
        std::fs::create_dir_all(&bundle).unwrap();
        let file = bundle.join(image::paths::BUNDLE_FILE);
        std::fs::write(&file, serde_json::to_string(&spec).unwrap()).unwrap();
        run(&world).unwrap();
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

    #[test]
    fn a_bundle_that_was_changed_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        assert!(run(&world).is_err());
        let mut spec = image::container::kubelet(&["--v=2".to_owned()], &|_| true);
        for mount in &mut spec.mounts {
            mount.options.retain(|option| !option.ends_with("slave"));
        }
        let bundle = world.in_run(image::paths::RUN_KUBELET_BUNDLE);
        std::fs::create_dir_all(&bundle).unwrap();
        let file = bundle.join(image::paths::BUNDLE_FILE);
        std::fs::write(&file, serde_json::to_string(&spec).unwrap()).unwrap();
        let refused = run(&world).unwrap_err().to_string();
        assert!(refused.contains("is refused"), "{refused}");
    }
}
