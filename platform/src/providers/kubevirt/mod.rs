//! KubeVirt: a drive in NoCloud's or OpenStack's form, as the virtual machine's volumes say; waited for without end.

use crate::config_drive;
use crate::found::Found;
use crate::machine::Machine;
use crate::medium::Medium;
use crate::problem::Problem;
use crate::userdata::Foreign;

pub(crate) fn obtain(machine: &Machine<'_>) -> Result<Found, Problem> {
    let labels = [config_drive::CIDATA, config_drive::CONFIG_2].concat();
    let medium = Medium::Labels(&labels);
    match machine.wait_for(&medium, None)? {
        // Both have files that the other has not.
        Some(folder) if folder.join("openstack").is_dir() => {
            config_drive::openstack(machine, &folder)
        }
        Some(folder) => config_drive::nocloud(&folder, &["user-data"], Foreign::Refuse),
        None => Err(Problem::remote(format!("{medium} did not appear"))),
    }
}

#[cfg(test)]
mod tests;
