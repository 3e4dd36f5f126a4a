//! The kubelet's gate: on a control plane the kubelet starts only when mountinfo shows the etcd volume that the init
//! proved. An etcd started on the system disk instead would begin a new, empty cluster.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use image::node::{EtcdGate, EtcdIdentity};
use image::paths::{ETCD, ETCD_IDENTITY, RUN_ETCD_GATE};

use linux::mount;
use linux::waiter::Waiter;
use linux::world::World;

/// How long one run of the gate waits for the volume. The unit tries again afterwards, without end.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the gate looks again.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Gives way when the volume is proven; else says why on the console, every five seconds, and fails after a minute.
///
/// # Errors
/// The reason of the last refusal.
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
            say(world, &format!("the kubelet does not start: {refusal:#}"));
        }
        waiter.examined();
        waiter.sleep(LOOK_EVERY);
    }
}

/// Compares what the init left with what is mounted.
///
/// # Errors
/// Says what was expected and what was found.
pub(crate) fn prove(world: &World) -> Result<()> {
    let file = world.in_run(RUN_ETCD_GATE);
    let text = fs::read(&file).with_context(|| {
        format!(
            "the init left no word on the etcd volume: {}",
            file.display()
        )
    })?;
    let gate: EtcdGate =
        serde_json::from_slice(&text).with_context(|| format!("reading {}", file.display()))?;
    if !gate.required {
        return Ok(());
    }
    let Some(expected) = &gate.device else {
        let why = gate.reason.as_deref().unwrap_or("the init gave no reason");
        bail!("the etcd volume was not mounted: {why}");
    };
    let mounts = mount::table(world)?;
    // The last mount with this target is the one that is seen.
    let Some(found) = mounts.iter().rev().find(|m| m.target == Path::new(ETCD)) else {
        bail!("nothing is mounted at {ETCD}; expected the etcd volume, device {expected}");
    };
    ensure!(
        found.device == *expected && found.root == Path::new("/"),
        "{ETCD} is device {} ({} of {}); expected the etcd volume, device {expected}",
        found.device,
        found.root.display(),
        found.source
    );
    let read_only = |options: &str| options.split(',').any(|option| option == "ro");
    ensure!(
        !read_only(&found.options) && !read_only(&found.super_options),
        "{ETCD} is read-only ({}; {}); expected it writable",
        found.options,
        found.super_options
    );
    if let Some(expected) = &gate.filesystem {
        let file = world.in_initrd(ETCD).join(ETCD_IDENTITY);
        let text = fs::read(&file)
            .with_context(|| format!("reading the etcd volume's identity {}", file.display()))?;
        let identity: EtcdIdentity =
            serde_json::from_slice(&text).with_context(|| format!("reading {}", file.display()))?;
        ensure!(
            identity.filesystem == *expected,
            "{ETCD} holds file system {}, expected {expected}",
            identity.filesystem
        );
    }
    Ok(())
}

/// Says a line on the console, and to the journal by stderr.
pub(crate) fn say(world: &World, line: &str) {
    tracing::warn!("{line}");
    let path = world.dev.join("console");
    let said = OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|mut console| console.write_all(format!("slipway: {line}\r\n").as_bytes()));
    // A machine without a console still has the journal.
    if let Err(error) = said.and_then(|()| writeln!(std::io::stderr(), "slipway: {line}")) {
        tracing::debug!("writing to {}: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::world::Clock;

    const MOUNTED: &str =
        "36 25 254:16 / /var/lib/etcd rw,noatime shared:1 - ext4 /dev/vdb rw,errors=remount-ro\n";

    fn world(folder: &Path, gate: Option<&str>, mountinfo: &str) -> World {
        let clock = Clock::Told(std::sync::atomic::AtomicI64::new(0));
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
            (None, MOUNTED, Some("left no word")),
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
            let found = prove(&world(folder.path(), gate, mountinfo));
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
        let said = fs::read_to_string(world.dev.join("console")).unwrap();
        assert!(
            said.starts_with("slipway: the kubelet does not start: the etcd volume"),
            "{said}"
        );
    }
}
