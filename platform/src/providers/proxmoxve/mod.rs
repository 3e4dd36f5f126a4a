//! Proxmox VE: a drive in NoCloud's form. The user data that Proxmox writes itself is a cloud-config, so the vendor
//! data may hold the config too (`cicustom: vendor=…`); a machine without a drive has no config.
//!
//! <https://pve.proxmox.com/wiki/Cloud-Init_Support>

use std::time::Instant;

use fetch::Identity;

use crate::config_drive;
use crate::drivers::VIRTIO_WITH_DRIVE;
use crate::env_keys::{EnvKeys, Value};
use crate::found::Found;
use crate::machine::Machine;
use crate::medium::Medium;
use crate::metadata::Metadata;
use crate::problem::Problem;
use crate::provider::{Detection, Provider};
use crate::userdata::Foreign;

const DRIVE: Medium<'static> = Medium::Labels(config_drive::CIDATA);

/// The row of the table. Its machines have QEMU's own fields, so an image for both platforms detects Proxmox VE. Clouds
/// that do not change QEMU's fields set an asset tag, which Proxmox VE cannot set.
pub(super) static PROVIDER: Provider = Provider {
    id: "proxmoxve",
    recipe_name: Some("proxmoxve"),
    summary: "Proxmox VE: virtio, and a cloud-init drive.",
    detection: Detection::Firmware(|dmi| dmi.is_qemu() && dmi.asset_tag.is_empty()),
    needs_network: false,
    media: &[DRIVE],
    source_modules: &[],
    drivers: VIRTIO_WITH_DRIVE,
    disks: None,
    storage_identity: Identity::Anonymous,
    env_keys: EnvKeys {
        name: "PROXMOXVE",
        keys: &[
            ("HOSTNAME", Value::Hostname),
            ("INSTANCE_ID", Value::InstanceId),
            ("IPV4", Value::Local4),
            ("IPV6", Value::Local6),
        ],
    },
    obtain,
    report: None,
    local: None,
};

fn obtain(machine: &Machine<'_>) -> Result<Found, Problem> {
    let until = Instant::now() + machine.media_wait;
    match machine.wait_for(&DRIVE, Some(until))? {
        Some(folder) => {
            config_drive::nocloud(&folder, &["user-data", "vendor-data"], Foreign::Skip)
        }
        None => {
            let note = format!("{DRIVE} did not appear; there is no config");
            Ok(Found::new((None, vec![note]), Metadata::default()))
        }
    }
}

#[cfg(test)]
mod tests;
