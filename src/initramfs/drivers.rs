//! Which modules an initramfs holds for each platform.
//!
//! Storage and network only: what else a machine has is loaded by udev after the handoff. Names are the kernel's;
//! what a kernel has built in costs nothing, what it does not have at all is an error of the recipe.

use image::modules::{BOND, EFIVARS, FW_CFG, LOOP, OPTIONAL, ROOT, SOFT_WATCHDOG, VLAN};

use crate::recipe::Platform;

/// Every disk by SCSI commands.
const SCSI_DISK: &str = "sd_mod";

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
        Platform::Azure => &[
            SCSI_DISK,
            "hv_netvsc",
            "hv_storvsc",
            "hv_utils",
            "hv_vmbus",
            "nvme",
        ],
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
            "ixgbe",
            "megaraid_sas",
            "mlx5_core",
            "mpt3sas",
            "nvme",
            "r8169",
            "smartpqi",
            "tg3",
        ],
    }
}

/// What every image holds and cannot do without.
pub const REQUIRED: &[&str] = ROOT;

/// What every image holds if its kernel has it.
#[must_use]
pub fn wished() -> Vec<&'static str> {
    [OPTIONAL, &[EFIVARS, LOOP, SOFT_WATCHDOG]].concat()
}
