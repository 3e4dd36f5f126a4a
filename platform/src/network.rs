//! OpenStack's `network_data.json`: a machine's links, addresses and routes, in a vendor-neutral form.
//!
//! The format is Nova's (<https://docs.openstack.org/nova/latest/user/metadata.html> and the schema there). Like
//! cloud-init, the parser also accepts: options of bonds by the kernel's names after `bond_`, the length of a prefix
//! after an address or in place of a netmask, `dns_nameservers` and `services` of one network.

mod plan;
mod read;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use image::mac::Mac;

pub use plan::plan;
pub use read::read;

/// A machine's network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// The links, each once.
    pub links: Vec<Link>,
    /// How links get addresses.
    pub addressings: Vec<Addressing>,
    /// Name servers, each once.
    pub resolvers: Vec<IpAddr>,
}

/// A link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The id by which the other entries refer to it.
    pub id: String,
    /// The Ethernet address: it identifies a physical link, and is set on any other link.
    pub mac: Option<Mac>,
    /// The largest packet, in bytes.
    pub mtu: Option<u32>,
    /// Its kind.
    pub kind: Kind,
}

/// The kind of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A physical device.
    Physical,
    /// Several devices as one link.
    Bond {
        /// Their ids.
        members: Vec<String>,
        /// The kernel's options by their names in sysfs.
        options: Vec<(String, String)>,
    },
    /// A link with a VLAN tag.
    Vlan {
        /// The id of the link below it, which is not a VLAN.
        parent: String,
        /// 1 to 4094.
        number: u16,
    },
}

/// How a link gets an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addressing {
    /// The link's id.
    pub link: String,
    /// The method.
    pub how: How,
    /// Routes through this link.
    pub routes: Vec<Route>,
}

/// Methods to get an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// This one, with the length of its prefix.
    Fixed(IpAddr, u8),
    /// DHCP, version 4.
    Dhcp4,
    /// DHCP, version 6.
    Dhcp6,
    /// The routers' advertisements.
    Routers,
    /// DHCPv6 or router advertisements: older releases do not distinguish them.
    Six,
}

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destination.
    pub network: IpAddr,
    /// The length of its prefix.
    pub prefix: u8,
    /// The next hop.
    pub gateway: IpAddr,
}

impl Described {
    /// Reads a text as [`read()`] does; none if it gives no link an address.
    ///
    /// # Errors
    /// As [`read()`].
    pub fn read(text: Vec<u8>, name: &str) -> Result<Option<Self>, Vec<String>> {
        let network = read(&text, name)?;
        let says = !network.addressings.is_empty();
        Ok(says.then_some(Self { text, network }))
    }
}

/// The text of a network, and what was read from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The text, for later boots, which do not ask the machine.
    pub text: Vec<u8>,
    /// The network.
    pub network: Network,
}
