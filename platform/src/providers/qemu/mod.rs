//! QEMU: `-fw_cfg name=opt/com.coreos/config,file=…`; else a virtio disk with the serial number `ignition`; else a virtio
//! serial port of that name; else there is no config.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use fetch::Identity;
use image::modules::{BOND, FW_CFG as FW_CFG_MODULE, PORTS, VLAN};

use crate::dmi::Dmi;
use crate::drivers::SCSI_DISK;
use crate::env_keys;
use crate::found::Found;
use crate::machine::Machine;
use crate::metadata::Metadata;
use crate::problem::Problem;
use crate::provider::{Detection, LocalConfig, Provider};
use crate::userdata::{self, Foreign, LIMIT, UserConfig};

/// Below sysfs, once the module `qemu_fw_cfg` is loaded
/// (<https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-firmware-qemu_fw_cfg>).
const FW_CFG: &str = "firmware/qemu_fw_cfg/by_name/opt/com.coreos/config/raw";
/// Serial number of the disk, and name of the port.
const NAME: &str = "ignition";

/// The row of the table. Recipes name QEMU so that an image starts on a laptop too: any other platform that matches the
/// machine comes first.
pub(super) static PROVIDER: Provider = Provider {
    id: "qemu",
    recipe_name: Some("qemu"),
    summary: "QEMU and everything with virtio devices.",
    detection: Detection::Fallback(Dmi::is_qemu),
    needs_network: false,
    media: &[],
    source_modules: &[FW_CFG_MODULE, PORTS],
    drivers: &[
        BOND,
        FW_CFG_MODULE,
        PORTS,
        SCSI_DISK,
        VLAN,
        "ahci",
        "i6300esb",
        "nvme",
        "virtio_blk",
        "virtio_net",
        "virtio_pci",
        "virtio_rng",
        "virtio_scsi",
    ],
    disks: None,
    storage_identity: Identity::Anonymous,
    env_keys: env_keys::CUSTOM,
    obtain,
    report: None,
    local: Some(LocalConfig {
        modules: &[FW_CFG_MODULE],
        read: |sys, _| local(sys),
        name: |_| "fw_cfg".to_owned(),
    }),
};

fn obtain(machine: &Machine<'_>) -> Result<Found, Problem> {
    let (data, name) = match read(&machine.sys.join(FW_CFG), "fw_cfg")? {
        Some(data) => (Some(data), "fw_cfg"),
        None => match named(&machine.sys.join("block"), "serial") {
            Some(device) => {
                let name = "the disk `ignition`";
                let data = read(&machine.dev.join(device), name)?;
                (data.map(without_padding), name)
            }
            None => match named(&machine.sys.join("class/virtio-ports"), "name") {
                Some(device) => {
                    let name = "the port `ignition`";
                    (read(&machine.dev.join(device), name)?, name)
                }
                None => (None, "fw_cfg"),
            },
        },
    };
    let config = userdata::only(data, name, Foreign::Refuse, false)?;
    Ok(Found::new(config, Metadata::default()))
}

/// The config in fw_cfg.
fn local(sys: &Path) -> Result<Option<UserConfig>, Problem> {
    let data = read(&sys.join(FW_CFG), "fw_cfg")?;
    Ok(userdata::only(data, "fw_cfg", Foreign::Refuse, false)?.0)
}

/// The device below `folder` whose attribute is [`NAME`].
fn named(folder: &Path, attribute: &str) -> Option<PathBuf> {
    let mut devices: Vec<_> = fs::read_dir(folder).ok()?.flatten().collect();
    devices.sort_by_key(fs::DirEntry::file_name);
    devices.into_iter().find_map(|device| {
        let text = fs::read_to_string(device.path().join(attribute)).ok()?;
        (text.trim() == NAME).then(|| PathBuf::from(device.file_name()))
    })
}

/// Reads everything at once: fw_cfg reads each chunk from the item's first byte, so many small reads would be quadratic. A
/// port ends where the host closes its side.
fn read(path: &Path, name: &str) -> Result<Option<Vec<u8>>, Problem> {
    let wrong = |error: std::io::Error| Problem::local(format!("reading {name}: {error}"));
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(wrong(error)),
    };
    let size = file.metadata().map_err(wrong)?.len().min(LIMIT);
    let mut data = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
    file.take(LIMIT + 1).read_to_end(&mut data).map_err(wrong)?;
    if u64::try_from(data.len()).is_ok_and(|len| len > LIMIT) {
        return Err(Problem::local(format!(
            "{name}: it is longer than {LIMIT} bytes"
        )));
    }
    Ok(Some(data))
}

/// Removes the zeros that fill the last sector of a disk.
fn without_padding(mut data: Vec<u8>) -> Vec<u8> {
    let end = data.iter().rposition(|byte| *byte != 0);
    data.truncate(end.map_or(0, |last| last + 1));
    data
}

#[cfg(test)]
mod tests;
