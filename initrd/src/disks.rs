//! Disks: partitions, file systems and mounts as the config wants them.
//!
//! Everything is decided first, from what the disks hold and what sysfs says, and all mistakes are told together; only
//! then is the first byte written. The journal in `state` says what was begun, so that a boot that was cut off is taken up
//! where it ended.

pub(crate) mod device;
#[cfg(test)]
mod fake;
mod filesystem;
pub(crate) mod journal;
pub(crate) mod mounts;
pub(crate) mod name;
mod partition;
mod plan;
mod table;
#[cfg(test)]
mod tests;
pub(crate) mod tool;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use ignition::model::Storage;
use serde::{Deserialize, Serialize};

use crate::block::filesystem::Kind;
use crate::block::probe::Stretch;
use crate::block::{self, gpt::Table};
use crate::boot::Boot;
use crate::config::Fetched;
use crate::failure::Fault;
use crate::modules::Network;
use crate::provision;
use crate::root::Root;
use crate::uevent;
use crate::world::World;
use journal::{Journal, Stage};
use mounts::Mounted;
pub(crate) use plan::Plan;
use plan::{Inputs, Target};

/// How long a disk that the config names may take to appear.
const DEADLINE: Duration = Duration::from_secs(120);

/// The disk that the root is on, with its table as this boot will write it.
#[derive(Clone, Debug)]
pub(crate) struct System {
    /// The kernel's name.
    pub(crate) disk: String,
    /// The table with every partition of the image's own, made or about to be, but for `var`.
    pub(crate) table: Table,
    /// Bytes that `var` needs behind the last partition, unless the config brings one.
    pub(crate) var_minimum: u64,
}

/// A file system of the config that takes the place of the partition `var`, as `state` remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Var {
    /// The word that a config has for its kind.
    pub(crate) format: String,
    /// Its UUID.
    pub(crate) uuid: String,
    /// Mount options.
    pub(crate) options: Vec<String>,
}

/// What the disks stage made.
#[derive(Debug, Default)]
pub(crate) struct Made {
    mounts: Vec<(mounts::Wanted, PathBuf)>,
    /// The file system at `/var`, if the config has one, and its device.
    pub(crate) var: Option<(Var, PathBuf)>,
}

/// Decides all that is to be done; waits for the disks that the config names. Writes nothing.
///
/// # Errors
/// Everything that is wrong, at once.
pub(crate) fn plan(
    boot: &Boot,
    root: &Root,
    fetched: &Fetched,
    system: Option<&System>,
    journal: &Journal,
) -> Result<Plan> {
    let Some(storage) = fetched
        .model
        .storage
        .as_ref()
        .filter(|storage| concerns(storage))
    else {
        return Ok(Plan::default());
    };
    let world = &boot.world;
    let mut last = None;
    let planned = uevent::wait_for(
        world,
        "the disks that the config names",
        Some(DEADLINE),
        || {
            let devices = device::all(world);
            let inputs = Inputs {
                storage,
                devices: &devices,
                system,
                journal,
            };
            match plan::plan(&inputs, &mut || block::random_guid(world)) {
                Err(problems) if problems.missing => {
                    boot.modules.load_for_disks();
                    boot.modules.load_for_devices(Network::Without);
                    last = Some(problems);
                    Ok(None)
                }
                other => Ok(Some(other)),
            }
        },
    )?;
    let mut wrong = Vec::new();
    let plan = match planned {
        Some(Ok(plan)) => {
            wrong.extend(plan.lacks(root));
            plan
        }
        Some(Err(problems)) => {
            wrong = problems.lines;
            Plan::default()
        }
        None => {
            wrong = last.map(|problems| problems.lines).unwrap_or_default();
            Plan::default()
        }
    };
    if wrong.is_empty() {
        return Ok(plan);
    }
    Err(Fault::new("the config's disks cannot be made on this machine; nothing was written")
        .found(wrong.join("\n"))
        .fix("correct the config, attach the right disk, or allow in the config that what is there is wiped")
        .into())
}

fn concerns(storage: &Storage) -> bool {
    storage.disks.as_ref().is_some_and(|list| !list.is_empty())
        || storage
            .filesystems
            .as_ref()
            .is_some_and(|list| !list.is_empty())
}

/// Does what was decided: tables, then file systems, those side by side.
///
/// # Errors
/// The first thing that failed. A later run takes it up from there.
pub(crate) fn apply(boot: &Boot, root: &Root, plan: &Plan, journal: &mut Journal) -> Result<Made> {
    let world = &boot.world;
    for warning in &plan.warnings {
        tracing::warn!("disks: {warning}");
    }
    let step = &boot.timeline;
    step.step("disks.partitions", || partitions(world, plan, journal))?;
    step.step("disks.filesystems", || filesystems(root, plan, journal))?;
    let mut made = Made::default();
    for (wanted, target) in &plan.mounts {
        let device = path_of(world, target)?;
        if wanted.path == mounts::VAR {
            made.var = Some((describe(&device, wanted)?, device.clone()));
        }
        made.mounts.push((wanted.clone(), device));
    }
    Ok(made)
}

