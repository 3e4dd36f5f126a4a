//! Begun: what `state` says before `var` is there, and the making of `state` on a first boot.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use image::layout;

use super::disk;
use super::disk::{Plan, Scope};
use super::identity;
use super::identity::{Identity, Verdict};
use super::{EARLY, complete, labelled, mark, mount_ext4};
use crate::context::Boot;
use crate::root::Root;
use apply::journal;
use apply::plan::SystemDisk;
use linux::block::Partition;
use linux::ext4;
use linux::mount;
use linux::mount::Flags;
use linux::world::World;

/// What is known before `var` is there.
#[derive(Debug)]
pub(crate) struct Begun {
    /// Whether this node has not been provisioned yet.
    pub(crate) first_boot: bool,
    /// Where `state` is mounted, if it was made: [`EARLY`].
    pub(crate) dir: Option<PathBuf>,
    /// Whether the marker is of another node, so that `var` is to be made anew.
    pub(super) copied: bool,
    pub(super) identity: Identity,
    /// The system disk's table with what is missing.
    planned: Option<Plan>,
}

/// Looks for `state` and, if an earlier boot made it, mounts it at [`EARLY`] and asks it whether this is a first boot.
///
/// # Errors
/// If it is there and cannot be checked, mounted or read.
pub(crate) fn begin(boot: &Boot, root: &Root) -> Result<Begun> {
    let identity = Identity {
        instance: boot.identity.instance.clone(),
        disk: root.disk.as_ref().and_then(|disk| disk.serial.clone()),
    };
    let mut begun = Begun {
        first_boot: true,
        dir: None,
        copied: false,
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
                && ext4::probe(&part.path)?.is_some()
            {
                boot.timeline
                    .step("state.state", || begun.mount(root, part))?;
            }
        }
        None => begun.in_memory(&boot.world)?,
    }
    if let Some(dir) = begun.dir.clone() {
        begun.judge(&dir)?;
    }
    Ok(begun)
}

impl Begun {
    /// The system disk as it will be once the other slot and `state` are made; none for a root in memory.
    ///
    /// # Errors
    /// If they do not fit.
    pub(crate) fn system(&mut self, boot: &Boot, root: &Root) -> Result<Option<SystemDisk>> {
        let Some(disk) = &root.disk else {
            return Ok(None);
        };
        let plan = disk::plan(&boot.world, disk, &boot.manifest, Scope::Own)?;
        let table = plan.after.clone();
        self.planned = Some(plan);
        Ok(Some(SystemDisk {
            disk: disk.name.clone(),
            table,
            var_minimum: boot.manifest.sizes.var_minimum,
        }))
    }

    /// Makes the other slot and `state`, as [`Begun::system`] has them, and mounts `state`; gives where.
    ///
    /// # Errors
    /// If it cannot be made or mounted.
    pub(crate) fn make(&mut self, boot: &Boot, root: &Root) -> Result<PathBuf> {
        if let (Some(disk), Some(plan)) = (&root.disk, self.planned.take()) {
            complete(boot, disk, &plan)?;
            if self.dir.is_none() {
                let part = labelled(boot, disk, layout::LABEL_STATE)?;
                boot.timeline
                    .step("state.state", || self.mount(root, &part))?;
            }
        }
        self.dir.clone().context("state is not mounted")
    }

    fn mount(&mut self, root: &Root, part: &Partition) -> Result<()> {
        let dir = root.programs.world.in_run(EARLY);
        mount::folder(&dir, 0o755)?;
        let flags = Flags::MS_NODEV | Flags::MS_NOSUID | Flags::MS_NOEXEC;
        mount_ext4(root, part, &dir, flags)?;
        mark(&dir)?;
        self.dir = Some(dir);
        Ok(())
    }

    /// A root in memory has its state in memory too.
    fn in_memory(&mut self, world: &World) -> Result<()> {
        let dir = world.in_run(EARLY);
        mount::folder(&dir, 0o755)?;
        let flags = Flags::MS_NODEV | Flags::MS_NOSUID | Flags::MS_NOEXEC;
        mount::mount("state", &dir, "tmpfs", flags, "mode=0700,size=16m")?;
        mark(&dir)?;
        self.dir = Some(dir);
        Ok(())
    }

    /// Whether this is a first boot. A node whose disk and instance are both others than the marker names is a copy: it is
    /// provisioned anew and `var` made anew.
    fn judge(&mut self, dir: &Path) -> Result<()> {
        match identity::judge(identity::read(dir)?.as_ref(), &self.identity) {
            Verdict::First => {}
            Verdict::Same => self.first_boot = false,
            Verdict::Changed(what) => {
                tracing::warn!("{what}; this node keeps its state");
                self.first_boot = false;
            }
            Verdict::Copied(what) => {
                tracing::warn!("{what}; this is a copy of another node: provisioning anew");
                // What the other node had done to its disks says nothing about this one's.
                journal::disks::forget(dir)?;
                journal::files::forget(dir)?;
                self.copied = true;
            }
        }
        Ok(())
    }
}
