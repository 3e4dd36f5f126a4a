//! The names that udev's rules, and those of clouds, give disks below `/dev/disk`, without udev.
//!
//! Sources: systemd's `60-persistent-storage.rules`, `scsi_id` and `path_id`; `google_nvme_id` and
//! `65-gce-disk-naming.rules` (GoogleCloudPlatform/guest-configs); `ebsnvme-id` (amazonlinux/amazon-ec2-utils);
//! `80-azure-disk.rules` (Azure/azure-vm-utils).

use std::fs::{self, File};
use std::path::Path;

use crate::block::{self, Disk};
use crate::kernel_call;
use crate::nvme;
use crate::world::World;

/// Model of the NVMe disks of Compute Engine; all of an instance are namespaces of one controller.
const GOOGLE: &str = "nvme_card-pd";
/// Model of Compute Engine's local NVMe disks; with a number behind it where each has a controller.
const GOOGLE_LOCAL: &str = "nvme_card";
/// Model of the volumes of Amazon's Elastic Block Store.
const EBS: &str = "Amazon Elastic Block Store";
/// Model of Azure's remote NVMe disks: namespace 1 is the system's, others have the LUN of a data disk and two.
const AZURE: &str = "MSFT NVMe Accelerator v1.0";
/// Ends of the VMBus ids of the SCSI controllers that Azure attaches data disks to.
const AZURE_DATA: [&str; 3] = [
    "f8b3781b-1e82-4818-a1c3-63d806ec15bb",
    "f8b3781c-1e82-4818-a1c3-63d806ec15bb",
    "f8b3781d-1e82-4818-a1c3-63d806ec15bb",
];

/// A value as udev writes it into the name of a link: white space at the ends away, other white space as `_`.
pub fn link(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join("_")
}

/// The names of a disk; see [`ids`].
pub fn of(world: &World, disk: &Disk) -> Vec<String> {
    let folder = world.sys.join("block").join(&disk.name);
    // The names by LUN come from where the device is attached, which only the real path shows.
    let folder = fs::canonicalize(&folder).unwrap_or(folder);
    ids(world, &folder, &disk.name, disk.serial.as_deref())
}

/// The names of a disk in `/dev/disk/by-id`, and those of Azure in `/dev/disk`, which begin with `azure/`. `disk` is its
/// folder in sysfs by the real path. An NVMe disk is asked for its vendor's data only if its model is one whose data has a
/// name.
pub fn ids(world: &World, disk: &Path, name: &str, serial: Option<&str>) -> Vec<String> {
    let text = |file: &str| {
        let text = fs::read_to_string(disk.join(file)).ok()?;
        let text = link(text.trim_matches('\0'));
        (!text.is_empty()).then_some(text)
    };
    let wwid = text("wwid").or_else(|| text("device/wwid"));
    let (vendor, model) = (text("device/vendor"), text("device/model"));
    let (vendor, model) = (vendor.unwrap_or_default(), model.unwrap_or_default());
    let mut out = Vec::new();
    if let Some(wwn) = wwid.as_deref().and_then(|wwid| wwid.strip_prefix("naa.")) {
        out.push(format!("wwn-0x{wwn}"));
        out.push(format!("scsi-3{wwn}"));
    }
    if name.starts_with("sd") {
        let page = fs::read(disk.join("device/vpd_pg83")).unwrap_or_default();
        out.extend(
            vendor_ids(&page)
                .map(|id| format!("scsi-0{}", link(&format!("{vendor} {model} {id}")))),
        );
        out.extend(azure_lun(disk).map(|lun| format!("azure/data/by-lun/{lun}")));
    }
    if name.starts_with("nvme") {
        let namespace = block::number(&disk.join("nsid")).unwrap_or_default();
        out.extend(of_cloud(name, &model, namespace, serial, |identify| {
            let ask = || ask(world, name, identify);
            world.nvme.once(appearance(disk, name), identify, ask)
        }));
        let known = |id: &String| {
            ["eui.", "nvme.", "uuid."]
                .iter()
                .any(|kind| id.starts_with(kind))
        };
        out.extend(wwid.filter(known).map(|id| format!("nvme-{id}")));
    }
    let Some(serial) = serial.map(link) else {
        return out;
    };
    out.push(format!("google-{serial}"));
    if name.starts_with("vd") {
        // The kernel gives 20 bytes of it.
        out.push(format!("virtio-{serial}"));
    } else if name.starts_with("nvme") {
        if let Some(namespace) = text("nsid") {
            out.push(format!("nvme-{model}_{serial}_{namespace}"));
        }
        out.push(format!("nvme-{model}_{serial}"));
    } else if name.starts_with("sd") {
        match vendor.as_str() {
            "ATA" => out.push(format!("ata-{model}_{serial}")),
            _ => out.push(format!("scsi-S{vendor}_{model}_{serial}")),
        }
    }
    out
}

