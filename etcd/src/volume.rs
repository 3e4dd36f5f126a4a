//! The etcd disk: found by a stable name, formatted only when provably blank, proven to the kubelet gate.
//!
//! Nothing is written to a volume before it is known to be this cluster's: an unknown file system is mounted read-only and
//! its journal is not replayed. A node that has a volume formats nothing and accepts nothing else. A refusal names expected
//! and found, and the node keeps waiting, since the right disk may still be attached.

#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use image::fault::Fault;
use image::layout::MIB;
use image::node::{EtcdAdopt, EtcdGate, NodeSettings};
use image::paths::{ETCD, RUN, RUN_ETCD_GATE};
use image::report::LINE;
use linux::block::{self, Disk};
use linux::disk_answers::{self, Silent};
use linux::ext4;
use linux::filesystem::ext::Superblock;
use linux::log::say;
use linux::modules::{Modules, Network};
use linux::mount;
use linux::probe::{Content, Stretch, probe};
use linux::programs::Programs;
use linux::refusal;
use linux::settle::Settling;
use linux::timeline::Timeline;
use linux::uevent::Monitor;
use linux::waiter::Waiter;
use linux::world::World;

use crate::accept::{self, superblock};
use crate::context::{Context, FLAGS, OPTIONS};
use crate::find::{self, Volume};
use crate::format;
use crate::identity;
use crate::note::Note;
use crate::own::{self, Choice, Consent};
use crate::release;

/// How long the wait pauses at most before it searches the volume again, with or without a device event.
const SEARCH_EVERY: Duration = Duration::from_secs(5);

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
    /// What the kernel command line consents to, before what the settings do.
    pub adopt: Option<EtcdAdopt>,
    /// The reference of the etcd that the image has, by whose tag its release is known.
    pub image: Option<&'a str>,
}

/// Mounts the etcd volume of a control plane at [`ETCD`] below the root and writes the conditions that the kubelet's
/// gate checks. Waits for the volume for ever, with a line on the consoles every five seconds and the watchdog fed.
/// Does nothing on a worker.
///
/// # Errors
/// If the settings name no volume or no cluster, or something fails that waiting does not cure.
pub fn mount(node: Node<'_>, settings: &NodeSettings) -> Result<EtcdGate> {
    let gate = match settings.control_plane()? {
        None => EtcdGate {
            required: false,
            device: None,
            filesystem: None,
            reason: Some("a worker has no etcd volume".to_owned()),
        },
        Some((etcd, cluster)) => {
            let gate = wait(Context {
                world: &node.programs.world,
                timeline: node.timeline,
                root: node.programs,
                system_disk: node.system_disk,
                modules: node.modules,
                settings: etcd,
                cluster,
                adopt: node.adopt.or(etcd.adopt),
                state: node.state,
                machine_id: node.machine_id,
            })?;
            held_back(node, gate)?
        }
    };
    let path = node.programs.world.in_run(RUN_ETCD_GATE);
    mount::folder(&node.programs.world.in_run(RUN), 0o755)?;
    fs::write(&path, serde_json::to_vec_pretty(&gate)?)
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(gate)
}

/// The gate, closed if the data is of a later release than the image's etcd: that would end with it again and again, and the kubelet
/// would never be READY. The boot goes on, so that the node can be examined, and is not blessed.
fn held_back(node: Node<'_>, gate: EtcdGate) -> Result<EtcdGate> {
    let root = &node.programs.sysroot;
    let target = root.join(ETCD.trim_start_matches('/'));
    let Some(reason) = release::refusal(root, &target, node.image) else {
        return Ok(gate);
    };
    mount::unmount(&target)?;
    say(&node.programs.world, &format!("slipway: etcd: {reason}"));
    Ok(EtcdGate {
        device: None,
        reason: Some(reason),
        ..gate
    })
}

/// The outcome of one search.
enum Search {
    Mounted(EtcdGate),
    /// Nothing matches.
    Absent,
    /// Something matches, and another device that matches too may be about to appear.
    Unsettled,
}

