//! Nutanix AHV: a config drive in OpenStack's form, waited for without end, since every machine has one.

use fetch::Identity;

use crate::config_drive;
use crate::drivers::VIRTIO_WITH_DRIVE;
use crate::env_keys;
use crate::found::Found;
use crate::machine::Machine;
use crate::medium::Medium;
use crate::problem::Problem;
use crate::provider::{Detection, Provider};

const DRIVE: Medium<'static> = Medium::Labels(config_drive::CONFIG_2);

/// The row of the table.
pub(super) static PROVIDER: Provider = Provider {
    id: "nutanix",
    recipe_name: Some("nutanix"),
    summary: "Nutanix AHV: virtio, and a config drive.",
    detection: Detection::Firmware(|dmi| dmi.vendor.starts_with("Nutanix")),
    needs_network: false,
    media: &[DRIVE],
    source_modules: &[],
    drivers: VIRTIO_WITH_DRIVE,
    disks: None,
    storage_identity: Identity::Anonymous,
    env_keys: env_keys::CUSTOM,
    obtain,
    report: None,
    local: None,
};

fn obtain(machine: &Machine<'_>) -> Result<Found, Problem> {
    match machine.wait_for(&DRIVE, None)? {
        Some(folder) => config_drive::openstack(machine, &folder),
        None => Err(Problem::remote(format!("{DRIVE} did not appear"))),
    }
}

#[cfg(test)]
mod tests;
