//! Vultr's metadata API. <https://www.vultr.com/metadata/>

use fetch::Identity;
use serde::Deserialize;

use crate::drivers::VIRTIO;
use crate::env_keys::{EnvKeys, Value};
use crate::found::Found;
use crate::machine::Machine;
use crate::metadata::{Metadata, SshKey};
use crate::problem::Problem;
use crate::provider::{Detection, Provider};
use crate::service::Service;
use crate::userdata::{self, Foreign};

/// The row of the table.
pub(super) static PROVIDER: Provider = Provider {
    id: "vultr",
    recipe_name: Some("vultr"),
    summary: "Vultr's cloud servers: virtio.",
    detection: Detection::Firmware(|dmi| dmi.vendor == "Vultr"),
    needs_network: true,
    media: &[],
    source_modules: &[],
    drivers: VIRTIO,
    disks: None,
    storage_identity: Identity::Anonymous,
    env_keys: EnvKeys {
        name: "VULTR",
        keys: &[
            ("HOSTNAME", Value::Hostname),
            ("INSTANCE_ID", Value::InstanceId),
            ("REGION_CODE", Value::Region),
        ],
    },
    obtain,
    report: None,
    local: None,
};

/// The user data unchanged; the document has it as a list.
const USER_DATA: &str = "/user-data/user-data";

#[derive(Default, Deserialize)]
#[serde(default)]
struct Server {
    hostname: Option<String>,
    instanceid: Option<String>,
    #[serde(rename = "instance-v2-id")]
    instance_v2_id: Option<String>,
    region: Region,
    interfaces: Vec<Interface>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Region {
    regioncode: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Interface {
    network_type: String,
    ipv4: Ipv4,
    ipv6: Address,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Ipv4 {
    address: String,
    additional: Vec<Address>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Address {
    address: String,
}

fn obtain(machine: &Machine<'_>) -> Result<Found, Problem> {
    let service = Service::new(machine, &[])?;
    let data = service.user_data(USER_DATA)?;
    let name = "the server's user data";
    let config = userdata::only(data, name, Foreign::Refuse, true)?;
    let server = service.json("/v1.json")?.unwrap_or_default();
    // The document has the keys as a list or, in older versions, as one text; here they are always lines.
    let keys = service.text("/v1/public-keys")?.unwrap_or_default();
    Ok(Found::new(config, metadata(server, &keys)))
}

fn metadata(server: Server, keys: &str) -> Metadata {
    let given = |id: Option<String>| id.filter(|id| !id.is_empty());
    let mut out = Metadata {
        instance_id: given(server.instanceid).or(given(server.instance_v2_id)),
        region: given(server.region.regioncode),
        hostname: given(server.hostname),
        ssh_keys: keys
            .lines()
            .filter(|line| !line.trim().is_empty())
            .map(SshKey::for_anybody)
            .collect(),
        ..Metadata::default()
    };
    for interface in server.interfaces {
        let (ipv4, ipv6) = match interface.network_type.as_str() {
            "private" => (&mut out.local_ipv4, &mut out.local_ipv6),
            _ => (&mut out.public_ipv4, &mut out.public_ipv6),
        };
        let additional = interface.ipv4.additional.into_iter();
        ipv4.push(interface.ipv4.address);
        ipv4.extend(additional.map(|one| one.address));
        ipv6.push(interface.ipv6.address);
    }
    out
}

#[cfg(test)]
mod tests;
