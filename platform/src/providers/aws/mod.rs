//! EC2's instance metadata service, version 2: a token first, then all other requests with it.
//!
//! Its addresses of version 4 and 6 are asked, the latter where an instance has no other.
//! A service that has no tokens (404, as compatible clouds) is asked the old way. A token that has expired in between
//! (401) is renewed. <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html>

use std::cell::RefCell;

use fetch::{Failure, Identity, Method, hosts};
use serde::Deserialize;

use crate::dmi::Dmi;
use crate::env_keys::{EnvKeys, Value};
use crate::found::Found;
use crate::machine::Machine;
use crate::metadata::{Metadata, SshKey};
use crate::problem::Problem;
use crate::provider::{Detection, DiskController, Provider};
use crate::service::{Ask, Service, present, text};
use crate::userdata::{self, Foreign, LIMIT};

/// The row of the table.
pub(super) static PROVIDER: Provider = Provider {
    id: "aws",
    recipe_name: Some("aws"),
    summary: "Amazon EC2: NVMe and ENA; Xen and the 82599 of older instances.",
    detection: Detection::Firmware(is_instance),
    needs_network: true,
    media: &[],
    source_modules: &[],
    drivers: &["ena", "ixgbevf", "nvme", "xen-blkfront", "xen-netfront"],
    disks: Some(DiskController::Nvme),
    storage_identity: Identity::Ec2Role,
    env_keys: EnvKeys {
        name: "AWS",
        keys: &[
            ("AVAILABILITY_ZONE", Value::Zone),
            ("HOSTNAME", Value::Hostname),
            ("INSTANCE_ID", Value::InstanceId),
            ("INSTANCE_TYPE", Value::InstanceType),
            ("IPV4_LOCAL", Value::Local4),
            ("IPV4_PUBLIC", Value::Public4),
            ("IPV6", Value::Local6),
            ("REGION", Value::Region),
        ],
    },
    obtain,
    report: None,
    local: None,
};

/// Instances of the older kind run on Xen
/// (<https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/identify_ec2_instances.html>).
fn is_instance(dmi: &Dmi) -> bool {
    dmi.vendor == "Amazon EC2"
        || dmi.bios == "Amazon EC2"
        || (dmi.vendor == "Xen" && dmi.bios_version.contains("amazon"))
}

/// The version of the service that is asked, Ignition's.
const VERSION: &str = "/2019-10-01";
/// The address of version 6, and the first version of the service that has it
/// (<https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-metadata.html>).
const IPV6: &str = "/meta-data/ipv6";
const IPV6_VERSION: &str = "/2021-01-03";
/// Lifetime of a token in seconds: the longest that the service allows.
const LIFE: &str = "21600";

/// The fields of the instance's identity document that are used.
#[derive(Deserialize)]
struct Document {
    region: Option<String>,
}

struct Imds<'a> {
    service: Service<'a>,
    token: RefCell<Option<String>>,
}

fn obtain(machine: &Machine<'_>) -> Result<Found, Problem> {
    let service = Service::at(machine, hosts::EC2, &[])?;
    let imds = Imds {
        token: RefCell::new(token(&service)?),
        service,
    };
    let data = imds.get("/user-data", Some(LIMIT))?;
    let config = userdata::only(data, "EC2's user data", Foreign::Refuse, true)?;
    Ok(Found::new(config, metadata(&imds, machine)?))
}

fn token(service: &Service<'_>) -> Result<Option<String>, Problem> {
    let answer = service.ask(
        "/latest/api/token",
        &Ask {
            method: Method::Put,
            headers: &[("X-aws-ec2-metadata-token-ttl-seconds", LIFE)],
            ..Ask::default()
        },
    );
    Ok(present(answer)?.and_then(|bytes| text(&bytes)))
}

impl Imds<'_> {
    fn get(&self, path: &str, limit: Option<u64>) -> Result<Option<Vec<u8>>, Problem> {
        match self.ask(path, limit) {
            Err(Failure::Status { code: 401, .. }) => {
                let renewed = token(&self.service)?;
                self.token.replace(renewed);
                present(self.ask(path, limit))
            }
            answer => present(answer),
        }
    }

    fn ask(&self, path: &str, limit: Option<u64>) -> Result<Vec<u8>, Failure> {
        let token = self.token.borrow();
        let header = token
            .as_deref()
            .map(|token| ("X-aws-ec2-metadata-token", token));
        let ask = Ask {
            headers: header.as_slice(),
            limit,
            ..Ask::default()
        };
        let version = match path {
            IPV6 => IPV6_VERSION,
            _ => VERSION,
        };
        self.service.ask(&format!("{version}{path}"), &ask)
    }

    fn text(&self, path: &str) -> Result<Option<String>, Problem> {
        Ok(self.get(path, None)?.and_then(|bytes| text(&bytes)))
    }
}

fn metadata(imds: &Imds<'_>, machine: &Machine<'_>) -> Result<Metadata, Problem> {
    let one = |path: &str| imds.text(&format!("/meta-data/{path}"));
    let several = |path: &str| -> Result<Vec<String>, Problem> {
        Ok(one(path)?
            .map(|text| text.lines().map(str::to_owned).collect())
            .unwrap_or_default())
    };
    let document: Option<Document> = imds
        .get("/dynamic/instance-identity/document", None)?
        .and_then(|bytes| {
            crate::service::json(&bytes, "EC2's instance identity document", machine.say)
        });
    let zone = one("placement/availability-zone")?;
    let public_name = one("public-hostname")?;
    Ok(Metadata {
        instance_id: one("instance-id")?,
        instance_type: one("instance-type")?,
        region: document.and_then(|document| document.region),
        zone,
        hostname: one("hostname")?,
        local_ipv4: several("local-ipv4")?,
        public_ipv4: several("public-ipv4")?,
        local_ipv6: imds.text(IPV6)?.into_iter().collect(),
        public_ipv6: Vec::new(),
        ssh_keys: ssh_keys(imds)?,
        extra: public_name
            .map(|name| ("PUBLIC_HOSTNAME".to_owned(), name))
            .into_iter()
            .collect(),
        ..Metadata::default()
    })
}

/// The list has `INDEX=NAME` in each line, the key is at its index.
fn ssh_keys(imds: &Imds<'_>) -> Result<Vec<SshKey>, Problem> {
    let mut keys = Vec::new();
    let list = imds.text("/meta-data/public-keys/")?.unwrap_or_default();
    for line in list.lines() {
        let index = line.split('=').next().unwrap_or_default();
        if index.is_empty() || !index.bytes().all(|digit| digit.is_ascii_digit()) {
            continue;
        }
        let path = format!("/meta-data/public-keys/{index}/openssh-key");
        keys.extend(imds.text(&path)?.as_deref().map(SshKey::for_anybody));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests;
