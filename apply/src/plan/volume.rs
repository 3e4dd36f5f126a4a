//! Arrays and encrypted volumes of the config: their devices, and whether existing content may be overwritten.

use std::fs::File;

use anyhow::{Context, Result};
use ignition::model::{Luks, Raid};

use super::{DeviceRef, DiskPlanner, PlannedArray, PlannedVolume};
use crate::content::Held;
use crate::fetched::VolumeKeys;
use crate::journal::disks::{SEPARATOR, Stage};
use crate::partitions::TableChange;
use crate::volumes::VolumeAction;
use crate::{arrays, volumes};
use linux::gpt::Table;
use linux::probe::Stretch;

impl DiskPlanner<'_> {
    pub(super) fn array(&mut self, at: &str, model: &Raid) {
        let spec = match arrays::ArraySpec::of(at, model) {
            Ok(spec) => spec,
            Err(why) => return self.wrong(at, why),
        };
        let mut named = Vec::new();
        for (i, device) in model.devices.iter().flatten().enumerate() {
            let place = format!("{at}.devices.{i}");
            if let Some(target) = self.target(&place, device) {
                named.push((place, device, target));
            }
        }
        let targets: Vec<DeviceRef> = named.iter().map(|(_, _, target)| target.clone()).collect();
        let keys: Option<Vec<String>> = targets.iter().map(|target| self.key(target)).collect();
        let key = keys.map(|keys| keys.join(SEPARATOR));
        let stage = self.inputs.journal.stage(at, key.as_deref());
        // The members of an array that this config began may show anything.
        let there = match stage {
            Some(_) => Ok(None),
            None => self.existing_array(&spec, &targets),
        };
        let there = there.unwrap_or_else(|why| {
            self.wrong(at, why);
            None
        });
        let is_there = there.is_some();
        let running = there.and_then(|there| there.running);
        // udev may be starting it, member by member: then the plan waits for it.
        let held = targets.iter().any(|target| self.is_busy(target, None));
        self.problems.missing |= is_there && running.is_none() && held;
        let mut members = Vec::new();
        for (place, device, target) in named {
            if self.claim(&place, device, &target, false, running.as_deref()) {
                members.push(target);
            }
        }
        let mut blank = stage.is_none() && !is_there;
        if blank {
            for member in &members {
                blank &= !self.overwrites(at, member);
            }
        }
        self.plan.arrays.push(PlannedArray {
            made: is_there || stage == Some(Stage::Done),
            blank,
            running,
            spec,
            members,
            key,
        });
    }

    pub(super) fn volume(&mut self, at: &str, model: &Luks, keys: &VolumeKeys) {
        let spec = match volumes::VolumeSpec::of(at, model, keys) {
            Ok(spec) => spec,
            Err(why) => return self.wrong(at, why),
        };
        let device = spec.device.clone();
        let Some(target) = self.target(&format!("{at}.device"), &device) else {
            return;
        };
        let open = match self.open_volume(&spec, &target) {
            Ok(open) => open,
            Err(why) => return self.wrong(at, why),
        };
        if !self.claim(at, &device, &target, spec.wipes(), open.as_deref()) {
            return;
        }
        let key = self.key(&target);
        match self.volume_action(&spec, &target, key.as_deref()) {
            Ok(action) if open.is_some() && action != Some(VolumeAction::Open) => {
                self.wrong(at, format!("{device} is in use: the volume is open"));
            }
            Ok(action) => self.plan.volumes.push(PlannedVolume {
                stable: self.stable(&target),
                spec,
                target,
                key,
                action,
                open,
            }),
            Err(why) => self.problems.lines.push(why),
        }
    }

    fn volume_action(
        &self,
        spec: &volumes::VolumeSpec,
        target: &DeviceRef,
        key: Option<&str>,
    ) -> Result<Option<VolumeAction>, String> {
        // What a new array or volume shows is what lay below it before.
        if let Some(array) = self.new_array(target) {
            return Ok(Some(match array.blank {
                true => VolumeAction::Make,
                false => VolumeAction::Remake,
            }));
        }
        if self.is_new(target) {
            return Ok(Some(VolumeAction::Make));
        }
        // Made by an earlier run of this config: it is opened. One that is half made, or whose key was drawn and is
        // gone, is made anew with all that is on it.
        let ours = match self.inputs.journal.stage(&spec.at, key) {
            Some(Stage::Done) if spec.can_reopen() => Some(VolumeAction::Open),
            Some(_) => Some(VolumeAction::Remake),
            None => (self.was_made_earlier(target) || self.is_of_earlier_run(target))
                .then_some(VolumeAction::Remake),
        };
        if ours.is_some() {
            return Ok(ours);
        }
        let looked = self.look(target);
        match looked.map_err(|error| format!("{}: {error:#}", spec.at))? {
            Some(held) => spec.decide(&held, &self.stable(target)).map(Some),
            None => Ok(spec.wipes().then_some(VolumeAction::Remake)),
        }
    }

    /// The content of a target as it will be once the tables are written; none if the device does not exist yet.
    pub(super) fn look(&self, target: &DeviceRef) -> Result<Option<Held>> {
        let Some((device, start, size)) = self.stretch(target) else {
            return Ok(None);
        };
        let file = File::open(&device.path)
            .with_context(|| format!("opening {}", device.path.display()))?;
        let mut gone = Vec::new();
        // A partition of the plan is read on its disk, where tables go and move.
        if device.partition.is_none() {
            let wiped = |change: &TableChange| change.disk.name == device.name && change.wipe;
            if self.plan.tables.iter().any(wiped) {
                gone.extend(Table::places(device.sector, device.size));
            }
            if let Some(table) = &device.table {
                gone.extend(table.left_behind(&file)?);
            }
        }
        let held = Held::read(Stretch::part(&file, start, size).without(&gone));
        // The error of a read has no name.
        held.map(Some)
            .with_context(|| format!("{} ({})", device.path.display(), self.stable(target)))
    }

    /// Whether an array overwrites content of a target, and warns of it: a config has no key to allow or refuse that.
    fn overwrites(&mut self, at: &str, target: &DeviceRef) -> bool {
        let Ok(Some(held)) = self.look(target) else {
            return true;
        };
        if held.is_blank() {
            return false;
        }
        if !self.was_made_earlier(target) {
            let (member, held) = (self.stable(target), held.describe());
            let warning = format!("{at}: {member} holds {held}, which the array overwrites");
            self.plan.warnings.push(warning);
        }
        true
    }

    /// Claims a device for one entry of the config. No other entry may claim it, only `by` may hold it, it must not be
    /// the node's, and it must have no partitions unless they may be wiped.
    fn claim(
        &mut self,
        at: &str,
        device: &str,
        target: &DeviceRef,
        wipe: bool,
        by: Option<&str>,
    ) -> bool {
        let why = if let Some(other) = self.taken.insert(target.clone(), at.to_owned()) {
            format!("{device} is the same device as that of {other}")
        } else if self.is_reserved(target) {
            format!("{device} belongs to the node itself")
        } else if self.is_busy(target, by) {
            format!("{device} is in use")
        } else if !wipe && self.has_partitions(target) {
            format!("{device} has partitions, which it would overwrite")
        } else {
            return true;
        };
        self.wrong(at, why);
        false
    }

    /// Whether a target is a disk that has partitions once the tables are written.
    pub(super) fn has_partitions(&self, target: &DeviceRef) -> bool {
        let DeviceRef::Device(name) = target else {
            return false;
        };
        let table = self.tables.get(name).and_then(Option::as_ref);
        table.is_some_and(|table| !table.entries.is_empty())
    }

    /// Whether all content of a target was made by an interrupted attempt with another config: then none of it needs to
    /// be kept.
    pub(super) fn was_made_earlier(&self, target: &DeviceRef) -> bool {
        let is_earlier = |target: &DeviceRef| {
            self.inputs
                .journal
                .made_earlier(self.key(target).as_deref())
        };
        match target {
            DeviceRef::Device(name) | DeviceRef::Partition(name, _) => {
                // The disk as it is now, which may get another table.
                let now = self.device(name).is_some_and(|disk| {
                    let key = Self::disk_key(disk, disk.table.as_ref());
                    disk.partition.is_none() && self.inputs.journal.made_earlier(key.as_deref())
                });
                now || is_earlier(target)
            }
            DeviceRef::Array(name) => {
                let array = self.planned_array(name);
                array.is_some_and(|array| array.members.iter().all(is_earlier))
            }
            // Its content is lost when the volume itself is made again.
            DeviceRef::Volume(_) => false,
        }
    }

    /// Whether clevis opens a target, or a volume below it.
    pub(super) fn is_opened_by_clevis(&self, target: &DeviceRef) -> bool {
        let DeviceRef::Volume(name) = target else {
            return false;
        };
        let volume = self.planned_volume(name);
        volume.is_some_and(|volume| {
            volume.spec.needs_clevis() || self.is_opened_by_clevis(&volume.target)
        })
    }

    /// The array that a target is, if this run makes it.
    pub(super) fn new_array(&self, target: &DeviceRef) -> Option<&PlannedArray> {
        let DeviceRef::Array(name) = target else {
            return None;
        };
        self.planned_array(name).filter(|array| !array.made)
    }

    /// Whether a target is a volume that this run makes.
    pub(super) fn is_new(&self, target: &DeviceRef) -> bool {
        let DeviceRef::Volume(name) = target else {
            return false;
        };
        let made = |action: &VolumeAction| *action != VolumeAction::Open;
        let volume = self.planned_volume(name);
        volume.is_some_and(|volume| volume.action.as_ref().is_some_and(made))
    }

    /// Whether a target is an array or volume that an earlier run of this config made: what it holds is noise, or what its
    /// devices held before, until something is made on it.
    pub(super) fn is_of_earlier_run(&self, target: &DeviceRef) -> bool {
        let made = match target {
            DeviceRef::Array(name) => self
                .planned_array(name)
                .map(|array| (&array.spec.at, &array.key)),
            DeviceRef::Volume(name) => self
                .planned_volume(name)
                .map(|volume| (&volume.spec.at, &volume.key)),
            DeviceRef::Device(_) | DeviceRef::Partition(..) => None,
        };
        made.is_some_and(|(at, key)| {
            self.inputs.journal.stage(at, key.as_deref()) == Some(Stage::Done)
        })
    }
}
