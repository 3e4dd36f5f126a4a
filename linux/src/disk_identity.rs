//! Which disk is this: the names that its hardware, or the hypervisor or cloud behind it, gives it.
//!
//! Sources: SCSI's designators (vital product data page 0x83) as the kernel shows them in `device/wwid`; NVMe's namespace
//! identifiers (`nguid`, `eui`, and `wwid` with the namespace's UUID; NVMe base specification 2.0, 4.5.1); serial numbers.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::world::World;

/// Kinds of names, as they are kept in files: never renamed.
const WWN: &str = "wwn";
const EUI: &str = "eui";
const NGUID: &str = "nguid";
const UUID: &str = "uuid";
/// The serial number: of an NVMe disk it is the controller's, which all of its namespaces share.
pub const SERIAL: &str = "serial";
/// See [`WWN`]. Number of an NVMe namespace, which names nothing by itself.
const NAMESPACE: &str = "namespace";

/// Names that no two devices share, if their maker keeps to the standard.
const WORLD_WIDE: [&str; 4] = [WWN, EUI, NGUID, UUID];

/// Words in the vendor or model of a disk that a hypervisor makes of a file: its names come from a configuration or from
/// that file, and are copied with them.
const OF_FILES: [&str; 9] = [
    "QEMU",
    "VIRTUAL",
    "VMWARE",
    "VBOX",
    "MSFT",
    "GOOGLE",
    "NVME_CARD",
    "XEN",
    "BHYVE",
];
/// Model of the volumes of Amazon's Elastic Block Store, whose serial number is the volume's id.
const EBS: &str = "Amazon Elastic Block Store";

/// The names of one disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskIdentity {
    /// The names, by their kinds.
    pub names: BTreeMap<String, String>,
    /// Whether another disk cannot have them: they are a device's own, or those that a cloud gives each volume anew. Names
    /// that a hypervisor's configuration or the copied file of a disk gives are none of these.
    pub proof: bool,
}

/// A disk compared with the names that one had before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// It is the same one.
    Same,
    /// It is another one.
    Other,
    /// No name tells: there is none, or what is equal is equal on copies too.
    Unknown,
}

impl DiskIdentity {
    /// Reads the names of a disk by the kernel's name, from sysfs alone.
    pub fn read(world: &World, disk: &str) -> Self {
        let folder = world.sys.join("block").join(disk);
        let mut names = BTreeMap::new();
        let wwid = text(&folder.join("wwid")).or_else(|| text(&folder.join("device/wwid")));
        for (prefix, kind) in [("naa.", WWN), ("uuid.", UUID)] {
            if let Some(id) = wwid.as_deref().and_then(|wwid| wwid.strip_prefix(prefix)) {
                put(&mut names, kind, hexadecimal(id));
            }
        }
        // For a namespace of NVMe `wwid` has its NGUID under this word too, where it has one.
        let nguid = text(&folder.join("nguid")).map(|id| hexadecimal(&id));
        if let Some(id) = wwid.as_deref().and_then(|wwid| wwid.strip_prefix("eui.")) {
            let id = hexadecimal(id);
            let kind = if id.len() == 16 { EUI } else { NGUID };
            put(&mut names, kind, id);
        }
        put(&mut names, NGUID, nguid.unwrap_or_default());
        let eui = text(&folder.join("eui")).unwrap_or_default();
        put(&mut names, EUI, hexadecimal(&eui));
        let serial = crate::block::serial(&folder).unwrap_or_default();
        let model = [
            text(&folder.join("device/vendor")),
            text(&folder.join("device/model")),
        ];
        let model = model.into_iter().flatten().collect::<Vec<_>>().join(" ");
        let proof = proves(disk, &model, &serial);
        if is_name(&serial) {
            names.insert(SERIAL.to_owned(), serial);
        }
        if let Some(namespace) = text(&folder.join("nsid")) {
            names.insert(NAMESPACE.to_owned(), namespace);
        }
        Self { names, proof }
    }

    /// This disk compared with the names that one had before.
    pub fn compare(&self, before: &BTreeMap<String, String>) -> Comparison {
        let both = |kinds: &[&str]| -> Vec<bool> {
            let pair = |kind: &&str| Some(before.get(*kind)? == self.names.get(*kind)?);
            kinds.iter().filter_map(pair).collect()
        };
        let mut shared = both(&WORLD_WIDE);
        // The serial number of a device with several volumes is the same on all of them; that of a file's disk is no worse
        // than its other names, some of which QEMU draws anew at each start.
        if shared.is_empty() || !self.proof {
            shared.extend(both(&[SERIAL]));
        }
        match (shared.is_empty(), shared.contains(&true)) {
            (true, _) => Comparison::Unknown,
            (false, false) => Comparison::Other,
            (false, true) if self.proof => Comparison::Same,
            (false, true) => Comparison::Unknown,
        }
    }

    /// Whether nothing names it.
    pub fn is_empty(&self) -> bool {
        let names = |kind: &&str| self.names.contains_key(*kind);
        !WORLD_WIDE.iter().chain(&[SERIAL]).any(names)
    }

