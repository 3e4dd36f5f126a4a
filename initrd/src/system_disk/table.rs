//! The partitions that the first boot makes behind the image's own, the growth of the image's root to the size of its
//! slot, and of the last to the end of the disk.
//!
//! Where they lie follows from the image's sizes alone, so that every node of an image has the same table.
//!
//! The table also says which file systems are to be made, by an attribute of their partitions: `state` has no other place
//! for it, since it is the partition that remembers. An init that does not know the attribute carries it along.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use image::guid::Guid;
use image::layout::{self, Architecture, Sizes};
use image::manifest::Manifest;

use image::fault::Fault;
use linux::block::{Disk, Partition};
use linux::gpt::{Entry, Table};
use linux::ioctl;
use linux::world::World;

/// Bytes that are wiped at the begin and the end of a new partition, so that no signature of former content remains.
const WIPED: u64 = layout::MIB;

/// The changes that one boot made to the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Labels of the new partitions.
    pub(crate) made: Vec<String>,
    /// Whether `var` has grown.
    pub(crate) grown: bool,
}

/// One partition of the plan.
#[derive(Clone, Debug)]
struct Wanted {
    label: &'static str,
    type_guid: Guid,
    attributes: u64,
    /// Bytes; none for the remaining space.
    size: Option<u64>,
}

fn wanted(sizes: &Sizes, architecture: Architecture) -> [Wanted; 4] {
    let slot = layout::ATTRIBUTE_NO_AUTO | layout::ATTRIBUTE_READ_ONLY;
    [
        Wanted {
            label: layout::LABEL_ROOT_B,
            type_guid: architecture.root_type(),
            attributes: slot,
            size: Some(sizes.root),
        },
        Wanted {
            label: layout::LABEL_VERITY_B,
            type_guid: architecture.verity_type(),
            attributes: slot,
            size: Some(sizes.verity),
        },
        Wanted {
            label: layout::LABEL_STATE,
            type_guid: layout::TYPE_LINUX,
            attributes: layout::ATTRIBUTE_NO_AUTO | layout::ATTRIBUTE_UNFORMATTED,
            size: Some(sizes.state),
        },
        Wanted {
            label: layout::LABEL_VAR,
            type_guid: layout::TYPE_VAR,
            attributes: layout::ATTRIBUTE_NO_AUTO | layout::ATTRIBUTE_UNFORMATTED,
            size: None,
        },
    ]
}

/// The partitions that a call makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The other slot and `state`.
    Own,
    /// Also `var`, which grows.
    WithVar,
}

/// A table as it is and as it is planned.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    before: Table,
    /// The planned table.
    pub(crate) after: Table,
    /// Numbers of the partitions that are new; their edges are wiped.
    made: Vec<u32>,
    grown: bool,
}

/// Plans the missing partitions of a scope, and the growth of `var`. Writes nothing.
///
/// # Errors
/// If the disk is too small (a [`Fault`]) or cannot be read.
pub(crate) fn plan(world: &World, disk: &Disk, manifest: &Manifest, scope: Scope) -> Result<Plan> {
    let before = read(disk)?;
    let mut after = before.clone();
    after.grow();
    grow_slot(&mut after, manifest.sizes.root);
    let mut made = Vec::new();
    let in_scope = |wanted: &Wanted| scope == Scope::WithVar || wanted.label != layout::LABEL_VAR;
    let all = wanted(&manifest.sizes, manifest.architecture);
    for wanted in all.into_iter().filter(in_scope) {
        let is_there = |entry: &Entry| entry.label == wanted.label;
        if !after.entries.values().any(is_there) {
            made.push(add(
                world,
                &mut after,
                &wanted,
                &manifest.sizes,
                &disk.name,
            )?);
        }
    }
    let grown = scope == Scope::WithVar && grow_var(&mut after);
    Ok(Plan {
        before,
        after,
        made,
        grown,
    })
}

/// The partitions with these labels made anew: their edges wiped, under new GUIDs, to be formatted. Writes nothing.
///
/// # Errors
/// If the disk cannot be read.
pub(crate) fn anew(world: &World, disk: &Disk, labels: &[&str]) -> Result<Plan> {
    let before = read(disk)?;
    let mut after = before.clone();
    let mut made = Vec::new();
    for (number, entry) in &mut after.entries {
        if labels.contains(&entry.label.as_str()) {
            entry.guid = world.random_guid()?;
            entry.attributes |= layout::ATTRIBUTE_UNFORMATTED;
            made.push(*number);
        }
    }
    Ok(Plan {
        before,
        after,
        made,
        grown: false,
    })
}

