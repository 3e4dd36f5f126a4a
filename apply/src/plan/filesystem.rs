//! One file system of the config: its device, and the action on it.

use super::{DeviceRef, DiskPlanner, PlannedFilesystem};
use crate::filesystems::{FilesystemAction, FilesystemSpec};
use crate::journal::disks::Stage;
use crate::mounts;
use linux::filesystem::Kind;

impl DiskPlanner<'_> {
    pub(super) fn filesystem(&mut self, at: &str, model: &ignition::model::Filesystem) {
        let spec = match FilesystemSpec::of(at, model) {
            Ok(spec) => spec,
            Err(why) => return self.wrong(&format!("{at}.format"), why),
        };
        let path = model.path.clone().filter(|path| !path.is_empty());
        let check = |path: &String| mounts::check(path, &self.inputs.rules).err();
        if let Some(why) = path.as_ref().and_then(check) {
            self.wrong(&format!("{at}.path"), why);
        }
        // An entry without a format, as a merge may leave it, requires nothing.
        if model.format.as_deref().unwrap_or_default().is_empty() {
            return;
        }
        let Some(target) = self.target(&format!("{at}.device"), &model.device) else {
            return;
        };
        if let Some(other) = self.taken.insert(target.clone(), at.to_owned()) {
            let why = format!("{} is the same device as that of {other}", model.device);
            return self.wrong(at, why);
        }
        if self.inputs.rules.remembers_var
            && path.as_deref() == Some(mounts::VAR)
            && self.is_opened_by_clevis(&target)
        {
            let why = "/var cannot be on a volume that clevis opens: it is needed before the network is there; \
                       a keyFile without clevis works, and clevis.tpm2 alone";
            return self.wrong(&format!("{at}.path"), why.to_owned());
        }
        let key = self.key(&target);
        let action = match self.action(&spec, &target, key.as_deref()) {
            Ok(action) => action,
            Err(why) => return self.problems.lines.push(why),
        };
        let mountable = spec.kind.filter(|kind| *kind != Kind::Swap);
        if let (Some(path), Some(kind)) = (path, mountable) {
            let mount = mounts::MountSpec {
                at: at.to_owned(),
                kind,
                path,
                options: model.mount_options.clone().unwrap_or_default(),
            };
            self.plan.mounts.push((mount, target.clone()));
        }
        self.plan.filesystems.push(PlannedFilesystem {
            stable: self.stable(&target),
            spec,
            target,
            key,
            action,
        });
    }

    /// The action on a device, by its content once the tables are written.
    fn action(
        &mut self,
        spec: &FilesystemSpec,
        target: &DeviceRef,
        key: Option<&str>,
    ) -> Result<Option<FilesystemAction>, String> {
        let at = &spec.at;
        let stage = self.inputs.journal.stage(at, key);
        let anew = match spec.kind {
            Some(_) => FilesystemAction::Remake,
            None => FilesystemAction::Wipe,
        };
        let is_ours = || self.was_made_earlier(target) || self.is_of_earlier_run(target);
        if self.stretch(target).is_none() {
            let new_array = self.new_array(target);
            return Ok(match stage {
                _ if self.is_new(target) => Some(spec.fresh()),
                Some(Stage::Started) if spec.kind.is_some() => Some(FilesystemAction::Remake),
                // What a new array shows is what its devices held, which it overwrites.
                _ if new_array.is_some_and(|array| array.blank) => Some(spec.fresh()),
                _ if new_array.is_some() => Some(anew),
                Some(Stage::Done) => Some(FilesystemAction::Keep),
                _ if is_ours() => Some(anew),
                _ => None,
            });
        }
        self.check_overwrite(spec, target)?;
        let held = self.look(target);
        let held = held.map_err(|error| format!("{at}: {error:#}"))?;
        let (action, warning) = match stage {
            // The content is this node's, complete or half made: the config allowed it at that time.
            Some(Stage::Started) if spec.kind.is_some() => (FilesystemAction::Remake, None),
            Some(Stage::Done) => (FilesystemAction::Keep, None),
            _ if is_ours() => (anew, None),
            // A partition that this boot makes is no exception: its bytes are older than its entry in the table, and a table
            // that may be wiped says nothing of them.
            _ => spec.decide(&held.unwrap_or_default(), &self.stable(target))?,
        };
        if action != FilesystemAction::Keep && self.is_busy(target, None) {
            return Err(format!("{at}: {} is in use", spec.device));
        }
        self.plan.warnings.extend(warning);
        Ok(Some(action))
    }
    /// Refuses a device of the node itself, and a disk with partitions that the config may not wipe.
    fn check_overwrite(&self, spec: &FilesystemSpec, target: &DeviceRef) -> Result<(), String> {
        let (at, device) = (&spec.at, &spec.device);
        if self.is_reserved(target) {
            return Err(format!("{at}: {device} belongs to the node itself"));
        }
        if !spec.wipe && self.has_partitions(target) {
            return Err(format!(
                "{at}: {device} has partitions, which the file system would overwrite"
            ));
        }
        Ok(())
    }
}
