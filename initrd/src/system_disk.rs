//! The system disk: the partitions that the first boot makes and every boot grows, and the ext4 on them.

pub(crate) mod table;

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use image::fault::Fault;
use image::layout;
use linux::block::{self, Disk, Partition};
use linux::mount::{self, Flags};
use linux::{ext4, ioctl, programs};

use self::table::{Plan, Scope};
use crate::context::Boot;
use crate::root::Root;

/// Growing ext4 by less than a block group is not worth a mount's time.
const WORTH_GROWING: u64 = 128 * layout::MIB;

/// Makes the partitions of a scope that are missing, and grows `var`.
///
/// # Errors
/// If the disk is too small or cannot be written.
pub(crate) fn complete(boot: &Boot, disk: &Disk, scope: Scope) -> Result<()> {
    let plan = table::plan(&boot.world, disk, &boot.manifest, scope)?;
    write(boot, disk, &plan)
}

/// Writes a planned table.
///
/// # Errors
/// If the disk cannot be written.
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
///
/// # Errors
/// If it is not there.
pub(crate) fn labelled(boot: &Boot, disk: &Disk, label: &str) -> Result<Partition> {
    let now = block::disk(&boot.world, &disk.name);
    let now = now.with_context(|| format!("{} is no longer there", disk.name))?;
    table::labelled(&now, label).cloned()
}

/// Makes an ext4 if there is none, checks it if it was not unmounted in order, mounts it.
///
/// # Errors
/// If it cannot be made, checked or mounted, with the command or device.
pub(crate) fn mount_ext4(root: &Root, part: &Partition, target: &Path, flags: Flags) -> Result<()> {
    match ext4::probe(&part.path)? {
        // One that was never mounted holds nothing, and may be half made.
        None => format(root, part)?,
        Some(found) if !found.mounted => format(root, part)?,
        Some(found) if !found.clean => check(root, &part.path, &part.label)?,
        Some(_) => {}
    }
    // The path is the one inside the root too, so that mountinfo shows the same there.
    mount::mount(&part.path, target, "ext4", flags, "").context(
        Fault::new(format!(
            "the file system on {} ({}) does not mount",
            part.name, part.label
        ))
        .expected("an ext4 file system of this node")
        .fix("look at the disk; wipe the partition to have it made anew"),
    )
}

/// This partition was made by the init, which wiped its begin: what is not ext4 there is nothing, or a half-made one.
///
/// # Errors
/// If mkfs.ext4 fails.
pub(crate) fn format(root: &Root, part: &Partition) -> Result<()> {
    tracing::info!("formatting {} as {}", part.name, part.label);
    let device = part.path.to_string_lossy();
    // Nothing is discarded and no inode table zeroed here: the kernel does it later, in the background.
    let later = "lazy_itable_init=1,lazy_journal_init=1,nodiscard";
    let (features, extended) = match part.label == layout::LABEL_VAR {
        true => (
            "orphan_file",
            format!("{later},{}", ext4::SHORT_ORPHAN_FILE),
        ),
        false => (ext4::NO_ORPHAN_FILE, later.to_owned()),
    };
    let args = [
        "-q",
        "-F",
        "-m",
        "1",
        "-L",
        &part.label,
        "-O",
        features,
        "-E",
        &extended,
        &device,
    ];
    programs::succeed(&root.programs, "/usr/sbin/mkfs.ext4", &args)?;
    Ok(())
}

/// The journal is replayed and, where the superblock asks for it, all of the file system checked.
///
/// # Errors
/// A [`Fault`] if e2fsck leaves errors.
pub(crate) fn check(root: &Root, device: &Path, label: &str) -> Result<()> {
    let device = device.to_string_lossy();
    tracing::info!("checking {device} ({label}), which was not unmounted cleanly");
    let output = programs::run(&root.programs, "/usr/sbin/e2fsck", &["-p", &device])?;
    // e2fsck(8): 1 and 2 say that errors were corrected; a reboot (2) is for mounted file systems only.
    match output.status.code() {
        Some(0..=2) => Ok(()),
        code => Err(Fault::new(format!(
            "the file system on {device} ({label}) is damaged"
        ))
        .expected("a file system that e2fsck -p can repair")
        .found(format!(
            "e2fsck ended with {}: {}",
            code.map_or("a signal".to_owned(), |code| code.to_string()),
            output.stdout.trim().replace('\n', " | ")
        ))
        .fix("boot a rescue system and repair it, or wipe the partition to have it made anew")
        .into()),
    }
}

/// Grows the mounted ext4 of a partition that became larger.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn grow(part: &Partition, target: &Path) -> Result<()> {
    let Some(found) = ext4::probe(&part.path)? else {
        return Ok(());
    };
    let blocks = part.size / found.block;
    if (blocks.saturating_sub(found.blocks)) * found.block < WORTH_GROWING {
        return Ok(());
    }
    tracing::info!(
        "growing {} from {} to {blocks} blocks",
        part.label,
        found.blocks
    );
    let folder = File::open(target).with_context(|| format!("opening {}", target.display()))?;
    ioctl::grow_ext4(&folder, blocks)
}
