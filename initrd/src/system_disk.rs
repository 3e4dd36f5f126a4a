//! The system disk: the partitions that the first boot makes and every boot grows, and the ext4 on them.

pub(crate) mod table;

use std::path::Path;

use anyhow::{Context, Result};
use image::fault::Fault;
use image::layout;
use linux::block::{self, Disk, Partition};
use linux::ext4;
use linux::filesystem::ext;
use linux::mount::{self, Flags};

use self::table::{Plan, Scope};
use crate::context::Boot;
use crate::root::Root;

/// Growing ext4 by less than a block group is not worth a mount's time.
const WORTH_GROWING: u64 = 128 * layout::MIB;

/// Makes the missing partitions of a scope, and grows `var`.
pub(crate) fn complete(boot: &Boot, disk: &Disk, scope: Scope) -> Result<()> {
    let plan = table::plan(&boot.world, disk, &boot.manifest, scope)?;
    write(boot, disk, &plan)
}

/// Writes a planned table.
pub(crate) fn write(boot: &Boot, disk: &Disk, plan: &Plan) -> Result<()> {
    let step = &boot.timeline;
    let changes = step.step("disk.partitions", || table::complete(disk, plan))?;
    if !changes.made.is_empty() {
        tracing::info!(
            "made the partitions {} on {}",
            changes.made.join(", "),
            disk.name
        );
    }
    if changes.grown {
        tracing::info!("grew {} to the end of {}", layout::LABEL_VAR, disk.name);
    }
    Ok(())
}

/// A partition of the system disk as it is now.
pub(crate) fn labelled(boot: &Boot, disk: &Disk, label: &str) -> Result<Partition> {
    let now = block::disk(&boot.world, &disk.name);
    let now = now.with_context(|| format!("{} is no longer there", disk.name))?;
    table::labelled(&now, label).cloned()
}

/// Makes an ext4 if there is none, checks it if it was not unmounted in order, mounts it.
pub(crate) fn mount_ext4(root: &Root, part: &Partition, target: &Path, flags: Flags) -> Result<()> {
    match ext::read(&part.path)? {
        // A file system that was never mounted is empty, and may be half made.
        None => format(root, part)?,
        Some(found) if !found.ever_mounted => format(root, part)?,
        Some(found) if !found.clean => check(root, &part.path, &part.label)?,
        Some(_) => {}
    }
    // The path is the one inside the root too, so that mountinfo shows the same path there.
    mount::mount(&part.path, target, "ext4", flags, "").context(
        Fault::new(format!(
            "the file system on {} ({}) does not mount",
            part.name, part.label
        ))
        .expected("an ext4 file system of this node")
        .fix("look at the disk; wipe the partition to have it made anew"),
    )
}

/// Formats a partition that the init made. The init wiped its begin, so that content other than ext4 is nothing or a
/// half-made file system.
pub(crate) fn format(root: &Root, part: &Partition) -> Result<()> {
    tracing::info!("formatting {} as {}", part.name, part.label);
    let options = ext4::Options {
        label: &part.label,
        uuid: None,
        // On `var` many processes work at the same time; `state` is small and quiet.
        orphan_file: part.label == layout::LABEL_VAR,
        overwrite: true,
    };
    ext4::make(&root.programs, &part.path, options)
}

/// Checks the ext4 of a partition: replays the journal and, if the superblock asks for it, checks the complete file
/// system.
///
/// # Errors
/// A [`Fault`] if e2fsck leaves errors.
pub(crate) fn check(root: &Root, device: &Path, label: &str) -> Result<()> {
    let name = format!("{} ({label})", device.display());
    let fix = "boot a rescue system and repair it, or wipe the partition to have it made anew";
    ext4::check(&root.programs, device, &name, fix)
}

/// Grows the mounted ext4 of a partition that became larger.
pub(crate) fn grow(part: &Partition, target: &Path) -> Result<()> {
    match ext::read(&part.path)? {
        Some(found) => ext4::grow(&part.label, &found, part.size, target, WORTH_GROWING),
        None => Ok(()),
    }
}