    /// One text by which a later boot knows the disk again among those of its machine; `size` in bytes. None if nothing
    /// names it.
    pub fn key(&self, size: u64) -> Option<String> {
        // A serial number may hold anything; the key is a part of other texts.
        let plain = |c: char| match c.is_ascii_alphanumeric() || "-_.:".contains(c) {
            true => c,
            false => '_',
        };
        let name = |kind: &str| {
            let name: String = self.names.get(kind)?.chars().map(plain).collect();
            Some(format!("{kind} {name}"))
        };
        if let Some(key) = WORLD_WIDE.iter().find_map(|kind| name(kind)) {
            return Some(key);
        }
        let serial = name(SERIAL)?;
        let namespace = name(NAMESPACE).map_or_else(String::new, |text| format!(" {text}"));
        // A serial number may be that of a slot: the size tells more.
        Some(format!("{serial}{namespace} of {size} bytes"))
    }

    /// The name that no other disk has, with its kind: `wwn 5000c500`.
    pub fn world_wide(&self) -> Option<String> {
        let name = |kind: &&str| Some(format!("{kind} {}", self.names.get(*kind)?));
        WORLD_WIDE.iter().find_map(name)
    }

    /// The names for people: `serial x, wwn y`; empty if there are none.
    pub fn describe(&self) -> String {
        list(&self.names)
    }
}

/// The world-wide name that several disks share: they are paths to one. `disks` has the kernel's name of each with its
/// [`DiskIdentity::world_wide`]; one that is named twice counts once. None for less than two.
pub fn shared<'a>(disks: impl IntoIterator<Item = (&'a str, Option<String>)>) -> Option<String> {
    let disks: BTreeMap<&str, Option<String>> = disks.into_iter().collect();
    let first = disks.values().next()?.clone()?;
    let is_one = disks
        .values()
        .all(|name| name.as_deref() == Some(first.as_str()));
    (disks.len() > 1 && is_one).then_some(first)
}

/// As [`shared`], for disks of this machine by the kernel's names.
pub fn shared_by(world: &World, disks: &[&str]) -> Option<String> {
    let named = |disk: &&'_ str| DiskIdentity::read(world, disk).world_wide();
    shared(disks.iter().map(|disk| (*disk, named(disk))))
}

/// Names for people; empty if there are none.
pub fn list(names: &BTreeMap<String, String>) -> String {
    let names: Vec<String> = names
        .iter()
        .map(|(kind, name)| format!("{kind} {name}"))
        .collect();
    names.join(", ")
}

/// Keeps a hexadecimal name that is one.
fn put(names: &mut BTreeMap<String, String>, kind: &str, id: String) {
    if is_name(&id) {
        names.insert(kind.to_owned(), id);
    }
}

/// Whether a text can name a device: not one character over and over.
fn is_name(text: &str) -> bool {
    let first = text.chars().next();
    first.is_some_and(|first| text.chars().any(|c| c != first))
}

/// Hexadecimal digits in lower case, without what sysfs puts between them.
fn hexadecimal(text: &str) -> String {
    text.to_lowercase()
        .trim_start_matches("0x")
        .chars()
        .filter(|c| !matches!(c, ' ' | '-'))
        .collect()
}

/// Whether the names of such a disk are its own.
fn proves(disk: &str, model: &str, serial: &str) -> bool {
    if model == EBS {
        return serial.starts_with("vol");
    }
    // OpenStack gives a volume's id, of which virtio shows the first twenty characters.
    if is_uuid(serial) {
        return true;
    }
    let upper = model.to_uppercase();
    let of_file = OF_FILES.iter().any(|word| upper.contains(word));
    !of_file && !upper.is_empty() && !disk.starts_with("vd") && !disk.starts_with("xvd")
}

/// Whether a text is a UUID, or at least the first twenty characters of one.
fn is_uuid(text: &str) -> bool {
    (20..=36).contains(&text.len())
        && text.chars().enumerate().all(|(at, c)| match at {
            8 | 13 | 18 | 23 => c == '-',
            _ => c.is_ascii_hexdigit(),
        })
}

