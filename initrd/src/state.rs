//! State: the partition with the node's identity, mounted before the config is looked for and made on a first boot.
//!
//! A first boot is one without the partition, with one that is not complete yet, or without a marker in it. Damage is none
//! of these: it ends the boot, since a first boot runs the config's wipes.

mod identity;
mod marker;
mod reset;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use image::fault::Fault;
use image::layout;
use image::paths::{self, RUN_STATE, STATE_MARK};
use image::timeline;

use self::identity::Identity;
use self::marker::{Provisioned, Verdict};
use crate::context::Boot;
use crate::root::Root;
use crate::system_disk::table::{self, Plan, Scope};
use crate::system_disk::{self, labelled, mount_ext4};
use apply::fetched::{Fetched, Sources};
use apply::journal::disks::DiskJournal;
use apply::journal::files::FileJournal;
use apply::plan::SystemDisk;
use linux::block::{self, Disk, Partition};
use linux::disk_identity::DiskIdentity;
use linux::log::say;
use linux::mount::{self, Flags};
use linux::world::World;

/// The partition `state`, and the facts about this node in it.
#[derive(Debug)]
pub(crate) struct State {
    /// Whether this node is not provisioned yet.
    pub(crate) first_boot: bool,
    /// Mount point of `state`, once it was made: [`RUN_STATE`], and after the step `var` [`paths::STATE`] below the
    /// root.
    dir: Option<PathBuf>,
    /// Whether the marker belongs to another node, so that `var` must be made again.
    pub(crate) copied: bool,
    /// Whether the node's config differs from the applied one.
    pub(crate) config_changed: bool,
    /// UUID of the file system of the partition `var`: on a later boot the one that the node was provisioned with.
    pub(crate) var: Option<String>,
    /// The texts that the config was made of with which this node was provisioned.
    sources: Option<Sources>,
    /// What a person can do about damage in `state`.
    reset: Option<String>,
    /// The instance and the disk of this boot.
    identity: Identity,
    /// The system disk's table with the missing partitions.
    planned: Option<Plan>,
}

/// Looks for `state` and, if an earlier boot made it, mounts it at [`RUN_STATE`] and asks it whether this is a first boot.
///
/// # Errors
/// If it is there and cannot be checked, mounted or read; a [`Fault`] for damage.
pub(crate) fn open(boot: &Boot, root: &Root) -> Result<State> {
    let disk = root.disk.as_ref();
    let disk = disk.map(|disk| DiskIdentity::read(&boot.world, &disk.name));
    let identity = Identity::of(boot.identity.instance.clone(), disk);
    let mut state = State {
        first_boot: true,
        dir: None,
        copied: false,
        config_changed: false,
        var: None,
        sources: None,
        reset: None,
        identity,
        planned: None,
    };
    match &root.disk {
        Some(disk) => state.open_on(boot, root, disk)?,
        None => state.in_memory(&boot.world)?,
    }
    Ok(state)
}

impl State {
    fn open_on(&mut self, boot: &Boot, root: &Root, disk: &Disk) -> Result<()> {
        let after_reset = reset::apply(boot, root, disk)?;
        let disk = after_reset.as_ref().unwrap_or(disk);
        let var = table::find(disk, layout::LABEL_VAR);
        let var_is_whole = match var {
            Some(var) => !system_disk::is_unformatted(var)?,
            None => false,
        };
        let Some(part) = table::find(disk, layout::LABEL_STATE) else {
            return match var.filter(|_| var_is_whole) {
                Some(var) => Err(lost(disk, var).into()),
                None => Ok(()),
            };
        };
        if system_disk::is_unformatted(part)? {
            return Ok(());
        }
        boot.timeline
            .step("state.mount", || self.mount(root, part))?;
        let dir = self.dir()?.to_owned();
        let marker = marker::read(&dir).map_err(|error| self.with_reset(error))?;
        self.judge(&dir, marker)?;
        // Only a reset notes a `var` of a provisioned node.
        if !self.first_boot && var.is_some() && !var_is_whole {
            say(
                &boot.world,
                "slipway: var is made anew, so this node is provisioned anew",
            );
            forget_journals(&dir)?;
            marker::forget_provisioning(&dir)?;
            (self.first_boot, self.var, self.sources) = (true, None, None);
        }
        Ok(())
    }

