//! Oracle Cloud: one document of the instance metadata service, version 2, has both the user data, in base64, and the
//! instance.
//!
//! While the service is updated it answers 404, although every instance has the document.
//! <https://docs.oracle.com/iaas/Content/Compute/Tasks/gettingmetadata.htm>

use std::time::Duration;

use fetch::Identity;
use serde::Deserialize;
use serde_json::Value as Json;

use crate::base64;
use crate::drivers::VIRTIO;
use crate::env_keys::{EnvKeys, Value};
use crate::found::Found;
use crate::machine::Machine;
use crate::metadata::{Metadata, SshKey};
use crate::problem::Problem;
use crate::provider::{Detection, DiskController, Provider};
use crate::service::Service;
use crate::userdata::{self, Foreign};

/// The row of the table. Only virtual machines: a bare-metal instance boots from an iSCSI disk.
pub(super) static PROVIDER: Provider = Provider {
    id: "oraclecloud",
    recipe_name: Some("oraclecloud"),
    summary: "Oracle Cloud's virtual machines, paravirtualised: virtio.",
    detection: Detection::Firmware(|dmi| dmi.asset_tag == "OracleCloud.com"),
    needs_network: true,
    media: &[],
    source_modules: &[],
    drivers: VIRTIO,
    disks: Some(DiskController::VirtioScsi),
    storage_identity: Identity::Anonymous,
    env_keys: EnvKeys {
        name: "ORACLECLOUD",
        keys: &[
            ("AVAILABILITY_DOMAIN", Value::Zone),
            ("HOSTNAME", Value::Hostname),
            ("INSTANCE_ID", Value::InstanceId),
            ("INSTANCE_SHAPE", Value::InstanceType),
            ("REGION_ID", Value::Region),
        ],
    },
    obtain,
    report: None,
    local: None,
};

/// The header that the service requires in every request of version 2.
const HEADER: (&str, &str) = ("Authorization", "Bearer Oracle");
/// With the slash at the end, as documented: without it the service may redirect, and a redirected request loses the
/// header.
const INSTANCE: &str = "/opc/v2/instance/";
const VNICS: &str = "/opc/v2/vnics/";
const UPDATING: &[u16] = &[404];
/// The time limit of an update. Oracle's documentation mentions milliseconds.
const UPDATE_TIME: Duration = Duration::from_secs(10);

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Instance {
    id: Option<String>,
    hostname: Option<String>,
    shape: Option<String>,
    availability_domain: Option<String>,
    fault_domain: Option<String>,
    compartment_id: Option<String>,
    canonical_region_name: Option<String>,
    metadata: Custom,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Custom {
    ssh_authorized_keys: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Vnic {
    private_ip: Option<String>,
    ipv6_addresses: Vec<String>,
}

fn obtain(machine: &Machine<'_>) -> Result<Found, Problem> {
    obtain_within(machine, UPDATE_TIME)
}

/// `update_time`: how long a 404 may be due to an update.
fn obtain_within(machine: &Machine<'_>, update_time: Duration) -> Result<Found, Problem> {
    let service = Service::new(machine, &[HEADER])?;
    let document = service
        .settled(INSTANCE, UPDATING, update_time)?
        .map_or(Ok(Json::Null), |bytes| document(&bytes))?;
    let data = user_data(&document)?;
    let name = "the instance's user data";
    let config = userdata::only(data, name, Foreign::Refuse, true)?;
    let instance = Instance::deserialize(&document).unwrap_or_else(|_| {
        if !document.is_null() {
            (machine.say)("ignoring Oracle Cloud's metadata: it does not have the expected form");
        }
        Instance::default()
    });
    let vnics = service.json(VNICS)?.unwrap_or_default();
    Ok(Found::new(config, metadata(instance, vnics)))
}

/// Parses the document. Unlike other metadata it must be JSON, since it holds the config. The message has the position,
/// never the content.
fn document(bytes: &[u8]) -> Result<Json, Problem> {
    serde_json::from_slice(bytes).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        Problem::remote(format!(
            "Oracle Cloud's instance metadata: not JSON at {line}:{column}"
        ))
    })
}

fn user_data(document: &Json) -> Result<Option<Vec<u8>>, Problem> {
    let name = "Oracle Cloud's user data";
    let Some(data) = document.pointer("/metadata/user_data") else {
        return Ok(None);
    };
    let text = data
        .as_str()
        .ok_or_else(|| Problem::remote(format!("{name}: expected a text in base64")))?;
    let data = base64::decode(text.as_bytes(), name).map_err(Problem::remote)?;
    Ok(Some(data))
}

fn metadata(instance: Instance, vnics: Vec<Vnic>) -> Metadata {
    let extra = [
        ("COMPARTMENT_ID", instance.compartment_id),
        ("FAULT_DOMAIN", instance.fault_domain),
    ];
    let keys = instance.metadata.ssh_authorized_keys;
    let mut out = Metadata {
        instance_id: instance.id,
        instance_type: instance.shape,
        zone: instance.availability_domain,
        region: instance.canonical_region_name,
        hostname: instance.hostname,
        ssh_keys: keys
            .lines()
            .filter(|line| !line.trim().is_empty())
            .map(SshKey::for_anybody)
            .collect(),
        extra: extra
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?)))
            .collect(),
        ..Metadata::default()
    };
    for vnic in vnics {
        out.local_ipv4.extend(vnic.private_ip);
        out.local_ipv6.extend(vnic.ipv6_addresses);
    }
    out
}

#[cfg(test)]
mod tests;
