//! Properties of every row of the table.

use std::fs;
use std::path::Path;

use image::modules::{BOND, MEDIA, UDF, VLAN};
use image::platform::PlatformId;

use super::{TABLE, by_id};
use crate::medium::Medium;

#[test]
fn ids_and_recipe_names_are_sorted_and_unique() {
    let ids: Vec<&str> = TABLE.iter().map(|provider| provider.id).collect();
    assert!(ids.is_sorted_by(|one, other| one < other), "{ids:?}");
    let mut names: Vec<&str> = TABLE.iter().filter_map(|row| row.recipe_name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    for id in ids {
        assert_eq!(by_id(id).unwrap().id, id);
        assert_eq!(id.parse(), Ok(PlatformId::of(id)));
    }
}

#[test]
fn an_unknown_platform_is_refused_with_those_that_exist() {
    let error = by_id("gce").unwrap_err();
    assert!(
        error.contains("\"gce\"") && error.contains("gcp"),
        "{error}"
    );
}

#[test]
fn every_row_is_complete() {
    for row in TABLE {
        assert!(row.summary.ends_with('.'), "{row}: {:?}", row.summary);
        if row.recipe_name.is_some() {
            assert!(!row.drivers.is_empty(), "{row}: no drivers");
        }
    }
}

/// What lies between the processor and the disk or network card of each platform: every row is one way, from the bridge of
/// the device's bus to its driver, as far as a kernel may have them as modules. PCI itself and Xen's bus are built into
/// Debian's kernels.
const WAYS: &[(&str, &[&str])] = &[
    ("aws", &["nvme"]),
    ("aws", &["ena"]),
    ("aws", &["xen-blkfront"]),
    ("aws", &["xen-netfront"]),
    ("aws", &["ixgbevf"]),
    ("azure", &["hv_vmbus", "hv_storvsc", "sd_mod"]),
    // vmbus:44c4f61d-4444-4400-9d52-802e27ede19f: sizes whose disks are NVMe alone.
    ("azure", &["hv_vmbus", "pci-hyperv", "nvme"]),
    ("azure", &["hv_vmbus", "hv_netvsc"]),
    ("digitalocean", &["virtio_pci", "virtio_blk"]),
    ("digitalocean", &["virtio_pci", "virtio_scsi", "sd_mod"]),
    ("digitalocean", &["virtio_pci", "virtio_net"]),
    ("gcp", &["virtio_pci", "virtio_scsi", "sd_mod"]),
    ("gcp", &["nvme"]),
    ("gcp", &["virtio_pci", "virtio_net"]),
    ("gcp", &["gve"]),
    ("hetzner", &["virtio_pci", "virtio_scsi", "sd_mod"]),
    ("hetzner", &["virtio_pci", "virtio_net"]),
    ("kubevirt", &["virtio_pci", "virtio_blk"]),
    ("kubevirt", &["ahci", "sd_mod"]),
    ("kubevirt", &["virtio_pci", "virtio_net"]),
    ("metal", &["ahci", "sd_mod"]),
    ("metal", &["nvme"]),
    // Intel's Volume Management Device, a bridge that firmware can put NVMe disks behind.
    ("metal", &["vmd", "nvme"]),
    ("metal", &["xhci-pci", "usb-storage", "uas", "sd_mod"]),
    ("metal", &["ehci-pci", "usb-storage", "sd_mod"]),
    ("nutanix", &["virtio_pci", "virtio_scsi", "sd_mod"]),
    ("nutanix", &["virtio_pci", "virtio_net"]),
    ("openstack", &["virtio_pci", "virtio_blk"]),
    ("openstack", &["virtio_pci", "virtio_scsi", "sd_mod"]),
    ("openstack", &["virtio_pci", "virtio_net"]),
    ("oraclecloud", &["virtio_pci", "virtio_scsi", "sd_mod"]),
    ("oraclecloud", &["virtio_pci", "virtio_net"]),
    ("proxmoxve", &["virtio_pci", "virtio_scsi", "sd_mod"]),
    ("proxmoxve", &["virtio_pci", "virtio_blk"]),
    ("proxmoxve", &["ahci", "sd_mod"]),
    ("proxmoxve", &["virtio_pci", "virtio_net"]),
    ("qemu", &["virtio_pci", "virtio_blk"]),
    ("qemu", &["nvme"]),
    ("qemu", &["virtio_pci", "virtio_net"]),
    ("scaleway", &["virtio_pci", "virtio_blk"]),
    ("scaleway", &["virtio_pci", "virtio_scsi", "sd_mod"]),
    ("scaleway", &["virtio_pci", "virtio_net"]),
    ("vmware", &["vmw_pvscsi", "sd_mod"]),
    ("vmware", &["nvme"]),
    ("vmware", &["ahci", "sd_mod"]),
    ("vmware", &["vmxnet3"]),
    ("vultr", &["virtio_pci", "virtio_blk"]),
    ("vultr", &["virtio_pci", "virtio_net"]),
];

#[test]
fn the_initramfs_has_each_bus_between_the_processor_and_the_device() {
    for (id, way) in WAYS {
        let row = by_id(id).unwrap();
        for name in *way {
            assert!(row.drivers.contains(name), "{row}: {name} of {way:?}");
        }
    }
    for row in TABLE.iter().filter(|row| row.recipe_name.is_some()) {
        assert!(WAYS.iter().any(|(id, _)| *id == row.id), "{row}: no way");
    }
}

#[test]
fn the_initramfs_can_read_each_platforms_media() {
    for row in TABLE {
        for medium in row.media {
            let needed: &[&str] = match medium {
                Medium::Labels(_) => MEDIA,
                Medium::Disc(_) => &["sr_mod", UDF],
            };
            for name in needed {
                assert!(row.drivers.contains(name), "{row}: {name}");
            }
            // A drive with labels may describe the network.
            if let Medium::Labels(_) = medium {
                assert!([BOND, VLAN].iter().all(|name| row.drivers.contains(name)));
            }
        }
    }
    // The command line may name a file system with the config.
    let metal = by_id("metal").unwrap();
    assert!(MEDIA.iter().all(|name| metal.drivers.contains(name)));
}

#[test]
fn each_platform_has_its_line_in_the_docs() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/platforms.md");
    let page = fs::read_to_string(page).unwrap();
    // Other tables of the page begin with another word.
    let tables = page
        .split("\n\n")
        .filter(|part| part.starts_with("| Platform |"));
    let rows = tables
        .flat_map(str::lines)
        .filter_map(|line| line.strip_prefix("| `"));
    let documented: Vec<&str> = rows.filter_map(|line| line.split('`').next()).collect();
    // The sources of configs, then the names of the etcd disk. `file` is for tests, which have no such disk.
    let ids: Vec<&str> = TABLE.iter().map(|provider| provider.id).collect();
    let disks = ids.iter().filter(|id| **id != "file");
    let both: Vec<&str> = ids.iter().chain(disks).copied().collect();
    assert_eq!(documented, both, "the tables in docs/platforms.md");
}
