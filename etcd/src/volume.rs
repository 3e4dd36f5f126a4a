//! The etcd disk: found by a stable name, formatted only when provably blank, proven to the kubelet gate.
//!
//! Nothing is written to a volume before it is known to be this cluster's: a strange file system is looked at read-only,
//! its journal left alone. What is refused is refused with expected against found, and the node keeps waiting, since the
//! right disk may still be attached.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use image::layout::{LABEL_ETCD, MIB};
use image::node::{EtcdFormat, EtcdGate, EtcdIdentity, EtcdSettings, NodeSettings, Role};
use image::paths::{ETCD, NODE_SETTINGS, RUN, RUN_ETCD_GATE, RUN_ETCD_LOOK};
use image::report::LINE;

use image::fault::Fault;
use linux::block::{self, Disk};
use linux::ext4;
use linux::filesystem::ext;
use linux::log::say;
use linux::modules::{Modules, Network};
use linux::mount::{self, Flags};
use linux::probe::{Content, Stretch, probe};
use linux::programs::Programs;
use linux::refusal;
use linux::timeline::Timeline;
use linux::uevent::Monitor;
use linux::waiter::Waiter;
use linux::world::World;

use crate::find::{self, Volume};
use crate::identity::{self, Note};

/// How long the wait pauses at most before it looks for the volume again, event or not.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Nothing on the volume is a program, a device or trusted to raise rights.
const FLAGS: Flags = Flags::MS_NOATIME
    .union(Flags::MS_NODEV)
    .union(Flags::MS_NOSUID)
    .union(Flags::MS_NOEXEC);
/// Data is on the disk before the metadata that points to it, and after an error nothing more is written.
const OPTIONS: &str = "data=ordered,errors=remount-ro";
/// Where a file system of unknown origin is looked at, below `/run`.
const LOOK: &str = RUN_ETCD_LOOK;

/// The node whose etcd volume it is.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    /// The verified root and its programs.
    pub programs: &'a Programs,
    /// The disk that the root is on; none for a root in memory.
    pub system_disk: Option<&'a Disk>,
    /// The modules of the initramfs.
    pub modules: &'a Modules,
    /// The record of this boot.
    pub timeline: &'a Timeline,
    /// The folder of `state`.
    pub state: &'a Path,
    /// The machine id, 32 hexadecimal digits.
    pub machine_id: &'a str,
}

/// Mounts the etcd volume of a control plane at [`ETCD`] below the root and writes what the kubelet's gate must find.
/// Waits for the volume for ever, with a line on the consoles every five seconds and the watchdog fed. On a worker
/// there is nothing to do.
///
/// # Errors
/// If the settings name no volume, or something fails that waiting does not cure.
pub fn mount(node: Node<'_>, settings: &NodeSettings) -> Result<EtcdGate> {
    let gate = match settings.role {
        Role::Worker => EtcdGate {
            required: false,
            device: None,
            filesystem: None,
            reason: Some("a worker has no etcd volume".to_owned()),
        },
        Role::ControlPlane => {
            let wanted = settings.etcd.as_ref().ok_or_else(|| {
                Fault::new(
                    "a control plane needs an etcd volume, and the node's settings name none",
                )
                .expected(format!(
                    "[etcd] with serial, label or partlabel in {NODE_SETTINGS}"
                ))
                .found("role = \"control-plane\" without [etcd]")
                .fix("add [etcd] to the node's settings, or make the node a worker")
            })?;
            wait(Job {
                world: &node.programs.world,
                timeline: node.timeline,
                root: node.programs,
                system_disk: node.system_disk,
                modules: node.modules,
                wanted,
                state: node.state,
                machine_id: node.machine_id,
            })?
        }
    };
    let path = node.programs.world.in_run(RUN_ETCD_GATE);
    mount::folder(&node.programs.world.in_run(RUN), 0o755)?;
    fs::write(&path, serde_json::to_vec_pretty(&gate)?)
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(gate)
}

