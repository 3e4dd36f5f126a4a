//! UEFI variables of the boot loader and the firmware: the loader's partition, its times, Secure Boot.

use std::fs;
use std::path::PathBuf;

use image::guid::Guid;
use image::timeline::Span;

use crate::world::World;

/// GUID of the partition that the boot loader started from, as systemd-boot and its stub record it; none without UEFI
/// or with another loader.
///
/// The variable is UTF-16 with four bytes of attributes before it
/// (<https://systemd.io/BOOT_LOADER_INTERFACE/>).
pub fn loader_partition(world: &World) -> Option<Guid> {
    loader_variable(world, "LoaderDevicePartUUID")?
        .to_lowercase()
        .parse()
        .ok()
}

/// Path of the boot entry that this boot came from, with backslashes, if the loader counts its boots.
pub fn counted_entry(world: &World) -> Option<String> {
    loader_variable(world, "LoaderBootCountPath")
}

/// Name of the boot entry that systemd-boot has started, counted or not; none with another loader
/// (<https://systemd.io/BOOT_LOADER_INTERFACE/>).
pub fn selected_entry(world: &World) -> Option<String> {
    loader_variable(world, "LoaderEntrySelected")
}

/// The boot loader's counter of the entry that this boot came from, as it stands in the name after the loader counted this
/// boot: `+LEFT-DONE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Tries that are left.
    pub left: u32,
    /// Boots that were not blessed, this one among them.
    pub done: u32,
}

/// The counter in the name of the boot entry's file, as `\EFI\Linux\demo+2-1.efi`; none if the entry is not counted
/// (<https://systemd.io/AUTOMATIC_BOOT_ASSESSMENT/>).
pub fn counter(path: &str) -> Option<Counter> {
    let stem = path.rsplit_once('.')?.0;
    let counter = stem.rsplit_once('+')?.1;
    let (left, done) = counter.split_once('-').unwrap_or((counter, "0"));
    Some(Counter {
        left: left.parse().ok()?,
        done: done.parse().ok()?,
    })
}

/// Path of the boot entry that this boot came from, with backslashes, counted or not: the stub in a unified kernel image
/// records its own file (systemd-stub(7)).
pub fn entry(world: &World) -> Option<String> {
    counted_entry(world).or_else(|| loader_variable(world, "StubImageIdentifier"))
}

/// A text variable of the boot loader interface.
pub fn loader_variable(world: &World, name: &str) -> Option<String> {
    let path: PathBuf = world
        .sys
        .join("firmware/efi/efivars")
        .join(format!("{name}-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"));
    let bytes = fs::read(path).ok()?;
    let units: Vec<u16> = bytes
        .get(4..)?
        .chunks_exact(2)
        .map(|unit| u16::from_le_bytes([unit[0], unit[1]]))
        .take_while(|unit| *unit != 0)
        .collect();
    String::from_utf16(&units).ok()
}

/// Whether Secure Boot is on: the fifth byte of the variable `SecureBoot`, behind its attributes (UEFI specification,
/// 3.3).
pub fn secure_boot(world: &World) -> bool {
    let path = world
        .sys
        .join("firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c");
    fs::read(path).is_ok_and(|bytes| bytes.get(4) == Some(&1))
}

/// The times of firmware and boot loader before the kernel's start, if they record them: times before zero.
///
/// systemd-boot and its stub give microseconds since the machine's reset: when they were started and when they started
/// the kernel.
pub fn firmware_times(world: &World) -> Vec<Span> {
    let time = |name: &str| loader_variable(world, name)?.trim().parse::<i64>().ok();
    let (Some(began), Some(ended)) = (time("LoaderTimeInitUSec"), time("LoaderTimeExecUSec"))
    else {
        return Vec::new();
    };
    let span = |source: &str, start: i64, end: i64| Span {
        source: source.to_owned(),
        name: source.to_owned(),
        start,
        end: Some(end),
        note: None,
    };
    vec![
        span("firmware", -ended, began - ended),
        span("loader", began - ended, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::set_loader_variable as set;
    use crate::world::Clock;

    #[test]
    fn the_stub_names_the_entry_where_the_loader_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        assert_eq!(entry(&world), None);
        let good = r"\EFI\Linux\demo_1.0.efi";
        set(&world, "StubImageIdentifier", good);
        assert_eq!(entry(&world).as_deref(), Some(good));
        assert_eq!(counter(good), None);
        let counted = r"\EFI\Linux\demo_1.0+2-1.efi";
        set(&world, "LoaderBootCountPath", counted);
        assert_eq!(entry(&world).as_deref(), Some(counted));
        assert_eq!(counter(counted), Some(Counter { left: 2, done: 1 }));
    }

    #[test]
    fn the_loader_names_its_partition() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        assert_eq!(loader_partition(&world), None);
        set(
            &world,
            "LoaderDevicePartUUID",
            "13747C8A-6CF0-0FCB-4E5B-5D6422C02611",
        );
        assert_eq!(
            loader_partition(&world).unwrap().to_string(),
            "13747c8a-6cf0-0fcb-4e5b-5d6422c02611"
        );
    }
}
