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
    use crate::world::Clock;

    #[test]
    fn the_loader_names_its_partition() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        assert_eq!(loader_partition(&world), None);
        let efivars = world.sys.join("firmware/efi/efivars");
        fs::create_dir_all(&efivars).unwrap();
        let text = "13747C8A-6CF0-0FCB-4E5B-5D6422C02611\0";
        let mut bytes = vec![6, 0, 0, 0];
        bytes.extend(text.encode_utf16().flat_map(u16::to_le_bytes));
        let name = "LoaderDevicePartUUID-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";
        fs::write(efivars.join(name), bytes).unwrap();
        assert_eq!(
            loader_partition(&world).unwrap().to_string(),
            "13747c8a-6cf0-0fcb-4e5b-5d6422c02611"
        );
    }
}