/// What the work on a volume needs to know.
#[derive(Clone, Copy)]
struct Job<'a> {
    world: &'a World,
    timeline: &'a Timeline,
    root: &'a Programs,
    system_disk: Option<&'a Disk>,
    modules: &'a Modules,
    wanted: &'a EtcdSettings,
    /// The folder of `state`.
    state: &'a Path,
    machine_id: &'a str,
}

/// Tries until the volume is mounted. Every failure is told at once, once as a report and then in a line every five
/// seconds, and tried again: a disk may be attached, or exchanged, at any time.
fn wait(job: Job<'_>) -> Result<EtcdGate> {
    let Job {
        world,
        modules,
        wanted,
        ..
    } = job;
    let monitor = Monitor::open()?;
    let name = wanted.find().map_err(|found| {
        Fault::new("the etcd volume is named wrongly")
            .expected("exactly one of serial, label and partlabel")
            .found(found)
            .fix(format!("correct [etcd] in {NODE_SETTINGS}"))
    })?;
    let mut waiter = Waiter::for_ever(world);
    let mut told = String::new();
    loop {
        waiter.examined();
        let disks = block::disks(world);
        let attempt = find::find(&disks, &name, job.system_disk)
            .map_err(anyhow::Error::from)
            .and_then(|volume| volume.map(|volume| take(job, &volume)).transpose());
        let waiting_for = match attempt {
            Ok(Some(gate)) => return Ok(gate),
            Ok(None) => {
                told.clear();
                modules.load_for_devices(Network::Without);
                format!(
                    "the etcd disk with the {}; this machine has {}",
                    find::describe(&name),
                    find::list(&disks)
                )
            }
            Err(error) => {
                refuse(world, &error, &mut told);
                format!("a usable etcd disk: {error}")
            }
        };
        // A volume that is absent is looked for at each event; one that was refused is read again with the next line
        // only, since reading it may load the disk with an fsck.
        loop {
            monitor.wait(waiter.pause(LOOK_AGAIN));
            waiter.examined();
            if waiter.say(&waiting_for) || told.is_empty() {
                break;
            }
        }
    }
}

/// Tells a refusal on every console, as the report for people and machines, once for each different one.
fn refuse(world: &World, error: &anyhow::Error, told: &mut String) {
    let report = refusal::report("etcd", error);
    let json = serde_json::to_string(&report).unwrap_or_default();
    if *told == json {
        return;
    }
    tracing::error!("etcd: {error:#}");
    say(world, &format!("slipway: etcd: {}", report.what));
    for (word, text) in [
        ("expected", &report.expected),
        ("found", &report.found),
        ("remedy", &report.fix),
    ] {
        if let Some(text) = text {
            say(world, &format!("slipway:   {word}: {text}"));
        }
    }
    say(world, &format!("{LINE}{json}"));
    *told = json;
}

/// Makes sure that the volume is this cluster's, formats it if it is blank and that is allowed, and mounts it.
fn take(job: Job<'_>, volume: &Volume) -> Result<EtcdGate> {
    if volume.read_only {
        return Err(Fault::new("the etcd volume cannot be written")
            .expected("a disk that accepts writes")
            .found(format!("{} ({}) is read-only", volume.name, volume.stable))
            .fix("attach the disk writable")
            .into());
    }
    let device =
        File::open(&volume.path).with_context(|| format!("opening {}", volume.path.display()))?;
    let content = job
        .timeline
        .step("etcd.probe", || probe(Stretch::whole(&device, volume.size)))
        .with_context(|| format!("looking at {}", volume.name))?;
    drop(device);
    let note = Note::read(job.state).filter(|note| note.is_of(volume));
    match (content, note) {
        // As below; one that was never mounted holds nothing, and may be half made.
        (Content::Ext, Some(note)) if never_mounted(volume, &note)? => {
            tracing::warn!("the format of {} was cut off; it is made anew", volume.name);
            format(job, volume, true)?;
        }
        (Content::Ext, note) => adopt(job, volume, note.as_ref())?,
        (Content::Blank, _) => {
            may_format(volume, job.wanted)?;
            job.timeline
                .step("etcd.format", || format(job, volume, false))?;
        }
        // This node began to format it when it was blank, and was cut off.
        (Content::Unknown(_), Some(_)) => {
            tracing::warn!("the format of {} was cut off; it is made anew", volume.name);
            format(job, volume, true)?;
        }
        (foreign, _) => {
            return Err(Fault::new("the etcd volume holds something else")
                .expected(format!(
                    "a blank disk, or the etcd volume of cluster {:?}",
                    job.wanted.cluster
                ))
                .found(format!(
                    "{} ({}) holds {}",
                    volume.name,
                    volume.stable,
                    foreign.describe()
                ))
                .fix("attach the right disk; if nothing on this one is needed, wipe it (`wipefs --all`, then its first and last MiB)")
                .into());
        }
    }
    job.timeline
        .step("etcd.mount", || mount_volume(job, volume))
}

