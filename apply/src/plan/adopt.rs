//! Adopts arrays that exist already, and arrays and volumes that an earlier run left running or open: where the journal
//! says nothing of them, the metadata on the devices decides. A system whose initrd runs Ignition has no journal, and a
//! node has an empty one after a boot without a disk for `state`, or a new installation.

use super::{DeviceRef, DiskPlanner};
use crate::device::Device;
use crate::partitions::table::PartitionAction;
use crate::{arrays, volumes};
use linux::md;
use linux::md::Member;
use linux::probe::Stretch;

/// An array of the config that exists.
#[derive(Debug)]
pub(super) struct ExistingArray {
    /// The kernel's name of the array if it runs.
    pub(super) running: Option<String>,
}

impl DiskPlanner<'_> {
    /// The present device of a target; none if it does not exist yet.
    pub(super) fn device_of(&self, target: &DeviceRef) -> Option<&Device> {
        match target {
            DeviceRef::Device(name) => self.device(name),
            DeviceRef::Partition(disk, number) => {
                let mut devices = self.inputs.devices.iter();
                devices.find(|device| {
                    let of = device.partition.as_ref();
                    of.is_some_and(|(of, part)| of == disk && part == number)
                })
            }
            DeviceRef::Array(name) => {
                let array = self.planned_array(name)?;
                self.device(array.running.as_ref()?)
            }
            DeviceRef::Volume(name) => {
                let volume = self.planned_volume(name)?;
                self.device(volume.open.as_ref()?)
            }
        }
    }

    /// The array or volume of the config that a device is, else the device itself.
    pub(super) fn as_planned(&self, target: DeviceRef) -> DeviceRef {
        let DeviceRef::Device(name) = &target else {
            return target;
        };
        let mut arrays = self.plan.arrays.iter();
        if let Some(array) = arrays.find(|array| array.running.as_ref() == Some(name)) {
            return DeviceRef::Array(array.spec.name.clone());
        }
        let mut volumes = self.plan.volumes.iter();
        match volumes.find(|volume| volume.open.as_ref() == Some(name)) {
            Some(volume) => DeviceRef::Volume(volume.spec.name.clone()),
            None => target,
        }
    }

    /// Whether an array of which the journal says nothing exists already, by its name, level and size and on all of its
    /// devices.
    ///
    /// # Errors
    /// If it is on only some of the devices: making it would overwrite the existing one.
    pub(super) fn existing_array(
        &self,
        spec: &arrays::ArraySpec,
        members: &[DeviceRef],
    ) -> Result<Option<ExistingArray>, String> {
        let found: Vec<Option<Member>> = members
            .iter()
            .map(|target| self.member(target).filter(|member| spec.has(member)))
            .collect();
        let Some(first) = found.iter().flatten().next() else {
            return Ok(None);
        };
        // On a node only members that this run does not make show that there is an array to keep.
        let stays = |(target, member): (&DeviceRef, &Option<Member>)| {
            member.is_some() && !self.is_given_up(target)
        };
        if self.inputs.rules.has_journal && !members.iter().zip(&found).any(stays) {
            return Ok(None);
        }
        let belongs = |member: &Option<Member>| {
            let member = member.as_ref();
            member.is_some_and(|member| member.array == first.array)
        };
        let pairs = members.iter().zip(&found);
        let others: Vec<String> = pairs
            .filter(|(_, member)| !belongs(member))
            .map(|(target, _)| self.stable(target))
            .collect();
        if !others.is_empty() {
            return Err(format!(
                "the array {} is there, but not whole; expected it on all of its devices, or on none; found {} outside of it",
                spec.name,
                others.join(" and ")
            ));
        }
        let mut devices = members.iter().filter_map(|member| self.device_of(member));
        let runs = |holder: &&String| {
            let device = self.device(holder);
            device.is_some_and(|device| device.arrays.contains(&spec.name))
        };
        let running = devices.find_map(|device| device.holders.iter().find(runs).cloned());
        Ok(Some(ExistingArray { running }))
    }

    /// Whether nothing on a target needs to be kept: this config makes its partition, in this run or with the complete
    /// table in an earlier one, or an attempt with another config made all that it holds.
    fn is_given_up(&self, target: &DeviceRef) -> bool {
        if self.was_made_earlier(target) {
            return true;
        }
        let DeviceRef::Partition(disk, number) = target else {
            return false;
        };
        let journal = self.inputs.journal;
        let mut tables = self.plan.tables.iter();
        let table = tables.find(|change| change.disk.name == *disk);
        table.is_some_and(|change| {
            let is_made = |(made, action): &(u32, PartitionAction)| {
                let makes = [PartitionAction::Create, PartitionAction::Recreate];
                made == number && makes.contains(action)
            };
            let fresh = journal.is_fresh(&change.at, change.key.as_deref());
            fresh || change.actions.iter().any(is_made)
        })
    }

    /// The superblock of the array that a target is a member of. A target that cannot be read is not a member, and is
    /// reported when it is written to; nor is a disk whose tables are wiped, and the superblock with them.
    fn member(&self, target: &DeviceRef) -> Option<Member> {
        let is_wiped = |name: &String| {
            let mut tables = self.plan.tables.iter();
            tables.any(|change| change.wipe && change.disk.name == *name)
        };
        if let DeviceRef::Device(name) = target
            && is_wiped(name)
        {
            return None;
        }
        let (device, start, size) = self.stretch(target)?;
        let file = std::fs::File::open(&device.path).ok()?;
        md::read(Stretch::part(&file, start, size)).ok()?
    }

    /// The kernel's name of the mapped device of a volume that is open already.
    ///
    /// # Errors
    /// If another device has the name of the volume.
    pub(super) fn open_volume(
        &self,
        spec: &volumes::VolumeSpec,
        target: &DeviceRef,
    ) -> Result<Option<String>, String> {
        let mut devices = self.inputs.devices.iter();
        let named = devices.find(|device| device.mapped.as_ref() == Some(&spec.name));
        let Some(named) = named else {
            return Ok(None);
        };
        let holders = self.device_of(target).map(|device| &device.holders);
        match holders.is_some_and(|holders| holders.contains(&named.name)) {
            true => Ok(Some(named.name.clone())),
            false => Err(format!(
                "name: /dev/mapper/{} exists already, but not on {}",
                spec.name, spec.device
            )),
        }
    }
}
