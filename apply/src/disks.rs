//! Disks: partitions, file systems and mounts of the config.
//!
//! All decisions come first, from the content of the disks and from sysfs, and all problems are reported together; only
//! then is the first byte written. The journal in `state` records what was started, so that the next boot resumes an
//! interrupted run.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::thread::{self, ScopedJoinHandle};

use anyhow::{Context, Result, anyhow};
use ignition::model::Storage;

use crate::content::Held;
use crate::fetched::VolumeKeys;
use crate::filesystems::FilesystemAction;
use crate::journal::disks::{DiskJournal, Stage};
use crate::journal::files::FileJournal;
use crate::mounts::Mounted;
use crate::plan::PlannedFilesystem;
use crate::plan::{self, DeviceRef, DiskPlan, Inputs, SystemDisk};
use crate::target::Target;
use crate::var::VarFilesystem;
use crate::var::layers::{self, VarLayer};
use crate::{arrays, device, mounts, volumes};
use image::fault::Fault;
use linux::block;
use linux::disk_answers::{self, Silent};
use linux::modprobe::Serving;
use linux::modules::Network;
use linux::programs::Programs;
use linux::uevent;
use linux::world::World;

/// Result of the disks stage.
#[derive(Debug, Default)]
pub struct Made {
    mounts: Vec<(mounts::MountSpec, PathBuf)>,
    /// The encrypted volumes that are open.
    pub volumes: Vec<volumes::Opened>,
    /// The file system at `/var`, if the config has one, and its device.
    pub var: Option<(VarFilesystem, PathBuf)>,
}

/// Plans all changes; waits for the disks that the config names. Writes nothing. `keys` open the encrypted volumes, in
/// their order.
///
/// # Errors
/// All problems at once.
pub fn plan(
    target: &Target,
    storage: Option<&Storage>,
    keys: &[VolumeKeys],
    system: Option<&SystemDisk>,
    journal: &DiskJournal,
) -> Result<DiskPlan> {
    let Some(storage) = storage.filter(|storage| concerns(storage)) else {
        return Ok(DiskPlan::default());
    };
    let world = &target.programs.world;
    let mut last: Option<plan::PlanProblems> = None;
    let planned = uevent::wait_for(
        world,
        "the disks that the config names",
        Some(target.rules.device_deadline),
        || {
            let devices = device::all(world);
            let inputs = Inputs {
                storage,
                keys,
                devices: &devices,
                system,
                rules: target.rules,
                journal,
            };
            let planned = plan::plan(&inputs, &mut || world.random_guid());
            match with_doubt(planned, &disk_answers::silent(world)) {
                Err(problems) if problems.missing => {
                    target.modules.load_for_disks();
                    target.modules.load_for_devices(Network::Without);
                    let before = last.as_ref().map(|last| &last.lines);
                    if before != Some(&problems.lines) {
                        tracing::warn!("not there yet: {}", problems.lines.join("; "));
                    }
                    last = Some(problems);
                    Ok(None)
                }
                other => Ok(Some(other)),
            }
        },
    )?;
    let (plan, wrong) = match planned {
        Some(Ok(plan)) => {
            let wrong = plan.missing_requirements(&target.programs)?;
            (plan, wrong)
        }
        Some(Err(problems)) => (DiskPlan::default(), problems.lines),
        None => (
            DiskPlan::default(),
            last.map(|problems| problems.lines).unwrap_or_default(),
        ),
    };
    match wrong.is_empty() {
        true => Ok(plan),
        false => Err(refused(&wrong).into()),
    }
}

/// A plan is none as long as a disk does not answer: a name of the config may lead to that disk, or to it too, and what is
/// planned may wipe another one.
fn with_doubt(
    planned: Result<DiskPlan, plan::PlanProblems>,
    silent: &[Silent],
) -> Result<DiskPlan, plan::PlanProblems> {
    if silent.is_empty() {
        return planned;
    }
    let mut problems = match planned {
        Err(problems) => problems,
        Ok(_) => plan::PlanProblems {
            missing: true,
            ..plan::PlanProblems::default()
        },
    };
    let line = |one: &Silent| format!("{} does not answer, and may be meant", one.shown);
    problems.lines.extend(silent.iter().map(line));
    Err(problems)
}

fn refused(wrong: &[String]) -> Fault {
    Fault::new("the config's disks cannot be made on this machine; nothing was written")
        .found(wrong.join("\n"))
        .fix("correct the config, attach the right disk, or allow in the config that what is there is wiped")
}

