//! DigitalOcean's droplet metadata. <https://docs.digitalocean.com/reference/api/metadata/>

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
    id: "digitalocean",
    recipe_name: Some("digitalocean"),
    summary: "DigitalOcean droplets: virtio.",
    detection: Detection::Firmware(|dmi| dmi.vendor == "DigitalOcean"),
    needs_network: true,
    media: &[],
    source_modules: &[],
    drivers: VIRTIO,
    disks: None,
    storage_identity: Identity::Anonymous,
    env_keys: EnvKeys {
        name: "DIGITALOCEAN",
        keys: &[
            ("HOSTNAME", Value::Hostname),
            ("IPV4_PRIVATE", Value::EachLocal4),
            ("IPV4_PUBLIC", Value::EachPublic4),
            ("IPV6_PRIVATE", Value::EachLocal6),
            ("IPV6_PUBLIC", Value::EachPublic6),
            ("REGION", Value::Region),
        ],
    },
    obtain,
    report: None,
    local: None,
};

#[derive(Default, Deserialize)]
#[serde(default)]
struct Droplet {
    droplet_id: Option<u64>,
    hostname: Option<String>,
    region: Option<String>,
    public_keys: Vec<String>,
    interfaces: Interfaces,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Interfaces {
    public: Vec<Interface>,
    private: Vec<Interface>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Interface {
    ipv4: Option<Address>,
    ipv6: Option<Address>,
    anchor_ipv4: Option<Address>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Address {
    ip_address: String,
}

fn obtain(machine: &Machine<'_>) -> Result<Found, Problem> {
    let service = Service::new(machine, &[])?;
    let data = service.user_data("/metadata/v1/user-data")?;
    let name = "the droplet's user data";
    let config = userdata::only(data, name, Foreign::Refuse, true)?;
    let droplet = service.json("/metadata/v1.json")?.unwrap_or_default();
    Ok(Found::new(config, metadata(droplet)))
}

fn metadata(droplet: Droplet) -> Metadata {
    let mut out = Metadata {
        instance_id: droplet.droplet_id.map(|id| id.to_string()),
        region: droplet.region,
        hostname: droplet.hostname,
        ssh_keys: droplet
            .public_keys
            .iter()
            .map(|key| SshKey::for_anybody(key))
            .collect(),
        ..Metadata::default()
    };
    for (i, interface) in droplet.interfaces.public.into_iter().enumerate() {
        out.public_ipv4.extend(interface.ipv4.map(|a| a.ip_address));
        out.public_ipv6.extend(interface.ipv6.map(|a| a.ip_address));
        let anchor = interface.anchor_ipv4;
        out.extra
            .extend(anchor.map(|a| (format!("IPV4_ANCHOR_{i}"), a.ip_address)));
    }
    for interface in droplet.interfaces.private {
        out.local_ipv4.extend(interface.ipv4.map(|a| a.ip_address));
        out.local_ipv6.extend(interface.ipv6.map(|a| a.ip_address));
    }
    out
}

#[cfg(test)]
mod tests;
