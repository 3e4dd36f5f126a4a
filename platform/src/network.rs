//! A machine's network as its platform describes it: OpenStack's `network_data.json` (links, addresses and routes, in a
//! vendor-neutral form), or words of the kernel command line.
//!
//! The format of the first is Nova's (<https://docs.openstack.org/nova/latest/user/metadata.html> and the schema there). Like
//! cloud-init, the parser also accepts: the `name` of a device in place of its address, options of bonds by the kernel's names after `bond_`, the length of a prefix
//! after an address or in place of a netmask, `dns_nameservers` and `services` of one network.

mod plan;
mod read;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use image::cmdline::Cmdline;
use image::mac::Mac;
use image::network::Network as Plan;

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
    /// The interface's name, which identifies a physical link without an Ethernet address.
    pub name: Option<String>,
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

/// The text of a network, and what was read from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The text, for later boots, which do not ask the machine.
    pub text: Vec<u8>,
    /// What it says.
    content: Content,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    /// Network data in OpenStack's form.
    Data(Network),
    /// Words of the kernel command line, as a platform gives them.
    Words(Plan),
}

impl Described {
    /// Reads a text as [`read()`] does; none if it gives no link an address.
    ///
    /// # Errors
    /// As [`read()`].
    pub fn read(text: Vec<u8>, name: &str) -> Result<Option<Self>, Vec<String>> {
        let network = read(&text, name)?;
        let says = !network.addressings.is_empty();
        let content = Content::Data(network);
        Ok(says.then_some(Self { text, content }))
    }

    /// Reads words of the kernel command line (`ip=`, `nameserver=`, …); none if none of them is about the network.
    ///
    /// # Errors
    /// Every mistake, each as one line with `name`.
    pub fn read_words(text: Vec<u8>, name: &str) -> Result<Option<Self>, Vec<String>> {
        let words = String::from_utf8_lossy(&text);
        let cmdline = Cmdline::parse(words.trim()).map_err(|wrong| -> Vec<String> {
            wrong.iter().map(|line| format!("{name}: {line}")).collect()
        })?;
        let plan = cmdline.network;
        let says = !plan.is_default();
        let content = Content::Words(plan);
        Ok(says.then_some(Self { text, content }))
    }

    /// Reads the text of an earlier boot, of either form.
    ///
    /// # Errors
    /// As the form's own reader.
    pub fn read_kept(text: Vec<u8>, name: &str) -> Result<Option<Self>, Vec<String>> {
        match text.trim_ascii_start().first() {
            Some(b'{') => Self::read(text, name),
            _ => Self::read_words(text, name),
        }
    }

    /// What the machine's network is to be.
    #[must_use]
    pub fn plan(&self) -> Plan {
        match &self.content {
            Content::Data(network) => plan(network),
            Content::Words(plan) => plan.clone(),
        }
    }

    /// How links get addresses, by network data; nothing by words.
    #[must_use]
    pub fn addressings(&self) -> &[Addressing] {
        match &self.content {
            Content::Data(network) => &network.addressings,
            Content::Words(_) => &[],
        }
    }
}
