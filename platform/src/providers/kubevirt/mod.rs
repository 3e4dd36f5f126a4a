//! KubeVirt: a drive in NoCloud's or OpenStack's form, as the virtual machine's volumes say; waited for without end.

use crate::userdata::Foreign;
use crate::{Found, Machine, Medium, Problem, drive, wait_for};

pub(crate) fn obtain(machine: &Machine<'_>) -> Result<Found, Problem> {
    let labels = [drive::CIDATA, drive::CONFIG_2].concat();
    let medium = Medium::Labels(&labels);
    match wait_for(machine, &medium, None)? {
        // Both have files that the other has not.
        Some(folder) if folder.join("openstack").is_dir() => drive::openstack(machine, &folder),
        Some(folder) => drive::nocloud(&folder, &["user-data"], Foreign::Refuse),
        None => Err(Problem::remote(format!("{medium} did not appear"))),
    }
}

#[cfg(test)]
mod tests;