/// Tries until the volume is mounted. A refusal is reported once and then repeated in a line every five seconds: a disk
/// may be attached, or exchanged, at any time.
fn wait(context: Context<'_>) -> Result<EtcdGate> {
    let world = context.world;
    let monitor = Monitor::open()?;
    let wanted = context.settings.find().map_err(anyhow::Error::msg)?;
    let wanted = find::describe(&wanted);
    let mut waiter = Waiter::for_ever(world);
    let mut settling = None;
    let mut reported = String::new();
    loop {
        waiter.examined();
        let disks = block::disks(world);
        let waiting_for = match search(context, &disks, &mut settling) {
            Ok(Search::Mounted(gate)) => return Ok(gate),
            Ok(Search::Unsettled) => {
                monitor.wait(waiter.pause(Settling::pause()));
                continue;
            }
            Ok(Search::Absent) => {
                reported.clear();
                context.modules.load_for_devices(Network::Without);
                let silent = disk_answers::silent(world);
                let silent = silent.iter().map(|one| format!(", and {one}"));
                format!(
                    "the etcd disk with the {wanted}; this machine has {}{}",
                    find::list(&disks),
                    silent.collect::<String>()
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

/// Looks for the volume and mounts it. A node that has no volume yet takes none before the devices have settled, since the
/// first match may not be the only one; one that knows its volume needs no wait.
fn search<'a>(
    context: Context<'a>,
    disks: &[Disk],
    settling: &mut Option<Settling<'a>>,
) -> Result<Search> {
    let own = own::read(context.state)?;
    let wanted = context.settings.find().map_err(anyhow::Error::msg)?;
    let mut matches = find::matching(context.world, disks, &wanted, context.system_disk)?;
    let heard = find::ask(context.world, &matches);
    matches.retain(|volume| heard.has(&volume.disk));
    if matches.is_empty() {
        *settling = None;
        return Ok(Search::Absent);
    }
    let _held = hold(&matches);
    drop(heard);
    if own.is_none() {
        let settling = settling.get_or_insert_with(|| {
            context.modules.load_for_devices(Network::Without);
            Settling::begin(context.world)
        });
        if !settling.is_over() {
            return Ok(Search::Unsettled);
        }
    }
    let wanted = find::describe(&wanted);
    let seen = matches.clone();
    let choice = own::choose(context.world, matches, &wanted, own.as_ref(), context.adopt);
    if !is_own(&choice) {
        let silent = disk_answers::silent(context.world);
        refuse_in_doubt(&silent, &seen, &wanted)?;
    }
    let gate = choice?.map(|choice| mount_checked(context, &choice));
    gate.transpose()
        .map(|gate| gate.map_or(Search::Absent, Search::Mounted))
}

fn is_own(choice: &Result<Option<Choice>, Fault>) -> bool {
    matches!(choice, Ok(Some(choice)) if choice.consent == Consent::Own)
}

/// Refuses every volume but the node's own, which its UUID names, as long as a disk does not answer: that one may be meant, or
/// be a second match, and what is taken in its place would be formatted or adopted.
fn refuse_in_doubt(silent: &[Silent], seen: &[Volume], wanted: &str) -> Result<(), Fault> {
    if silent.is_empty() {
        return Ok(());
    }
    let mut found: Vec<String> = seen.iter().map(ToString::to_string).collect();
    // Without the time: a refusal that changes is written anew.
    let silent = silent.iter().map(|one| &one.shown);
    found.extend(silent.map(|shown| format!("{shown}, which does not answer")));
    Err(Fault::new("a disk that does not answer may be the etcd volume")
        .expected(format!("an answer of every disk, before one with the {wanted} is taken"))
        .found(found.join("; "))
        .fix("examine the disk that does not answer and its cables; replace it, or detach it if it is not the etcd disk"))
}

/// Opens the volumes for the time of a search: at the last close of a device the kernel forgets what it has read of it, and
/// each look at the superblock would be another read from the disk. One that cannot be opened is reported by who needs it.
fn hold(volumes: &[Volume]) -> Vec<File> {
    volumes
        .iter()
        .filter_map(|volume| File::open(&volume.path).ok())
        .collect()
}

/// Writes a refusal to every console, as lines for people and one for machines, unless it is the one reported last.
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

/// Makes sure that the volume is this node's, formats it if it is blank and that is allowed, and mounts it.
fn mount_checked(context: Context<'_>, choice: &Choice) -> Result<EtcdGate> {
    let volume = &choice.volume;
    find::free(context.world, volume)?;
    if volume.read_only {
        return Err(Fault::new("the etcd volume is read-only")
            .expected("a disk that accepts writes")
            .found(format!("{volume} is read-only"))
            .fix("attach the disk writable")
            .into());
    }
    // The UUID of the node's own volume is proof enough for a mount; its identity file is read there.
    if choice.consent == Consent::Own {
        accept::prepare(context, volume, &superblock(volume)?)?;
    } else {
        examine(context, choice)?;
    }
    let mount = || mount_volume(context, choice);
    context.timeline.step("etcd.mount", mount)
}

/// Probes a volume that is not known to be the node's: formats a blank one, accepts the cluster's own, refuses all else.
fn examine(context: Context<'_>, choice: &Choice) -> Result<()> {
    let Choice { volume, consent } = choice;
    let device =
        File::open(&volume.path).with_context(|| format!("opening {}", volume.path.display()))?;
    let content = context
        .timeline
        .step("etcd.probe", || probe(Stretch::whole(&device, volume.size)))
        .with_context(|| format!("probing {}", volume.name))?;
    drop(device);
    let note = Note::read(context.state).filter(|note| note.is_of(context.world, volume));
    match (content, note) {
        // As below, if mkfs.ext4 wrote the superblock before it was interrupted.
        (Content::Ext, Some(note)) if never_mounted(volume, &note)? => {
            format::format(context, volume, true)
        }
        (Content::Ext, note) => accept::accept(context, volume, *consent, note.as_ref()),
        (Content::Blank, _) => {
            format::may_format(volume, context.settings)?;
            let format = || format::format(context, volume, false);
            context.timeline.step("etcd.format", format)
        }
        // This node began to format it when it was blank, and was interrupted.
        (Content::Unknown(_), Some(_)) => format::format(context, volume, true),
        (other, _) => Err(refused(context, volume, &other).into()),
    }
}

/// The refusal of a volume that holds something else than a file system of etcd.
fn refused(context: Context<'_>, volume: &Volume, content: &Content) -> Fault {
    Fault::new("the etcd volume holds other data")
        .expected(format!(
            "a blank disk, or the etcd volume of cluster {:?}",
            context.cluster
        ))
        .found(format!("{volume} holds {}", content.describe()))
        .fix("attach the right disk; if nothing on this one is needed, wipe it (`wipefs --all`, then its first and last MiB)")
}

/// Whether this is the file system of the note, complete or half made by mkfs.
fn never_mounted(volume: &Volume, note: &Note) -> Result<bool> {
    let found = superblock(volume)?;
    Ok(found.uuid == note.filesystem && !found.ever_mounted)
}

fn mount_volume(context: Context<'_>, choice: &Choice) -> Result<EtcdGate> {
    let volume = &choice.volume;
    let target = context.root.sysroot.join(ETCD.trim_start_matches('/'));
    mount::folder(&target, 0o700)?;
    let found = superblock(volume)?;
    let device = block::number_of(context.world, &volume.name)?;
    mount::mount(&volume.path, &target, "ext4", FLAGS, OPTIONS)?;
    if choice.consent == Consent::Own
        && let Err(error) = confirm(context, volume, &found, &target)
    {
        mount::unmount(&target)?;
        return Err(error);
    }
    // A volume that has become larger is used to its end.
    if let Err(error) = ext4::grow(
        context.world,
        "the etcd volume",
        &found,
        volume.size,
        &target,
        MIB,
    ) {
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

/// Checks the identity of the node's own volume, which is mounted, and keeps the record up to date.
fn confirm(
    context: Context<'_>,
    volume: &Volume,
    found: &Superblock,
    mounted: &Path,
) -> Result<()> {
    let identity =
        identity::read(mounted)?.ok_or_else(|| accept::without_identity(context, volume, found))?;
    accept::check(context, &identity, found)?;
    format::record(context, &identity)
}