    /// Adds the way to reset the node to a fault in a file of `state` that names no remedy.
    pub(crate) fn with_reset(&self, error: anyhow::Error) -> anyhow::Error {
        match (error.downcast::<Fault>(), &self.reset) {
            (Ok(fault), Some(reset)) if fault.fix.is_none() => fault.fix(reset).into(),
            (Ok(fault), _) => fault.into(),
            (Err(error), _) => error,
        }
    }

    /// Where `state` is mounted.
    ///
    /// # Errors
    /// Before it was made.
    pub(crate) fn dir(&self) -> Result<&Path> {
        self.dir.as_deref().context("state is not mounted")
    }

    /// Mount point of `state`; `None` before it was made.
    pub(crate) fn made(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// Moves the mount of `state` to its final path below the root, once `/var` is mounted.
    pub(crate) fn settle(&mut self, root: &Root) -> Result<()> {
        let early = self.dir()?.to_owned();
        if self.copied {
            marker::forget(&early)?;
        }
        let dir = root
            .programs
            .sysroot
            .join(paths::STATE.trim_start_matches('/'));
        mount::folder(&dir, 0o755)?;
        mount::move_mount(&early, &dir)?;
        // An empty folder may stay.
        fs::remove_dir(&early).unwrap_or_default();
        self.dir = Some(dir);
        Ok(())
    }

    /// Marks the node as provisioned: later boots apply no config. `fetched` is the applied config.
    pub(crate) fn mark_provisioned(&self, boot: &Boot, fetched: &Fetched) -> Result<()> {
        let image = &boot.manifest.image;
        let config = (fetched.hash(), fetched.sources.clone());
        let marker = marker::new(&self.identity, image, config, self.var.clone());
        marker::write(self.dir()?, &marker)
    }

    /// The texts that the config was made of with which this node was provisioned, if its marker says so.
    pub(crate) fn sources(&self) -> Option<&Sources> {
        self.sources.as_ref()
    }

    /// Stores this boot's timeline beside those of earlier boots, the last [`timeline::KEPT`] of them.
    pub(crate) fn keep_timeline(&self, lines: &str) -> Result<()> {
        let folder = self.dir()?.join(paths::STATE_TIMELINES);
        mount::folder(&folder, 0o755)?;
        let mut kept: Vec<u64> = block::entries(&folder)
            .iter()
            .filter_map(|name| name.strip_suffix(".jsonl")?.parse().ok())
            .collect();
        kept.sort_unstable();
        let next = kept.last().map_or(1, |last| last + 1);
        // Before the new one is written: where there was no room for one, the next boot makes it.
        let surplus = (kept.len() + 1).saturating_sub(timeline::KEPT);
        for old in &kept[..surplus.min(kept.len())] {
            fs::remove_file(folder.join(format!("{old:06}.jsonl")))
                .context("removing an old timeline")?;
        }
        fs::write(folder.join(format!("{next:06}.jsonl")), lines).context("writing the timeline")
    }

    /// The planned table of the system disk, with the other slot and `state`; none for a root in memory.
    ///
    /// # Errors
    /// If the partitions do not fit.
    pub(crate) fn system(&mut self, boot: &Boot, root: &Root) -> Result<Option<SystemDisk>> {
        let Some(disk) = &root.disk else {
            return Ok(None);
        };
        let plan = table::plan(&boot.world, disk, &boot.manifest, Scope::Own)?;
        let mut table = plan.after.clone();
        // The config's partitions are written after `state` is made: by then its note is gone.
        for entry in table.entries.values_mut() {
            if entry.label == layout::LABEL_STATE {
                entry.attributes &= !layout::ATTRIBUTE_UNFORMATTED;
            }
        }
        self.planned = Some(plan);
        Ok(Some(SystemDisk {
            disk: disk.name.clone(),
            table,
            var_minimum: boot.manifest.sizes.var_minimum,
        }))
    }

    /// Makes the other slot and `state`, as [`State::system`] plans them, and mounts `state`; returns the mount point.
    pub(crate) fn make(&mut self, boot: &Boot, root: &Root) -> Result<PathBuf> {
        if let (Some(disk), Some(plan)) = (&root.disk, self.planned.take()) {
            system_disk::write(boot, disk, &plan)?;
            if self.dir.is_none() {
                let part = labelled(boot, disk, layout::LABEL_STATE)?;
                boot.timeline
                    .step("state.mount", || self.mount(root, &part))?;
            }
        }
        self.dir.clone().context("state is not mounted")
    }

    fn mount(&mut self, root: &Root, part: &Partition) -> Result<()> {
        let dir = root.programs.world.in_run(RUN_STATE);
        mount::folder(&dir, 0o755)?;
        let flags = Flags::MS_NODEV | Flags::MS_NOSUID | Flags::MS_NOEXEC;
        mount_ext4(root, part, (&dir, flags), None)?;
        mark(&dir)?;
        self.reset = Some(system_disk::reset_hint(part));
        self.dir = Some(dir);
        Ok(())
    }

    /// With a root in memory, `state` is in memory too.
    fn in_memory(&mut self, world: &World) -> Result<()> {
        let dir = world.in_run(RUN_STATE);
        mount::folder(&dir, 0o755)?;
        let flags = Flags::MS_NODEV | Flags::MS_NOSUID | Flags::MS_NOEXEC;
        mount::mount("state", &dir, "tmpfs", flags, "mode=0700,size=16m")?;
        mark(&dir)?;
        self.dir = Some(dir);
        Ok(())
    }

    /// Whether this is a first boot. A copy of another node's disk is provisioned anew and `var` made anew.
    fn judge(&mut self, dir: &Path, marker: Option<Provisioned>) -> Result<()> {
        match marker::judge(marker.as_ref(), &self.identity) {
            Verdict::First => {}
            Verdict::Same => self.first_boot = false,
            Verdict::Changed(what) => {
                tracing::warn!("{what}; this node keeps its state");
                self.first_boot = false;
            }
            Verdict::Copied(what) => {
                tracing::warn!("{what}; this is a copy of another node: provisioning anew");
                // The journals are about the other node's disks.
                forget_journals(dir)?;
                self.copied = true;
            }
        }
        if let Some(marker) = marker.filter(|_| !self.first_boot) {
            (self.var, self.sources) = (marker.var.clone(), marker.sources.clone());
            marker::renew(dir, marker, &self.identity)?;
        }
        Ok(())
    }
}

/// Removes the journals of an earlier provisioning: the next one must undo nothing of it.
fn forget_journals(dir: &Path) -> Result<()> {
    DiskJournal::remove(dir)?;
    FileJournal::remove(dir)
}

/// `state` is made before `var`: without it `var` is what remains of a node.
fn lost(disk: &Disk, var: &Partition) -> Fault {
    Fault::new(format!(
        "the partition {} is missing from the table of {}",
        layout::LABEL_STATE,
        disk.name
    ))
    .expected(format!(
        "{}, which was made before {} ({})",
        layout::LABEL_STATE,
        layout::LABEL_VAR,
        var.name
    ))
    .found(labels(disk))
    .fix(system_disk::reset_hint(var))
}

/// The labels of a disk's partitions, for people.
fn labels(disk: &Disk) -> String {
    let labels: Vec<&str> = disk
        .partitions
        .iter()
        .map(|part| part.label.as_str())
        .collect();
    labels.join(", ")
}

fn mark(dir: &Path) -> Result<()> {
    let path = dir.join(STATE_MARK);
    if !path.exists() {
        File::create(&path).with_context(|| format!("making {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_timelines_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let state = State {
            first_boot: false,
            dir: Some(folder.path().to_owned()),
            copied: false,
            config_changed: false,
            var: None,
            sources: None,
            reset: None,
            identity: Identity::default(),
            planned: None,
        };
        for boot in 1..=timeline::KEPT + 3 {
            state.keep_timeline(&format!("{boot}\n")).unwrap();
        }
        let mut names = block::entries(&folder.path().join(paths::STATE_TIMELINES));
        names.sort();
        assert_eq!(names.len(), timeline::KEPT);
        assert_eq!(names[0], "000004.jsonl");
        let last = folder
            .path()
            .join(paths::STATE_TIMELINES)
            .join("000019.jsonl");
        assert_eq!(fs::read_to_string(last).unwrap(), "19\n");
    }
}
