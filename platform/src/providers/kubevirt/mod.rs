//! KubeVirt: a drive in NoCloud's or OpenStack's form, by the virtual machine's volumes; waited for without end.

use fetch::Identity;

use crate::config_drive;
use crate::dmi::Dmi;
use crate::drivers::VIRTIO_WITH_DRIVE;
use crate::env_keys::{EnvKeys, Value};
use crate::found::Found;
use crate::machine::Machine;
use crate::medium::Medium;
use crate::problem::Problem;
use crate::provider::{Detection, Provider};
use crate::userdata::Foreign;

/// Labels of both forms: the volume `cloudInitNoCloud` makes the first, `cloudInitConfigDrive` the second
/// (<https://kubevirt.io/user-guide/user_workloads/startup_scripts/>).
const DRIVE: Medium<'static> = Medium::Labels(&["cidata", "CIDATA", "config-2", "CONFIG-2"]);

/// The row of the table.
pub(super) static PROVIDER: Provider = Provider {
    id: "kubevirt",
    recipe_name: Some("kubevirt"),
    summary: "Virtual machines of a Kubernetes cluster: virtio, and a cloud-init or config drive.",
    detection: Detection::Firmware(is_machine),
    needs_network: false,
    media: &[DRIVE],
    source_modules: &[],
    drivers: VIRTIO_WITH_DRIVE,
    disks: None,
    storage_identity: Identity::Anonymous,
    env_keys: EnvKeys {
        name: "KUBEVIRT",
        keys: &[
            ("HOSTNAME", Value::Hostname),
            ("INSTANCE_ID", Value::InstanceId),
            ("INSTANCE_TYPE", Value::InstanceType),
            ("IPV4", Value::Local4),
            ("IPV6", Value::Local6),
        ],
    },
    obtain,
    report: None,
    local: None,
};

/// OpenShift changes the product name.
fn is_machine(dmi: &Dmi) -> bool {
    dmi.vendor == "KubeVirt"
        || dmi.family == "KubeVirt"
        || dmi.product == "OpenShift Virtualization"
}

fn obtain(machine: &Machine<'_>) -> Result<Found, Problem> {
    match machine.wait_for(&DRIVE, None)? {
        // Only OpenStack's form has this folder.
        Some(folder) if folder.join("openstack").is_dir() => {
            config_drive::openstack(machine, &folder)
        }
        Some(folder) => config_drive::nocloud(&folder, &["user-data"], Foreign::Refuse),
        None => Err(Problem::remote(format!("{DRIVE} did not appear"))),
    }
}

#[cfg(test)]
mod tests;
