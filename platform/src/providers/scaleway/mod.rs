//! Scaleway's metadata service. It has another address than the usual one, and returns user data only to ports below
//! 1024, which only privileged programs can bind.
//!
//! <https://www.scaleway.com/en/developers/api/instance/user-data>

use std::net::IpAddr;
use std::ops::RangeInclusive;

use fetch::Identity;
use serde::Deserialize;

use crate::drivers::VIRTIO;
use crate::env_keys::{EnvKeys, Value};
use crate::found::Found;
use crate::machine::Machine;
use crate::metadata::{Metadata, SshKey};
use crate::problem::Problem;
use crate::provider::{Detection, Provider};
use crate::service::{Ask, Service, present};
use crate::userdata::{self, Foreign, LIMIT};

/// The row of the table.
pub(super) static PROVIDER: Provider = Provider {
    id: "scaleway",
    recipe_name: Some("scaleway"),
    summary: "Scaleway's instances: virtio.",
    detection: Detection::Firmware(|dmi| dmi.vendor == "Scaleway"),
    needs_network: true,
    media: &[],
    source_modules: &[],
    drivers: VIRTIO,
    // Local volumes are virtio-blk, block volumes virtio-scsi.
    disks: None,
    storage_identity: Identity::Anonymous,
    env_keys: EnvKeys {
        name: "SCALEWAY",
        keys: &[
            ("HOSTNAME", Value::Hostname),
            ("INSTANCE_ID", Value::InstanceId),
            ("INSTANCE_TYPE", Value::InstanceType),
            ("IPV4_PRIVATE", Value::Local4),
            ("IPV4_PUBLIC", Value::Public4),
            ("IPV6_PUBLIC", Value::Public6),
            ("ZONE_ID", Value::Zone),
        ],
    },
    obtain,
    report: None,
    local: None,
};

const SERVICE: &str = "http://169.254.42.42";
const USER_DATA: &str = "/user_data/cloud-init";
const INSTANCE: &str = "/conf?format=json";
const PRIVILEGED: RangeInclusive<u16> = 1..=1023;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Instance {
    id: Option<String>,
    hostname: Option<String>,
    commercial_type: Option<String>,
    location: Option<Location>,
    /// Only for instances whose public address is translated, as are `public_ip` and `ipv6`.
    private_ip: Option<String>,
    public_ip: Option<Address>,
    ipv6: Option<Address>,
    /// Only for instances whose public addresses are routed.
    public_ips: Option<Vec<Address>>,
    ssh_public_keys: Vec<Key>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Location {
    zone_id: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Address {
    address: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Key {
    key: String,
}

fn obtain(machine: &Machine<'_>) -> Result<Found, Problem> {
    obtain_from(machine, PRIVILEGED)
}

/// `ports`: the source ports that the service answers.
fn obtain_from(machine: &Machine<'_>, ports: RangeInclusive<u16>) -> Result<Found, Problem> {
    let service = Service::at(machine, SERVICE, &[])?;
    let privileged = Ask {
        limit: Some(LIMIT),
        source_ports: Some(ports),
        ..Ask::default()
    };
    let data = present(service.ask(USER_DATA, &privileged))?;
    let name = "the instance's user data";
    let config = userdata::only(data, name, Foreign::Refuse, true)?;
    let instance = service.json(INSTANCE)?.unwrap_or_default();
    Ok(Found::new(config, metadata(instance)))
}

fn metadata(instance: Instance) -> Metadata {
    let zone = instance.location.and_then(|location| location.zone_id);
    let mut out = Metadata {
        instance_id: instance.id,
        instance_type: instance.commercial_type,
        region: zone.as_deref().and_then(region).map(str::to_owned),
        zone,
        hostname: instance.hostname,
        local_ipv4: instance.private_ip.into_iter().collect(),
        ssh_keys: instance
            .ssh_public_keys
            .iter()
            .map(|key| SshKey::for_anybody(&key.key))
            .collect(),
        ..Metadata::default()
    };
    let translated = instance.public_ip.into_iter().chain(instance.ipv6);
    let routed = instance.public_ips.unwrap_or_default();
    // Both may hold the same address, and each list has both versions.
    for Address { address } in translated.chain(routed) {
        let list = match address.parse() {
            Ok(IpAddr::V4(_)) => &mut out.public_ipv4,
            Ok(IpAddr::V6(_)) => &mut out.public_ipv6,
            Err(_) => continue,
        };
        if !list.contains(&address) {
            list.push(address);
        }
    }
    out
}

/// `fr-par` of `fr-par-1`; none for the old names of zones, as `par1`.
fn region(zone: &str) -> Option<&str> {
    let (region, _) = zone.rsplit_once('-')?;
    Some(region)
}

#[cfg(test)]
mod tests;
