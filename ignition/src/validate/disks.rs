//! Rules for disks, partitions, RAID, LUKS and file systems.

use std::collections::BTreeSet;

use super::{Rules, Spot};
use crate::source;

impl Rules {
    pub(super) fn disks(&mut self, root: &Spot<'_>) {
        let Some(storage) = root.child("storage") else {
            return;
        };
        for disk in storage.items("disks") {
            self.path(&disk, "device", disk.text("device").unwrap_or_default());
            self.partitions(&disk);
        }
        for raid in storage.items("raid") {
            self.raid(&raid);
        }
        for luks in storage.items("luks") {
            self.luks(&luks);
        }
        for filesystem in storage.items("filesystems") {
            self.filesystem(&filesystem);
            self.on_partitioned(&storage, &filesystem);
        }
    }

    /// The first collision of each kind is reported, and none for a disk without a device, as in Ignition.
    fn partitions(&mut self, disk: &Spot<'_>) {
        let partitions = disk.items("partitions");
        for partition in &partitions {
            self.partition(partition);
        }
        if disk.text("device").unwrap_or_default().is_empty() {
            return;
        }
        let (mut numbers, mut labels) = (BTreeSet::new(), BTreeSet::new());
        let same_number = partitions.iter().find(|partition| {
            let number = partition.node.number("number").unwrap_or(0);
            number != 0 && !numbers.insert(number)
        });
        let same_label = partitions.iter().find(|partition| {
            let label = partition.text("label");
            label.is_some_and(|label| !labels.insert(label))
        });
        if let Some(partition) = same_number {
            self.error(partition, "", "partition numbers collide");
        }
        if let Some(partition) = same_label {
            self.error(partition, "", "partition labels collide");
        }
        self.overlaps(&partitions);
    }

    /// The first overlap of two partitions whose start and size are both given: as in Ignition, the finding is at the
    /// other one of the two. A start of 0 is chosen later; a size of 0 counts as its first MiB only.
    fn overlaps(&mut self, partitions: &[Spot<'_>]) {
        let range = |partition: &Spot<'_>| {
            let start = partition
                .node
                .number("startMiB")
                .filter(|start| *start != 0)?;
            let size = partition.node.number("sizeMiB")?;
            let last = start
                .saturating_add(size)
                .saturating_sub(i64::from(size != 0));
            Some((start, last))
        };
        for (i, partition) in partitions.iter().enumerate() {
            let Some((start, end)) = range(partition) else {
                continue;
            };
            let touches = |(j, other): &(usize, &Spot<'_>)| {
                *j != i
                    && range(other).is_some_and(|(first, last)| {
                        (first..=last).contains(&start)
                            || (first..=last).contains(&end)
                            || (start < first && end > last)
                    })
            };
            if let Some((_, other)) = partitions.iter().enumerate().find(touches) {
                return self.error(other, "", "partitions overlap");
            }
        }
    }

    fn partition(&mut self, spot: &Spot<'_>) {
        let label = spot.text("label");
        let given = |name: &str| spot.node.get(name).is_some();
        if spot.node.flag("shouldExist") == Some(false)
            && (label.is_some()
                || spot.text("guid").is_some_and(|guid| !guid.is_empty())
                || spot.text("typeGuid").is_some_and(|guid| !guid.is_empty())
                || given("startMiB")
                || given("sizeMiB"))
        {
            self.error(
                spot,
                "",
                "a partition that shall not exist has no other properties",
            );
        }
        if spot.node.number("number").unwrap_or(0) == 0 && label.is_none() {
            self.error(
                spot,
                "",
                "a partition number >= 1 or a label must be specified",
            );
        }
        if let Some(label) = label {
            if label.len() > 36 {
                self.error(spot, "label", "partition labels are at most 36 bytes long");
            }
            if label.contains(':') {
                self.error(spot, "label", "a partition label holds no colon");
            }
        }
        for name in ["guid", "typeGuid"] {
            if let Some(guid) = spot.text(name).filter(|guid| !guid.is_empty())
                && !is_guid(guid)
            {
                let form = "expected the form 01234567-89AB-CDEF-EDCB-A98765432101";
                self.error(spot, name, form);
            }
        }
    }

