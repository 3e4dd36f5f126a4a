//! The plan: every change to this machine's disks, decided without a write.

mod adopt;
mod device_ref;
mod disk;
mod filesystem;
mod requirements;
mod volume;

use std::collections::BTreeMap;

use ignition::model::Storage;
use image::guid::Guid;
use image::layout::{self, MIB};

use crate::device::Device;
use crate::fetched::VolumeKeys;
use crate::filesystems::FilesystemAction;
use crate::journal::disks::DiskJournal;
use crate::mounts;
use crate::partitions::TableChange;
use crate::target::Rules;
use crate::{arrays, volumes};
use linux::gpt::Table;

/// Partitions of the system disk that a config may not change.
const IMAGE_LABELS: [&str; 6] = [
    layout::LABEL_ESP,
    layout::LABEL_ROOT_A,
    layout::LABEL_VERITY_A,
    layout::LABEL_ROOT_B,
    layout::LABEL_VERITY_B,
    layout::LABEL_STATE,
];

/// The disk of the root, with its table as this boot will write it.
#[derive(Clone, Debug)]
pub struct SystemDisk {
    /// The kernel's name.
    pub disk: String,
    /// The table with all of the image's own partitions, present or planned, except `var`.
    pub table: Table,
    /// Bytes that `var` needs after the last partition, unless the config has one.
    pub var_minimum: u64,
}

/// The inputs of a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inputs<'a> {
    pub(crate) storage: &'a Storage,
    /// Keys of the encrypted volumes, in their order.
    pub(crate) keys: &'a [VolumeKeys],
    pub(crate) devices: &'a [Device],
    pub(crate) system: Option<&'a SystemDisk>,
    pub(crate) rules: Rules,
    pub(crate) journal: &'a DiskJournal,
}

/// The plan of all changes to the disks.
#[derive(Debug, Default)]
pub struct DiskPlan {
    pub(crate) tables: Vec<TableChange>,
    pub(crate) arrays: Vec<PlannedArray>,
    pub(crate) volumes: Vec<PlannedVolume>,
    pub(crate) filesystems: Vec<PlannedFilesystem>,
    pub(crate) mounts: Vec<(mounts::MountSpec, DeviceRef)>,
    pub(crate) warnings: Vec<String>,
}

/// An array to make, or to start if it is made already.
#[derive(Debug)]
pub(crate) struct PlannedArray {
    pub(crate) spec: arrays::ArraySpec,
    pub(crate) members: Vec<DeviceRef>,
    /// By what a later boot knows all of its members again; none if nothing names one of them.
    pub(crate) key: Option<String>,
    pub(crate) made: bool,
    /// Whether none of its members holds anything, if this run makes it.
    pub(crate) blank: bool,
    /// The kernel's name of the array if it runs already.
    pub(crate) running: Option<String>,
}

/// An encrypted volume to make or to open.
#[derive(Debug)]
pub(crate) struct PlannedVolume {
    pub(crate) spec: volumes::VolumeSpec,
    pub(crate) target: DeviceRef,
    /// The target's name in messages.
    pub(crate) stable: String,
    /// By what a later boot knows the target again; none if nothing names it.
    pub(crate) key: Option<String>,
    /// None if it is decided only once the array below exists.
    pub(crate) action: Option<volumes::VolumeAction>,
    /// The kernel's name of the mapped device if it is open already.
    pub(crate) open: Option<String>,
}

/// A file system to make or to keep.
#[derive(Debug)]
pub(crate) struct PlannedFilesystem {
    pub(crate) spec: crate::filesystems::FilesystemSpec,
    pub(crate) target: DeviceRef,
    /// The target's name in messages.
    pub(crate) stable: String,
    /// By what a later boot knows the target again; none if nothing names it.
    pub(crate) key: Option<String>,
    /// None if it is decided only once the device exists.
    pub(crate) action: Option<FilesystemAction>,
}

/// A device that the plan refers to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DeviceRef {
    /// An existing device, by the kernel's name.
    Device(String),
    /// A partition that exists once the tables are written: kernel's name of the disk, number.
    Partition(String, u32),
    /// An array of the config, by name.
    Array(String),
    /// An encrypted volume of the config, by name.
    Volume(String),
}

/// The reasons why no plan is possible.
#[derive(Debug, Default)]
pub(crate) struct PlanProblems {
    pub(crate) lines: Vec<String>,
    /// Whether a device is missing that may appear later.
    pub(crate) missing: bool,
}