/// Consent and size.
fn may_format(volume: &Volume, wanted: &EtcdSettings) -> Result<()> {
    let blank = format!("{} ({}) is blank", volume.name, volume.stable);
    if wanted.format != EtcdFormat::IfBlank {
        return Err(
            Fault::new("the etcd volume is blank, and nobody allowed to format it")
                .expected("the etcd volume, or format = \"if-blank\" in [etcd]")
                .found(blank)
                .fix(format!(
                    "attach the right disk, or set format = \"if-blank\" in {NODE_SETTINGS}"
                ))
                .into(),
        );
    }
    if volume.size < wanted.minimum_size {
        return Err(Fault::new("the etcd volume is too small")
            .expected(format!("at least {} MiB", wanted.minimum_size / MIB))
            .found(format!("{blank} and has {} MiB", volume.size / MIB))
            .fix("attach a larger disk, or set minimum-size in [etcd]")
            .into());
    }
    Ok(())
}

/// Looks at a file system without writing a byte to it, and takes it only with the right identity.
fn adopt(job: Job<'_>, volume: &Volume, note: Option<&Note>) -> Result<()> {
    let found = superblock(volume)?;
    let half_made = note.is_some_and(|note| note.filesystem == found.uuid);
    if half_made && !found.clean {
        // It is this node's own, so its journal may be replayed before it is looked at.
        e2fsck(job.root, volume)?;
    }
    let look = job.world.in_run(LOOK);
    mount::folder(&look, 0o700)?;
    // `noload` leaves the journal alone, which even a read-only mount would replay.
    mount::mount(
        &volume.path,
        &look,
        "ext4",
        FLAGS | Flags::MS_RDONLY,
        "noload",
    )
    .context(
        Fault::new("the file system on the etcd volume does not mount")
            .expected("the ext4 of this cluster's etcd")
            .fix("attach the right disk, or repair this one from a rescue system"),
    )?;
    let identity = identity::read(&look);
    mount::unmount(&look)?;
    match identity? {
        Some(identity) => {
            identity::check(&identity, &found.uuid, &job.wanted.cluster)?;
            Note::remove(job.state)?;
            if identity.machine_id != job.machine_id {
                tracing::warn!(
                    "the etcd volume was made by the machine {}",
                    identity.machine_id
                );
            }
        }
        None if half_made => {
            tracing::warn!(
                "the format of {} was cut off; its identity is written now",
                volume.name
            );
            sign(job, volume, &found.uuid)?;
        }
        None => {
            return Err(Fault::new("the etcd volume holds somebody else's file system")
                .expected(format!("the etcd volume of cluster {:?}", job.wanted.cluster))
                .found(format!(
                    "{} ({}) holds an ext file system, label {:?}, UUID {}, without an identity file",
                    volume.name, volume.stable, found.label, found.uuid
                ))
                .fix("attach the right disk; if nothing on this one is needed, wipe it (`wipefs --all`, then its first and last MiB)")
                .into());
        }
    }
    if found.fast_commit {
        return Err(
            Fault::new("the etcd volume has fast commits, with which etcd loses data")
                .expected("an ext4 without the feature fast_commit")
                .found(format!("{} ({}) has it", volume.name, volume.stable))
                .fix("from a rescue system: tune2fs -O ^fast_commit on the volume")
                .into(),
        );
    }
    if !found.clean {
        job.timeline
            .step("etcd.check", || e2fsck(job.root, volume))?;
    }
    Ok(())
}

