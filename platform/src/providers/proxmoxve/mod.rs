//! Proxmox VE: a drive in NoCloud's form. The one that Proxmox makes itself has a cloud-config as user data, so a config may
//! also stand in the vendor data (`cicustom: vendor=…`); a machine without a drive has no config.

use std::time::Instant;

use crate::userdata::Foreign;
use crate::{Found, Machine, Medium, Metadata, Problem, drive, wait_for};

pub(crate) fn obtain(machine: &Machine<'_>) -> Result<Found, Problem> {
    let medium = Medium::Labels(drive::CIDATA);
    let until = Instant::now() + machine.media_wait;
    match wait_for(machine, &medium, Some(until))? {
        Some(folder) => drive::nocloud(&folder, &["user-data", "vendor-data"], Foreign::Skip),
        None => {
            let mut found = Found::new(None, Metadata::default());
            found
                .notes
                .push(format!("{medium} did not appear; there is no config"));
            Ok(found)
        }
    }
}

#[cfg(test)]
mod tests;
