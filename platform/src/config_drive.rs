//! Config drives in OpenStack's and in cloud-init's NoCloud form, read from the folder where they are mounted.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;

use serde::Deserialize;

use crate::found::Found;
use crate::machine::Machine;
use crate::metadata::{Metadata, SshKey};
use crate::network::{Described, How};
use crate::nocloud_network;
use crate::problem::Problem;
use crate::service::json;
use crate::userdata::{self, Foreign, LIMIT};
use crate::vendor_yaml;

/// Labels of OpenStack's drive: lower case on ISO 9660, upper case where VFAT's tools wrote them.
pub(crate) const CONFIG_2: &[&str] = &["config-2", "CONFIG-2"];
/// The machine's network data, on the drive.
const NETWORK_DATA: &str = "openstack/latest/network_data.json";
/// Labels of NoCloud's drive
/// (<https://cloudinit.readthedocs.io/en/latest/reference/datasources/nocloud.html>).
pub(crate) const CIDATA: &[&str] = &["cidata", "CIDATA"];

/// `openstack/latest/meta_data.json`, the same on the drive and from the service
/// (<https://docs.openstack.org/nova/latest/user/metadata.html>).
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Nova {
    uuid: Option<String>,
    hostname: Option<String>,
    availability_zone: Option<String>,
    public_keys: Option<BTreeMap<String, String>>,
    /// KubeVirt's addition.
    instance_type: Option<String>,
}

/// `ec2/latest/meta-data.json`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct Ec2 {
    pub(crate) instance_id: Option<String>,
    pub(crate) instance_type: Option<String>,
    pub(crate) local_ipv4: Option<String>,
    pub(crate) public_ipv4: Option<String>,
}

/// A drive in OpenStack's form.
pub(crate) fn openstack(machine: &Machine<'_>, folder: &Path) -> Result<Found, Problem> {
    let data = file(&folder.join("openstack/latest/user_data"))?;
    let name = "the config drive's user data";
    let config = userdata::only(data, name, Foreign::Refuse, false)?;
    let nova = file(&folder.join("openstack/latest/meta_data.json"))?
        .and_then(|bytes| json(&bytes, "the config drive's meta_data.json", machine.say));
    let ec2 = file(&folder.join("ec2/latest/meta-data.json"))?
        .and_then(|bytes| json(&bytes, "the config drive's meta-data.json", machine.say));
    let metadata = nova_metadata(nova.unwrap_or_default(), ec2.unwrap_or_default());
    let mut found = Found::new(config, metadata);
    if let Some(text) = file(&folder.join(NETWORK_DATA))? {
        let name = format!("the config drive's {NETWORK_DATA}");
        match Described::read(text, &name) {
            Ok(described) => describe(&mut found.metadata, described),
            // The user did not write it and cannot correct it; the machine may boot without it.
            Err(lines) => {
                found.notes.extend(lines);
                found.notes.push(format!("ignoring {name}"));
            }
        }
    }
    Ok(found)
}

/// Adds the network, whose fixed addresses are the machine's if nothing else says which it has.
pub(crate) fn describe(metadata: &mut Metadata, described: Option<Described>) {
    let addressings = described.iter().flat_map(Described::addressings);
    let (mut four, mut six) = (Vec::new(), Vec::new());
    for addressing in addressings {
        match addressing.how {
            How::Fixed(IpAddr::V4(address), _) => four.push(address.to_string()),
            How::Fixed(IpAddr::V6(address), _) => six.push(address.to_string()),
            _ => {}
        }
    }
    for (known, fixed) in [
        (&mut metadata.local_ipv4, four),
        (&mut metadata.local_ipv6, six),
    ] {
        if known.is_empty() {
            *known = fixed;
        }
    }
    metadata.network = described;
}

/// Converts Nova's metadata, from the drive or from the service.
pub(crate) fn nova_metadata(nova: Nova, ec2: Ec2) -> Metadata {
    let address = |text: Option<String>| text.filter(|text| !text.is_empty());
    let keys = nova.public_keys.unwrap_or_default();
    let mut extra = Vec::new();
    extra.extend(nova.uuid.clone().map(|id| ("INSTANCE_UUID".to_owned(), id)));
    Metadata {
        instance_id: ec2.instance_id.or(nova.uuid),
        instance_type: ec2.instance_type.or(nova.instance_type),
        zone: nova.availability_zone,
        hostname: nova.hostname,
        local_ipv4: address(ec2.local_ipv4).into_iter().collect(),
        public_ipv4: address(ec2.public_ipv4).into_iter().collect(),
        ssh_keys: keys.values().map(|key| SshKey::for_anybody(key)).collect(),
        extra,
        ..Metadata::default()
    }
}

/// A drive in NoCloud's form: the config is the first of these files that holds one. A cloud-config among them is the
/// vendor's, with the host name and the keys.
pub(crate) fn nocloud(folder: &Path, files: &[&str], foreign: Foreign) -> Result<Found, Problem> {
    let mut notes = Vec::new();
    let mut config = None;
    let mut vendor = BTreeMap::new();
    for name in files {
        let data = file(&folder.join(name))?;
        if let Some(data) = data
            .as_ref()
            .filter(|data| data.starts_with(b"#cloud-config"))
        {
            let name = format!("the drive's {name}");
            vendor = vendor_yaml::top(vendor_yaml::parse(data, &name, &mut notes));
        }
        let shown = format!("the drive's {name}");
        let (found, more) = userdata::only(data, &shown, foreign, false)?;
        notes.extend(more);
        if found.is_some() {
            config = found;
            break;
        }
    }
    let said = file(&folder.join("meta-data"))?.unwrap_or_default();
    let said = vendor_yaml::parse(&said, "the drive's meta-data", &mut notes);
    let said = vendor_yaml::top(said);
    let one = |map: &BTreeMap<String, Vec<String>>, key: &str| map.get(key)?.first().cloned();
    let keys = ["ssh_authorized_keys", "public-keys"];
    let keys = keys
        .iter()
        .flat_map(|key| [vendor.get(*key), said.get(*key)])
        .flatten()
        .flatten();
    let network = file(&folder.join("network-config"))?
        .and_then(|text| nocloud_network::read(&text, "the drive's network-config", &mut notes));
    let mut metadata = Metadata {
        instance_id: one(&said, "instance-id"),
        instance_type: one(&said, "instance-type").or_else(|| one(&said, "instance_type")),
        hostname: one(&said, "local-hostname")
            .or_else(|| one(&said, "hostname"))
            .or_else(|| one(&vendor, "hostname")),
        ssh_keys: keys.map(|key| SshKey::for_anybody(key)).collect(),
        ..Metadata::default()
    };
    describe(&mut metadata, network);
    Ok(Found::new((config, notes), metadata))
}

/// A file of a drive; none if it is absent.
fn file(path: &Path) -> Result<Option<Vec<u8>>, Problem> {
    let wrong = |what: &dyn std::fmt::Display| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Problem::local(format!("reading {name} of the config drive: {what}"))
    };
    match fs::metadata(path) {
        Ok(meta) if meta.len() > LIMIT => {
            Err(wrong(&format_args!("it is longer than {LIMIT} bytes")))
        }
        Ok(_) => fs::read(path).map(Some).map_err(|error| wrong(&error)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(wrong(&error)),
    }
}

#[cfg(test)]
mod tests;
