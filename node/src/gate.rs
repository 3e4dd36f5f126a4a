//! The kubelet's gate: on a control plane the kubelet starts only when mountinfo shows the etcd volume that the init
//! proved. An etcd started on the system disk instead would begin a new, empty cluster.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use image::node::{EtcdGate, EtcdIdentity};
use image::paths::{ETCD, ETCD_IDENTITY, RUN_ETCD_GATE};

use crate::console;
use linux::mount;
use linux::waiter::Waiter;
use linux::world::World;

/// How long one run of the gate waits for the volume. systemd restarts the unit afterwards, without limit.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the gate looks again.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Returns once the volume is proven. Until then the console shows the reason every five seconds; after a minute the last
/// one is the error.
pub(crate) fn run(world: &World) -> Result<()> {
    let mut waiter = Waiter::until(world, PATIENCE).with_line_at_once();
    loop {
        let Err(refusal) = prove(world) else {
            return Ok(());
        };
        if waiter.is_over() {
            return Err(refusal);
        }
        if waiter.line().is_some() {
            console::warn(world, &format!("the kubelet does not start: {refusal:#}"));
        }
        waiter.examined();
        waiter.sleep(LOOK_EVERY);
    }
}

/// Whose view of the mounts is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    /// That of the whole node.
    Node,
    /// That of a unit with a mount namespace, which has all mounts read-only: the file systems alone count.
    Sandbox,
}

/// Compares the record of slipway-init with the mount table and the volume's identity file.
///
/// # Errors
/// Names what was expected and what was found.
fn prove(world: &World) -> Result<()> {
    compare(world, View::Node)
}

/// The same for a unit whose mount namespace is read-only.
///
/// # Errors
/// Names what was expected and what was found.
pub(crate) fn prove_in_sandbox(world: &World) -> Result<()> {
    compare(world, View::Sandbox)
}

fn compare(world: &World, view: View) -> Result<()> {
    let file = world.in_run(RUN_ETCD_GATE);
    let text = fs::read(&file).with_context(|| {
        format!(
            "reading {}, which slipway-init writes at every boot",
            file.display()
        )
    })?;
    let gate: EtcdGate =
        serde_json::from_slice(&text).with_context(|| format!("reading {}", file.display()))?;
    if !gate.required {
        return Ok(());
    }
    let Some(device) = &gate.device else {
        let why = gate.reason.as_deref().unwrap_or("no reason is recorded");
        bail!("the etcd volume was not mounted: {why}");
    };
    prove_mount(world, device, view)?;
    match &gate.filesystem {
        Some(filesystem) => prove_identity(world, filesystem),
        None => Ok(()),
    }
}

/// Checks that the device of this number, `major:minor`, is mounted writable at etcd's data folder.
fn prove_mount(world: &World, device: &str, view: View) -> Result<()> {
    let mounts = mount::table(world)?;
    // A later mount hides the earlier ones on the same target.
    let Some(found) = mounts.iter().rev().find(|m| m.target == Path::new(ETCD)) else {
        bail!("nothing is mounted at {ETCD}; expected the etcd volume, device {device}");
    };
    ensure!(
        found.device == device && found.root == Path::new("/"),
        "{ETCD} is device {} ({} of {}); expected the etcd volume, device {device}",
        found.device,
        found.root.display(),
        found.source
    );
    // Either the mount or the file system below it may be read-only (proc_pid_mountinfo(5)): ext4 turns itself read-only
    // after an error.
    let read_only = |options: &str| options.split(',').any(|option| option == "ro");
    ensure!(
        (view == View::Sandbox || !read_only(&found.options)) && !read_only(&found.super_options),
        "{ETCD} is read-only ({}; {}); expected it writable",
        found.options,
        found.super_options
    );
    Ok(())
}

