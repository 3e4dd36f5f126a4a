//! Azure: user data in base64 from the instance metadata service, else custom data from the provisioning disc.
//!
//! While the service is updated it answers 404 and 410, for 70 s at most: only after that time does a 404 mean absence.
//! <https://learn.microsoft.com/azure/virtual-machines/instance-metadata-service>

mod wire;

use std::fs;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use fetch::Identity;
use image::modules::UDF;
use serde::Deserialize;

use crate::base64;
use crate::dmi::Dmi;
use crate::drivers::SCSI_DISK;
use crate::env_keys::{EnvKeys, Value};
use crate::found::Found;
use crate::machine::Machine;
use crate::medium::Medium;
use crate::metadata::{Metadata, SshKey};
use crate::problem::Problem;
use crate::provider::{Detection, Provider};
use crate::service::{Service, json};
use crate::userdata::{self, Foreign};

/// The row of the table.
pub(super) static PROVIDER: Provider = Provider {
    id: "azure",
    recipe_name: Some("azure"),
    summary: "Azure: Hyper-V's disks and network, and NVMe behind its PCI bridge.",
    detection: Detection::Firmware(is_machine),
    needs_network: true,
    media: &[DISC],
    source_modules: &[],
    drivers: &[
        SCSI_DISK,
        // Machines of the first generation have the provisioning disc in an IDE drive.
        "ata_piix",
        "hv_netvsc",
        "hv_storvsc",
        "hv_utils",
        "hv_vmbus",
        "isofs",
        "nvme",
        // The bridge behind which the sizes with NVMe disks alone have them.
        "pci-hyperv",
        "sr_mod",
        UDF,
    ],
    disks: None,
    storage_identity: Identity::ManagedIdentity,
    env_keys: EnvKeys {
        name: "AZURE",
        keys: &[
            ("IPV4_DYNAMIC", Value::Local4),
            ("IPV4_VIRTUAL", Value::Public4),
            ("VMSIZE", Value::InstanceType),
        ],
    },
    obtain,
    report: Some(wire::report),
    local: None,
};

/// By the asset tag that Azure's hosts set on every machine: other Hyper-V hosts have the same vendor.
fn is_machine(dmi: &Dmi) -> bool {
    dmi.asset_tag == "7783-7084-3265-9085-8269-3286-77"
}

const USER_DATA: &str = "/metadata/instance/compute/userData?api-version=2021-01-01&format=text";
const INSTANCE: &str = "/metadata/instance?api-version=2021-02-01";
/// The statuses of the service while it is updated
/// (<https://learn.microsoft.com/azure/virtual-machines/instance-metadata-service#errors-and-debugging>).
const UPDATING: &[u16] = &[404, 410];

/// The times that Azure takes.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// How long a 404 of the service may be due to an update.
    update: Duration,
    /// How long the provisioning disc may take on a machine that has one: hosts attach it after the machine's start too.
    disc: Duration,
}

const TIMES: Times = Times {
    update: Duration::from_secs(70),
    disc: Duration::from_secs(300),
};
/// The provisioning disc: its description of the machine is what distinguishes it.
const DISC: Medium<'static> = Medium::Disc("ovf-env.xml");
/// The file on the provisioning disc, already decoded.
const CUSTOM_DATA: &str = "CustomData.bin";

#[derive(Default, Deserialize)]
#[serde(default)]
struct Instance {
    compute: Compute,
    network: Network,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Compute {
    vm_id: Option<String>,
    vm_size: Option<String>,
    name: Option<String>,
    location: Option<String>,
    zone: Option<String>,
    os_profile: OsProfile,
    public_keys: Vec<PublicKey>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OsProfile {
    admin_username: Option<String>,
    computer_name: Option<String>,
}

impl OsProfile {
    /// Whether the machine was made from a generalized image: others have no profile, or an empty one.
    fn exists(&self) -> bool {
        let fields = [&self.admin_username, &self.computer_name];
        let mut fields = fields.into_iter().flatten();
        fields.any(|text| !text.is_empty())
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PublicKey {
    key_data: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Network {
    interface: Vec<Interface>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Interface {
    ipv4: Addresses,
    ipv6: Addresses,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Addresses {
    ip_address: Vec<Address>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Address {
    private_ip_address: String,
    public_ip_address: String,
}

fn obtain(machine: &Machine<'_>) -> Result<Found, Problem> {
    obtain_within(machine, TIMES)
}

fn obtain_within(machine: &Machine<'_>, times: Times) -> Result<Found, Problem> {
    let service = Service::new(machine, &[("Metadata", "true")])?;
    let name = "Azure's user data";
    let data = service
        .settled(USER_DATA, UPDATING, times.update)?
        .unwrap_or_default();
    let data = base64::decode(&data, name).map_err(Problem::remote)?;
    let mut config = userdata::only(Some(data), name, Foreign::Refuse, true)?;
    let instance: Option<Instance> = service
        .settled(INSTANCE, UPDATING, times.update)?
        .and_then(|bytes| json(&bytes, "Azure's instance metadata", machine.say));
    if config.0.is_none() {
        let profile = instance.as_ref().map(|known| &known.compute.os_profile);
        let data = match profile.map(OsProfile::exists) {
            Some(true) => custom_data(machine, times.disc)?,
            // A specialised image: such a machine has no disc.
            Some(false) => custom_data(machine, Duration::ZERO)?,
            None => custom_data(machine, machine.media_wait)?,
        };
        let name = "Azure's custom data";
        let (custom, notes) = userdata::only(data, name, Foreign::Refuse, false)?;
        config.0 = custom;
        config.1.extend(notes);
    }
    Ok(Found::new(config, metadata(instance.unwrap_or_default())))
}

/// The custom data on the provisioning disc, which is UDF.
fn custom_data(machine: &Machine<'_>, wait: Duration) -> Result<Option<Vec<u8>>, Problem> {
    let Some(folder) = machine.wait_for(&DISC, Some(Instant::now() + wait))? else {
        if !wait.is_zero() {
            (machine.say)(&format!("{DISC} did not appear; there is no custom data"));
        }
        return Ok(None);
    };
    match fs::read(folder.join(CUSTOM_DATA)) {
        Ok(data) => Ok(Some(data)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Problem::local(format!("reading {CUSTOM_DATA}: {error}"))),
    }
}

fn metadata(instance: Instance) -> Metadata {
    let compute = instance.compute;
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    let user = given(compute.os_profile.admin_username);
    let key = |key: PublicKey| SshKey {
        user: user.clone(),
        // The portal keeps the line breaks of a pasted key.
        key: key.key_data.replace(['\r', '\n'], "").trim().to_owned(),
    };
    let mut out = Metadata {
        instance_id: given(compute.vm_id),
        instance_type: given(compute.vm_size),
        zone: given(compute.zone),
        region: given(compute.location),
        hostname: given(compute.name),
        ssh_keys: compute.public_keys.into_iter().map(key).collect(),
        ..Metadata::default()
    };
    for interface in instance.network.interface {
        for address in interface.ipv4.ip_address {
            out.local_ipv4.push(address.private_ip_address);
            out.public_ipv4.push(address.public_ip_address);
        }
        for address in interface.ipv6.ip_address {
            out.local_ipv6.push(address.private_ip_address);
            out.public_ipv6.push(address.public_ip_address);
        }
    }
    out
}

#[cfg(test)]
mod tests;
