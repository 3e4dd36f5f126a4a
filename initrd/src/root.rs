//! Root: the verified root file system, found by its root hash and opened through dm-verity.
//!
//! Until the handoff a damaged block is a read error, and so a report; [`Root::harden`] makes it a panic for the time
//! when systemd runs, since deliberate damage must not be worked around.

mod find;
mod memory;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

use image::guid::Guid;
use image::verity::{BLOCK, RootHash, SUPERBLOCK, Superblock};

use crate::context::Boot;
use crate::loader;
use image::fault::Fault;
use linux::block::Disk;
use linux::device_mapper::{Mapped, verity_line};
use linux::disk_answers::with_silent;
use linux::mount;
use linux::mount::Flags;
use linux::programs::Programs;
use linux::world::World;
use linux::{block, kernel_log, modules, uevent};

/// The deadline for the disk's appearance. Storage controllers of servers spin up for a minute.
const DEADLINE: Duration = Duration::from_secs(120);
/// The time for the disks of the drivers that were loaded first; then all other drivers are loaded, µs.
const PATIENCE_WITH_EARLY: i64 = 400_000;
/// Name of the mapped device: `/dev/mapper/root`, as elsewhere.
const NAME: &str = "root";
/// The root's folders that the kernel file systems are bound to.
const KERNEL_FOLDERS: [&str; 4] = ["dev", "proc", "sys", "run"];

/// The verified root, mounted read-only.
#[derive(Debug)]
pub(crate) struct Root {
    /// The mounted root and its programs.
    pub(crate) programs: Programs,
    /// The disk that it was found on; none for a root that was fetched into memory.
    pub(crate) disk: Option<Disk>,
    /// The verity device; none only in tests.
    pub(crate) verity: Option<Verity>,
    /// How it was found.
    pub(crate) search: Search,
}

/// What the search for the root began with, to repeat it when more disks are there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Search {
    /// The partition that the boot loader started from.
    loader: Option<Guid>,
    /// The kernel's names of the disks that were examined.
    examined: Vec<String>,
}

/// An open verity device and the parameters of its table.
#[derive(Debug)]
pub(crate) struct Verity {
    mapped: Mapped,
    superblock: Superblock,
    hash: RootHash,
    data: String,
    tree: String,
}

/// The two devices of a root.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Halves {
    /// The kernel's name of the device with the file system.
    data: String,
    /// The kernel's name of the device with the hash tree.
    tree: String,
}

/// Finds the root that the command line names, opens it through dm-verity, and mounts it with the kernel's file systems
/// inside.
///
/// # Errors
/// A [`Fault`] with the expected partition and the partitions that were found.
pub(crate) fn open(boot: &Boot) -> Result<Root> {
    let world = &boot.world;
    let hash = boot.cmdline.roothash.ok_or_else(|| {
        Fault::new("the kernel command line names no root")
            .expected("roothash= with 64 hexadecimal digits")
            .found("no such word")
            .fix("boot the image's own UKI, or copy the command line that its build wrote")
    })?;
    let (halves, disk, search) = match &boot.cmdline.root_url {
        Some(url) => (memory::fetch(boot, url)?, None, Search::default()),
        None => {
            let (halves, disk, search) = boot.timeline.step("root.find", || find(boot, &hash))?;
            (halves, Some(disk), search)
        }
    };
    let verity = boot
        .timeline
        .step("root.verity", || verity(world, &halves, hash))?;
    boot.timeline
        .step("root.mount", || mount_root(world, &verity))?;
    for name in KERNEL_FOLDERS {
        mount::bind(&world.initrd.join(name), &world.sysroot.join(name))?;
    }
    Ok(Root {
        programs: Programs::of_image(Arc::clone(world)),
        disk,
        verity: Some(verity),
        search,
    })
}

/// Refuses a second disk with the same root that has appeared, or has answered, since the root was found: which of both was
/// meant is not known, and the first one that was visible may be the copy. Reads nothing but disks that are new. One that
/// does not answer is passed over: with it a node that was provisioned would never boot, and `settle` refuses it before the
/// first write of all others.
///
/// # Errors
/// A [`Fault`] that names both disks.
pub(crate) fn refuse_copies(boot: &Boot, root: &Root) -> Result<()> {
    let (Some(disk), Some(hash)) = (&root.disk, &boot.cmdline.roothash) else {
        return Ok(());
    };
    let mut disks = block::disks_except(&boot.world, &root.search.examined);
    disks.push(disk.clone());
    find::among(
        &boot.world,
        &disks,
        hash,
        root.search.loader,
        &boot.manifest,
    )?;
    Ok(())
}

