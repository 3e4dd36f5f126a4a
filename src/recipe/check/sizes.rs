//! Sizes: of partitions, of the smallest etcd disk, of what is compressed together.

use image::layout::{MIB, Sizes};

use super::Check;
use crate::recipe::RootOptions;
use crate::recipe::mistakes::{Mistake, Place, nearest};
use crate::recipe::raw::{RawDisk, RawRoot, TextOrNumber};

/// Units of sizes, all of them powers of 1024 as systemd's are.
const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("B", 1),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
];

/// A FAT32 file system needs 65,525 clusters; below this firmware may take it for FAT16.
const SMALLEST_ESP: u64 = 64 * MIB;
/// The smallest ext4 with a journal that is worth having.
const SMALLEST_STATE: u64 = 16 * MIB;

/// The size at a path, if one is given and right.
pub(super) fn size(check: &mut Check<'_>, path: &str, given: Option<&TextOrNumber>) -> Option<u64> {
    match given? {
        TextOrNumber::Number(bytes) => Some(*bytes),
        TextOrNumber::Text(text) => match parse(text, &check.place(path)) {
            Ok(bytes) => Some(bytes),
            Err(mistake) => {
                check.add(*mistake);
                None
            }
        },
    }
}

fn parse(text: &str, place: &Place) -> Result<u64, Box<Mistake>> {
    const EXPECTED: &str = "expected a whole number and a unit: B, KiB, MiB, GiB or TiB";
    let trimmed = text.trim();
    let digits = trimmed
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(trimmed.len());
    let (number, unit) = (&trimmed[..digits], trimmed[digits..].trim_start());
    let Ok(number) = number.parse::<u64>() else {
        return Err(Box::new(Mistake::at(
            place,
            format!("{text:?} is not a size"),
            EXPECTED,
        )));
    };
    if unit.is_empty() {
        return Ok(number);
    }
    let Some((_, factor)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        let mistake = Mistake::at(place, format!("{unit:?} is not a unit of size"), EXPECTED);
        let names = UNITS.iter().map(|(name, _)| *name);
        return Err(Box::new(
            match nearest(unit, names.filter(|name| name.len() > 1)) {
                Some(near) => mistake.help(format!("did you mean \"{number} {near}\"?")),
                None => mistake,
            },
        ));
    };
    number
        .checked_mul(*factor)
        .ok_or_else(|| Mistake::at(place, format!("{text:?} is beyond all disks"), EXPECTED).into())
}

pub(super) fn disk(check: &mut Check<'_>, raw: &RawDisk) -> Sizes {
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
        }
        bytes
    };
    let sizes = Sizes {
        esp: part("esp", &raw.esp, default.esp, SMALLEST_ESP),
        root: part("root", &raw.root, default.root, 64 * MIB),
        verity: part("verity", &raw.verity, default.verity, MIB),
        state: part("state", &raw.state, default.state, SMALLEST_STATE),
        var_minimum: part(
            "var-minimum",
            &raw.var_minimum,
            default.var_minimum,
            64 * MIB,
        ),
    };
    let least = tree_size(sizes.root).next_multiple_of(MIB);
    if sizes.verity < least {
        let given = if raw.verity.is_some() {
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
    sizes
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

pub(super) fn root(check: &mut Check<'_>, raw: &RawRoot) -> RootOptions {
    let default = RootOptions::default();
    if let Some(text) = raw.compression.as_deref()
        && let Err(mistake) = compression(text, &check.place("root.compression"))
    {
        check.add(*mistake);
    }
    let cluster = match size(check, "root.cluster", raw.cluster.as_ref()) {
        None => default.cluster,
        Some(bytes) => match u32::try_from(bytes) {
            Ok(bytes) if bytes.is_power_of_two() && (4096..=1 << 20).contains(&bytes) => bytes,
            _ => {
                check.add(Mistake::at(
                    &check.place("root.cluster"),
                    format!("a cluster cannot have {bytes} bytes"),
                    "expected a power of two from 4 KiB to 1 MiB",
                ));
                default.cluster
            }
        },
    };
    RootOptions {
        compression: raw.compression.clone().unwrap_or(default.compression),
        cluster,
    }
}

fn compression(text: &str, place: &Place) -> Result<(), Box<Mistake>> {
    const NAMES: [&str; 4] = ["none", "lz4", "lz4hc", "zstd"];
    let (name, level) = match text.split_once(',') {
        Some((name, level)) => (name, Some(level)),
        None => (text, None),
    };
    if !NAMES.contains(&name) {
        return Err(Box::new(
            Mistake::at(
                place,
                format!("{name:?} is not a compression of the root"),
                "expected none, lz4, lz4hc or zstd, with \",LEVEL\" if wanted",
            )
            .nearest(name, NAMES),
        ));
    }
    let highest = match name {
        "lz4hc" => 12,
        "zstd" => 22,
        _ => 0,
    };
    match level.map(str::parse::<u32>) {
        None => Ok(()),
        Some(Ok(level)) if highest > 0 && level <= highest => Ok(()),
        Some(_) if highest == 0 => Err(Box::new(Mistake::at(
            place,
            format!("{name} has no levels"),
            format!("expected \"{name}\""),
        ))),
        Some(_) => Err(Box::new(Mistake::at(
            place,
            format!("{text:?} has no level of {name}"),
            format!("expected a level from 0 to {highest}"),
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        let place = Place::top(0);
        for (text, bytes) in [
            ("512 MiB", 512 << 20),
            ("2GiB", 2 << 30),
            ("2G", 2 << 30),
            ("4096", 4096),
        ] {
            assert_eq!(parse(text, &place).unwrap(), bytes, "{text}");
        }
        for bad in [
            "512 MB",
            "MiB",
            "1.5 GiB",
            "-1 MiB",
            "99999999999 TiB",
            "5 parsecs",
        ] {
            assert!(parse(bad, &place).is_err(), "{bad}");
        }
    }

    #[test]
    fn compressions_are_checked() {
        let place = Place::top(0);
        for good in ["none", "lz4", "lz4hc", "lz4hc,9", "zstd,3"] {
            assert!(compression(good, &place).is_ok(), "{good}");
        }
        for bad in ["gzip", "lz4,3", "zstd,30", "zstd,", "none,1"] {
            assert!(compression(bad, &place).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_default_verity_partition_holds_the_default_roots_tree() {
        let sizes = Sizes::default();
        assert!(tree_size(sizes.root) <= sizes.verity);
        // `veritysetup format` writes 0.8 % of the data.
        assert_eq!(tree_size(128 * 4096), 2 * 4096);
    }
}
