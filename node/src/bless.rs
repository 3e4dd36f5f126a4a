//! Blessing: removes the boot counter from the name of the boot entry, so that the loader prefers the entry from then on.
//!
//! Until then the loader counts every boot of it (<https://systemd.io/AUTOMATIC_BOOT_ASSESSMENT/>). `systemd-bless-boot`
//! blesses an entry once the system has booted; here a unit does it that the kubelet's starts after READY, once the pods run
//! that the node's manifests name, because a node that runs no pods is not a good boot. On a node whose kubelet does not start a
//! unit does it that waits for what `systemd-bless-boot.service` waits for, and for the default target.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use image::paths::RUN_BLESSED;
use linux::block;
use linux::esp;
use linux::firmware;
use linux::mount;
use linux::waiter::Waiter;
use linux::world::World;

use crate::{pinned_kubelet, static_pods};

/// How long the static pods may take; the unit is started anew afterwards, and shown as failed until then.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often they are looked at: a container that ends at once is not the same the next time.
const EVERY: Duration = Duration::from_secs(5);

/// The kubelet is READY: notes it of a pinned one, and removes the counter of the entry that this boot came from, once the
/// static pods run. Does nothing if the loader does not count, or if the counter is removed already.
pub(crate) fn run(world: &World) -> Result<()> {
    pinned_kubelet::ready(world)?;
    let Some(path) = firmware::counted_entry(world) else {
        return Ok(());
    };
    wait(world).with_context(|| format!("the boot entry {path} keeps its counter"))?;
    remove_counter(world, &path)
}

/// Removes the counter without a look at the static pods: no kubelet starts them.
pub(crate) fn boot(world: &World) -> Result<()> {
    match firmware::counted_entry(world) {
        Some(path) => remove_counter(world, &path),
        None => Ok(()),
    }
}

/// Removes the counter of the entry at this path of the loader's partition, and notes that this boot is blessed.
fn remove_counter(world: &World, path: &str) -> Result<()> {
    let wanted = firmware::loader_partition(world)
        .context("the loader set LoaderBootCountPath and not LoaderDevicePartUUID, which names its partition")?;
    // In a mount namespace of its own no other process can keep the mount busy.
    mount::own_namespace()?;
    let renamed = esp::within(world, wanted, |folder| bless(folder, path))?;
    if let Some(good) = renamed {
        tracing::info!("blessed the boot entry {good}");
    }
    let record = world.in_run(RUN_BLESSED);
    fs::write(&record, format!("{path}\n")).with_context(|| format!("writing {}", record.display()))
}

/// Waits until the static pods run, and still do at the next look.
fn wait(world: &World) -> Result<()> {
    let waiter = Waiter::until(world, PATIENCE);
    let mut before = Vec::new();
    while static_pods::manifests(world) > 0 {
        let running = static_pods::running(world);
        match running {
            Ok(running) if running == before => break,
            Err(error) if waiter.is_over() => return Err(error),
            Ok(_) if waiter.is_over() => bail!("a static pod is started anew again and again"),
            running => before = running.unwrap_or_default(),
        }
        waiter.sleep(EVERY);
    }
    Ok(())
}

/// Renames the entry below the mounted `esp`; `path` is the loader's, with backslashes. Returns the new name; none if the
/// entry has no counter any more.
fn bless(esp: &Path, path: &str) -> Result<Option<String>> {
    let path = path.replace('\\', "/");
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", &path));
    let good = without_counter(name)
        .with_context(|| format!("the boot entry {path} has no counter in its name"))?;
    let folder = esp.join(folder.trim_start_matches('/'));
    // The loader counts by renaming, so the file may have another number than the variable.
    let counted = block::entries(&folder)
        .into_iter()
        .find(|entry| without_counter(entry).as_ref() == Some(&good));
    let Some(counted) = counted else {
        if folder.join(&good).is_file() {
            return Ok(None);
        }
        bail!("the boot entry {path} is not on its partition");
    };
    let about = || format!("renaming the boot entry {counted} to {good}");
    fs::rename(folder.join(&counted), folder.join(&good)).with_context(about)?;
    File::open(&folder)
        .and_then(|folder| folder.sync_all())
        .with_context(about)?;
    Ok(Some(good))
}