/// Whether this is the file system that the note is about, as mkfs left it or was making it.
fn never_mounted(volume: &Volume, note: &Note) -> Result<bool> {
    let found = superblock(volume)?;
    Ok(found.uuid == note.filesystem && !found.ever_mounted)
}

fn superblock(volume: &Volume) -> Result<ext::Superblock> {
    ext::read(&volume.path)?
        .with_context(|| format!("the superblock of {} has gone away", volume.name))
}

/// Makes the file system and signs it. With `again` over the remains of this node's own attempt.
fn format(job: Job<'_>, volume: &Volume, again: bool) -> Result<()> {
    let uuid = job.world.random_guid()?.to_string();
    Note {
        volume: volume.stable.clone(),
        size: volume.size,
        filesystem: uuid.clone(),
    }
    .write(job.state)?;
    tracing::info!(
        "formatting the blank etcd volume {} ({})",
        volume.name,
        volume.stable
    );
    let options = ext4::Options {
        label: LABEL_ETCD,
        uuid: Some(&uuid),
        orphan_file: false,
        // Only over the remains of this node's own attempt.
        overwrite: again,
    };
    ext4::make(job.root, &volume.path, options).context("formatting the etcd volume")?;
    sign(job, volume, &uuid)
}

/// Puts the identity on a fresh file system. It is unmounted after that, so that all of it is in its place on the disk and
/// not in the journal, where a read-only look would not see it.
fn sign(job: Job<'_>, volume: &Volume, uuid: &str) -> Result<()> {
    let created = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs());
    let identity = EtcdIdentity {
        version: identity::VERSION,
        cluster: job.wanted.cluster.clone(),
        filesystem: uuid.to_owned(),
        created,
        machine_id: job.machine_id.to_owned(),
    };
    let look = job.world.in_run(LOOK);
    mount::folder(&look, 0o700)?;
    mount::mount(&volume.path, &look, "ext4", FLAGS, OPTIONS)?;
    let written = fs::set_permissions(&look, fs::Permissions::from_mode(0o700))
        .context("closing the etcd volume to others")
        .and_then(|()| identity::write(&look, &identity));
    mount::unmount(&look)?;
    written?;
    Note::remove(job.state)
}

fn e2fsck(root: &Programs, volume: &Volume) -> Result<()> {
    let fix = "repair it from a rescue system, or replace this member of etcd";
    ext4::check(root, &volume.path, "the etcd volume", fix)
}

fn mount_volume(job: Job<'_>, volume: &Volume) -> Result<EtcdGate> {
    let target: PathBuf = job.root.sysroot.join(ETCD.trim_start_matches('/'));
    mount::folder(&target, 0o700)?;
    let found = superblock(volume)?;
    let device = block::number_of(job.world, &volume.name)?;
    mount::mount(&volume.path, &target, "ext4", FLAGS, OPTIONS)?;
    // A volume that has become larger is used to its end.
    if let Err(error) = ext4::grow("the etcd volume", &found, volume.size, &target, MIB) {
        // It is mounted and serves as it is.
        tracing::warn!("{error:#}");
    }
    tracing::info!(
        "etcd: {} ({}, device {device}, file system {}) at {ETCD}",
        volume.name,
        volume.stable,
        found.uuid
    );
    Ok(EtcdGate {
        required: true,
        device: Some(device),
        filesystem: Some(found.uuid),
        reason: None,
    })
}