/// Makes the plan. `random` returns GUIDs.
///
/// # Errors
/// All problems at once.
pub(crate) fn plan(
    inputs: &Inputs<'_>,
    random: &mut dyn FnMut() -> anyhow::Result<Guid>,
) -> Result<DiskPlan, PlanProblems> {
    let mut planner = DiskPlanner {
        inputs,
        problems: PlanProblems::default(),
        plan: DiskPlan::default(),
        tables: inputs
            .devices
            .iter()
            .filter(|device| device.partition.is_none())
            .map(|device| (device.name.clone(), device.table.clone()))
            .collect(),
        taken: BTreeMap::new(),
    };
    if let Some(system) = inputs.system {
        let table = Some(system.table.clone());
        planner.tables.insert(system.disk.clone(), table);
    }
    let mut failed = None;
    let mut guid = || {
        random().unwrap_or_else(|error| {
            failed = Some(format!("{error:#}"));
            Guid([0; 16])
        })
    };
    for (i, disk) in inputs.storage.disks.iter().flatten().enumerate() {
        planner.disk(&format!("$.storage.disks.{i}"), disk, &mut guid);
    }
    for (i, model) in inputs.storage.raid.iter().flatten().enumerate() {
        planner.array(&format!("$.storage.raid.{i}"), model);
    }
    for (i, model) in inputs.storage.luks.iter().flatten().enumerate() {
        let keys = inputs.keys.get(i).cloned().unwrap_or_default();
        planner.volume(&format!("$.storage.luks.{i}"), model, &keys);
    }
    for (i, model) in inputs.storage.filesystems.iter().flatten().enumerate() {
        planner.filesystem(&format!("$.storage.filesystems.{i}"), model);
    }
    planner.check_space_for_var();
    planner.problems.lines.extend(failed);
    match planner.problems.lines.is_empty() {
        true => Ok(planner.plan),
        false => Err(planner.problems),
    }
}

struct DiskPlanner<'a> {
    inputs: &'a Inputs<'a>,
    problems: PlanProblems,
    plan: DiskPlan,
    /// The planned table of each disk.
    tables: BTreeMap<String, Option<Table>>,
    /// The entry of the config that claims each target.
    taken: BTreeMap<DeviceRef, String>,
}

impl DiskPlanner<'_> {
    fn wrong(&mut self, at: &str, why: impl std::fmt::Display) {
        self.problems.lines.push(format!("{at}: {why}"));
    }

    fn device(&self, name: &str) -> Option<&Device> {
        self.inputs
            .devices
            .iter()
            .find(|device| device.name == name)
    }

    /// The array of the config with this name.
    fn planned_array(&self, name: &str) -> Option<&PlannedArray> {
        self.plan
            .arrays
            .iter()
            .find(|array| array.spec.name == name)
    }

    /// The encrypted volume of the config with this name.
    fn planned_volume(&self, name: &str) -> Option<&PlannedVolume> {
        let mut volumes = self.plan.volumes.iter();
        volumes.find(|volume| volume.spec.name == name)
    }

    fn is_system(&self, disk: &str) -> bool {
        self.inputs.system.is_some_and(|system| system.disk == disk)
    }

    /// The disks of this machine, so that a message shows a misspelled name.
    fn list_disks(&self) -> String {
        let disks = self
            .inputs
            .devices
            .iter()
            .filter(|device| device.partition.is_none());
        let shown = disks.map(|disk| {
            let id = disk
                .ids
                .last()
                .map_or_else(String::new, |id| format!(", {id}"));
            format!("{} ({} MiB{id})", disk.name, disk.size / MIB)
        });
        match shown.collect::<Vec<_>>().as_slice() {
            [] => "no disks".to_owned(),
            shown => shown.join(", "),
        }
    }

    /// Checks the space for our own `var`, which is made behind all other partitions of the system disk, if the config
    /// has none.
    fn check_space_for_var(&mut self) {
        let Some(system) = self.inputs.system else {
            return;
        };
        let brought = self
            .plan
            .mounts
            .iter()
            .any(|(mount, _)| mount.path == mounts::VAR);
        let Some(Some(table)) = self.tables.get(&system.disk) else {
            return;
        };
        let is_var = |entry: &linux::gpt::Entry| entry.label == layout::LABEL_VAR;
        if brought || table.entries.values().any(is_var) {
            return;
        }
        let (first, last) = table.tail();
        let free = (last + 1).saturating_sub(first) * table.sector;
        if free < system.var_minimum {
            let why = format!(
                "no space is left for {} on {}; expected {} MiB after the last partition, or a file system at {}; found {} MiB",
                layout::LABEL_VAR,
                system.disk,
                system.var_minimum / MIB,
                mounts::VAR,
                free / MIB
            );
            self.wrong("$.storage.disks", why);
        }
    }
}

#[cfg(test)]
mod tests;
