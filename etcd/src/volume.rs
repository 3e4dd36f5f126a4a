//! The etcd disk: found by a stable name, formatted only when provably blank, proven to the kubelet gate.
//!
//! Nothing is written to a volume before it is known to be this cluster's: an unknown file system is mounted read-only and
//! its journal is not replayed. A refusal names expected and found, and the node keeps waiting, since the right disk may
//! still be attached.

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

/// How long the wait pauses at most before it searches the volume again, with or without a device event.
const SEARCH_EVERY: Duration = Duration::from_secs(5);
/// The volume holds data only: no programs, no device nodes, no set-user-id files.
const FLAGS: Flags = Flags::MS_NOATIME
    .union(Flags::MS_NODEV)
    .union(Flags::MS_NOSUID)
    .union(Flags::MS_NOEXEC);
/// Data is on the disk before the metadata that points to it, and after an error nothing more is written.
const OPTIONS: &str = "data=ordered,errors=remount-ro";

/// The node that the etcd volume belongs to.
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

/// Mounts the etcd volume of a control plane at [`ETCD`] below the root and writes the conditions that the kubelet's
/// gate checks. Waits for the volume for ever, with a line on the consoles every five seconds and the watchdog fed.
/// Does nothing on a worker.
///
/// # Errors
/// If the settings name no volume, or for a failure that waiting does not cure.
pub fn mount(node: Node<'_>, settings: &NodeSettings) -> Result<EtcdGate> {
    let gate = match settings.role {
        Role::Worker => EtcdGate {
            required: false,
            device: None,
            filesystem: None,
            reason: Some("a worker has no etcd volume".to_owned()),
        },
        Role::ControlPlane => {
            let etcd = settings.etcd.as_ref().ok_or_else(|| {
                Fault::new("a control plane needs an etcd volume, and the node settings name none")
                    .expected(format!(
                        "[etcd] with serial, label or partlabel in {NODE_SETTINGS}"
                    ))
                    .found("role = \"control-plane\" without [etcd]")
                    .fix("add [etcd] to the node settings, or make the node a worker")
            })?;
            wait(Context {
                world: &node.programs.world,
                timeline: node.timeline,
                root: node.programs,
                system_disk: node.system_disk,
                modules: node.modules,
                settings: etcd,
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

/// The inputs of every step on the volume.
#[derive(Clone, Copy)]
struct Context<'a> {
    world: &'a World,
    timeline: &'a Timeline,
    root: &'a Programs,
    system_disk: Option<&'a Disk>,
    modules: &'a Modules,
    settings: &'a EtcdSettings,
    /// The folder of `state`.
    state: &'a Path,
    machine_id: &'a str,
}

/// Tries until the volume is mounted. A refusal is reported once and then repeated in a line every five seconds: a disk
/// may be attached, or exchanged, at any time.
fn wait(context: Context<'_>) -> Result<EtcdGate> {
    let Context {
        world,
        modules,
        settings,
        ..
    } = context;
    let monitor = Monitor::open()?;
    let name = settings.find().map_err(|found| {
        Fault::new("[etcd] does not name one volume")
            .expected("exactly one of serial, label and partlabel")
            .found(found)
            .fix(format!("correct [etcd] in {NODE_SETTINGS}"))
    })?;
    let mut waiter = Waiter::for_ever(world);
    let mut reported = String::new();
    loop {
        waiter.examined();
        let disks = block::disks(world);
        let attempt = find::find(&disks, &name, context.system_disk)
            .map_err(anyhow::Error::from)
            .and_then(|volume| {
                volume
                    .map(|volume| mount_checked(context, &volume))
                    .transpose()
            });
        let waiting_for = match attempt {
            Ok(Some(gate)) => return Ok(gate),
            Ok(None) => {
                reported.clear();
                modules.load_for_devices(Network::Without);
                format!(
                    "the etcd disk with the {}; this machine has {}",
                    find::describe(&name),
                    find::list(&disks)
                )
            }
            Err(error) => {
                report_refusal(world, &error, &mut reported);
                format!("a usable etcd disk: {error}")
            }
        };
        // A volume that is absent is searched for at each event; a refused one is read again only with the next line,
        // since reading it may load the disk with an fsck.
        loop {
            monitor.wait(waiter.pause(SEARCH_EVERY));
            waiter.examined();
            if waiter.say(&waiting_for) || reported.is_empty() {
                break;
            }
        }
    }
}

/// Writes a refusal to every console, as lines for people and one for programs, unless it is the one reported last.
fn report_refusal(world: &World, error: &anyhow::Error, reported: &mut String) {
    let report = refusal::report("etcd", error);
    let json = serde_json::to_string(&report).unwrap_or_default();
    if *reported == json {
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
    *reported = json;
}

/// Makes sure that the volume is this cluster's, formats it if it is blank and that is allowed, and mounts it.
fn mount_checked(context: Context<'_>, volume: &Volume) -> Result<EtcdGate> {
    if volume.read_only {
        return Err(Fault::new("the etcd volume is read-only")
            .expected("a disk that accepts writes")
            .found(format!("{} ({}) is read-only", volume.name, volume.stable))
            .fix("attach the disk writable")
            .into());
    }
    let device =
        File::open(&volume.path).with_context(|| format!("opening {}", volume.path.display()))?;
    let content = context
        .timeline
        .step("etcd.probe", || probe(Stretch::whole(&device, volume.size)))
        .with_context(|| format!("probing {}", volume.name))?;
    drop(device);
    let note = Note::read(context.state).filter(|note| note.is_of(volume));
    match (content, note) {
        // As below, if mkfs.ext4 wrote the superblock before it was interrupted.
        (Content::Ext, Some(note)) if never_mounted(volume, &note)? => {
            tracing::warn!(
                "formatting {} was interrupted; formatting it again",
                volume.name
            );
            format(context, volume, true)?;
        }
        (Content::Ext, note) => accept(context, volume, note.as_ref())?,
        (Content::Blank, _) => {
            may_format(volume, context.settings)?;
            context
                .timeline
                .step("etcd.format", || format(context, volume, false))?;
        }
        // This node began to format it when it was blank, and was interrupted.
        (Content::Unknown(_), Some(_)) => {
            tracing::warn!(
                "formatting {} was interrupted; formatting it again",
                volume.name
            );
            format(context, volume, true)?;
        }
        (foreign, _) => {
            return Err(Fault::new("the etcd volume holds other data")
                .expected(format!(
                    "a blank disk, or the etcd volume of cluster {:?}",
                    context.settings.cluster
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
    context
        .timeline
        .step("etcd.mount", || mount_volume(context, volume))
}

/// Checks that the settings allow formatting and that the volume is large enough.
fn may_format(volume: &Volume, settings: &EtcdSettings) -> Result<()> {
    let blank = format!("{} ({}) is blank", volume.name, volume.stable);
    if settings.format != EtcdFormat::IfBlank {
        return Err(Fault::new(
            "the etcd volume is blank and [etcd] format does not allow formatting",
        )
        .expected("the etcd volume, or format = \"if-blank\" in [etcd]")
        .found(blank)
        .fix(format!(
            "attach the right disk, or set format = \"if-blank\" in {NODE_SETTINGS}"
        ))
        .into());
    }
    if volume.size < settings.minimum_size {
        return Err(Fault::new("the etcd volume is too small")
            .expected(format!("at least {} MiB", settings.minimum_size / MIB))
            .found(format!("{blank} and has {} MiB", volume.size / MIB))
            .fix("attach a larger disk, or set minimum-size in [etcd]")
            .into());
    }
    Ok(())
}

/// Accepts a file system only with the right identity, and writes nothing to it before.
fn accept(context: Context<'_>, volume: &Volume, note: Option<&Note>) -> Result<()> {
    let found = superblock(volume)?;
    let half_made = note.is_some_and(|note| note.filesystem == found.uuid);
    if half_made && !found.clean {
        // The note proves that it is this node's, so its journal may be replayed before its identity is read.
        e2fsck(context.root, volume)?;
    }
    let folder = context.world.in_run(RUN_ETCD_LOOK);
    mount::folder(&folder, 0o700)?;
    // `noload` prevents the replay of the journal, which even a read-only mount would do.
    mount::mount(
        &volume.path,
        &folder,
        "ext4",
        FLAGS | Flags::MS_RDONLY,
        "noload",
    )
    .context(
        Fault::new("the file system on the etcd volume does not mount")
            .expected("the ext4 of this cluster's etcd")
            .fix("attach the right disk, or repair this one from a rescue system"),
    )?;
    let identity = identity::read(&folder);
    mount::unmount(&folder)?;
    match identity? {
        Some(identity) => {
            identity::check(&identity, &found.uuid, &context.settings.cluster)?;
            Note::remove(context.state)?;
            if identity.machine_id != context.machine_id {
                tracing::warn!(
                    "the etcd volume was formatted by another machine, {}",
                    identity.machine_id
                );
            }
        }
        None if half_made => {
            tracing::warn!(
                "formatting {} was interrupted; writing its identity file",
                volume.name
            );
            write_identity(context, volume, &found.uuid)?;
        }
        None => {
            return Err(Fault::new("the etcd volume holds an unknown file system")
                .expected(format!("the etcd volume of cluster {:?}", context.settings.cluster))
                .found(format!(
                    "{} ({}) holds an ext file system, label {:?}, UUID {}, without an identity file",
                    volume.name, volume.stable, found.label, found.uuid
                ))
                .fix("attach the right disk; if nothing on this one is needed, wipe it (`wipefs --all`, then its first and last MiB)")
                .into());
        }
    }
    if found.fast_commit {
        return Err(Fault::new(
            "the etcd volume has the ext4 feature fast_commit, with which etcd loses data",
        )
        .expected("an ext4 file system without fast_commit")
        .found(format!("{} ({}) has it", volume.name, volume.stable))
        .fix("from a rescue system: tune2fs -O ^fast_commit on the volume")
        .into());
    }
    if !found.clean {
        context
            .timeline
            .step("etcd.check", || e2fsck(context.root, volume))?;
    }
    Ok(())
}

/// Whether this is the file system of the note, complete or half made by mkfs.
fn never_mounted(volume: &Volume, note: &Note) -> Result<bool> {
    let found = superblock(volume)?;
    Ok(found.uuid == note.filesystem && !found.ever_mounted)
}

fn superblock(volume: &Volume) -> Result<ext::Superblock> {
    ext::read(&volume.path)?
        .with_context(|| format!("the superblock of {} has disappeared", volume.name))
}

/// Makes the file system and writes its identity. With `again` it overwrites the result of this node's interrupted
/// attempt.
fn format(context: Context<'_>, volume: &Volume, again: bool) -> Result<()> {
    let uuid = context.world.random_guid()?.to_string();
    Note {
        volume: volume.stable.clone(),
        size: volume.size,
        filesystem: uuid.clone(),
    }
    .write(context.state)?;
    tracing::info!(
        "formatting the blank etcd volume {} ({})",
        volume.name,
        volume.stable
    );
    let options = ext4::Options {
        label: LABEL_ETCD,
        uuid: Some(&uuid),
        orphan_file: false,
        overwrite: again,
    };
    ext4::make(context.root, &volume.path, options).context("formatting the etcd volume")?;
    write_identity(context, volume, &uuid)
}

/// Writes the identity file to a fresh file system, and unmounts it: a mount without journal replay would not see
/// content that is in the journal only.
fn write_identity(context: Context<'_>, volume: &Volume, uuid: &str) -> Result<()> {
    let created = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs());
    let identity = EtcdIdentity {
        version: identity::VERSION,
        cluster: context.settings.cluster.clone(),
        filesystem: uuid.to_owned(),
        created,
        machine_id: context.machine_id.to_owned(),
    };
    let folder = context.world.in_run(RUN_ETCD_LOOK);
    mount::folder(&folder, 0o700)?;
    mount::mount(&volume.path, &folder, "ext4", FLAGS, OPTIONS)?;
    let written = fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))
        .context("closing the etcd volume to others")
        .and_then(|()| identity::write(&folder, &identity));
    mount::unmount(&folder)?;
    written?;
    Note::remove(context.state)
}

fn e2fsck(root: &Programs, volume: &Volume) -> Result<()> {
    let fix = "repair it from a rescue system, or replace this member of etcd";
    ext4::check(root, &volume.path, "the etcd volume", fix)
}

fn mount_volume(context: Context<'_>, volume: &Volume) -> Result<EtcdGate> {
    let target: PathBuf = context.root.sysroot.join(ETCD.trim_start_matches('/'));
    mount::folder(&target, 0o700)?;
    let found = superblock(volume)?;
    let device = block::number_of(context.world, &volume.name)?;
    mount::mount(&volume.path, &target, "ext4", FLAGS, OPTIONS)?;
    // After the volume has become larger, its file system is grown to its end.
    if let Err(error) = ext4::grow("the etcd volume", &found, volume.size, &target, MIB) {
        // The file system is mounted and works at its present size.
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
