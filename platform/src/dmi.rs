//! DMI: the firmware's description of the machine (SMBIOS, below sysfs).

use std::fs;
use std::path::Path;

/// The fields of `/sys/class/dmi/id` by which vendors identify their machines
/// (<https://www.dmtf.org/standards/smbios>).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dmi {
    /// `sys_vendor`
    pub vendor: String,
    /// `product_name`
    pub product: String,
    /// `product_family`
    pub family: String,
    /// `bios_vendor`
    pub bios: String,
    /// `bios_version`
    pub bios_version: String,
    /// `chassis_asset_tag`
    pub asset_tag: String,
    /// `product_uuid`, in lower case.
    pub uuid: Option<String>,
}

impl Dmi {
    /// Reads the fields; an absent field is empty.
    #[must_use]
    pub fn read(sys: &Path) -> Self {
        let text = |name: &str| {
            fs::read_to_string(sys.join("class/dmi/id").join(name))
                .map(|text| text.trim().to_owned())
                .unwrap_or_default()
        };
        let uuid = text("product_uuid").to_lowercase();
        Self {
            vendor: text("sys_vendor"),
            product: text("product_name"),
            family: text("product_family"),
            bios: text("bios_vendor"),
            bios_version: text("bios_version"),
            asset_tag: text("chassis_asset_tag"),
            uuid: (!uuid.is_empty()).then_some(uuid),
        }
    }
    /// Whether the fields are QEMU's own; Proxmox VE does not change them.
    pub(crate) fn is_qemu(&self) -> bool {
        self.vendor == "QEMU"
            || self.product.starts_with("Standard PC")
            || self.product.starts_with("KVM")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_from_sysfs() {
        let sys = tempfile::tempdir().unwrap();
        assert_eq!(Dmi::read(sys.path()), Dmi::default());
        let folder = sys.path().join("class/dmi/id");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("sys_vendor"), "QEMU\n").unwrap();
        fs::write(folder.join("product_uuid"), "ABCD-1\n").unwrap();
        let read = Dmi::read(sys.path());
        assert_eq!(read.vendor, "QEMU");
        assert_eq!(read.uuid.as_deref(), Some("abcd-1"));
    }
}
