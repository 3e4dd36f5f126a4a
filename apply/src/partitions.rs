//! One disk's partition table, written to the disk and passed to the kernel.
//!
//! The kernel gets each change individually (`BLKPG`): it refuses to read the table again (`BLKRRPART`) while one
//! partition is in use, as those of the system disk always are. The partitions in sysfs are then compared with the
//! table.

pub(crate) mod table;

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};

use crate::device::Device;
use linux::gpt::Table;
use linux::world::World;
use linux::{block, ioctl};
use table::PartitionAction;

/// The change of one disk's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableChange {
    /// Its JSON path in the config.
    pub(crate) at: String,
    /// The disk.
    pub(crate) disk: Device,
    /// By what a later boot knows it again, once the table is written; none if nothing names it.
    pub(crate) key: Option<String>,
    /// Whether all tables are wiped from it first.
    pub(crate) wipe: bool,
    /// Whether no partition of an earlier table remains.
    pub(crate) fresh: bool,
    /// The planned table; none if the disk is to have none.
    pub(crate) table: Option<Table>,
    /// Whether the table is written: it changes, or one of its copies is damaged.
    pub(crate) write: bool,
    /// The number of each partition that is to exist, by its path in the config.
    pub(crate) numbers: Vec<(String, u32)>,
    /// The action on each partition, for the log.
    pub(crate) actions: Vec<(u32, PartitionAction)>,
}

/// A partition as the kernel knows it, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    number: u32,
    start: u64,
    size: u64,
}

/// One change for the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KernelChange {
    Delete(u32),
    Resize(Extent),
    Add(Extent),
}

impl TableChange {
    /// Whether the plan changes anything.
    pub(crate) const fn changes(&self) -> bool {
        self.wipe || self.write
    }

    /// Carries out the change.
    pub(crate) fn apply(&self, world: &World) -> Result<()> {
        let name = &self.disk.name;
        let mut options = File::options();
        let file = options.read(true).write(true).open(&self.disk.path);
        let file = file.with_context(|| format!("opening {}", self.disk.path.display()))?;
        // udev, if it runs, does not probe a locked disk (systemd.io/BLOCK_DEVICE_LOCKING).
        file.lock()
            .with_context(|| format!("locking {}", self.disk.path.display()))?;
        if self.wipe {
            wipe(&file, &self.disk).with_context(|| format!("wiping the tables of {name}"))?;
        }
        if let Some(table) = self.table.as_ref().filter(|_| self.write) {
            table
                .write(&file)
                .with_context(|| format!("writing the partition table of {name}"))?;
        }
        for tell in differences(&kernel(world, name), &views(self.table.as_ref())) {
            match tell {
                KernelChange::Delete(number) => ioctl::delete_partition(&file, number),
                KernelChange::Resize(v) => {
                    ioctl::resize_partition(&file, v.number, v.start, v.size)
                }
                KernelChange::Add(v) => ioctl::add_partition(&file, v.number, v.start, v.size),
            }
            .with_context(|| format!("on {name}"))?;
        }
        let (seen, wanted) = (kernel(world, name), views(self.table.as_ref()));
        ensure!(
            seen == wanted,
            "the kernel's partitions of {name} differ from the table that was written; expected {wanted:?}; found {seen:?}"
        );
        Ok(())
    }
}

/// Overwrites both copies of a GPT and the MBR, and nothing between the copies.
fn wipe(file: &File, disk: &Device) -> Result<()> {
    for place in Table::places(disk.sector, disk.size) {
        let zeros = vec![0; usize::try_from(place.end - place.start)?];
        file.write_all_at(&zeros, place.start)?;
    }
    Ok(file.sync_all()?)
}

fn kernel(world: &World, name: &str) -> Vec<Extent> {
    let disk = block::disk(world, name);
    let partitions = disk.map(|disk| disk.partitions).unwrap_or_default();
    partitions
        .iter()
        .map(|part| Extent {
            number: part.number,
            start: part.start,
            size: part.size,
        })
        .collect()
}

fn views(table: Option<&Table>) -> Vec<Extent> {
    let Some(table) = table else {
        return Vec::new();
    };
    let view = |(number, entry): (&u32, &linux::gpt::Entry)| Extent {
        number: *number,
        start: entry.first * table.sector,
        size: (entry.last + 1 - entry.first) * table.sector,
    };
    table.entries.iter().map(view).collect()
}

/// The changes from one view to the other: deletions first, then partitions that shrink, those that grow, additions, so
/// that nothing overlaps at any moment.
fn differences(now: &[Extent], wanted: &[Extent]) -> Vec<KernelChange> {
    let find = |views: &[Extent], number: u32| views.iter().copied().find(|v| v.number == number);
    let (mut gone, mut resized, mut added) = (Vec::new(), Vec::new(), Vec::new());
    for old in now {
        match find(wanted, old.number) {
            Some(new) if new == *old => {}
            Some(new) if new.start == old.start => {
                resized.push((new.size > old.size, KernelChange::Resize(new)))
            }
            _ => gone.push(KernelChange::Delete(old.number)),
        }
    }
    for new in wanted {
        if find(now, new.number).is_none_or(|old| old.start != new.start) {
            added.push(KernelChange::Add(*new));
        }
    }
    resized.sort_by_key(|(grows, _)| *grows);
    gone.extend(resized.into_iter().map(|(_, tell)| tell));
    gone.extend(added);
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn view(number: u32, start: u64, size: u64) -> Extent {
        Extent {
            number,
            start,
            size,
        }
    }

    #[test]
    fn the_kernel_is_told_what_differs_in_an_order_without_overlaps() {
        let now = [
            view(1, 1, 10),
            view(2, 11, 10),
            view(3, 21, 10),
            view(4, 31, 5),
        ];
        let wanted = [
            view(1, 1, 15),
            view(2, 16, 5),
            view(4, 31, 3),
            view(5, 40, 1),
        ];
        assert_eq!(
            differences(&now, &wanted),
            [
                KernelChange::Delete(2),
                KernelChange::Delete(3),
                KernelChange::Resize(view(4, 31, 3)),
                KernelChange::Resize(view(1, 1, 15)),
                KernelChange::Add(view(2, 16, 5)),
                KernelChange::Add(view(5, 40, 1)),
            ]
        );
        assert_eq!(differences(&now, &now), []);
        assert_eq!(differences(&now[..1], &[]), [KernelChange::Delete(1)]);
    }
}
