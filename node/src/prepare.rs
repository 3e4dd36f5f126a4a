//! Preparations before each start of the kubelet: folders, the container's bundle, the clock.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use image::kubelet::{ETCD_IMAGE, ETCD_POD, STATIC_PODS};
use image::paths::{ETCD, KUBELET_ROOTFS};

use crate::bundle;
use crate::credential_providers;
use crate::etcd_first_start;
use crate::object::{self, Bootstrap};
use crate::this_boot::is_synchronized;
use crate::{
    control_plane, etcd_place, further, join, kubelet_server, pinned_kubelet, shutdown_limit,
};
use linux::atomic_file;
use linux::waiter::Waiter;
use linux::world::World;

/// How long the kubelet waits for a synchronized clock.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often the clock is examined.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Makes the folders that the container expects, and the files of a node with a cluster object; writes the container's
/// bundle, and waits for the clock if the kubelet has an identity: it then connects to an API server by TLS.
pub(crate) fn run(world: &World) -> Result<()> {
    let root: &Path = &world.initrd;
    bundle::make_folders(root)?;
    credential_providers::check(world)?;
    let bootstrap = object::read(world, object::PATIENCE)?;
    begin_etcd_anew(world, bootstrap.as_ref());
    if let Some(bootstrap) = &bootstrap {
        for note in &bootstrap.object.notes {
            tracing::info!("{note}");
        }
        if let Some(address) = &bootstrap.object.lacks_second {
            tracing::warn!(
                "pods of this cluster have addresses of both IP versions, and the interface with {address} has none of the other one: \
                 pods of other nodes are not reached by it until the kubelet is started with one"
            );
        }
        object::warn_of_version(&bootstrap.object);
        files(world, bootstrap)?;
    }
    shutdown_limit::follow(world)?;
    let object = bootstrap.as_ref().map(|bootstrap| &bootstrap.object);
    let before = pinned_kubelet::version(world);
    let container = pinned_kubelet::choose(world, object, pinned_kubelet::PATIENCE)?;
    pinned_kubelet::show(world, &container)?;
    // Its configuration above was for the kubelet of the last start.
    if let Some(bootstrap) = &bootstrap
        && bootstrap.object.join.is_none()
        && pinned_kubelet::version(world) != before
    {
        control_plane::kubelet_files(world, bootstrap)?;
    }
    bundle::write(world, KUBELET_ROOTFS)?;
    if bootstrap.is_none() && bundle::has_identity(world) {
        wait_for_clock(world);
    }
    Ok(())
}

/// A member of etcd whose first start was cut off would wait for ever. What cannot be examined is etcd's to report.
fn begin_etcd_anew(world: &World, bootstrap: Option<&Bootstrap>) {
    let local = bootstrap.map(|bootstrap| bootstrap.object.config.cluster.etcd.local.as_ref());
    let Some(folder) = local.map_or(Some(ETCD), |local| Some(local?.data_dir.as_str())) else {
        return;
    };
    match etcd_first_start::remove_unstarted(&world.in_initrd(folder)) {
        Ok(false) => {}
        Ok(true) => tracing::warn!(
            "etcd was cut off in its first start and wrote no entry: {folder}/member is removed, it begins anew"
        ),
        Err(error) => tracing::warn!("whether etcd ever began is not known: {error:#}"),
    }
}

/// The files of this node in its cluster. The three ways into one begin here; what is to be proven of this machine before (attestation)
/// would be proven first.
fn files(world: &World, bootstrap: &Bootstrap) -> Result<()> {
    let (limits, request) = (join::LIMITS, join::REQUEST);
    match (&bootstrap.object.join, &bootstrap.object.further) {
        (Some(join), _) => {
            remove_etcd(world)?;
            wait_for_clock(world);
            join::prepare(world, bootstrap, join, limits, request)?;
            kubelet_server::redirect(world, &bootstrap.object)
        }
        (None, Some(further)) => {
            wait_for_clock(world);
            further::prepare(world, bootstrap, further.fetched.as_ref(), limits, request)
        }
        // Its certificates are made by its own clock, which is not compared with another one.
        (None, None) => control_plane::prepare(world, bootstrap, |journal| {
            etcd_place::find(world, &bootstrap.object, journal, limits)
        }),
    }
}

/// Removes the static pod of etcd that an image for control planes brings: on a worker it would wait for ever for a volume.
/// One of the config stays.
fn remove_etcd(world: &World) -> Result<()> {
    let file = world.in_initrd(STATIC_PODS).join(ETCD_POD);
    let text = atomic_file::read(&file).with_context(|| format!("reading {}", file.display()))?;
    let of_image = text.is_some_and(|text| String::from_utf8_lossy(&text).contains(ETCD_IMAGE));
    if of_image {
        fs::remove_file(&file).with_context(|| format!("removing {}", file.display()))?;
        tracing::info!("{} is removed: this node is a worker", file.display());
    }
    Ok(())
}

