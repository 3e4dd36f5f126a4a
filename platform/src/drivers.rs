//! Kernel modules that the machines of several providers need in the initramfs: storage and network only. udev loads
//! the modules of all other devices after the handoff.

use image::modules::{BOND, VLAN};

/// Every disk that is driven by SCSI commands.
pub(crate) const SCSI_DISK: &str = "sd_mod";

/// KVM with virtio devices.
pub(crate) const VIRTIO: &[&str] = &[
    SCSI_DISK,
    "virtio_blk",
    "virtio_net",
    "virtio_pci",
    "virtio_rng",
    "virtio_scsi",
];

/// KVM with virtio devices and a config drive, which may be an IDE, AHCI or NVMe disk or a disc, and whose network data may
/// have bonds and VLANs. The file systems of `image::modules::MEDIA` are listed here one by one, since slices cannot be
/// joined in a constant; a test compares them.
pub(crate) const VIRTIO_WITH_DRIVE: &[&str] = &[
    BOND,
    SCSI_DISK,
    VLAN,
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
