//! `[disk]`: sizes of the partitions and of the disk's sectors.

use image::layout::{MIB, SectorSize, Sizes};
use schemars::JsonSchema;
use serde::Deserialize;

use super::Check;
use super::size::{TextOrNumber, size};
use crate::format::fat;
use crate::recipe::mistakes::Mistake;

/// Sizes of the partitions, as "512 MiB" or in bytes, whole MiB; and the disk's sectors.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawDisk {
    /// EFI system partition. Default: 512 MiB.
    pub esp: Option<TextOrNumber>,
    /// Each of the two root slots. Default: 2 GiB.
    pub root: Option<TextOrNumber>,
    /// Each of the two hash tree slots; a tree takes 0.8 % of its root. Default: 32 MiB.
    pub verity: Option<TextOrNumber>,
    /// The node's own state. Default: 256 MiB.
    pub state: Option<TextOrNumber>,
    /// The least that must be left for var. Default: 4 GiB.
    pub var_minimum: Option<TextOrNumber>,
    /// Bytes of a logical sector of the disks that the image is for, 512 or 4096 ("4K native"). An image starts on disks of
    /// one kind only. Default: 512.
    pub sector_size: Option<u64>,
}

/// Minimum size of the ESP, if its sectors do not need more: FAT32 needs 65,525 clusters, otherwise firmware may take it for
/// FAT16.
const SMALLEST_ESP: u64 = 64 * MIB;

/// Maximum size of a partition: the sum of all of them is a number of 64 bits.
const LARGEST: u64 = 1 << 50;

/// Minimum size of `state`: a smaller ext4 has too little space beside its journal.
const SMALLEST_STATE: u64 = 16 * MIB;

pub(super) fn check(check: &mut Check<'_>, raw: &RawDisk) -> (Sizes, SectorSize) {
    let RawDisk {
        esp,
        root,
        verity,
        state,
        var_minimum,
        sector_size,
    } = raw;
    let sector = sector(check, *sector_size);
    let default = Sizes::default();
    let mut part = |key: &str, given: &Option<TextOrNumber>, default: u64, least: u64| {
        let path = format!("disk.{key}");
        let Some(bytes) = size(check, &path, given.as_ref()) else {
            return default;
        };
        if bytes % MIB != 0 || bytes < least {
            check.add(Mistake::at(
                &check.place(&path),
                format!("the partition cannot have {bytes} bytes"),
                format!("expected whole MiB, at least {} MiB", least / MIB),
            ));
        } else if bytes > LARGEST {
            check.add(Mistake::at(
                &check.place(&path),
                format!("the partition cannot have {bytes} bytes"),
                "expected at most 1 PiB",
            ));
        }
        bytes
    };
    let sizes = Sizes {
        esp: part(
            "esp",
            esp,
            default.esp,
            SMALLEST_ESP.max(fat::smallest(sector.bytes())),
        ),
        root: part("root", root, default.root, 64 * MIB),
        verity: part("verity", verity, default.verity, MIB),
        state: part("state", state, default.state, SMALLEST_STATE),
        var_minimum: part("var-minimum", var_minimum, default.var_minimum, 64 * MIB),
    };
    let least = tree_size(sizes.root).next_multiple_of(MIB);
    if sizes.verity < least {
        let given = if verity.is_some() {
            "disk.verity"
        } else {
            "disk.root"
        };
        check.add(Mistake::at(
            &check.place(given),
            format!(
                "a root of {} MiB has a larger hash tree than {} MiB",
                sizes.root / MIB,
                sizes.verity / MIB
            ),
            format!(
                "expected verity = \"{} MiB\" or more in [disk]",
                least / MIB
            ),
        ));
    }
    (sizes, sector)
}

fn sector(check: &mut Check<'_>, given: Option<u64>) -> SectorSize {
    let Some(bytes) = given else {
        return SectorSize::default();
    };
    SectorSize::of(bytes).unwrap_or_else(|| {
        check.add(Mistake::at(
            &check.place("disk.sector-size"),
            format!("no disk has logical sectors of {bytes} bytes"),
            "expected 512, or 4096 for \"4K native\" disks",
        ));
        SectorSize::default()
    })
}

/// Bytes of a dm-verity tree over `data` bytes: a superblock, then levels of 128 digests a block of 4096.
fn tree_size(data: u64) -> u64 {
    let mut blocks = data.div_ceil(4096);
    let mut tree = 1;
    while blocks > 1 {
        blocks = blocks.div_ceil(128);
        tree += blocks;
    }
    tree * 4096
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_verity_partition_holds_the_default_roots_tree() {
        let sizes = Sizes::default();
        assert!(tree_size(sizes.root) <= sizes.verity);
        // `veritysetup format` writes 0.8 % of the data.
        assert_eq!(tree_size(128 * 4096), 2 * 4096);
    }
}
