//! The device that a name of the config refers to once the tables are written, and the entry that claims it.

use super::{DeviceRef, DiskPlanner, IMAGE_LABELS};
use crate::device;
use crate::device::Device;
use crate::device_name::Name;
use crate::journal::disks::SEPARATOR;
use image::layout::BOOT_DISK;
use linux::gpt::Table;

impl DiskPlanner<'_> {
    /// The device that a name refers to once the tables are written.
    pub(super) fn target(&mut self, at: &str, path: &str) -> Option<DeviceRef> {
        let name = match Name::parse(path) {
            Ok(name) => name,
            Err(why) => {
                self.wrong(at, why);
                return None;
            }
        };
        let found = self.targets(&name).into_iter();
        let mut found: Vec<DeviceRef> = found.map(|target| self.as_planned(target)).collect();
        found.sort();
        found.dedup();
        match found.as_slice() {
            // The problem that prevents the config from making it is in the list already.
            [] if !self.problems.lines.is_empty() && self.is_promised(&name) => None,
            [] => {
                let why = format!(
                    "{path} does not exist and the config does not create it; this machine has {}",
                    self.list_disks()
                );
                self.wrong(at, why);
                self.problems.missing = true;
                None
            }
            [target] => Some(target.clone()),
            several => {
                let names: Vec<String> = several.iter().map(|target| self.stable(target)).collect();
                let devices = several.iter().filter_map(|target| self.device_of(target));
                let paths = device::one_disk(devices);
                self.wrong(
                    at,
                    format!("{path} is ambiguous: {}{paths}", names.join(" or ")),
                );
                None
            }
        }
    }

    /// Whether a name is that of an array or volume of the config.
    fn is_promised(&self, name: &Name) -> bool {
        let storage = self.inputs.storage;
        let (mut arrays, mut volumes) =
            (storage.raid.iter().flatten(), storage.luks.iter().flatten());
        match name {
            Name::Array(name) => arrays.any(|array| array.name == *name),
            Name::Mapped(name) => volumes.any(|volume| volume.name == *name),
            _ => false,
        }
    }

    fn targets(&self, name: &Name) -> Vec<DeviceRef> {
        match name {
            Name::Array(name) if self.planned_array(name).is_some() => {
                vec![DeviceRef::Array(name.clone())]
            }
            Name::Mapped(name) if self.planned_volume(name).is_some() => {
                vec![DeviceRef::Volume(name.clone())]
            }
            Name::PartLabel(label) => self.partitions(|entry| entry.label == *label),
            Name::PartUuid(guid) => self.partitions(|entry| entry.guid.to_string() == *guid),
            Name::Id(id, Some(number)) => self.partition_of(&Name::Id(id.clone(), None), *number),
            Name::Path(path, Some(number)) => {
                self.partition_of(&Name::Path(path.clone(), None), *number)
            }
            Name::Kernel(kernel) if self.device(kernel).is_none() => {
                let disks = self.tables.keys();
                disks
                    .filter_map(|disk| self.partition(disk, number_of(kernel, disk)?))
                    .collect()
            }
            name => self
                .present(name)
                .into_iter()
                .filter_map(|device| match &device.partition {
                    // A partition of a table other than a GPT is an ordinary device.
                    Some((disk, number)) if self.tables.get(disk).is_some_and(Option::is_some) => {
                        self.partition(disk, *number)
                    }
                    _ => Some(DeviceRef::Device(device.name.clone())),
                })
                .collect(),
        }
    }

    /// The present devices that a name refers to. The boot disk is the one that the root is on.
    pub(super) fn present(&self, name: &Name) -> Vec<&Device> {
        let devices = self.inputs.devices;
        match (name, self.inputs.system) {
            (Name::Id(id, number), Some(system)) if id == BOOT_DISK => {
                let is_it = |device: &&Device| match number {
                    None => device.name == system.disk,
                    Some(number) => device.partition == Some((system.disk.clone(), *number)),
                };
                devices.iter().filter(is_it).collect()
            }
            _ => device::find(devices, name),
        }
    }

    /// The partitions that match, in the planned tables.
    fn partitions(&self, matches: impl Fn(&linux::gpt::Entry) -> bool) -> Vec<DeviceRef> {
        let mut out = Vec::new();
        for (disk, table) in &self.tables {
            let entries = table.iter().flat_map(|table| &table.entries);
            let found = entries.filter(|(_, entry)| matches(entry));
            out.extend(found.map(|(number, _)| DeviceRef::Partition(disk.clone(), *number)));
        }
        out
    }

    /// The partition with this number, if the planned table has it.
    fn partition(&self, disk: &str, number: u32) -> Option<DeviceRef> {
        let table = self.tables.get(disk).and_then(Option::as_ref)?;
        let exists = table.entries.contains_key(&number);
        exists.then(|| DeviceRef::Partition(disk.to_owned(), number))
    }

    /// The partition with this number on the disk with this name.
    fn partition_of(&self, disk: &Name, number: u32) -> Vec<DeviceRef> {
        let disks = self.present(disk);
        disks
            .iter()
            .filter_map(|disk| self.partition(&disk.name, number))
            .collect()
    }

    /// By what a later boot knows a disk again that has this table: names of its own, else the table's GUID.
    pub(super) fn disk_key(disk: &Device, table: Option<&Table>) -> Option<String> {
        let by_table = || Some(format!("GPT {} of {} bytes", table?.guid, disk.size));
        disk.identity.clone().or_else(by_table)
    }

    /// By what a later boot knows a target again. None if nothing names it, or a disk below it: an entry of the journal
    /// must not speak of another disk that has come in its place.
    pub(super) fn key(&self, target: &DeviceRef) -> Option<String> {
        let table = |disk: &str| self.tables.get(disk).and_then(Option::as_ref);
        match target {
            DeviceRef::Device(name) => {
                let device = self.device(name)?;
                match &device.partition {
                    Some((_, number)) => {
                        let disk = device.identity.as_ref()?;
                        Some(format!("{disk} partition {number} at {}", device.start))
                    }
                    None => Self::disk_key(device, table(name)),
                }
            }
            DeviceRef::Partition(disk, number) => {
                let table = table(disk);
                let key = Self::disk_key(self.device(disk)?, table)?;
                // The serial number of a disk may be that of a slot, and its size common: the table is this one.
                Some(format!("{key} partition {number} of GPT {}", table?.guid))
            }
            DeviceRef::Array(name) => {
                let members = self.planned_array(name)?.key.as_ref()?;
                Some(format!(
                    "the array {name} of {}",
                    members.replace(SEPARATOR, "; ")
                ))
            }
            DeviceRef::Volume(name) => {
                let below = self.key(&self.planned_volume(name)?.target)?;
                Some(format!("the volume {name} on {below}"))
            }
        }
    }

    /// A target by its name in messages.
    pub(super) fn stable(&self, target: &DeviceRef) -> String {
        let (name, part) = match target {
            DeviceRef::Device(name) => (name, String::new()),
            DeviceRef::Partition(disk, number) => (disk, format!(" partition {number}")),
            DeviceRef::Array(name) => return format!("the array {name}"),
            DeviceRef::Volume(name) => return format!("the volume {name}"),
        };
        let stable = self
            .device(name)
            .map_or_else(|| name.clone(), Device::stable);
        format!("{stable}{part}")
    }

    /// The device from which a target is read now, and its range on that device; none if it does not exist yet.
    pub(super) fn stretch(&self, target: &DeviceRef) -> Option<(&Device, u64, u64)> {
        match target {
            DeviceRef::Device(name) => {
                let device = self.device(name)?;
                Some((device, 0, device.size))
            }
            DeviceRef::Partition(disk, number) => {
                let table = self.tables.get(disk)?.as_ref()?;
                let entry = table.entries.get(number)?;
                let size = (entry.last + 1 - entry.first) * table.sector;
                Some((self.device(disk)?, entry.first * table.sector, size))
            }
            DeviceRef::Array(_) | DeviceRef::Volume(_) => {
                let device = self.device_of(target)?;
                Some((device, 0, device.size))
            }
        }
    }

    pub(super) fn is_reserved(&self, target: &DeviceRef) -> bool {
        match target {
            DeviceRef::Device(name) => self.is_system(name),
            DeviceRef::Partition(disk, number) => {
                let table = self.tables.get(disk).and_then(Option::as_ref);
                let entry = table.and_then(|table| table.entries.get(number));
                self.is_system(disk)
                    && entry.is_some_and(|e| IMAGE_LABELS.contains(&e.label.as_str()))
            }
            DeviceRef::Array(_) | DeviceRef::Volume(_) => false,
        }
    }

    /// Whether the target, or a part of it, is mounted, or held by another device than `by`.
    pub(super) fn is_busy(&self, target: &DeviceRef, by: Option<&str>) -> bool {
        let part_of = |device: &Device, disk: &str, number: Option<u32>| {
            let of = device.partition.as_ref();
            of.is_some_and(|(name, part)| {
                name == disk && number.is_none_or(|number| number == *part)
            })
        };
        self.inputs.devices.iter().any(|device| {
            device.busy_but(by)
                && match target {
                    DeviceRef::Device(name) => device.name == *name || part_of(device, name, None),
                    DeviceRef::Partition(disk, number) => part_of(device, disk, Some(*number)),
                    DeviceRef::Array(_) | DeviceRef::Volume(_) => {
                        let is = self.device_of(target);
                        is.is_some_and(|is| is.name == device.name)
                    }
                }
        })
    }
}

/// The number in the kernel's name of a partition of `disk`.
fn number_of(kernel: &str, disk: &str) -> Option<u32> {
    let rest = kernel.strip_prefix(disk)?;
    let digits = match disk.ends_with(|c: char| c.is_ascii_digit()) {
        true => rest.strip_prefix('p')?,
        false => rest,
    };
    digits.parse().ok()
}