/// Notes in the table, on the disk when this returns, whether a partition is to be formatted.
///
/// # Errors
/// If the table cannot be read or written.
pub(crate) fn note_unformatted(disk: &Disk, number: u32, unformatted: bool) -> Result<()> {
    let mut table = read(disk)?;
    let entry = table.entries.get_mut(&number);
    let entry = entry.with_context(|| format!("{} has no partition {number}", disk.name))?;
    match unformatted {
        true => entry.attributes |= layout::ATTRIBUTE_UNFORMATTED,
        false => entry.attributes &= !layout::ATTRIBUTE_UNFORMATTED,
    }
    write(&open(disk)?, disk, &table)
}

fn open(disk: &Disk) -> Result<File> {
    let file = File::options().read(true).write(true).open(&disk.path);
    file.with_context(|| format!("opening {}", disk.path.display()))
}

fn read(disk: &Disk) -> Result<Table> {
    let file = File::open(&disk.path);
    let file = file.with_context(|| format!("opening {}", disk.path.display()))?;
    Table::read(&file, disk.sector, disk.size)
        .with_context(|| format!("reading the partition table of {}", disk.name))
}

fn write(file: &File, disk: &Disk, table: &Table) -> Result<()> {
    table
        .write(file)
        .with_context(|| format!("writing the partition table of {}", disk.name))
}

/// Writes what was planned. A table that is as it should be is not written.
///
/// # Errors
/// If the disk cannot be written.
pub(crate) fn complete(disk: &Disk, plan: &Plan) -> Result<Changes> {
    let file = open(disk)?;
    let (before, table) = (&plan.before, &plan.after);
    let label = |number: &u32| table.entries[number].label.clone();
    let changes = Changes {
        made: plan.made.iter().map(label).collect(),
        grown: plan.grown,
    };
    if before.sound && table.entries == before.entries {
        return Ok(changes);
    }
    for number in &plan.made {
        wipe(&file, table, *number)?;
    }
    forget_content(&file, disk, &plan.made)?;
    write(&file, disk, table)?;
    for (number, entry) in &table.entries {
        let start = entry.first * table.sector;
        let size = (entry.last + 1 - entry.first) * table.sector;
        match before.entries.get(number) {
            None => ioctl::add_partition(&file, *number, start, size)?,
            Some(old) if old.last != entry.last => {
                ioctl::resize_partition(&file, *number, start, size)?;
            }
            Some(_) => {}
        }
    }
    Ok(changes)
}

fn add(
    world: &World,
    table: &mut Table,
    wanted: &Wanted,
    sizes: &Sizes,
    disk: &str,
) -> Result<u32> {
    let (first, last) = table.tail();
    let size = wanted.size.unwrap_or(sizes.var_minimum);
    let end = first + size.div_ceil(table.sector) - 1;
    if end > last {
        let free = (last + 1).saturating_sub(first) * table.sector;
        return Err(Fault::new(format!(
            "{disk} is too small for the partition {}",
            wanted.label
        ))
        .expected(format!(
            "{} MiB behind the last partition",
            size / layout::MIB
        ))
        .found(format!("{} MiB", free / layout::MIB))
        .fix("give the node a larger disk, or set smaller sizes in [disk] of the recipe")
        .into());
    }
    let number = table
        .free_number()
        .with_context(|| format!("the partition table of {disk} is full"))?;
    let entry = Entry {
        type_guid: wanted.type_guid,
        guid: world.random_guid()?,
        first,
        last: if wanted.size.is_some() { end } else { last },
        attributes: wanted.attributes,
        label: wanted.label.to_owned(),
    };
    table.entries.insert(number, entry);
    Ok(number)
}

/// Grows the last partition of the image's disk, its root, from the size of its content to the size of a slot, `size`
/// bytes, before another partition follows it, so that an update has room.
fn grow_slot(table: &mut Table, size: u64) {
    let end = table.entries.values().map(|entry| entry.last).max();
    let usable = table.tail().1;
    let sectors = size.div_ceil(table.sector);
    let root = table
        .entries
        .values_mut()
        .find(|entry| entry.label == layout::LABEL_ROOT_A && Some(entry.last) == end);
    if let Some(root) = root {
        root.last = root.last.max((root.first + sectors - 1).min(usable));
    }
}

/// `var` grows if it is the last on the disk and there is at least one alignment unit behind it.
fn grow_var(table: &mut Table) -> bool {
    let (first, last) = table.tail();
    let end = table.entries.values().map(|entry| entry.last).max();
    let var = table
        .entries
        .values_mut()
        .find(|entry| entry.label == layout::LABEL_VAR && Some(entry.last) == end);
    match var {
        Some(var) if first <= last => {
            var.last = last;
            true
        }
        _ => false,
    }
}

