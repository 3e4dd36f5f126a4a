//! Hetzner Cloud's server metadata, item by item: most items are plain texts, the complete document is YAML.
//!
//! <https://docs.hetzner.cloud/reference/cloud#server-metadata>

use std::net::Ipv6Addr;

use fetch::Identity;

use crate::drivers::VIRTIO;
use crate::env_keys::{EnvKeys, Value};
use crate::found::Found;
use crate::machine::Machine;
use crate::metadata::{Metadata, SshKey};
use crate::problem::Problem;
use crate::provider::{Detection, Provider};
use crate::service::Service;
use crate::userdata::{self, Foreign};
use crate::vendor_yaml;

/// The row of the table.
pub(super) static PROVIDER: Provider = Provider {
    id: "hetzner",
    recipe_name: Some("hetzner"),
    summary: "Hetzner Cloud: virtio.",
    detection: Detection::Firmware(|dmi| dmi.vendor == "Hetzner"),
    needs_network: true,
    media: &[],
    source_modules: &[],
    drivers: VIRTIO,
    disks: None,
    storage_identity: Identity::Anonymous,
    env_keys: EnvKeys {
        name: "HETZNER",
        keys: &[
            ("AVAILABILITY_ZONE", Value::Zone),
            ("HOSTNAME", Value::Hostname),
            ("INSTANCE_ID", Value::InstanceId),
            ("PRIVATE_IPV4", Value::EachLocal4),
            ("PUBLIC_IPV4", Value::Public4),
            ("PUBLIC_IPV6", Value::Public6),
            ("REGION", Value::Region),
        ],
    },
    obtain,
    report: None,
    local: None,
};

const ROOT: &str = "/hetzner/v1";

fn obtain(machine: &Machine<'_>) -> Result<Found, Problem> {
    let service = Service::new(machine, &[])?;
    let data = service.user_data(&format!("{ROOT}/userdata"))?;
    let name = "the server's user data";
    let (config, mut notes) = userdata::only(data, name, Foreign::Refuse, true)?;
    let item = |name: &str| service.text(&format!("{ROOT}/metadata/{name}"));
    let keys: Option<Vec<String>> = service.json(&format!("{ROOT}/metadata/public-keys"))?;
    let mut yaml_notes = Vec::new();
    let mut yaml = |name: &str, key: &str| -> Result<Vec<String>, Problem> {
        let text = item(name)?.unwrap_or_default();
        let document = vendor_yaml::parse(text.as_bytes(), name, &mut yaml_notes);
        Ok(vendor_yaml::values(document, key))
    };
    let metadata = Metadata {
        instance_id: item("instance-id")?,
        zone: item("availability-zone")?,
        region: item("region")?,
        hostname: item("hostname")?,
        local_ipv4: yaml("private-networks", "ip")?,
        public_ipv4: item("public-ipv4")?.into_iter().collect(),
        public_ipv6: yaml("network-config", "address")?
            .iter()
            .filter_map(|text| text.split('/').next()?.parse::<Ipv6Addr>().ok())
            .map(|address| address.to_string())
            .collect(),
        ssh_keys: keys
            .unwrap_or_default()
            .iter()
            .map(|key| SshKey::for_anybody(key))
            .collect(),
        ..Metadata::default()
    };
    notes.extend(yaml_notes);
    Ok(Found::new((config, notes), metadata))
}

#[cfg(test)]
mod tests;
