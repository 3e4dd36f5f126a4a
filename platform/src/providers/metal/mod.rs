//! Bare metal: only the command line names a config, and there is no metadata.

use fetch::Identity;
use image::modules::{BOND, VLAN};

use crate::drivers::SCSI_DISK;
use crate::env_keys;
use crate::found::Found;
use crate::metadata::Metadata;
use crate::provider::{Detection, DiskController, Provider};

/// The row of the table.
pub(super) static PROVIDER: Provider = Provider {
    id: "metal",
    recipe_name: Some("metal"),
    summary: "Racks: the usual disk and network controllers, USB disks.",
    detection: Detection::CommandLine,
    needs_network: false,
    media: &[],
    source_modules: &[],
    drivers: &[
        BOND,
        SCSI_DISK,
        VLAN,
        "aacraid",
        "ahci",
        "be2net",
        "bnx2x",
        "bnxt_en",
        "e1000e",
        "ehci-pci",
        "hpsa",
        "i40e",
        "ice",
        "igb",
        "igc",
        "isofs",
        "ixgbe",
        "megaraid_sas",
        "mlx4_en",
        "mlx5_core",
        "mpi3mr",
        "mpt3sas",
        "nls_ascii",
        "nls_cp437",
        "nvme",
        "qede",
        "r8169",
        "smartpqi",
        "sr_mod",
        "tg3",
        "uas",
        "usb-storage",
        "vfat",
        "vmd",
        "xhci-pci",
    ],
    disks: Some(DiskController::Nvme),
    storage_identity: Identity::Anonymous,
    env_keys: env_keys::CUSTOM,
    obtain: |_| Ok(Found::new((None, Vec::new()), Metadata::default())),
    report: None,
    local: None,
};

#[cfg(test)]
mod tests;