fn wipe(file: &File, table: &Table, number: u32) -> Result<()> {
    let entry = &table.entries[&number];
    let (start, end) = (entry.first * table.sector, (entry.last + 1) * table.sector);
    let zeros = vec![0; usize::try_from(WIPED)?];
    for at in [start, end - WIPED] {
        file.write_all_at(&zeros, at)
            .with_context(|| format!("wiping the new partition {}", entry.label))?;
    }
    Ok(())
}

/// Makes the devices of wiped partitions show it: the wipe went through the whole disk, which has another cache.
fn forget_content(file: &File, disk: &Disk, wiped: &[u32]) -> Result<()> {
    let known = disk.partitions.iter();
    let known: Vec<&Partition> = known.filter(|part| wiped.contains(&part.number)).collect();
    if known.is_empty() {
        return Ok(());
    }
    file.sync_all()
        .with_context(|| format!("waiting for {}", disk.name))?;
    for part in known {
        File::open(&part.path)
            .map_err(anyhow::Error::from)
            .and_then(|device| ioctl::drop_cache(&device))
            .with_context(|| format!("reading {} anew", part.name))?;
    }
    Ok(())
}

/// The partition of this label on the system disk, if it is there.
pub(crate) fn find<'a>(disk: &'a Disk, label: &str) -> Option<&'a Partition> {
    disk.partitions.iter().find(|part| part.label == label)
}

