//! Proxmox VE: a drive in NoCloud's form. The one that Proxmox makes itself has a cloud-config as user data, so a config may
//! also stand in the vendor data (`cicustom: vendor=…`); a machine without a drive has no config.

use std::time::Instant;

use crate::config_drive;
use crate::found::Found;
use crate::machine::Machine;
use crate::medium::Medium;
use crate::metadata::Metadata;
use crate::problem::Problem;
use crate::userdata::Foreign;

pub(crate) fn obtain(machine: &Machine<'_>) -> Result<Found, Problem> {
    let medium = Medium::Labels(config_drive::CIDATA);
    let until = Instant::now() + machine.media_wait;
    match machine.wait_for(&medium, Some(until))? {
        Some(folder) => {
            config_drive::nocloud(&folder, &["user-data", "vendor-data"], Foreign::Skip)
        }
        None => {
            let note = format!("{medium} did not appear; there is no config");
            Ok(Found::new((None, vec![note]), Metadata::default()))
        }
    }
}

#[cfg(test)]
mod tests;