fn find(boot: &Boot, hash: &RootHash) -> Result<(Halves, Disk, Search)> {
    let world = &boot.world;
    let loader = loader::partition(world, &boot.modules);
    let mut examined = Vec::new();
    let what = format!("the partitions of roothash={hash}");
    let began = world.micros();
    let found = uevent::wait_for(world, &what, Some(DEADLINE), || {
        let disks = block::disks(world);
        examined = disks.iter().map(|disk| disk.name.clone()).collect();
        let found = find::among(world, &disks, hash, loader, &boot.manifest)?;
        if found.is_none() {
            boot.modules.load_for_disks();
            if world.micros() - began >= PATIENCE_WITH_EARLY {
                boot.modules.load_for_devices(modules::Network::Without);
            }
        }
        Ok(found)
    })?;
    let absent = || find::absent(&block::disks(world), hash, loader);
    let (halves, disk) = found.ok_or_else(|| with_silent(world, absent()))?;
    tracing::info!(
        "root: {} and {} on {}{}",
        halves.data,
        halves.tree,
        disk.name,
        disk.serial
            .as_ref()
            .map_or_else(String::new, |serial| format!(" (serial {serial})"))
    );
    Ok((halves, disk, Search { loader, examined }))
}

fn verity(world: &World, halves: &Halves, hash: RootHash) -> Result<Verity> {
    let path = world.dev.join(&halves.tree);
    let mut bytes = [0; SUPERBLOCK];
    File::open(&path)
        .and_then(|file| file.read_exact_at(&mut bytes, 0))
        .with_context(|| format!("reading the hash tree on {}", halves.tree))?;
    let superblock = Superblock::from_bytes(&bytes).map_err(|found| {
        Fault::new(format!("the hash tree on {} is damaged", halves.tree))
            .expected("a dm-verity superblock of version 1")
            .found(found)
            .fix("boot the other slot, or write the image to the disk again")
    })?;
    let (data, tree) = (
        block::number_of(world, &halves.data)?,
        block::number_of(world, &halves.tree)?,
    );
    let line = verity_line(
        superblock.data_blocks * BLOCK,
        superblock.table(&data, &tree, &hash, &[]),
    );
    // cryptsetup's form, so that `veritysetup status root` recognises the device.
    let uuid = format!(
        "CRYPT-VERITY-{}-{NAME}",
        superblock.uuid.to_string().replace('-', "")
    );
    let mapped = Mapped::create(world, NAME, &uuid, &line).context(
        Fault::new(format!(
            "the root on {} does not open through dm-verity",
            halves.data
        ))
        .expected(format!("a hash tree for roothash={hash}"))
        .fix("boot the other slot, or write the image to the disk again"),
    )?;
    Ok(Verity {
        mapped,
        superblock,
        hash,
        data,
        tree,
    })
}

fn mount_root(world: &World, verity: &Verity) -> Result<()> {
    mount::folder(&world.sysroot, 0o755)?;
    let minor = verity.mapped.number.rsplit(':').next().unwrap_or_default();
    let device = world.dev.join(format!("dm-{minor}"));
    let flags = Flags::MS_RDONLY;
    if let Err(error) = mount::mount(&device, &world.sysroot, "erofs", flags, "") {
        let found = kernel_message(world).unwrap_or_else(|| format!("{:#}", error.root_cause()));
        return Err(error.context(
            Fault::new("the root file system does not mount")
                .expected(format!(
                    "an EROFS whose blocks match roothash={}",
                    verity.hash
                ))
                .found(found)
                .fix("boot the other slot, or write the image to the disk again"),
        ));
    }
    Ok(())
}

/// The kernel's last message about verity or EROFS; one about a corrupted block comes first.
fn kernel_message(world: &World) -> Option<String> {
    let lines = kernel_log::lines(world);
    let about = |words: &[&str]| {
        let has = |line: &&String| words.iter().all(|word| line.contains(word));
        lines.iter().rposition(|line| has(&line))
    };
    let last = about(&["verity"]).max(about(&["erofs"]));
    let found = about(&["verity", "corrupted"]).or(last)?;
    Some(lines[found].clone())
}

impl Root {
    /// From here on a read of a damaged block panics the kernel, which reboots after ten seconds (`world`).
    ///
    /// # Errors
    /// If the kernel does not take the new table.
    pub(crate) fn harden(&self) -> Result<()> {
        let Some(verity) = &self.verity else {
            return Ok(());
        };
        let parameters = verity.superblock.table(
            &verity.data,
            &verity.tree,
            &verity.hash,
            &["panic_on_corruption"],
        );
        let bytes = verity.superblock.data_blocks * BLOCK;
        verity.mapped.exchange(&verity_line(bytes, parameters))
    }
}
