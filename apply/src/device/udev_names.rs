//! The names that udev's rules give disks in `/dev/disk/by-id` and `by-path`, from sysfs alone.

use std::fs;
use std::path::Path;

use crate::device_name::link;
use linux::block;

/// The names of `60-persistent-storage.rules`, for virtio, NVMe, SCSI and ATA; and Google's names by serial number.
pub(super) fn ids(disk: &Path, name: &str, serial: Option<&str>) -> Vec<String> {
    let text = |file: &str| {
        let text = fs::read_to_string(disk.join(file)).ok()?;
        let text = link(text.trim_matches('\0'));
        (!text.is_empty()).then_some(text)
    };
    let serial = serial.map(link);
    let mut out = Vec::new();
    let wwid = text("wwid").or_else(|| text("device/wwid"));
    if let Some(wwn) = wwid.as_deref().and_then(|wwid| wwid.strip_prefix("naa.")) {
        out.push(format!("wwn-0x{wwn}"));
        out.push(format!("scsi-3{wwn}"));
    }
    let Some(serial) = serial else {
        return out;
    };
    out.push(format!("google-{serial}"));
    let model = text("device/model").unwrap_or_default();
    if name.starts_with("vd") {
        // The kernel reports at most 20 bytes of it.
        out.push(format!("virtio-{serial}"));
    } else if name.starts_with("nvme") {
        out.push(format!("nvme-{model}_{serial}"));
        if let Some(id) = wwid.filter(|id| id.starts_with("eui.") || id.starts_with("nvme.")) {
            out.push(format!("nvme-{id}"));
        }
    } else if name.starts_with("sd") {
        let vendor = text("device/vendor").unwrap_or_default();
        match vendor.as_str() {
            "ATA" => out.push(format!("ata-{model}_{serial}")),
            _ => out.push(format!("scsi-S{vendor}_{model}_{serial}")),
        }
    }
    out
}

/// The names of udev's `path_id` for disks behind PCI: virtio by the slot, NVMe by its namespace, SCSI by its address.
pub(super) fn paths(disk: &Path, name: &str) -> Vec<String> {
    let parts: Vec<&str> = disk.iter().filter_map(|part| part.to_str()).collect();
    let is_pci = |part: &&str| {
        let shape: String = part
            .chars()
            .map(|c| if c.is_ascii_hexdigit() { '0' } else { c })
            .collect();
        shape == "0000:00:00.0"
    };
    let Some(slot) = parts.iter().rev().find(|part| is_pci(part)) else {
        return Vec::new();
    };
    if name.starts_with("vd") {
        return vec![format!("pci-{slot}"), format!("virtio-pci-{slot}")];
    }
    if name.starts_with("nvme") {
        let namespace = block::number(&disk.join("nsid"));
        return namespace.map_or_else(Vec::new, |id| vec![format!("pci-{slot}-nvme-{id}")]);
    }
    // The address below `…/targetH:C:I/H:C:I:L/block/sda`; the host's number is not part of the name.
    let address = parts
        .iter()
        .rev()
        .nth(2)
        .and_then(|address| address.split_once(':'));
    let is_ata = parts.iter().any(|part| part.starts_with("ata"));
    match address {
        Some((_, rest)) if !is_ata && rest.split(':').count() == 3 => {
            vec![format!("pci-{slot}-scsi-0:{rest}")]
        }
        _ => Vec::new(),
    }
}