/// Asks an NVMe disk.
fn ask(world: &World, name: &str, identify: nvme::Identify) -> Option<Vec<u8>> {
    let device = File::open(world.dev.join(name)).ok()?;
    let what = format!("{name} to say its name");
    kernel_call::on_disks(world, &what, || nvme::identify(&device, identify)).ok()
}

/// This appearance of a disk in this boot: the kernel numbers them, so that another disk of the same name has another one
/// (`diskseq`, <https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-block>). None before Linux 5.15.
fn appearance(disk: &Path, name: &str) -> Option<String> {
    let number = fs::read_to_string(disk.join("diskseq")).ok()?;
    let number = number.trim();
    (!number.is_empty()).then(|| format!("{name} {number}"))
}

/// The names that a cloud gives an NVMe disk, by its data or its namespace's number. `name` is the kernel's. `identify` asks the disk.
fn of_cloud(
    name: &str,
    model: &str,
    namespace: u64,
    serial: Option<&str>,
    identify: impl Fn(nvme::Identify) -> Option<Vec<u8>>,
) -> Vec<String> {
    let number = u32::try_from(namespace).unwrap_or_default();
    let of_namespace = || identify(nvme::Identify::Namespace(number));
    let mut out = Vec::new();
    if model == link(GOOGLE) {
        let name = of_namespace().and_then(|page| nvme::google_name(&page));
        out.extend(name.map(|name| format!("google-{name}")));
    } else if let Some(number) = google_local(model, name, namespace) {
        out.push(format!("google-local-nvme-ssd-{number}"));
    } else if model == link(EBS) {
        let device = of_namespace().and_then(|page| nvme::ebs_device_of_namespace(&page));
        let device = device.or_else(|| nvme::ebs_device(&identify(nvme::Identify::Controller)?));
        out.extend(device.map(|device| format!("ebs-{device}")));
        // The API writes `vol-` where the serial number has `vol`.
        let volume = serial.and_then(|serial| serial.strip_prefix("vol"));
        out.extend(volume.map(|id| format!("ebs-vol-{}", id.trim_start_matches('-'))));
    } else if model == link(AZURE) && namespace >= 2 {
        out.push(format!("azure/data/by-lun/{}", namespace - 2));
    }
    out
}

/// The number of a local disk of Compute Engine, by its namespace and, where there are several controllers, by the kernel's
/// number of its controller.
fn google_local(model: &str, name: &str, namespace: u64) -> Option<u64> {
    let controller = match model.strip_prefix(GOOGLE_LOCAL)?.chars().next() {
        None => 0,
        Some('0'..='9') => name.strip_prefix("nvme")?.split('n').next()?.parse().ok()?,
        Some(_) => return None,
    };
    namespace.checked_sub(1)?.checked_add(controller)
}

/// The LUN of a data disk of Azure on a SCSI controller of its VMBus.
fn azure_lun(disk: &Path) -> Option<&str> {
    let of_data = |part: &str| AZURE_DATA.contains(&part.to_lowercase().as_str());
    let mut parts = disk.iter().filter_map(|part| part.to_str());
    parts.find(|part| of_data(part))?;
    // …/GUID/host0/target0:0:0/0:0:0:LUN/block/sdc
    address(disk)?.rsplit(':').next()
}

