//! Platforms: the names by which builder and node speak of the machines that an image is for.
//!
//! They are Ignition's own (`ignition.platform.id=`), so that what its users know holds here too.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A kind of machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Platform {
    /// Amazon EC2.
    Aws,
    /// Microsoft Azure.
    Azure,
    /// DigitalOcean droplets.
    DigitalOcean,
    /// A file beside the program: for tests of the config alone.
    File,
    /// Google Compute Engine.
    Gcp,
    /// Hetzner Cloud.
    Hetzner,
    /// Virtual machines of a Kubernetes cluster.
    Kubevirt,
    /// A machine that nobody but the command line gives a config.
    Metal,
    /// Nutanix AHV.
    Nutanix,
    /// OpenStack Nova.
    Openstack,
    /// Proxmox VE.
    Proxmoxve,
    /// QEMU with its own options.
    Qemu,
    /// VMware ESXi and Workstation.
    Vmware,
}

impl Platform {
    /// All of them, by name.
    pub const ALL: [Self; 13] = [
        Self::Aws,
        Self::Azure,
        Self::DigitalOcean,
        Self::File,
        Self::Gcp,
        Self::Hetzner,
        Self::Kubevirt,
        Self::Metal,
        Self::Nutanix,
        Self::Openstack,
        Self::Proxmoxve,
        Self::Qemu,
        Self::Vmware,
    ];

    /// Ignition's name of it.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::Aws => "aws",
            Self::Azure => "azure",
            Self::DigitalOcean => "digitalocean",
            Self::File => "file",
            Self::Gcp => "gcp",
            Self::Hetzner => "hetzner",
            Self::Kubevirt => "kubevirt",
            Self::Metal => "metal",
            Self::Nutanix => "nutanix",
            Self::Openstack => "openstack",
            Self::Proxmoxve => "proxmoxve",
            Self::Qemu => "qemu",
            Self::Vmware => "vmware",
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

impl FromStr for Platform {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|one| one.id() == text);
        found.ok_or_else(|| {
            let all = Self::ALL.map(Self::id).join(", ");
            format!("{text:?} is no platform; there are {all}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for platform in Platform::ALL {
            assert_eq!(platform.id().parse(), Ok(platform));
            let json = serde_json::to_string(&platform).unwrap();
            assert_eq!(json, format!("{:?}", platform.id()));
        }
        assert!("gce".parse::<Platform>().unwrap_err().contains("gcp"));
    }
}