/// The partition of this label on the system disk.
pub(crate) fn labelled<'a>(disk: &'a Disk, label: &str) -> Result<&'a Partition> {
    find(disk, label).with_context(|| format!("{} has no partition {label}", disk.name))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use linux::samples::table as sample;

    fn sizes() -> Sizes {
        Sizes {
            esp: 0,
            root: 8 * layout::MIB,
            verity: layout::MIB,
            state: 4 * layout::MIB,
            var_minimum: 16 * layout::MIB,
        }
    }

    fn fake() -> (tempfile::TempDir, World) {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), linux::world::Clock::Real);
        let random = world.proc.join("sys/kernel/random");
        fs::create_dir_all(&random).unwrap();
        let guid = "00112233-4455-6677-8899-aabbccddeeff\n";
        fs::write(random.join("uuid"), guid).unwrap();
        (folder, world)
    }

    #[test]
    fn the_plan_lies_behind_the_image_and_var_takes_the_rest() {
        for sector in [512, 4096] {
            lies_behind_the_image(sector);
        }
    }

    fn lies_behind_the_image(sector: u64) {
        let (_folder, world) = fake();
        let align = layout::MIB / sector;
        let mut table = sample(sector, 64 * layout::MIB);
        let plan = [
            (layout::LABEL_ROOT_B, Some(sizes().root)),
            (layout::LABEL_STATE, Some(sizes().state)),
            (layout::LABEL_VAR, None),
        ];
        for (label, size) in plan {
            let wanted = Wanted {
                label,
                type_guid: layout::TYPE_LINUX,
                attributes: 0,
                size,
            };
            add(&world, &mut table, &wanted, &sizes(), "vda").unwrap();
        }
        let mib = |entry: &Entry| (entry.first / align, (entry.last + 1) / align);
        let by_label = |label: &str| table.entries.values().find(|e| e.label == label).unwrap();
        assert_eq!(mib(by_label(layout::LABEL_ROOT_B)), (4, 12));
        assert_eq!(mib(by_label(layout::LABEL_STATE)), (12, 16));
        assert_eq!(mib(by_label(layout::LABEL_VAR)), (16, 63));
        // Number 2 was free; the image's own are 1 and 3.
        assert_eq!(table.entries[&2].label, layout::LABEL_ROOT_B);

        assert!(!grow_var(&mut table));
        table.sectors *= 2;
        table.grow();
        assert!(grow_var(&mut table));
        let var = table
            .entries
            .values()
            .find(|e| e.label == layout::LABEL_VAR);
        assert_eq!(mib(var.unwrap()), (16, 127));
    }

    /// A disk in a file, with its table as the first boot makes it.
    fn first_boot(world: &World, file: &tempfile::NamedTempFile) -> Disk {
        let size = 64 * layout::MIB;
        file.as_file().set_len(size).unwrap();
        sample(512, size).write(file.as_file()).unwrap();
        let disk = Disk {
            path: file.path().to_owned(),
            name: "vda".to_owned(),
            sector: 512,
            size,
            ..Disk::default()
        };
        let mut table = read(&disk).unwrap();
        for wanted in wanted(&sizes(), Architecture::X86_64) {
            add(world, &mut table, &wanted, &sizes(), "vda").unwrap();
        }
        table.write(file.as_file()).unwrap();
        disk
    }

    fn entry(disk: &Disk, label: &str) -> (u32, Entry) {
        let table = read(disk).unwrap();
        assert!(table.sound);
        let found = table.entries.into_iter().find(|(_, e)| e.label == label);
        found.unwrap()
    }

    #[test]
    fn only_state_and_var_are_noted_as_unformatted_until_they_are_made() {
        let (_folder, world) = fake();
        let file = tempfile::NamedTempFile::new().unwrap();
        let disk = first_boot(&world, &file);
        let noted = |label: &str| entry(&disk, label).1.attributes >> 56 & 1 == 1;
        for label in [
            layout::LABEL_ESP,
            layout::LABEL_ROOT_B,
            layout::LABEL_VERITY_B,
        ] {
            assert!(!noted(label), "{label}");
        }
        assert!(noted(layout::LABEL_STATE) && noted(layout::LABEL_VAR));
        let (number, before) = entry(&disk, layout::LABEL_STATE);
        note_unformatted(&disk, number, false).unwrap();
        assert!(!noted(layout::LABEL_STATE) && noted(layout::LABEL_VAR));
        assert_eq!(
            entry(&disk, layout::LABEL_STATE).1.attributes,
            layout::ATTRIBUTE_NO_AUTO
        );
        note_unformatted(&disk, number, true).unwrap();
        assert_eq!(entry(&disk, layout::LABEL_STATE).1, before);
        assert!(note_unformatted(&disk, 99, true).is_err());
    }

    #[test]
    fn a_partition_that_is_made_anew_has_another_guid_and_nothing_at_its_edges() {
        let (_folder, world) = fake();
        let file = tempfile::NamedTempFile::new().unwrap();
        let disk = first_boot(&world, &file);
        let (number, _) = entry(&disk, layout::LABEL_VAR);
        let mut table = read(&disk).unwrap();
        let other = Guid([9; 16]);
        for entry in table.entries.values_mut() {
            entry.guid = other;
            entry.attributes &= !layout::ATTRIBUTE_UNFORMATTED;
        }
        table.write(file.as_file()).unwrap();
        let var = table.entries[&number].clone();
        for at in [var.first * 512 + 1024, (var.last + 1) * 512 - 1] {
            file.as_file().write_all_at(b"x", at).unwrap();
        }
        let plan = anew(&world, &disk, &[layout::LABEL_VAR]).unwrap();
        complete(&disk, &plan).unwrap();
        let now = entry(&disk, layout::LABEL_VAR).1;
        assert!(now.guid != other && now.attributes != var.attributes);
        assert_eq!((now.first, now.last), (var.first, var.last));
        assert_eq!(entry(&disk, layout::LABEL_STATE).1.guid, other);
        for at in [var.first * 512 + 1024, (var.last + 1) * 512 - 1] {
            let mut byte = [1];
            file.as_file().read_exact_at(&mut byte, at).unwrap();
            assert_eq!(byte, [0]);
        }
    }

    #[test]
    fn the_images_root_grows_to_its_slot_while_nothing_lies_behind_it() {
        let mut table = sample(512, 64 * layout::MIB);
        let end = |table: &Table| (table.entries[&3].last + 1) / 2048;
        for _ in 0..2 {
            grow_slot(&mut table, 8 * layout::MIB);
            assert_eq!(end(&table), 11);
        }
        grow_slot(&mut table, layout::MIB);
        assert_eq!(end(&table), 11, "it never shrinks");
        grow_slot(&mut table, layout::GIB);
        assert_eq!(end(&table), 63, "nor leaves the disk");

        let mut table = sample(512, 64 * layout::MIB);
        let behind = Entry {
            first: 20 * 2048,
            last: 21 * 2048 - 1,
            label: layout::LABEL_STATE.to_owned(),
            ..table.entries[&1].clone()
        };
        table.entries.insert(2, behind);
        grow_slot(&mut table, 8 * layout::MIB);
        assert_eq!(end(&table), 4);
    }

    #[test]
    fn a_small_disk_is_refused_with_both_sizes() {
        let (_folder, world) = fake();
        let mut table = sample(512, 16 * layout::MIB);
        let wanted = Wanted {
            label: layout::LABEL_VAR,
            type_guid: layout::TYPE_VAR,
            attributes: 0,
            size: None,
        };
        let error = add(&world, &mut table, &wanted, &sizes(), "vda").unwrap_err();
        assert_eq!(
            error.to_string(),
            "vda is too small for the partition var; expected 16 MiB behind the last partition; found 11 MiB"
        );
        // The recipe's table by its name.
        let fix = error.downcast::<Fault>().unwrap().fix.unwrap();
        assert!(fix.contains("[disk]"), "{fix}");
    }
}
