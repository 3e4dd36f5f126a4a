//! Nutanix AHV: a config drive in OpenStack's form, waited for without end, since every machine has one.

use crate::{Found, Machine, Medium, Problem, drive, wait_for};

pub(crate) fn obtain(machine: &Machine<'_>) -> Result<Found, Problem> {
    let medium = Medium::Labels(drive::CONFIG_2);
    match wait_for(machine, &medium, None)? {
        Some(folder) => drive::openstack(machine, &folder),
        None => Err(Problem::remote(format!("{medium} did not appear"))),
    }
}

#[cfg(test)]
mod tests;