/// Checks that the identity file names the file system that slipway-init proved. Device numbers alone are not enough:
/// another disk can have the same number after a hot plug.
fn prove_identity(world: &World, filesystem: &str) -> Result<()> {
    let file = world.in_initrd(ETCD).join(ETCD_IDENTITY);
    let reading = || format!("reading the etcd volume's identity, {}", file.display());
    let text = fs::read(&file).with_context(reading)?;
    let identity: EtcdIdentity = serde_json::from_slice(&text).with_context(reading)?;
    ensure!(
        identity.filesystem == filesystem,
        "{ETCD} holds file system {}, expected {filesystem}",
        identity.filesystem
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::put;
    use linux::world::Clock;

    const MOUNTED: &str =
        "36 25 254:16 / /var/lib/etcd rw,noatime shared:1 - ext4 /dev/vdb rw,errors=remount-ro\n";

    fn world(folder: &Path, gate: Option<&str>, mountinfo: &str) -> World {
        let clock = Clock::Fake(std::sync::atomic::AtomicI64::new(0));
        let world = World::below(folder, clock);
        let etcd = world.in_initrd(ETCD);
        for path in [
            &world.in_run("/run/slipway"),
            &world.proc.join("self"),
            &etcd,
            &world.dev,
        ] {
            fs::create_dir_all(path).unwrap();
        }
        if let Some(gate) = gate {
            fs::write(world.in_run(RUN_ETCD_GATE), gate).unwrap();
        }
        fs::write(world.proc.join("self/mountinfo"), mountinfo).unwrap();
        fs::write(world.dev.join("console"), "").unwrap();
        let identity = EtcdIdentity {
            version: 1,
            cluster: "c".to_owned(),
            member: None,
            filesystem: "u-u-i-d".to_owned(),
            created: 1,
            machine_id: "m".to_owned(),
        };
        fs::write(
            etcd.join(ETCD_IDENTITY),
            serde_json::to_string(&identity).unwrap(),
        )
        .unwrap();
        world
    }

    #[test]
    fn only_the_proven_volume_opens_the_gate() {
        let good = r#"{"required":true,"device":"254:16","filesystem":"u-u-i-d"}"#;
        let hidden = format!("{MOUNTED}37 36 0:40 / /var/lib/etcd rw - tmpfs tmpfs rw\n");
        for (gate, mountinfo, refusal) in [
            (Some(good), MOUNTED, None),
            (Some(r#"{"required":false}"#), "", None),
            (None, MOUNTED, Some("which slipway-init writes")),
            (Some("{"), MOUNTED, Some("reading ")),
            (
                Some(r#"{"required":true,"reason":"no disk with serial etcd"}"#),
                MOUNTED,
                Some("no disk with serial etcd"),
            ),
            (Some(good), "", Some("nothing is mounted at /var/lib/etcd")),
            (Some(good), &hidden, Some("is device 0:40")),
            (
                Some(good),
                &MOUNTED.replace("254:16 / ", "254:16 /sub "),
                Some("/sub of /dev/vdb"),
            ),
            (
                Some(good),
                &MOUNTED.replace("rw,errors", "ro,errors"),
                Some("is read-only"),
            ),
            (
                Some(r#"{"required":true,"device":"254:16","filesystem":"other"}"#),
                MOUNTED,
                Some("holds file system u-u-i-d, expected other"),
            ),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let world = world(folder.path(), gate, mountinfo);
            let found = prove(&world);
            // In a sandbox all mounts are read-only, and nothing else differs.
            let sandboxed = mountinfo.replace("rw,noatime", "ro,noatime");
            put(&world.proc.join("self/mountinfo"), &sandboxed);
            assert_eq!(prove_in_sandbox(&world).is_ok(), found.is_ok(), "{gate:?}");
            match (refusal, found) {
                (None, Ok(())) => {}
                (Some(expected), Err(error)) => {
                    let text = format!("{error:#}");
                    assert!(text.contains(expected), "{text}");
                }
                (expected, found) => panic!("{gate:?}: expected {expected:?}, found {found:?}"),
            }
        }
    }

    #[test]
    fn a_refusal_is_on_the_console_every_five_seconds() {
        let folder = tempfile::tempdir().unwrap();
        let world = world(folder.path(), Some(r#"{"required":true}"#), "");
        assert!(run(&world).is_err());
        let console = fs::read_to_string(world.dev.join("console")).unwrap();
        let lines: Vec<&str> = console.lines().collect();
        // At once, and after each five seconds of the minute.
        assert_eq!(lines.len(), 12, "{console}");
        for line in lines {
            assert!(
                line.starts_with("slipway: the kubelet does not start: the etcd volume"),
                "{console}"
            );
        }
    }
}