/// With a clock that is behind, a certificate is not valid yet. A clock that is never synchronized must not keep the
/// node down, so the wait ends with a warning.
fn wait_for_clock(world: &World) {
    let mut waiter = Waiter::until(world, PATIENCE);
    while !is_synchronized(world) {
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
    use std::collections::BTreeMap;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;
    use crate::samples::{machine, put};
    use image::kubelet::{JOINED_CONFIG, KUBECONFIG, PINNED, PINNED_CURRENT};
    use image::paths::{HOSTNAME, TIME_SYNCHRONIZED};
    use linux::world::Clock;

    /// An object that a machine without a network takes.
    const OBJECT: &str = "[node]\naddress = \"10.0.0.5\"\n";

    /// All files below a folder, with their content.
    fn content(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut found = BTreeMap::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => drop(found.insert(path.clone(), fs::read(&path).unwrap())),
                }
            }
        }
        found
    }

    #[test]
    fn a_host_name_that_is_no_name_of_dns_is_refused_before_anything_is_written() {
        for name in ["Node_One\n", "node_one\n"] {
            let folder = tempfile::tempdir().unwrap();
            let world = machine(folder.path(), OBJECT);
            put(&world.in_initrd(HOSTNAME), name);
            let before = content(folder.path());
            let error = format!("{:#}", run(&world).unwrap_err());
            let expected =
                "node.name: the host name \"node_one\" is not a name of lower-case letters";
            assert!(error.contains(expected), "{error}");
            assert_eq!(content(folder.path()), before);
        }
    }

    /// A kubelet does not start with the name of a gate that it does not know, and one that knows it needs it.
    #[test]
    fn the_configuration_is_that_of_the_kubelet_that_is_chosen_now() {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(folder.path(), OBJECT);
        // The last start's was pinned, and the object pins none any more: it is the image's, of 1.36.
        let pinned = world.in_initrd(PINNED);
        put(&pinned.join("a1.version"), "v1.34.9\n");
        symlink("a1", pinned.join(PINNED_CURRENT)).unwrap();
        run(&world).unwrap();
        assert!(!pinned.join(PINNED_CURRENT).exists());
        let config = fs::read_to_string(world.in_initrd(JOINED_CONFIG)).unwrap();
        let gate = "  ChangeContainerStatusOnKubeletRestart: true\n";
        assert!(config.contains(gate), "{config}");
    }

    /// kubeadm and the kubelet do so too.
    #[test]
    fn a_host_name_with_capitals_is_taken_in_lower_case_and_the_log_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(folder.path(), OBJECT);
        let noted = |name: &str| {
            put(&world.in_initrd(HOSTNAME), name);
            let read = object::read(&world, Duration::ZERO);
            let bootstrap = read.unwrap().unwrap();
            let node = &bootstrap.object.config.init.node_registration;
            assert_eq!(node.name, "node1");
            assert_eq!(bootstrap.host.name, "node1");
            let mut notes = bootstrap.object.notes.into_iter();
            notes.find(|note| note.contains("lower case"))
        };
        let note = "the host name \"Node1\" is taken in lower case, node1: names of nodes have no capital letters";
        assert_eq!(noted("Node1\n").as_deref(), Some(note));
        assert_eq!(noted("node1\n"), None);
    }

    #[test]
    fn a_worker_runs_no_etcd_of_the_image() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        remove_etcd(&world).unwrap();
        let file = world.in_initrd(STATIC_PODS).join(ETCD_POD);
        for (text, stays) in [
            (format!("image: {ETCD_IMAGE}\n"), false),
            ("image: other/etcd:3\n".to_owned(), true),
        ] {
            put(&file, &text);
            remove_etcd(&world).unwrap();
            assert_eq!(file.exists(), stays, "{text}");
        }
    }

    #[test]
    fn only_a_node_with_an_identity_waits_for_the_clock() {
        let folder = tempfile::tempdir().unwrap();
        // On the running node the root is `/`.
        let clock = Clock::Fake(std::sync::atomic::AtomicI64::new(0));
        let world = World::below(folder.path(), clock);
        put(&world.proc.join("self/mountinfo"), "");
        run(&world).unwrap();
        let volumes = world.in_initrd("/var/lib/kubelet/volumeplugins");
        assert!(volumes.is_dir());
        assert_eq!(world.micros(), 0);
        let kubeconfig = world.in_initrd(KUBECONFIG);
        std::fs::create_dir_all(kubeconfig.parent().unwrap()).unwrap();
        std::fs::write(kubeconfig, "").unwrap();
        run(&world).unwrap();
        assert_eq!(world.micros(), 30_000_000);
        let synchronized = world.in_run(TIME_SYNCHRONIZED);
        std::fs::create_dir_all(synchronized.parent().unwrap()).unwrap();
        std::fs::write(synchronized, "").unwrap();
        run(&world).unwrap();
        assert_eq!(world.micros(), 30_000_000);
    }
}