    fn raid(&mut self, spot: &Spot<'_>) {
        let spares = spot.node.number("spares").unwrap_or(0);
        match spot.text("level") {
            None | Some("") if self.minor >= 3 => {
                self.error(spot, "level", "raid level is required");
            }
            Some("linear" | "raid0" | "0" | "stripe") => {
                if spares != 0 {
                    self.error(spot, "level", "linear and raid0 arrays have no spares");
                }
            }
            Some(
                "raid1" | "1" | "mirror" | "raid4" | "4" | "raid5" | "5" | "raid6" | "6" | "raid10"
                | "10",
            ) => {}
            _ => self.error(spot, "level", "unrecognized raid level"),
        }
        let devices = spot.items("devices");
        if devices.is_empty() {
            self.error(spot, "devices", "a raid array needs devices");
        }
        for device in devices {
            self.path(&device, "", device.node.as_text().unwrap_or_default());
        }
    }

    fn luks(&mut self, spot: &Spot<'_>) {
        if spot.text("name").unwrap_or_default().contains('/') {
            self.error(spot, "name", "a device name holds no slash");
        }
        if spot.text("label").is_some_and(|label| label.len() > 47) {
            self.error(spot, "label", "LUKS labels are at most 47 bytes long");
        }
        match spot.text("device") {
            None | Some("") => self.error(spot, "device", "a device is required"),
            Some(device) => self.path(spot, "device", device),
        }
        let key = spot.child("keyFile");
        let key_source = key.as_ref().and_then(|key| key.text("source"));
        if let Some(key) = &key {
            self.resource(key);
        }
        if let Some(url) = key_source.filter(|url| !url.is_empty())
            && source::check(url, self.minor).is_err()
        {
            self.error(spot, "keys", "invalid key-file source");
        }
        let clevis = spot.child("clevis");
        if let Some(clevis) = &clevis {
            self.clevis(clevis);
        }
        if spot
            .child("cex")
            .is_some_and(|cex| cex.node.flag("enabled") == Some(true))
        {
            if clevis.as_ref().is_some_and(|clevis| binds(clevis)) {
                self.error(spot, "cex", "cannot use clevis with cex");
            }
            if key_source.is_some_and(|source| !source.is_empty()) {
                self.error(spot, "cex", "cannot use a key file with cex");
            }
        }
    }

    fn clevis(&mut self, spot: &Spot<'_>) {
        for tang in spot.items("tang") {
            match source::split(tang.text("url").unwrap_or_default()).map(|url| url.scheme) {
                Ok(scheme) if scheme == "http" || scheme == "https" => {}
                Ok(_) => self.error(&tang, "url", "a tang URL begins with http or https"),
                Err(wrong) => self.error(&tang, "url", wrong),
            }
            if tang.text("thumbprint").unwrap_or_default().is_empty() {
                self.error(&tang, "thumbprint", "thumbprint is required");
            }
            let advertisement = tang.text("advertisement").filter(|text| !text.is_empty());
            if advertisement
                .is_some_and(|text| crate::read::json::parse(text.as_bytes(), "").is_err())
            {
                self.error(&tang, "advertisement", "advertisement is not valid JSON");
            }
        }
        let Some(custom) = spot.child("custom") else {
            return;
        };
        let pin = custom.text("pin").unwrap_or_default();
        let config = custom.text("config").unwrap_or_default();
        let others = !spot.items("tang").is_empty()
            || spot.node.flag("tpm2") == Some(true)
            || spot.node.number("threshold").unwrap_or(0) != 0;
        // In 3.2 an empty object counted as given.
        if others && (self.minor == 2 || !pin.is_empty()) {
            self.error(spot, "", "custom excludes tang, tpm2 and threshold");
        }
        let network = self.minor > 2 && custom.node.flag("needsNetwork") == Some(true);
        if pin.is_empty() && config.is_empty() && !network {
            return;
        }
        if pin.is_empty() {
            self.error(&custom, "pin", "a custom pin is required");
        } else if self.minor < 6 && !matches!(pin, "tpm2" | "tang" | "sss") {
            self.error(
                &custom,
                "pin",
                "this version knows the pins tpm2, tang and sss",
            );
        }
        if config.is_empty() {
            self.error(&custom, "config", "a custom config is required");
        }
    }

