//! The partitions that the first boot makes behind the image's own, the growth of the image's root to the size of its
//! slot, and of the last to the end of the disk.
//!
//! Their positions follow from the image's sizes alone, so that every node of an image has the same table.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use image::guid::Guid;
use image::layout::{self, Sizes};
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

fn wanted(manifest: &Manifest) -> [Wanted; 4] {
    let sizes = manifest.sizes;
    let slot = layout::ATTRIBUTE_NO_AUTO | layout::ATTRIBUTE_READ_ONLY;
    [
        Wanted {
            label: layout::LABEL_ROOT_B,
            type_guid: manifest.architecture.root_type(),
            attributes: slot,
            size: Some(sizes.root),
        },
        Wanted {
            label: layout::LABEL_VERITY_B,
            type_guid: manifest.architecture.verity_type(),
            attributes: slot,
            size: Some(sizes.verity),
        },
        Wanted {
            label: layout::LABEL_STATE,
            type_guid: layout::TYPE_LINUX,
            attributes: layout::ATTRIBUTE_NO_AUTO,
            size: Some(sizes.state),
        },
        Wanted {
            label: layout::LABEL_VAR,
            type_guid: layout::TYPE_VAR,
            attributes: layout::ATTRIBUTE_NO_AUTO,
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
    /// Numbers of the new partitions.
    made: Vec<u32>,
    grown: bool,
}

/// Plans the missing partitions of a scope, and the growth of `var`. Writes nothing.
///
/// # Errors
/// If the disk is too small (a [`Fault`]) or cannot be read.
pub(crate) fn plan(world: &World, disk: &Disk, manifest: &Manifest, scope: Scope) -> Result<Plan> {
    let file = File::open(&disk.path);
    let file = file.with_context(|| format!("opening {}", disk.path.display()))?;
    let before = Table::read(&file, disk.sector, disk.size)
        .with_context(|| format!("reading the partition table of {}", disk.name))?;
    let mut after = before.clone();
    after.grow();
    grow_slot(&mut after, manifest.sizes.root);
    let mut made = Vec::new();
    let in_scope = |wanted: &Wanted| scope == Scope::WithVar || wanted.label != layout::LABEL_VAR;
    for wanted in wanted(manifest).into_iter().filter(in_scope) {
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

/// Writes the planned table, unless it is on the disk already.
pub(crate) fn complete(disk: &Disk, plan: &Plan) -> Result<Changes> {
    let open = || File::options().read(true).write(true).open(&disk.path);
    let file = open().with_context(|| format!("opening {}", disk.path.display()))?;
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
    table
        .write(&file)
        .with_context(|| format!("writing the partition table of {}", disk.name))?;
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
        .fix("give the node a larger disk, or set smaller [sizes] in the recipe")
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

/// The partition of this label on the system disk.
pub(crate) fn labelled<'a>(disk: &'a Disk, label: &str) -> Result<&'a Partition> {
    disk.partitions
        .iter()
        .find(|part| part.label == label)
        .with_context(|| format!("{} has no partition {label}", disk.name))
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
        let (_folder, world) = fake();
        let mut table = sample(512, 64 * layout::MIB);
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
        let mib = |entry: &Entry| (entry.first / 2048, (entry.last + 1) / 2048);
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
    }
}