fn concerns(storage: &Storage) -> bool {
    storage.disks.as_ref().is_some_and(|list| !list.is_empty())
        || storage.raid.as_ref().is_some_and(|list| !list.is_empty())
        || storage.luks.as_ref().is_some_and(|list| !list.is_empty())
        || storage
            .filesystems
            .as_ref()
            .is_some_and(|list| !list.is_empty())
}

/// Carries out the plan: tables, arrays, encrypted volumes, then file systems, those in parallel.
///
/// # Errors
/// The first step that failed. A later run resumes there.
pub fn apply(target: &Target, plan: &DiskPlan, journal: &mut DiskJournal) -> Result<Made> {
    let root = &target.programs;
    let world = &root.world;
    for warning in &plan.warnings {
        tracing::warn!("disks: {warning}");
    }
    let step = &target.timeline;
    step.step("disks.partitions", || partitions(world, plan, journal))?;
    let stacked = !plan.arrays.is_empty() || !plan.volumes.is_empty();
    let serves = stacked && target.rules.answers_modprobe;
    let _serving = serves.then(|| Serving::begin(world)).transpose()?;
    let (mut volumes, mut new) = Default::default();
    if stacked {
        step.step("disks.raid", || arrays(root, plan, journal))?;
        (volumes, new) = step.step("disks.luks", || open_volumes(root, plan, journal))?;
    }
    step.step("disks.filesystems", || {
        filesystems(root, plan, &new, journal)
    })?;
    let mut made = Made::default();
    for (spec, on) in &plan.mounts {
        let device = path_of(world, on)?;
        if target.rules.remembers_var && spec.path == mounts::VAR {
            let layers = layers::layers_below(plan, root, &volumes, on)?;
            made.var = Some((describe(&device, spec, layers)?, device.clone()));
        }
        made.mounts.push((spec.clone(), device));
    }
    made.volumes = volumes;
    Ok(made)
}

fn partitions(world: &World, plan: &DiskPlan, journal: &mut DiskJournal) -> Result<()> {
    for change in &plan.tables {
        for (number, action) in &change.actions {
            tracing::info!(
                "disks: {}: partition {number}: {action:?}",
                change.disk.name
            );
        }
        let key = change.key.as_deref();
        if change.changes() {
            let numbers = change.numbers.iter().cloned().collect::<BTreeMap<_, _>>();
            journal.note_table(&change.at, key, numbers, change.fresh)?;
            change.apply(world).with_context(|| change.at.clone())?;
            journal.note(&change.at, key, Stage::Done)?;
        }
    }
    Ok(())
}

fn arrays(root: &Programs, plan: &DiskPlan, journal: &mut DiskJournal) -> Result<()> {
    for array in &plan.arrays {
        let at = &array.spec.at;
        if let Some(device) = &array.running {
            tracing::info!("disks: the array {} runs as {device}", array.spec.name);
            continue;
        }
        let members = array
            .members
            .iter()
            .map(|member| path_of(&root.world, member));
        let members = members.collect::<Result<Vec<_>>>()?;
        if !array.made {
            journal.note(at, array.key.as_deref(), Stage::Started)?;
        }
        array
            .spec
            .apply(root, &members, array.made)
            .with_context(|| at.clone())?;
        // An array that existed before is not this node's to make again.
        if !array.made {
            journal.note(at, array.key.as_deref(), Stage::Done)?;
        }
    }
    Ok(())
}

/// Makes and opens the volumes; gives the names of those that it made too.
fn open_volumes(
    root: &Programs,
    plan: &DiskPlan,
    journal: &mut DiskJournal,
) -> Result<(Vec<volumes::Opened>, BTreeSet<String>)> {
    let (mut opened, mut new) = (Vec::new(), BTreeSet::new());
    for volume in &plan.volumes {
        let at = &volume.spec.at;
        let path = path_of(&root.world, &volume.target)?;
        let action = match volume.action {
            Some(action) => action,
            None => {
                let held = Held::of_device(&path)?;
                let decided = volume.spec.decide(&held, &volume.stable);
                decided.map_err(|why| anyhow!(why))?
            }
        };
        // A volume that existed before is not this node's to make again.
        let makes = action != volumes::VolumeAction::Open;
        if makes {
            journal.note(at, volume.key.as_deref(), Stage::Started)?;
        }
        let done = match &volume.open {
            Some(_) => volume.spec.check_open(root, &path),
            None => volume.spec.apply(root, action, &path),
        };
        opened.push(done.with_context(|| at.clone())?);
        if makes {
            journal.note(at, volume.key.as_deref(), Stage::Done)?;
            new.insert(volume.spec.name.clone());
        }
    }
    Ok((opened, new))
}