/// The vendor specific designators of a logical unit in vital product data page 0x83 that are text (SPC-5, 7.7.6), which is
/// where hypervisors put the names of their volumes.
fn vendor_ids(page: &[u8]) -> impl Iterator<Item = String> {
    const ASCII: u8 = 2;
    let mut rest = page.get(4..).unwrap_or_default();
    std::iter::from_fn(move || {
        let header = rest.get(..4)?;
        let end = 4 + usize::from(header[3]);
        let designator = (
            header[0] & 0xf,
            header[1] & 0x3f,
            rest.get(4..end)?.to_vec(),
        );
        rest = &rest[end..];
        Some(designator)
    })
    // Type 0 (vendor specific) of association 0 (the logical unit).
    .filter(|(code, kind, _)| *code == ASCII && *kind == 0)
    .filter_map(|(_, _, id)| String::from_utf8(id).ok())
}

/// As udev's `path_id` names disks behind PCI: virtio by the slot, NVMe by its namespace, SCSI by its address.
pub fn paths(disk: &Path, name: &str) -> Vec<String> {
    let parts: Vec<&str> = disk.iter().filter_map(|part| part.to_str()).collect();
    // Of devices below one another the last counts; behind a controller with a bus of its own (Intel VMD) another one begins.
    let slots: Vec<&str> = parts
        .iter()
        .zip(parts.iter().skip(1))
        .filter(|(part, below)| is_pci(part) && !is_pci(below))
        .map(|(part, _)| *part)
        .collect();
    if slots.is_empty() {
        return Vec::new();
    }
    let slot = slots.join("-pci-");
    if name.starts_with("vd") {
        return vec![format!("pci-{slot}"), format!("virtio-pci-{slot}")];
    }
    if name.starts_with("nvme") {
        let namespace = block::number(&disk.join("nsid"));
        return namespace.map_or_else(Vec::new, |id| vec![format!("pci-{slot}-nvme-{id}")]);
    }
    // The host's own number counts for nothing.
    let address = address(disk).and_then(|address| address.split_once(':'));
    let is_ata = parts.iter().any(|part| part.starts_with("ata"));
    match address {
        Some((_, rest)) if !is_ata && rest.split(':').count() == 3 => {
            vec![format!("pci-{slot}-scsi-0:{rest}")]
        }
        _ => Vec::new(),
    }
}

/// Whether a name is the address of a PCI device, as `0000:00:04.0`. Domains that no firmware numbers have more than four
/// digits.
fn is_pci(name: &str) -> bool {
    let shape: String = name
        .chars()
        .map(|c| if c.is_ascii_hexdigit() { '0' } else { c })
        .collect();
    let domain = shape.strip_suffix(":00:00.0");
    domain.is_some_and(|domain| domain.len() >= 4 && domain.chars().all(|c| c == '0'))
}

