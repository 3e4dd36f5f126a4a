//! Nutanix AHV: a config drive in OpenStack's form, waited for without end, since every machine has one.

use crate::config_drive;
use crate::found::Found;
use crate::machine::Machine;
use crate::medium::Medium;
use crate::problem::Problem;

pub(crate) fn obtain(machine: &Machine<'_>) -> Result<Found, Problem> {
    let medium = Medium::Labels(config_drive::CONFIG_2);
    match machine.wait_for(&medium, None)? {
        Some(folder) => config_drive::openstack(machine, &folder),
        None => Err(Problem::remote(format!("{medium} did not appear"))),
    }
}

#[cfg(test)]
mod tests;
