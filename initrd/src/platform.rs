//! Platform: which machine this is, from the SMBIOS texts that the kernel shows in sysfs.

use std::fs;
use std::path::PathBuf;

use image::cmdline::Cmdline;
use image::guid::Guid;
use image::timeline::Span;

use crate::world::World;

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Platform {
    /// Ignition's name of the platform: `qemu`, `aws`, `gcp`, `azure`, `vmware` or `metal`.
    pub(crate) id: String,
    /// What names this instance: the SMBIOS UUID, until a cloud's own id is known.
    pub(crate) instance: Option<String>,
}

/// Names the platform: what `ignition.platform.id=` says, else what the firmware's tables say, else `metal`.
pub(crate) fn identify(world: &World, cmdline: &Cmdline) -> Platform {
    let text = |name: &str| {
        fs::read_to_string(world.sys.join("class/dmi/id").join(name))
            .map(|text| text.trim().to_owned())
            .unwrap_or_default()
    };
    let id = cmdline.platform.clone().unwrap_or_else(|| {
        guess(
            &text("sys_vendor"),
            &text("product_name"),
            &text("chassis_asset_tag"),
        )
        .to_owned()
    });
    let instance = text("product_uuid").to_lowercase();
    Platform {
        id,
        instance: (!instance.is_empty()).then_some(instance),
    }
}

/// Azure is known by the asset tag that its hosts give every machine; Hyper-V elsewhere has the same vendor.
fn guess(vendor: &str, product: &str, asset_tag: &str) -> &'static str {
    match vendor {
        "QEMU" => "qemu",
        "Amazon EC2" => "aws",
        "Google" => "gcp",
        _ if asset_tag == "7783-7084-3265-9085-8269-3286-77" => "azure",
        _ if vendor.starts_with("VMware") => "vmware",
        _ if product.starts_with("Standard PC") || product.starts_with("KVM") => "qemu",
        _ => "metal",
    }
}

/// GUID of the partition that the boot loader started from, as systemd-boot and its stub leave it; none
/// without UEFI or with a loader that does not say.
///
/// The variable is UTF-16 with four bytes of attributes before it
/// (<https://systemd.io/BOOT_LOADER_INTERFACE/>).
pub(crate) fn loader_partition(world: &World) -> Option<Guid> {
    loader_variable(world, "LoaderDevicePartUUID")?
        .to_lowercase()
        .parse()
        .ok()
}

/// A text variable of the boot loader interface.
pub(crate) fn loader_variable(world: &World, name: &str) -> Option<String> {
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

/// What firmware and boot loader took before the kernel's start, as far as they say: times before zero.
///
/// systemd-boot and its stub give microseconds since the machine's reset: when they were started and when they started
/// the kernel.
pub(crate) fn firmware_times(world: &World) -> Vec<Span> {
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
    fn machines_are_told_apart() {
        for (vendor, product, tag, expected) in [
            ("QEMU", "Standard PC (Q35 + ICH9, 2009)", "", "qemu"),
            ("Amazon EC2", "m5.large", "", "aws"),
            ("Google", "Google Compute Engine", "", "gcp"),
            (
                "Microsoft Corporation",
                "Virtual Machine",
                "7783-7084-3265-9085-8269-3286-77",
                "azure",
            ),
            ("Microsoft Corporation", "Virtual Machine", "", "metal"),
            ("VMware, Inc.", "VMware7,1", "", "vmware"),
            ("Dell Inc.", "PowerEdge R740", "", "metal"),
        ] {
            assert_eq!(guess(vendor, product, tag), expected, "{vendor} {product}");
        }
    }

    #[test]
    fn the_command_line_has_the_first_word() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let dmi = world.sys.join("class/dmi/id");
        fs::create_dir_all(&dmi).unwrap();
        fs::write(dmi.join("sys_vendor"), "QEMU\n").unwrap();
        fs::write(dmi.join("product_uuid"), "ABCD-1\n").unwrap();
        let found = identify(&world, &Cmdline::default());
        assert_eq!(
            (found.id.as_str(), found.instance.as_deref()),
            ("qemu", Some("abcd-1"))
        );
        let told = Cmdline::parse("ignition.platform.id=metal").unwrap();
        assert_eq!(identify(&world, &told).id, "metal");
    }

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
