//! State: the partition with the node's identity, mounted before the search for the config and made on a first boot.

mod marker;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use image::layout;
use image::paths::{self, RUN_STATE, STATE_MARK};
use image::timeline;

use self::marker::{Identity, Verdict};
use crate::context::Boot;
use crate::root::Root;
use crate::system_disk::table::{self, Plan, Scope};
use crate::system_disk::{self, labelled, mount_ext4};
use apply::fetched::{Fetched, Sources};
use apply::journal::disks::DiskJournal;
use apply::journal::files::FileJournal;
use apply::plan::SystemDisk;
use linux::block::{self, Partition};
use linux::filesystem::ext;
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
    /// The instance and the disk of this boot.
    identity: Identity,
    /// The system disk's table with the missing partitions.
    planned: Option<Plan>,
}

/// Searches for `state`. If an earlier boot made it, mounts it at [`RUN_STATE`] and reads whether this is a first boot.
pub(crate) fn open(boot: &Boot, root: &Root) -> Result<State> {
    let identity = Identity {
        instance: boot.identity.instance.clone(),
        disk: root.disk.as_ref().and_then(|disk| disk.serial.clone()),
    };
    let mut state = State {
        first_boot: true,
        dir: None,
        copied: false,
        config_changed: false,
        identity,
        planned: None,
    };
    match &root.disk {
        Some(disk) => {
            let part = disk
                .partitions
                .iter()
                .find(|part| part.label == layout::LABEL_STATE);
            if let Some(part) = part
                && ext::read(&part.path)?.is_some()
            {
                boot.timeline
                    .step("state.mount", || state.mount(root, part))?;
            }
        }
        None => state.in_memory(&boot.world)?,
    }
    if let Some(dir) = state.dir.clone() {
        state.judge(&dir)?;
    }
    Ok(state)
}

impl State {
    /// Mount point of `state`. An error before `state` was made.
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
        let sources = fetched.sources.clone();
        marker::write(self.dir()?, &self.identity, image, fetched.hash(), sources)
    }

    /// The sources of the config with which this node was provisioned, if its marker has them.
    pub(crate) fn sources(&self) -> Option<Sources> {
        marker::read(self.made()?).ok().flatten()?.sources
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
        fs::write(folder.join(format!("{next:06}.jsonl")), lines)
            .context("writing the timeline")?;
        let surplus = (kept.len() + 1).saturating_sub(timeline::KEPT);
        for old in &kept[..surplus.min(kept.len())] {
            fs::remove_file(folder.join(format!("{old:06}.jsonl")))
                .context("removing an old timeline")?;
        }
        Ok(())
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
        let table = plan.after.clone();
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
        mount_ext4(root, part, &dir, flags)?;
        mark(&dir)?;
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

    /// Decides whether this is a first boot. A node whose disk and instance both differ from the marker's is a copy: it
    /// is provisioned again and `var` made again.
    fn judge(&mut self, dir: &Path) -> Result<()> {
        match marker::judge(marker::read(dir)?.as_ref(), &self.identity) {
            Verdict::First => {}
            Verdict::Same => self.first_boot = false,
            Verdict::Changed(what) => {
                tracing::warn!("{what}; this node keeps its state");
                self.first_boot = false;
            }
            Verdict::Copied(what) => {
                tracing::warn!("{what}; this is a copy of another node: provisioning anew");
                // The journals describe the other node's disks.
                DiskJournal::remove(dir)?;
                FileJournal::remove(dir)?;
                self.copied = true;
            }
        }
        Ok(())
    }
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
