//! Facts of this boot: which image and slot, which boot entry with how many tries, the clock, the last boot that failed.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use cluster::duration::{self, time_after};
use image::layout::{LABEL_ROOT_A, LABEL_ROOT_B};
use image::manifest::Manifest;
use image::paths::{RUN_BLESSED, RUN_MANIFEST, STATE, STATE_LEDGER, TIME_SYNCHRONIZED};
use image::report::{LedgerEntry, Report};
use linux::world::World;
use linux::{block, firmware, mount};
use serde::Serialize;

/// The folder of systemd-timesyncd.
const TIMESYNC: &str = "/run/systemd/timesync";
/// The end of a large ledger is enough: its newest failure is wanted, and a line has some hundred bytes.
const TAIL: usize = 64 << 10;

/// The boot entry that this boot came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BootEntry {
    /// The file's name without the counter.
    pub(crate) name: String,
    /// Tries that were left when it was started; none of an entry that was good before.
    pub(crate) tries_left: Option<u32>,
    /// Whether the loader counts it no more.
    pub(crate) good: bool,
}

/// The clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WallClock {
    /// RFC 3339, in UTC.
    pub(crate) time: String,
    /// Whether a time server has answered; none without systemd-timesyncd.
    pub(crate) synchronized: Option<bool>,
}

/// The last boot that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct FailedBoot {
    /// RFC 3339, in UTC, by a clock that may have been wrong.
    pub(crate) time: String,
    #[serde(flatten)]
    pub(crate) report: Report,
}

/// The manifest of the image.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn manifest(world: &World) -> Result<Manifest> {
    let file = world.in_run(RUN_MANIFEST);
    let about = || format!("reading {}", file.display());
    let text = fs::read_to_string(&file).with_context(about)?;
    let manifest = Manifest::parse(&text).map_err(anyhow::Error::msg);
    manifest.with_context(about)
}

/// The slot that the root is in, `a` or `b`; none of a root that is in no partition of the layout, as one that came over the
/// network.
pub(crate) fn slot(world: &World) -> Option<&'static str> {
    let mounts = mount::table(world).ok()?;
    let root = mounts
        .iter()
        .rev()
        .find(|mount| mount.target == Path::new("/"))?;
    // dm-verity's device is made of the partitions of root and hash tree.
    let below = world
        .sys
        .join("dev/block")
        .join(&root.device)
        .join("slaves");
    let labels = block::entries(&below).into_iter().filter_map(|name| {
        let file = world.sys.join("class/block").join(name).join("uevent");
        let text = fs::read_to_string(file).ok()?;
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix("PARTNAME=").map(str::to_owned))
    });
    labels.into_iter().find_map(|label| match label.as_str() {
        LABEL_ROOT_A => Some("a"),
        LABEL_ROOT_B => Some("b"),
        _ => None,
    })
}

/// The boot entry; none without UEFI.
pub(crate) fn entry(world: &World) -> Option<BootEntry> {
    let path = firmware::entry(world)?;
    let counter = firmware::counter(&path);
    let name = path.rsplit(['\\', '/']).next().unwrap_or(&path);
    let name = match (counter, name.rsplit_once('+'), name.rsplit_once('.')) {
        (Some(_), Some((stem, _)), Some((_, end))) => format!("{stem}.{end}"),
        _ => name.to_owned(),
    };
    Some(BootEntry {
        name,
        tries_left: counter.map(|counter| counter.left),
        good: counter.is_none() || world.in_run(RUN_BLESSED).exists(),
    })
}

/// Whether a time server has answered on this boot.
pub(crate) fn is_synchronized(world: &World) -> bool {
    world.in_run(TIME_SYNCHRONIZED).exists()
}

/// The clock now.
pub(crate) fn clock(world: &World) -> WallClock {
    let known = world.in_run(TIMESYNC).exists();
    WallClock {
        time: time_after(SystemTime::now(), duration::Duration(0)),
        synchronized: known.then(|| is_synchronized(world)),
    }
}

