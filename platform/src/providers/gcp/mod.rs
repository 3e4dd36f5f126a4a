//! Compute Engine's metadata server, which refuses requests without `Metadata-Flavor: Google`.
//!
//! <https://cloud.google.com/compute/docs/metadata/querying-metadata>

use fetch::{Identity, hosts};
use serde::Deserialize;

use crate::base64;
use crate::dmi::Dmi;
use crate::drivers::SCSI_DISK;
use crate::env_keys::{EnvKeys, Value};
use crate::found::Found;
use crate::machine::Machine;
use crate::metadata::{Metadata, SshKey};
use crate::problem::Problem;
use crate::provider::{Detection, DiskController, Provider};
use crate::service::Service;
use crate::userdata::{self, Foreign};

/// The row of the table.
pub(super) static PROVIDER: Provider = Provider {
    id: "gcp",
    recipe_name: Some("gce"),
    summary: "Google Compute Engine: virtio-scsi, NVMe and gVNIC.",
    detection: Detection::Firmware(is_instance),
    needs_network: true,
    media: &[],
    source_modules: &[],
    drivers: &[
        SCSI_DISK,
        "gve",
        "nvme",
        "virtio_net",
        "virtio_pci",
        "virtio_scsi",
    ],
    disks: Some(DiskController::VirtioScsi),
    storage_identity: Identity::ComputeAccount,
    env_keys: EnvKeys {
        name: "GCP",
        keys: &[
            ("HOSTNAME", Value::Hostname),
            ("IP_EXTERNAL", Value::EachPublic4),
            ("IP_LOCAL", Value::EachLocal4),
        ],
    },
    obtain,
    report: None,
    local: None,
};

/// <https://cloud.google.com/compute/docs/instances/detect-compute-engine>
fn is_instance(dmi: &Dmi) -> bool {
    dmi.vendor == "Google" || dmi.product == "Google Compute Engine"
}

const ROOT: &str = "/computeMetadata/v1";

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Instance {
    id: Option<u64>,
    hostname: Option<String>,
    zone: Option<String>,
    machine_type: Option<String>,
    network_interfaces: Vec<Interface>,
    attributes: Attributes,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Interface {
    ip: Option<String>,
    ipv6s: Vec<String>,
    access_configs: Vec<Access>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Access {
    external_ip: Option<String>,
}

/// Custom attributes, of the instance or of the project.
#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Attributes {
    ssh_keys: Option<String>,
    /// The deprecated name of the attribute. If an instance has it, the project's keys are ignored.
    #[serde(rename = "sshKeys")]
    old_keys: Option<String>,
    block_project_ssh_keys: Option<String>,
    enable_oslogin: Option<String>,
    user_data_encoding: Option<String>,
}

fn obtain(machine: &Machine<'_>) -> Result<Found, Problem> {
    let flavor = [("Metadata-Flavor", "Google")];
    let service = Service::at(machine, hosts::COMPUTE, &flavor)?;
    let data = service.user_data(&format!("{ROOT}/instance/attributes/user-data"))?;
    let instance: Instance = service
        .json(&format!("{ROOT}/instance/?recursive=true&alt=json"))?
        .unwrap_or_default();
    let name = "Compute Engine's user data";
    // Attributes are texts: the author of the config declares base64.
    let data = match instance.attributes.user_data_encoding.as_deref() {
        Some("base64") => data
            .map(|data| base64::decode(&data, name))
            .transpose()
            .map_err(Problem::remote)?,
        _ => data,
    };
    let config = userdata::only(data, name, Foreign::Refuse, true)?;
    let ssh_keys = ssh_keys(&service, &instance.attributes)?;
    Ok(Found::new(config, metadata(instance, ssh_keys)))
}

fn metadata(instance: Instance, ssh_keys: Vec<SshKey>) -> Metadata {
    // `projects/NUMBER/zones/NAME`
    let last = |path: &str| path.rsplit('/').next().map(str::to_owned);
    let zone = instance.zone.as_deref().and_then(last);
    let region = zone
        .as_deref()
        .and_then(|zone| Some(zone.rsplit_once('-')?.0.to_owned()));
    let mut out = Metadata {
        instance_id: instance.id.map(|id| id.to_string()),
        instance_type: instance.machine_type.as_deref().and_then(last),
        zone,
        region,
        hostname: instance.hostname,
        ssh_keys,
        ..Metadata::default()
    };
    // Afterburn keeps the full path.
    let kind = instance.machine_type;
    out.extra
        .extend(kind.map(|kind| ("MACHINE_TYPE".to_owned(), kind)));
    for interface in instance.network_interfaces {
        out.local_ipv4.extend(interface.ip);
        out.local_ipv6.extend(interface.ipv6s);
        let external = interface.access_configs.into_iter();
        out.public_ipv4
            .extend(external.filter_map(|access| access.external_ip.filter(|ip| !ip.is_empty())));
    }
    out
}

/// The value of a boolean attribute, in any form that the documentation or Google's guest agent knows; none if it is not
/// set, or is no boolean
/// (<https://cloud.google.com/compute/docs/metadata/setting-custom-metadata#boolean>).
fn boolean(attribute: Option<&str>) -> Option<bool> {
    match attribute?.trim().to_ascii_lowercase().as_str() {
        "true" | "t" | "yes" | "y" | "1" => Some(true),
        "false" | "f" | "no" | "n" | "0" => Some(false),
        _ => None,
    }
}

/// The keys of the instance and of its project; none with OS Login, which has the accounts elsewhere and makes the keys of
/// the metadata void (<https://cloud.google.com/compute/docs/oslogin/set-up-oslogin>). The instance's word on it counts before
/// the project's.
fn ssh_keys(service: &Service<'_>, own: &Attributes) -> Result<Vec<SshKey>, Problem> {
    let path = format!("{ROOT}/project/attributes/?recursive=true&alt=json");
    let has_old = own.old_keys.as_ref().is_some_and(|text| !text.is_empty());
    let blocked = has_old || boolean(own.block_project_ssh_keys.as_deref()) == Some(true);
    let own_login = boolean(own.enable_oslogin.as_deref());
    // The project is asked only if its answer matters.
    let project: Attributes = match blocked && own_login.is_some() {
        true => Attributes::default(),
        false => service.json(&path)?.unwrap_or_default(),
    };
    let login = own_login.or_else(|| boolean(project.enable_oslogin.as_deref()));
    if login == Some(true) {
        (service.say)("ignoring the SSH keys of the metadata: enable-oslogin is set");
        return Ok(Vec::new());
    }
    let of_project = [project.old_keys, project.ssh_keys].map(|text| text.filter(|_| !blocked));
    let own = [own.ssh_keys.clone(), own.old_keys.clone()];
    let texts = own.into_iter().chain(of_project).flatten();
    Ok(texts.flat_map(|text| lines(&text)).collect())
}

/// `USER:KEY` in each line. The guest agent adds and removes keys that expire (`google-ssh {"expireOn": …}`); a node without
/// the agent must not keep them.
fn lines(text: &str) -> Vec<SshKey> {
    let key = |line: &str| {
        let (user, key) = line.trim().split_once(':')?;
        let lasting = !key.contains(" google-ssh ");
        lasting.then(|| SshKey {
            user: Some(user.to_owned()),
            key: key.trim().to_owned(),
        })
    };
    text.lines().filter_map(key).collect()
}

#[cfg(test)]
mod tests;
