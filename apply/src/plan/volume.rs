//! Arrays and encrypted volumes of the config: their devices, and whether existing content may be overwritten.

use std::fs::File;

use anyhow::{Context, Result};
use ignition::model::{Luks, Raid};

use super::{DeviceRef, DiskPlanner, PlannedArray, PlannedVolume};
use crate::fetched::VolumeKeys;
use crate::journal::disks::{SEPARATOR, Stage};
use crate::volumes::VolumeAction;
use crate::{arrays, volumes};
use linux::filesystem;
use linux::filesystem::Found;
use linux::probe;
use linux::probe::Stretch;

/// All signatures on a device, and those with label and UUID.
type Looked = (Vec<&'static str>, Vec<Found>);

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
        let there = self.existing_array(&spec, &targets);
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
        let shown: Vec<String> = members.iter().map(|member| self.stable(member)).collect();
        let stable = shown.join(SEPARATOR);
        let stage = self.inputs.journal.stage(at, &stable);
        if stage.is_none() && !is_there {
            for member in &members {
                self.warn_of_loss(at, member);
            }
        }
        self.plan.arrays.push(PlannedArray {
            made: is_there || stage == Some(Stage::Done),
            running,
            spec,
            members,
            stable,
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
        let stable = self.stable(&target);
        match self.volume_action(&spec, &target, &stable) {
            Ok(action) if open.is_some() && action != Some(VolumeAction::Open) => {
                self.wrong(at, format!("{device} is in use: the volume is open"));
            }
            Ok(action) => self.plan.volumes.push(PlannedVolume {
                spec,
                target,
                stable,
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
        stable: &str,
    ) -> Result<Option<VolumeAction>, String> {
        // An earlier run of this config made it: it is opened. A half-made volume, or one whose random key is lost, is
        // made again with everything on it.
        let ours = match self.inputs.journal.stage(&spec.at, stable) {
            Some(Stage::Done) if spec.can_reopen() => Some(VolumeAction::Open),
            Some(_) => Some(VolumeAction::Remake),
            None => self
                .was_made_earlier(target)
                .then_some(VolumeAction::Remake),
        };
        if ours.is_some() {
            return Ok(ours);
        }
        let looked = self.look(target);
        match looked.map_err(|error| format!("{}: {error:#}", spec.at))? {
            Some((names, found)) => spec.decide(&names, &found).map(Some),
            None => Ok(spec.wipes().then_some(VolumeAction::Remake)),
        }
    }

    /// The content of a device; none if the device does not exist yet.
    fn look(&self, target: &DeviceRef) -> Result<Option<Looked>> {
        let Some((device, start, size)) = self.stretch(target) else {
            return Ok(None);
        };
        let file = File::open(&device.path)
            .with_context(|| format!("opening {}", device.path.display()))?;
        let stretch = Stretch::part(&file, start, size);
        Ok(Some((probe::known(stretch)?, filesystem::read(stretch)?)))
    }

    /// Warns of the content that an array overwrites: a config has no key to allow or refuse that.
    fn warn_of_loss(&mut self, at: &str, target: &DeviceRef) {
        if !self.was_made_earlier(target)
            && let Ok(Some((names, _))) = self.look(target)
            && !names.is_empty()
        {
            let (member, held) = (self.stable(target), names.join(" and "));
            let warning = format!("{at}: {member} holds {held}, which the array overwrites");
            self.plan.warnings.push(warning);
        }
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
        let is_earlier =
            |target: &DeviceRef| self.inputs.journal.made_earlier(&self.stable(target));
        match target {
            DeviceRef::Device(_) | DeviceRef::Partition(..) => is_earlier(target),
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

    /// Whether a target is an array or volume that this run makes.
    pub(super) fn is_new(&self, target: &DeviceRef) -> bool {
        let DeviceRef::Volume(name) = target else {
            return false;
        };
        let made = |action: &VolumeAction| *action != VolumeAction::Open;
        let volume = self.planned_volume(name);
        volume.is_some_and(|volume| volume.action.as_ref().is_some_and(made))
    }
}
