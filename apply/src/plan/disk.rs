//! One disk of the config: its planned table, and the reasons to refuse the change.

use std::collections::BTreeSet;

use ignition::model::{Disk, Partition};
use image::guid::Guid;
use image::layout::MIB;

use super::{DiskPlanner, IMAGE_LABELS};
use crate::content::Held;
use crate::device;
use crate::device::Device;
use crate::device_name::Name;
use crate::journal::disks::Stage;
use crate::partitions::TableChange;
use crate::partitions::table as partition_table;
use crate::partitions::table::PartitionSpec;
use linux::gpt::Table;
use linux::probe;

impl DiskPlanner<'_> {
    /// The one complete disk that a config's entry names.
    fn whole_disk(&mut self, at: &str, path: &str) -> Option<Device> {
        let name = match Name::parse(path) {
            Ok(name) => name,
            Err(why) => {
                self.wrong(at, why);
                return None;
            }
        };
        let found: Vec<Device> = self.present(&name).into_iter().cloned().collect();
        match found.as_slice() {
            [] => {
                let why = format!(
                    "{path} does not exist; this machine has {}",
                    self.list_disks()
                );
                self.wrong(at, why);
                self.problems.missing = true;
                None
            }
            [disk] if disk.partition.is_some() => {
                self.wrong(at, format!("{path} is a partition; expected a whole disk"));
                None
            }
            [disk] => Some(disk.clone()),
            several => {
                let names: Vec<&str> = several.iter().map(|device| device.name.as_str()).collect();
                let paths = device::one_disk(several.iter());
                self.wrong(
                    at,
                    format!("{path} is ambiguous: {}{paths}", names.join(" or ")),
                );
                None
            }
        }
    }

    pub(super) fn disk(&mut self, at: &str, wanted: &Disk, random: &mut dyn FnMut() -> Guid) {
        let Some(disk) = self.whole_disk(at, &wanted.device) else {
            return;
        };
        if let Some(other) = self
            .plan
            .tables
            .iter()
            .find(|other| other.disk.name == disk.name)
        {
            let why = format!("{} is the same disk as that of {}", wanted.device, other.at);
            return self.wrong(at, why);
        }
        let key = Self::disk_key(&disk, disk.table.as_ref());
        let key = key.as_deref();
        let completed = self.inputs.journal.stage(at, key) == Some(Stage::Done);
        // A table that an earlier attempt with another config made may go.
        let may_wipe = wanted.wipe_table == Some(true) || self.inputs.journal.made_earlier(key);
        let wipe = may_wipe && !completed;
        if self.refused(at, &disk, wipe) {
            return;
        }
        let ours = self.inputs.journal.is_fresh(at, key);
        let now = match self.table_of(&disk, wipe, ours, random) {
            Ok(now) => now,
            Err(why) => return self.wrong(at, why),
        };
        let partitions = wanted.partitions.as_deref().unwrap_or_default();
        let mut specs = Vec::new();
        for (i, partition) in partitions.iter().enumerate() {
            let place = format!("{at}.partitions.{i}");
            let number = self.inputs.journal.number(at, key, &place);
            match partition_spec(&place, partition, number) {
                Ok(spec) => specs.push(spec),
                Err(why) => self.wrong(&place, why),
            }
        }
        let busy = self.busy(&disk, &now);
        match partition_table::plan(&now, &specs, &busy, random) {
            Ok(outcome) => self.settle(at, disk, wipe, &now, outcome),
            Err(wrong) => self.problems.lines.extend(wrong),
        }
    }

    /// Reports the reason why a disk may not be changed at all; false if there is none.
    fn refused(&mut self, at: &str, disk: &Device, wipe: bool) -> bool {
        let parts = |device: &&Device| {
            device
                .partition
                .as_ref()
                .is_some_and(|(name, _)| *name == disk.name)
        };
        let busy: Vec<&str> = self
            .inputs
            .devices
            .iter()
            .filter(parts)
            .filter(|device| device.busy())
            .map(|device| device.name.as_str())
            .collect();
        let why = if disk.read_only {
            format!("{} is read-only", disk.name)
        } else if disk.busy() {
            format!("{} is in use", disk.name)
        } else if wipe && self.is_system(&disk.name) {
            format!(
                "{} holds the running root; its table cannot be wiped",
                disk.name
            )
        } else if wipe && !busy.is_empty() {
            format!(
                "the table of {} cannot be wiped: {} in use",
                disk.name,
                busy.join(" and ")
            )
        } else {
            return false;
        };
        self.wrong(at, why);
        true
    }

    /// The table that the changes begin with. `ours` is a disk of which only a table that was cut off is there.
    fn table_of(
        &self,
        disk: &Device,
        wipe: bool,
        ours: bool,
        random: &mut dyn FnMut() -> Guid,
    ) -> Result<Table, String> {
        let mut empty = || {
            Table::empty(disk.sector, disk.size, random())
                .map_err(|error| format!("{}: {error:#}", disk.name))
        };
        if wipe {
            return empty();
        }
        if let Some(system) = self.inputs.system.filter(|system| system.disk == disk.name) {
            return Ok(system.table.clone());
        }
        if let Some(Some(table)) = self.tables.get(&disk.name) {
            return Ok(table.clone());
        }
        if ours {
            return empty();
        }
        let held = Held::of_device(&disk.path)
            .map_err(|error| format!("{}: {error:#}", disk.path.display()))?;
        if held.is_blank() {
            return empty();
        }
        let stable = disk.stable();
        match held.names.contains(&probe::GPT) {
            true => Err(format!(
                "both copies of the GPT on {} ({stable}) are damaged; expected a readable table, or `wipeTable: true`",
                disk.name
            )),
            false => Err(format!(
                "{} ({stable}) has no GPT; expected one, a blank disk, or `wipeTable: true`; found {}",
                disk.name,
                held.describe()
            )),
        }
    }

    /// Numbers of partitions that must not change.
    fn busy(&self, disk: &Device, table: &Table) -> BTreeSet<u32> {
        let used = self.inputs.devices.iter().filter(|device| device.busy());
        let mut out: BTreeSet<u32> = used
            .filter_map(|device| device.partition.as_ref())
            .filter(|(name, _)| *name == disk.name)
            .map(|(_, number)| *number)
            .collect();
        if self.is_system(&disk.name) {
            let own = table
                .entries
                .iter()
                .filter(|(_, e)| IMAGE_LABELS.contains(&e.label.as_str()));
            out.extend(own.map(|(number, _)| *number));
        }
        out
    }

    fn settle(
        &mut self,
        at: &str,
        disk: Device,
        wipe: bool,
        now: &Table,
        outcome: partition_table::PlannedTable,
    ) {
        let there = self.tables.get(&disk.name).cloned().flatten();
        let table = outcome.table;
        let changed = table.entries != now.entries;
        // A damaged copy is repaired in any case; a disk without partitions gets no table if the config has none
        // either. A table that keeps the former end of its disk for a partition is complete.
        let mut grown = table.clone();
        grown.grow();
        let mended = there.as_ref().is_some_and(|there| !there.sound)
            && grown.last_usable == table.last_usable
            && !self.is_system(&disk.name);
        let write = changed || (mended && !wipe);
        let kept =
            (write || !table.entries.is_empty() || (there.is_some() && !wipe)).then_some(table);
        self.tables.insert(disk.name.clone(), kept.clone());
        self.plan.tables.push(TableChange {
            key: Self::disk_key(&disk, kept.as_ref()),
            at: at.to_owned(),
            wipe,
            table: kept,
            fresh: wipe || there.is_none(),
            write,
            numbers: outcome.numbers,
            actions: outcome.actions,
            disk,
        });
    }
}