/// The line in a file of sysfs; none if there is none, or an empty one.
fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::Clock;

    /// A disk with these files in sysfs.
    fn disk(name: &str, files: &[(&str, &str)]) -> DiskIdentity {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        for (file, text) in files {
            let path = world.sys.join("block").join(name).join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        DiskIdentity::read(&world, name)
    }

    fn nvme(model: &str, serial: &str, files: &[(&str, &str)]) -> DiskIdentity {
        let own = [
            ("device/model", model),
            ("device/serial", serial),
            ("nsid", "1\n"),
        ];
        disk("nvme0n1", &[&own, files].concat())
    }

    fn scsi(vendor: &str, model: &str, wwid: &str) -> DiskIdentity {
        let own = [("device/vendor", vendor), ("device/model", model)];
        disk("sda", &[&own[..], &[("device/wwid", wwid)]].concat())
    }

    /// Disks as they show themselves on two machines of which one was copied from the other, or is the other.
    #[test]
    fn names_that_copies_have_too_prove_nothing() {
        let gce = "nvme.1ae0-6e766d655f636172642d7064-6e766d655f636172642d7064-00000001";
        for (what, disk) in [
            ("virtio: DigitalOcean, QEMU", disk("vda", &[])),
            ("virtio, configured", disk("vda", &[("serial", "root")])),
            (
                "Compute Engine, NVMe",
                nvme("nvme_card-pd", "nvme_card-pd", &[("wwid", gce)]),
            ),
            (
                "Compute Engine, SCSI",
                scsi("Google", "PersistentDisk", "t10.Google persistent-disk-0"),
            ),
            (
                "Hetzner, Proxmox VE",
                scsi("QEMU", "QEMU HARDDISK", "t10.QEMU drive-scsi0"),
            ),
            ("VMware", scsi("VMware", "Virtual disk", "")),
            (
                "VMware, a copied file",
                scsi("VMware", "Virtual disk", "naa.6000c29a"),
            ),
        ] {
            assert_eq!(
                disk.compare(&disk.names),
                Comparison::Unknown,
                "{what}: {disk:?}"
            );
        }
        // QEMU before 8.0 draws a namespace's UUID at each start.
        let started = |uuid: &str| {
            let eui = ("eui", "52 54 00 00 00 00 00 01\n");
            nvme("QEMU NVMe Ctrl", "root", &[("wwid", uuid), eui])
        };
        let first = started("uuid.1b4e28ba-2fa1-11d2-883f-0016d3cca427");
        let second = started("uuid.2b4e28ba-2fa1-11d2-883f-0016d3cca427");
        assert_eq!(second.compare(&first.names), Comparison::Unknown);
    }

    #[test]
    fn names_of_a_devices_own_and_of_a_clouds_volumes_are_proof() {
        let ebs = |serial: &str| nvme("Amazon Elastic Block Store", serial, &[]);
        let openstack = |id: &str| disk("vda", &[("serial", id)]);
        let sas = |wwid: &str| scsi("SEAGATE", "ST4000", wwid);
        let of_controller = |nguid: &str| nvme("ACME", "S1", &[("nguid", nguid)]);
        for (what, one, other) in [
            ("EBS", ebs("vol01"), ebs("vol02")),
            (
                "OpenStack",
                openstack("7b1e5a1c-3a5e-4d2c-9"),
                openstack("8b1e5a1c-3a5e-4d2c-9"),
            ),
            ("SAS", sas("naa.5000C500A1"), sas("naa.5000c500a2")),
            (
                "two volumes of one controller",
                of_controller("1b4e28ba-2fa1-11d2-883f-0016d3cca427"),
                of_controller("2b4e28ba-2fa1-11d2-883f-0016d3cca427"),
            ),
        ] {
            assert_eq!(one.compare(&one.names), Comparison::Same, "{what}: {one:?}");
            assert_eq!(
                one.compare(&other.names),
                Comparison::Other,
                "{what}: {one:?}"
            );
        }
        // A driver that prefers another of a namespace's names.
        let driven = |wwid: &str| {
            let eui = ("eui", "00 25 38 5b 71 b0 e4 a1\n");
            nvme("SAMSUNG MZVL2512", "S64", &[("wwid", wwid), eui])
        };
        let (one, other) = (
            driven("eui.0025385b71b0e4a1"),
            driven("uuid.1b4e28ba-2fa1-11d2-883f-0016d3cca427"),
        );
        assert_eq!(other.compare(&one.names), Comparison::Same);
    }

    #[test]
    fn an_earlier_release_knew_the_serial_number_only() {
        let before = BTreeMap::from([(SERIAL.to_owned(), "S64".to_owned())]);
        let now = |serial: &str| nvme("SAMSUNG", serial, &[("wwid", "eui.0025385b71b0e4a1")]);
        assert_eq!(now("S64").compare(&before), Comparison::Same);
        assert_eq!(now("S65").compare(&before), Comparison::Other);
        assert_eq!(now("S64").compare(&BTreeMap::new()), Comparison::Unknown);
    }

    #[test]
    fn keys_tell_the_disks_of_a_machine_apart() {
        let key = |disk: DiskIdentity| disk.key(1 << 20);
        let eui = nvme("x", "S1", &[("eui", "00 25 38 5b 71 b0 e4 a1\n")]);
        assert_eq!(key(eui).as_deref(), Some("eui 0025385b71b0e4a1"));
        assert_eq!(
            key(nvme("nvme_card-pd", "nvme_card-pd", &[])).as_deref(),
            Some("serial nvme_card-pd namespace 1 of 1048576 bytes")
        );
        for (name, files) in [
            ("vda", &[][..]),
            ("vda", &[("serial", "\n")]),
            (
                "sda",
                &[
                    ("device/wwid", "naa.0000000000000000"),
                    ("device/serial", "00000000"),
                ],
            ),
        ] {
            let found = disk(name, files);
            assert_eq!(found.key(1 << 20), None, "{found:?}");
            assert!(found.is_empty());
        }
    }
}