/// The address of a SCSI disk, `H:C:I:L`: the folder below which `block/sda` is.
fn address(disk: &Path) -> Option<&str> {
    let parts: Vec<&str> = disk.iter().filter_map(|part| part.to_str()).collect();
    parts.iter().rev().nth(2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::Clock;

    #[test]
    fn values_are_written_as_udev_writes_them() {
        assert_eq!(link("  QEMU  NVMe Ctrl "), "QEMU_NVMe_Ctrl");
    }

    /// Disks as clouds attach them: where, files below `device/` in sysfs (`page` is the text of a designator in page 0x83),
    /// and the name by which the vendor's documents call it.
    const DISKS: &str = "
        scsi  vendor=HC;model=Volume;page=12345678                          scsi-0HC_Volume_12345678
        scsi  vendor=DO;model=Volume;page=etcd                              scsi-0DO_Volume_etcd
        scsi  vendor=Linode;model=Volume;page=etcd                          scsi-0Linode_Volume_etcd
        scsi  vendor=SCW;model=b_ssd;page=volume-6e2f                       scsi-0SCW_b_ssd_volume-6e2f
        scsi  vendor=QEMU;model=QEMU_HARDDISK;page=drive-scsi1              scsi-0QEMU_QEMU_HARDDISK_drive-scsi1
        scsi  vendor=Google;model=PersistentDisk;serial=etcd                google-etcd
        scsi  vendor=VMware;model=Virtual_disk;wwid=naa.6000c29abc          wwn-0x6000c29abc
        scsi  vendor=NUTANIX;model=VDISK;wwid=naa.6506b8dabc                scsi-36506b8dabc
        scsi  vendor=ATA;model=ST4000;serial=Z1                             ata-ST4000_Z1
        vmbus vendor=Msft;model=Virtual_Disk                                azure/data/by-lun/3
        nvme  model=MSFT_NVMe_Accelerator_v1.0                              azure/data/by-lun/1
        nvme  model=Amazon_Elastic_Block_Store;serial=vol0abc               nvme-Amazon_Elastic_Block_Store_vol0abc
        nvme  model=Amazon_Elastic_Block_Store;serial=vol0abc               ebs-vol-0abc
        nvme  model=nvme_card;serial=nvme_card                              google-local-nvme-ssd-2
        nvme5 model=nvme_card5;serial=nvme_card5                            google-local-nvme-ssd-7
        virtio serial=7b1e5a1c-3a5e-4d2c-9                                  virtio-7b1e5a1c-3a5e-4d2c-9
    ";

    /// A page 0x83 with an NAA designator and a vendor's text.
    fn designators(text: &str) -> Vec<u8> {
        let length = u8::try_from(text.len()).unwrap();
        let naa = [1, 3, 0, 8, 0x50, 0, 0xc5, 0, 0, 0, 0, 1];
        let head = [&[0, 0x83, 0, length + 16][..], &naa, &[2, 0, 0, length]].concat();
        [&head, text.as_bytes()].concat()
    }

    #[test]
    fn disks_have_the_names_that_vendors_document() {
        for row in DISKS.lines().filter(|row| !row.trim().is_empty()) {
            let columns: Vec<&str> = row.split_whitespace().collect();
            let place = match columns[0] {
                "scsi" => "pci0000:00/0000:00:05.0/virtio1/host0/target0:0:0/0:0:0:1/block/sdb",
                "vmbus" => {
                    "VMBUS:01/f8b3781b-1e82-4818-a1c3-63d806ec15bb/host1/target1:0:0/1:0:0:3/block/sdc"
                }
                "nvme5" => "pci0000:00/0000:00:06.0/nvme/nvme5/nvme5n3",
                "nvme" => "pci0000:00/0000:00:06.0/nvme/nvme0/nvme0n3",
                _ => "pci0000:00/0000:00:07.0/virtio2/block/vdb",
            };
            let folder = tempfile::tempdir().unwrap();
            let world = World::below(folder.path(), Clock::Real);
            let disk = world.sys.join("devices").join(place);
            fs::create_dir_all(disk.join("device")).unwrap();
            fs::write(disk.join("nsid"), "3\n").unwrap();
            for pair in columns[1].split(';') {
                let (file, text) = pair.split_once('=').unwrap();
                let written = match file {
                    "page" => fs::write(disk.join("device/vpd_pg83"), designators(text)),
                    // Firmware pads these with blanks.
                    "vendor" | "model" => {
                        let text = format!("{:<16}\n", text.replace('_', " "));
                        let text = text
                            .replace("nvme card", "nvme_card")
                            .replace("b ssd", "b_ssd");
                        fs::write(disk.join("device").join(file), text)
                    }
                    _ => fs::write(disk.join("device").join(file), format!("{text}\n")),
                };
                written.unwrap();
            }
            let name = disk.file_name().unwrap().to_str().unwrap();
            let found = ids(&world, &disk, name, block::serial(&disk).as_deref());
            assert!(
                found.iter().any(|name| name == columns[2]),
                "{row}: {found:?}"
            );
        }
    }

    #[test]
    fn paths_have_the_addresses_that_path_id_gives() {
        for (place, nsid, expected) in [
            (
                "pci0000:00/0000:00:1d.0/0000:3d:00.0/nvme/nvme0/nvme0n1",
                "1",
                "pci-0000:3d:00.0-nvme-1",
            ),
            (
                "pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0/10000:e1:00.0/nvme/nvme0/nvme0n1",
                "1",
                "pci-0000:00:0e.0-pci-10000:e1:00.0-nvme-1",
            ),
            (
                "pci0000:00/0000:00:07.0/virtio2/block/vdb",
                "",
                "pci-0000:00:07.0",
            ),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let disk = folder.path().join(place);
            fs::create_dir_all(&disk).unwrap();
            fs::write(disk.join("nsid"), nsid).unwrap();
            let name = disk.file_name().unwrap().to_str().unwrap();
            assert_eq!(paths(&disk, name)[0], expected);
        }
        for odd in [
            "pci0000:00",
            "000:00:00.0",
            "0000:00:00.0.0",
            "00g0:00:00.0",
            "0:000:00:00.0",
        ] {
            assert!(!is_pci(odd), "{odd}");
        }
    }

    #[test]
    fn a_disk_is_asked_only_where_its_model_has_a_name_to_give() {
        let asked = |model: &str| {
            let pages = std::cell::RefCell::new(Vec::new());
            let names = of_cloud("nvme0n2", &link(model), 2, Some("vol1"), |page| {
                pages.borrow_mut().push(page);
                let mut bytes = vec![0; nvme::PAGE];
                match page {
                    nvme::Identify::Namespace(_) if model == GOOGLE => {
                        let text = br#"{"device_name":"etcd","disk_type":"PERSISTENT"}"#;
                        bytes[384..384 + text.len()].copy_from_slice(text);
                    }
                    nvme::Identify::Controller => bytes[3072..3080].copy_from_slice(b"/dev/sdf"),
                    nvme::Identify::Namespace(_) => {}
                }
                Some(bytes)
            });
            (pages.into_inner().len(), names)
        };
        assert_eq!(asked("SAMSUNG MZVL2512"), (0, Vec::new()));
        assert_eq!(asked(AZURE), (0, vec!["azure/data/by-lun/0".to_owned()]));
        assert_eq!(asked(GOOGLE), (1, vec!["google-etcd".to_owned()]));
        let ebs = ["ebs-sdf", "ebs-vol-1"].map(str::to_owned);
        assert_eq!(asked(EBS), (2, ebs.to_vec()));
    }

    #[test]
    fn a_disk_is_asked_once_in_a_boot_and_its_successor_again() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path();
        let world = World::below(disk, crate::world::Clock::Real);
        let asked = std::cell::Cell::new(0);
        let look = |what, works: bool| {
            let ask = || {
                asked.set(asked.get() + 1);
                works.then(|| vec![asked.get(); 3])
            };
            world.nvme.once(appearance(disk, "nvme0n1"), what, ask)
        };
        let (namespace, controller) = (nvme::Identify::Namespace(1), nvme::Identify::Controller);
        // An older kernel numbers no disks.
        assert_eq!(look(namespace, true), Some(vec![1; 3]));
        assert_eq!(look(namespace, true), Some(vec![2; 3]));
        fs::write(disk.join("diskseq"), "9\n").unwrap();
        // A failure is no answer.
        assert_eq!(look(namespace, false), None);
        for _ in 0..3 {
            assert_eq!(look(namespace, true), Some(vec![4; 3]));
            assert_eq!(look(controller, true).unwrap()[0], 5);
        }
        // Pulled, and another disk in its place.
        fs::write(disk.join("diskseq"), "10\n").unwrap();
        assert_eq!(look(namespace, true), Some(vec![6; 3]));
        assert_eq!(look(controller, true), Some(vec![7; 3]));
        assert_eq!(asked.get(), 7);
    }

    #[test]
    fn broken_pages_of_designators_end_the_list() {
        for page in [
            &[][..],
            &[0, 0x83, 0, 9, 2],
            &[0, 0x83, 0, 9, 2, 0, 0, 200, b'x'],
        ] {
            assert_eq!(vendor_ids(page).count(), 0, "{page:?}");
        }
    }
}