/// The spec of a config's partition, with the number that an earlier run gave it.
fn partition_spec(
    at: &str,
    model: &Partition,
    earlier: Option<u32>,
) -> Result<PartitionSpec, String> {
    /// Larger values would overflow in the conversion to bytes.
    const LARGEST: u64 = u64::MAX / MIB / 4;
    let mib = |name: &str, value: Option<i64>| {
        value
            .map(|value| {
                let value = u64::try_from(value).ok().filter(|value| *value <= LARGEST);
                value.ok_or_else(|| format!("{name} is out of range"))
            })
            .transpose()
    };
    let guid = |text: &Option<String>| {
        let given = text.as_deref().filter(|text| !text.is_empty());
        given.map(str::parse).transpose()
    };
    let number = u32::try_from(model.number.unwrap_or(0))
        .map_err(|_| "number is out of range".to_owned())?;
    Ok(PartitionSpec {
        at: at.to_owned(),
        number,
        earlier,
        label: model.label.clone(),
        start: mib("startMiB", model.start_mib)?,
        size: mib("sizeMiB", model.size_mib)?,
        type_guid: guid(&model.type_guid)?,
        guid: guid(&model.guid)?,
        exists: model.should_exist != Some(false),
        wipe: model.wipe_partition_entry == Some(true),
        resize: model.resize == Some(true),
    })
}