    fn filesystem(&mut self, spot: &Spot<'_>) {
        let format = spot.text("format").unwrap_or_default();
        let device = spot.text("device").unwrap_or_default();
        if format == "virtiofs" && self.minor >= 7 {
            self.virtiofs(spot, device);
        } else {
            self.path(spot, "device", device);
        }
        if let Some(path) = spot.text("path").filter(|path| !path.is_empty()) {
            self.path(spot, "path", path);
        }
        let longest = match format {
            "ext4" => 16,
            "btrfs" => 256,
            "xfs" => 12,
            "swap" => 15,
            "vfat" => 11,
            "none" if self.minor >= 3 => usize::MAX,
            "virtiofs" if self.minor >= 7 => usize::MAX,
            "" => return self.no_format(spot),
            _ => {
                let known =
                    "invalid filesystem format; there are ext4, btrfs, xfs, swap, vfat and none";
                return self.error(spot, "format", known);
            }
        };
        if spot
            .text("label")
            .is_some_and(|label| label.len() > longest)
        {
            let message = format!("labels of {format} are at most {longest} bytes long");
            self.error(spot, "label", message);
        }
    }

    fn no_format(&mut self, spot: &Spot<'_>) {
        let text = |name: &str| spot.text(name).is_some_and(|text| !text.is_empty());
        if text("path")
            || text("label")
            || text("uuid")
            || spot.node.flag("wipeFilesystem") == Some(true)
            || !spot.node.items("options").is_empty()
            || !spot.node.items("mountOptions").is_empty()
        {
            self.error(
                spot,
                "format",
                "format is needed when path, label, uuid, wipeFilesystem, options or mountOptions is given",
            );
        }
        if text("label") {
            self.error(spot, "label", "a label needs a format");
        }
    }

    fn virtiofs(&mut self, spot: &Spot<'_>, tag: &str) {
        if tag.is_empty() {
            self.error(spot, "device", "a virtiofs tag is required");
        }
        if tag.len() > 36 {
            self.error(spot, "device", "virtiofs tags are at most 36 bytes long");
        }
        for name in ["label", "uuid"] {
            if spot.text(name).is_some_and(|text| !text.is_empty()) {
                self.error(spot, name, "virtiofs has neither label nor uuid");
            }
        }
        if spot.node.flag("wipeFilesystem") == Some(true) {
            self.error(spot, "wipeFilesystem", "virtiofs cannot be wiped");
        }
        if !spot.node.items("options").is_empty() {
            self.error(spot, "options", "virtiofs takes no options of mkfs");
        }
    }

    fn on_partitioned(&mut self, storage: &Spot<'_>, filesystem: &Spot<'_>) {
        let device = |spot: &Spot<'_>| spot.text("device").unwrap_or_default().to_owned();
        let disks = storage.items("disks");
        let same = disks
            .iter()
            .rfind(|disk| device(disk) == device(filesystem));
        if let Some(disk) = same {
            if !disk.items("partitions").is_empty() {
                self.warn(
                    filesystem,
                    "device",
                    "filesystem overwrites partitioned device",
                );
            } else if disk.node.flag("wipeTable") == Some(true)
                && filesystem.node.flag("wipeFilesystem") != Some(true)
            {
                self.warn(
                    filesystem,
                    "device",
                    "the table is wiped but not the file system",
                );
            }
        }
    }
}

fn binds(clevis: &Spot<'_>) -> bool {
    let custom = clevis.child("custom");
    clevis.node.flag("tpm2") == Some(true)
        || !clevis.node.items("tang").is_empty()
        || clevis.node.number("threshold").unwrap_or(0) != 0
        || custom.is_some_and(|custom| custom.text("pin").is_some_and(|pin| !pin.is_empty()))
}

fn is_guid(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12])
        && parts
            .iter()
            .all(|part| part.bytes().all(|b| b.is_ascii_hexdigit()))
}