/// `demo_1.0.efi` of `demo_1.0+2-1.efi`; none if there is no counter.
fn without_counter(name: &str) -> Option<String> {
    let (stem, suffix) = name.rsplit_once('.')?;
    let (stem, counter) = stem.rsplit_once('+')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let (left, done) = counter.split_once('-').unwrap_or((counter, "0"));
    (is_number(left) && is_number(done)).then(|| format!("{stem}.{suffix}"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI64;

    use image::kubelet::STATIC_PODS;
    use linux::samples::set_loader_variable;
    use linux::world::Clock;

    use super::*;
    use crate::samples::put;

    /// A machine whose clock goes on by its waits alone.
    fn world(root: &Path) -> World {
        World::below(root, Clock::Fake(AtomicI64::new(0)))
    }

    /// Adds a static pod, which runs nowhere: nothing listens at containerd's socket.
    fn add_static_pod(world: &World) {
        let manifest = world.in_initrd(STATIC_PODS).join("etcd.yaml");
        put(&manifest, "kind: Pod\n");
    }

    #[test]
    fn only_a_counter_is_removed() {
        for (name, good) in [
            ("demo_1.0+2-1.efi", Some("demo_1.0.efi")),
            ("demo_1.0+3.efi", Some("demo_1.0.efi")),
            ("demo_1.0.efi", None),
            ("demo_1.0+x.efi", None),
            ("demo_1.0+3-.efi", None),
            ("demo+2", None),
        ] {
            assert_eq!(without_counter(name).as_deref(), good, "{name}");
        }
    }

    #[test]
    fn a_node_whose_static_pods_do_not_run_keeps_its_counter() {
        let folder = tempfile::tempdir().unwrap();
        let world = world(folder.path());
        wait(&world).unwrap();
        add_static_pod(&world);
        let error = format!("{:#}", wait(&world).unwrap_err());
        assert!(error.contains("containerd.sock"), "{error}");
        assert!(world.micros() >= 600_000_000);
    }

    /// The loader counted, and nothing can be mounted here: how far each command comes.
    #[test]
    fn a_boot_without_a_kubelet_asks_for_no_static_pods() {
        let folder = tempfile::tempdir().unwrap();
        let world = world(folder.path());
        // No loader, no counter.
        boot(&world).unwrap();
        let counted = r"\EFI\Linux\demo_1.0+2-1.efi";
        set_loader_variable(&world, "LoaderBootCountPath", counted);
        add_static_pod(&world);
        let said = |result: Result<()>| format!("{:#}", result.unwrap_err());
        assert!(said(run(&world)).contains("keeps its counter"));
        let error = said(boot(&world));
        assert!(error.contains("LoaderDevicePartUUID"), "{error}");
    }

    /// `systemd-bless-boot` leaves both names and says nothing, so that the healthy entry runs out of tries
    /// (systemd issue 33504).
    #[test]
    fn an_older_file_under_the_plain_name_is_replaced() {
        let esp = tempfile::tempdir().unwrap();
        let folder = esp.path().join("EFI/Linux");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("demo_1.0.efi"), "older").unwrap();
        fs::write(folder.join("demo_1.0+0-3.efi"), "healthy").unwrap();
        let good = bless(esp.path(), "\\EFI\\Linux\\demo_1.0+0-3.efi").unwrap();
        assert_eq!(good.as_deref(), Some("demo_1.0.efi"));
        assert_eq!(block::entries(&folder), ["demo_1.0.efi"]);
        assert_eq!(fs::read(folder.join("demo_1.0.efi")).unwrap(), b"healthy");
    }

    #[test]
    fn the_entry_is_renamed_once_and_another_is_left_alone() {
        let esp = tempfile::tempdir().unwrap();
        let folder = esp.path().join("EFI/Linux");
        fs::create_dir_all(&folder).unwrap();
        for name in ["demo_1.0+1-2.efi", "demo_2.0+3-0.efi"] {
            fs::write(folder.join(name), name).unwrap();
        }
        let path = "\\EFI\\Linux\\demo_1.0+2-1.efi";
        let good = bless(esp.path(), path).unwrap();
        assert_eq!(good.as_deref(), Some("demo_1.0.efi"));
        assert_eq!(bless(esp.path(), path).unwrap(), None);
        let mut names = block::entries(&folder);
        names.sort();
        assert_eq!(names, ["demo_1.0.efi", "demo_2.0+3-0.efi"]);
        let absent = bless(esp.path(), "\\EFI\\Linux\\demo_3.0+2-1.efi").unwrap_err();
        assert!(absent.to_string().contains("demo_3.0+2-1.efi"), "{absent}");
    }
}