/// Makes the file systems; `new` are the names of the volumes that this run has made.
fn filesystems(
    root: &Programs,
    plan: &DiskPlan,
    new: &BTreeSet<String>,
    journal: &mut DiskJournal,
) -> Result<()> {
    let mut work = Vec::new();
    for planned in &plan.filesystems {
        let path = path_of(&root.world, &planned.target)?;
        let action = action_now(planned, new, &path)?;
        if action != FilesystemAction::Keep {
            work.push((planned, action, path));
        }
    }
    for (planned, ..) in &work {
        journal.note(&planned.spec.at, planned.key.as_deref(), Stage::Started)?;
    }
    // mkfs waits for its device most of the time.
    let at_once = thread::available_parallelism().map_or(1, usize::from);
    for some in work.chunks(at_once) {
        let results: Vec<Result<()>> = thread::scope(|scope| {
            let mut threads = Vec::new();
            for (planned, action, path) in some {
                threads.push(scope.spawn(move || planned.spec.apply(root, action, path)));
            }
            let join = |thread: ScopedJoinHandle<'_, Result<()>>| {
                let result = thread.join();
                result.unwrap_or_else(|_| Err(anyhow!("a thread has panicked")))
            };
            threads.into_iter().map(join).collect()
        });
        for ((planned, ..), result) in some.iter().zip(results) {
            result.with_context(|| planned.spec.at.clone())?;
            journal.note(&planned.spec.at, planned.key.as_deref(), Stage::Done)?;
        }
    }
    Ok(())
}

/// What is done to a file system's device: decided before the first write, or now if the device did not exist then.
fn action_now(
    planned: &PlannedFilesystem,
    new: &BTreeSet<String>,
    path: &Path,
) -> Result<FilesystemAction> {
    if let Some(action) = &planned.action {
        return Ok(action.clone());
    }
    // What a new volume seems to hold is noise: the bytes below it, decrypted with a key that they were not encrypted with.
    if matches!(&planned.target, DeviceRef::Volume(name) if new.contains(name)) {
        return Ok(planned.spec.fresh());
    }
    let held = Held::of_device(path)?;
    let decided = planned.spec.decide(&held, &planned.stable);
    let (action, warning) = decided.map_err(|why| anyhow!(why))?;
    if let Some(warning) = warning {
        tracing::warn!("disks: {warning}");
    }
    Ok(action)
}

/// The node of a device, once it exists.
fn path_of(world: &World, target: &DeviceRef) -> Result<PathBuf> {
    match target {
        DeviceRef::Device(name) => Ok(world.dev.join(name)),
        DeviceRef::Array(name) => arrays::node(world, name),
        DeviceRef::Volume(name) => device::mapped(world, name),
        DeviceRef::Partition(disk, number) => {
            let found = block::disk(world, disk).and_then(|disk| {
                let part = disk
                    .partitions
                    .into_iter()
                    .find(|part| part.number == *number);
                part.map(|part| part.path)
            });
            found.with_context(|| format!("{disk} has no partition {number}"))
        }
    }
}

/// The record of the file system at `/var` for `state`.
fn describe(
    device: &Path,
    spec: &mounts::MountSpec,
    layers: Vec<VarLayer>,
) -> Result<VarFilesystem> {
    let held = Held::of_device(device)?;
    let found = held.found.into_iter().find(|found| found.kind == spec.kind);
    let found = found.with_context(|| format!("{} holds no {}", device.display(), spec.kind))?;
    Ok(VarFilesystem {
        format: spec.kind.to_string(),
        uuid: found.uuid,
        options: spec.options.clone(),
        layers,
    })
}

impl Made {
    /// Closes the encrypted volumes except those below `/var`: the running system opens them itself, by its crypttab.
    ///
    /// # Errors
    /// If a volume is in use.
    pub fn close(&self, root: &Programs) -> Result<()> {
        let layers = self.var.as_ref().map(|(var, _)| var.layers.as_slice());
        let stays = |name: &str| {
            let mut layers = layers.unwrap_or_default().iter();
            layers.any(|layer| layer.name() == name)
        };
        let closing = self.volumes.iter().rev();
        closing
            .filter(|volume| !stays(&volume.name))
            .try_for_each(|volume| volumes::close(root, &volume.name))
    }

    /// Mounts the config's file systems below the root, where `/var` is mounted already. The journal records the
    /// folders that are made for that.
    ///
    /// # Errors
    /// If a file system does not mount; then none stays mounted.
    pub fn mount(&self, target: &Target, journal: &mut FileJournal) -> Result<Mounted> {
        let own = |(spec, _): &&(mounts::MountSpec, PathBuf)| spec.path != mounts::VAR;
        let spec: Vec<_> = self.mounts.iter().filter(own).cloned().collect();
        mounts::mount(&target.programs, &target.root, &spec, journal)
    }
}