fn partitions(world: &World, plan: &Plan, journal: &mut Journal) -> Result<()> {
    for change in &plan.tables {
        for (number, action) in &change.actions {
            tracing::info!(
                "disks: {}: partition {number}: {action:?}",
                change.disk.name
            );
        }
        let device = change.disk.stable();
        if change.changes() {
            let numbers = change.numbers.iter().cloned().collect::<BTreeMap<_, _>>();
            journal.number_all(&change.at, &device, numbers, change.fresh)?;
            change.apply(world).with_context(|| change.at.clone())?;
            journal.note(&change.at, &device, Stage::Done)?;
        }
    }
    Ok(())
}

fn filesystems(root: &Root, plan: &Plan, journal: &mut Journal) -> Result<()> {
    let work: Vec<_> = plan
        .filesystems
        .iter()
        .filter(|job| job.verdict != filesystem::Verdict::Keep)
        .map(|job| Ok((job, path_of(&root.world, &job.target)?)))
        .collect::<Result<_>>()?;
    for (job, _) in &work {
        journal.note(&job.wanted.at, &job.stable, Stage::Begun)?;
    }
    let at_once = std::thread::available_parallelism().map_or(1, usize::from);
    for some in work.chunks(at_once) {
        let results: Vec<Result<()>> = std::thread::scope(|scope| {
            let threads: Vec<_> = some
                .iter()
                .map(|(job, path)| scope.spawn(|| job.wanted.apply(root, &job.verdict, path)))
                .collect();
            threads
                .into_iter()
                .map(|thread| {
                    thread
                        .join()
                        .unwrap_or_else(|_| Err(anyhow!("a thread has panicked")))
                })
                .collect()
        });
        for ((job, _), result) in some.iter().zip(results) {
            result.with_context(|| job.wanted.at.clone())?;
            journal.note(&job.wanted.at, &job.stable, Stage::Done)?;
        }
    }
    Ok(())
}

/// The node of a target, once it is there.
fn path_of(world: &World, target: &Target) -> Result<PathBuf> {
    match target {
        Target::Device(name) => Ok(world.dev.join(name)),
        Target::Partition(disk, number) => {
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

/// What `state` must remember of the file system at `/var`.
fn describe(device: &Path, wanted: &mounts::Wanted) -> Result<Var> {
    let file =
        std::fs::File::open(device).with_context(|| format!("opening {}", device.display()))?;
    // The end of a device needs no ioctl.
    let size = std::io::Seek::seek(&mut &file, std::io::SeekFrom::End(0))?;
    let found = block::filesystem::read(Stretch::whole(&file, size))?;
    let found = found.into_iter().find(|found| found.kind == wanted.kind);
    let found = found.with_context(|| format!("{} holds no {}", device.display(), wanted.kind))?;
    Ok(Var {
        format: wanted.kind.to_string(),
        uuid: found.uuid,
        options: wanted.options.clone(),
    })
}

impl Made {
    /// Mounts what the config wants mounted below the root, where `/var` is already. The folders that are made for that
    /// are noted in the journal.
    ///
    /// # Errors
    /// If one does not mount; then none is mounted.
    pub(crate) fn mount(
        &self,
        root: &Root,
        journal: &mut provision::journal::Journal,
    ) -> Result<Mounted> {
        mounts::mount(root, &self.mounts, journal)
    }
}

impl Var {
    fn kind(&self) -> Result<Kind> {
        filesystem::kind(&self.format)
            .ok()
            .flatten()
            .with_context(|| format!("there is no file system {:?}", self.format))
    }

    /// Waits for its device.
    ///
    /// # Errors
    /// If it does not come.
    pub(crate) fn find(&self, boot: &Boot) -> Result<PathBuf> {
        let world = &boot.world;
        let what = format!("the file system of /var, UUID {}", self.uuid);
        let name = name::Name::Uuid(self.uuid.clone());
        let found = uevent::wait_for(world, &what, Some(DEADLINE), || {
            let devices = device::all(world);
            let found = device::find(&devices, &name);
            if found.is_empty() {
                boot.modules.load_for_disks();
                boot.modules.load_for_devices(Network::Without);
            }
            Ok(found.first().map(|device| device.path.clone()))
        })?;
        found.ok_or_else(|| {
            Fault::new("the file system of /var is not there")
                .expected(format!(
                    "{} with UUID {}, which the node's config made",
                    self.format, self.uuid
                ))
                .found("no device that holds it")
                .fix("attach its disk again")
                .into()
        })
    }

    /// Mounts it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn mount(&self, root: &Root, device: &Path, target: &Path) -> Result<()> {
        mounts::attach(root, device, target, self.kind()?, &self.options)
    }
}
