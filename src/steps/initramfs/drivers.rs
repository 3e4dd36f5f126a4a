//! Which modules an initramfs holds for each platform.
//!
//! Storage and network only: what else a machine has is loaded by udev after the handoff. Names are the kernel's;
//! what a kernel has built in costs nothing, what it does not have at all is an error of the recipe.

use image::modules::{BOND, EFIVARS, FW_CFG, LOOP, OPTIONAL, ROOT, SOFT_WATCHDOG, UDF, VLAN};

use crate::recipe::Platform;

/// Every disk by SCSI commands.
const SCSI_DISK: &str = "sd_mod";

/// KVM with virtio devices, and a drive with the config: see `image::modules::MEDIA`, which stands here word by word.
const VIRTIO_WITH_MEDIA: &[&str] = &[
    SCSI_DISK,
    "ahci",
    "ata_piix",
    "isofs",
    "nls_ascii",
    "nls_cp437",
    "nvme",
    "sr_mod",
    "vfat",
    "virtio_blk",
    "virtio_console",
    "virtio_net",
    "virtio_pci",
    "virtio_rng",
    "virtio_scsi",
];

/// Modules that the machines of a platform may need before the handoff.
#[must_use]
pub const fn platform(platform: Platform) -> &'static [&'static str] {
    match platform {
        Platform::Qemu => &[
            BOND,
            FW_CFG,
            SCSI_DISK,
            VLAN,
            "ahci",
            "i6300esb",
            "nvme",
            "virtio_blk",
            "virtio_console",
            "virtio_net",
            "virtio_pci",
            "virtio_rng",
            "virtio_scsi",
        ],
        Platform::Aws => &["ena", "nvme"],
        Platform::Gce => &[
            SCSI_DISK,
            "gve",
            "nvme",
            "virtio_net",
            "virtio_pci",
            "virtio_scsi",
        ],
        // The provisioning disc is in an IDE drive on machines of the first generation.
        Platform::Azure => &[
            SCSI_DISK,
            "ata_piix",
            "hv_netvsc",
            "hv_storvsc",
            "hv_utils",
            "hv_vmbus",
            "isofs",
            "nvme",
            "sr_mod",
            UDF,
        ],
        Platform::Digitalocean | Platform::Hetzner => &[
            SCSI_DISK,
            "virtio_blk",
            "virtio_net",
            "virtio_pci",
            "virtio_rng",
            "virtio_scsi",
        ],
        Platform::Openstack | Platform::Nutanix | Platform::Proxmoxve | Platform::Kubevirt => {
            VIRTIO_WITH_MEDIA
        }
        Platform::Vmware => &[SCSI_DISK, "ahci", "nvme", "vmw_pvscsi", "vmxnet3"],
        Platform::Metal => &[
            BOND,
            SCSI_DISK,
            VLAN,
            "aacraid",
            "ahci",
            "bnxt_en",
            "e1000e",
            "hpsa",
            "i40e",
            "ice",
            "igb",
            "igc",
            "isofs",
            "ixgbe",
            "megaraid_sas",
            "mlx5_core",
            "mpt3sas",
            "nls_ascii",
            "nls_cp437",
            "nvme",
            "r8169",
            "smartpqi",
            "sr_mod",
            "tg3",
            "vfat",
        ],
    }
}

/// What every image holds and cannot do without.
pub const REQUIRED: &[&str] = ROOT;

/// What every image holds if its kernel has it.
#[must_use]
pub fn optional() -> Vec<&'static str> {
    [OPTIONAL, &[EFIVARS, LOOP, SOFT_WATCHDOG]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_with_a_config_drive_can_read_it() {
        for name in image::modules::MEDIA {
            assert!(VIRTIO_WITH_MEDIA.contains(name), "{name}");
            // The command line may name a file system with the config.
            assert!(platform(Platform::Metal).contains(name), "{name}");
        }
    }
}