/// The last boot that failed, by the ledger; none if there is none.
pub(crate) fn failed_boot(world: &World) -> Option<FailedBoot> {
    let file = world.in_initrd(STATE).join(STATE_LEDGER);
    let ledger = fs::read(file).ok()?;
    let tail = &ledger[ledger.len().saturating_sub(TAIL)..];
    let ledger = String::from_utf8_lossy(tail);
    let failed = LedgerEntry::newest_first(&ledger).find_map(|entry| {
        let time = UNIX_EPOCH.checked_add(Duration::from_secs(entry.time))?;
        Some((time, entry.report?))
    });
    failed.map(|(time, report)| FailedBoot {
        time: time_after(time, duration::Duration(0)),
        report,
    })
}

#[cfg(test)]
mod tests {
    use linux::samples::set_loader_variable as set;
    use linux::world::Clock;

    use super::*;
    use crate::samples::put;

    const ROOT: &str = "20 1 253:0 / / ro,relatime - erofs /dev/dm-0 ro\n";

    fn world(folder: &Path) -> World {
        World::below(folder, Clock::Real)
    }

    #[test]
    fn the_slot_is_that_of_the_partition_below_the_verified_root() {
        let folder = tempfile::tempdir().unwrap();
        let world = world(folder.path());
        assert_eq!(slot(&world), None);
        put(&world.proc.join("self/mountinfo"), ROOT);
        assert_eq!(slot(&world), None);
        for (name, label, expected) in [
            ("vda3", "verity-b", None),
            ("vda4", "root-b", Some("b")),
            ("vda2", "root-a", Some("a")),
        ] {
            put(&world.sys.join("dev/block/253:0/slaves").join(name), "");
            let uevent = format!("DEVNAME={name}\nPARTN=2\nPARTNAME={label}\n");
            put(
                &world.sys.join("class/block").join(name).join("uevent"),
                &uevent,
            );
            assert_eq!(slot(&world), expected, "{label}");
            if expected.is_some() {
                fs::remove_file(world.sys.join("dev/block/253:0/slaves").join(name)).unwrap();
            }
        }
    }

    #[test]
    fn the_entry_has_its_tries_until_it_is_good() {
        let folder = tempfile::tempdir().unwrap();
        let world = world(folder.path());
        assert_eq!(entry(&world), None);
        let expected = |tries_left: Option<u32>, good: bool| {
            let name = "demo_1.0.efi".to_owned();
            Some(BootEntry {
                name,
                tries_left,
                good,
            })
        };
        set(&world, "StubImageIdentifier", r"\EFI\Linux\demo_1.0.efi");
        assert_eq!(entry(&world), expected(None, true));
        let counted = r"\EFI\Linux\demo_1.0+2-1.efi";
        set(&world, "LoaderBootCountPath", counted);
        assert_eq!(entry(&world), expected(Some(2), false));
        put(&world.in_run(RUN_BLESSED), "");
        assert_eq!(entry(&world), expected(Some(2), true));
    }

    #[test]
    fn the_last_failed_boot_is_the_newest_report_of_the_ledger() {
        let folder = tempfile::tempdir().unwrap();
        let world = world(folder.path());
        assert_eq!(failed_boot(&world), None);
        let file = world.in_initrd(STATE).join(STATE_LEDGER);
        put(&file, "{\"time\":5}\n");
        assert_eq!(failed_boot(&world), None);
        let entry = |time: u64, what: &str| {
            format!(r#"{{"time":{time},"report":{{"step":"etcd","what":"{what}","fix":"do"}}}}"#)
        };
        let old = entry(1, "old") + "\n";
        let ledger = [
            &old.repeat(2000),
            &entry(1_790_000_000, "new"),
            "\n{\"time\":6}\n{\"ti",
        ]
        .concat();
        put(&file, &ledger);
        let failed = failed_boot(&world).unwrap();
        assert_eq!(failed.time, "2026-09-21T14:13:20Z");
        assert_eq!(failed.report.what, "new");
        let json = serde_json::to_value(&failed).unwrap();
        assert_eq!(
            (&json["step"], &json["fix"]),
            (&"etcd".into(), &"do".into())
        );
    }

    #[test]
    fn a_clock_is_not_synchronized_until_a_server_has_answered() {
        let folder = tempfile::tempdir().unwrap();
        let world = world(folder.path());
        assert_eq!(clock(&world).synchronized, None);
        fs::create_dir_all(world.in_run(TIMESYNC)).unwrap();
        assert_eq!(clock(&world).synchronized, Some(false));
        put(&world.in_run(TIME_SYNCHRONIZED), "");
        assert_eq!(clock(&world).synchronized, Some(true));
    }
}
