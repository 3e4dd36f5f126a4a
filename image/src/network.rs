//! The network before the handoff, as the kernel command line configures it. [`crate::network_words`] parses its keys.
//!
//! Without any of these words every interface asks by DHCP, version 4, and listens to routers' advertisements.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::mac::Mac;

/// Bytes of the longest host name that Linux takes (`HOST_NAME_MAX`).
pub const HOST_NAME_LENGTH: usize = 64;

/// Whether a text is a host name, of whatever length: labels of letters, digits and hyphens (RFC 1123, section 2.1), and of
/// underscores, which are in use.
#[must_use]
pub fn is_host_name(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    text.split('.').all(|label| {
        (1..=63).contains(&label.len())
            && label.chars().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    })
}

/// An address without the bits behind its prefix: that of the network.
#[must_use]
pub fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    let behind = |bits: u32| bits.saturating_sub(prefix.into());
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(behind(32)).unwrap_or(0);
            Ipv4Addr::from(u32::from(address) & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(behind(128)).unwrap_or(0);
            Ipv6Addr::from(u128::from(address) & mask).into()
        }
    }
}

/// The network configuration of the kernel command line. The default one is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// One entry for each `ip=`.
    pub interfaces: Vec<Interface>,
    /// `vlan=`
    pub vlans: Vec<Vlan>,
    /// `bond=`
    pub bonds: Vec<Bond>,
    /// `rd.route=`
    pub routes: Vec<Route>,
    /// `nameserver=`, and the name servers of `ip=`, in order.
    pub resolvers: Vec<IpAddr>,
    /// `ifname=`: the name that the interface with this address gets.
    pub names: Vec<(String, Mac)>,
    /// Names by which the other entries call the interface with this address, without giving them to it.
    pub aliases: Vec<(String, Mac)>,
    /// The words as they were given, for writing the command line again.
    pub words: Vec<String>,
}

/// How an interface gets its addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Not by itself: the address that is given, if one is.
    Off,
    /// DHCP, version 4: `dhcp`, `on`, `any`.
    Dhcp4,
    /// DHCP, version 6: `dhcp6`.
    Dhcp6,
    /// By the routers' advertisements: `auto6`; with DHCP, version 6, if their flags request it.
    Auto6,
    /// By the routers' advertisements or by DHCP, version 6: `either6`.
    Either6,
    /// By DHCP, version 4, and as [`Method::Auto6`]: `both`. Whichever is first is enough to begin with.
    #[default]
    Both,
}

impl Method {
    /// Whether the interface runs DHCP, version 4.
    #[must_use]
    pub fn asks_four(self) -> bool {
        matches!(self, Self::Dhcp4 | Self::Both)
    }

    /// Whether the interface requests an address by DHCP, version 6, whatever router advertisements say.
    #[must_use]
    pub fn asks_six(self) -> bool {
        matches!(self, Self::Dhcp6 | Self::Either6)
    }

    /// Whether the interface accepts router advertisements: an address from one is enough.
    #[must_use]
    pub fn hears_routers(self) -> bool {
        matches!(self, Self::Auto6 | Self::Either6 | Self::Both)
    }
}

/// The settings of one `ip=`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// The interface; none: every one that is not named elsewhere.
    pub name: Option<String>,
    /// How it gets addresses.
    pub method: Method,
    /// Addresses with the length of their prefixes.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The other end of a point-to-point link.
    pub peer: Option<IpAddr>,
    /// The default route.
    pub gateway: Option<IpAddr>,
    /// The node's host name.
    pub hostname: Option<String>,
    /// MTU, in bytes.
    pub mtu: Option<u32>,
    /// The Ethernet address to set on the interface.
    pub mac: Option<Mac>,
}

/// The settings of one `vlan=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// Its name.
    pub name: String,
    /// Its VLAN id, 1 to 4094, from the name: `vlan0005`, `vlan5`, `eth0.0005`, `eth0.5`.
    pub id: u16,
    /// The interface below it.
    pub parent: String,
}

/// The settings of one `bond=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bond {
    /// Its name.
    pub name: String,
    /// The interfaces in it.
    pub members: Vec<String>,
    /// The kernel's options by their names in sysfs, as (`mode`, `active-backup`).
    pub options: Vec<(String, String)>,
    /// MTU, in bytes.
    pub mtu: Option<u32>,
}

/// The route of one `rd.route=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destination.
    pub network: IpAddr,
    /// The length of its prefix.
    pub prefix: u8,
    /// The next hop.
    pub gateway: IpAddr,
    /// The interface; none: the one that reaches the gateway.
    pub interface: Option<String>,
}

impl Network {
    /// Whether no key of the network is set.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The settings of an interface with these names (at least one): by name, else by an `ip=` without a name, else the
    /// default. An interface below a VLAN or in a bond gets no address of its own unless an `ip=` names it; once an
    /// `ip=` names any interface, the others get no address. The name in the result is the one that the command line
    /// uses, in an `ip=` or else in a route.
    #[must_use]
    pub fn interface(&self, names: &[String]) -> Interface {
        let answers = |wanted: &String| names.contains(wanted);
        let named = self
            .interfaces
            .iter()
            .find(|one| one.name.as_ref().is_some_and(answers));
        if let Some(named) = named {
            return named.clone();
        }
        let below = self.is_below(names);
        let general = self.interfaces.iter().find(|one| one.name.is_none());
        let any_named = self.interfaces.iter().any(|one| one.name.is_some());
        let mut found = match (general, any_named || below) {
            (_, true) => Interface {
                method: Method::Off,
                ..Interface::default()
            },
            (Some(general), false) => general.clone(),
            (None, false) => Interface::default(),
        };
        let is_routed = |name: &&String| {
            let mut routes = self.routes.iter();
            routes.any(|route| route.interface.as_ref() == Some(*name))
        };
        let name = names.iter().find(is_routed).or(names.first());
        found.name = name.cloned();
        found
    }

    /// Whether the MTU of an interface with these settings is given. That of a DHCP server does not count then.
    #[must_use]
    pub fn has_mtu(&self, one: &Interface) -> bool {
        let mut bonds = self.bonds.iter();
        one.mtu.is_some()
            || bonds.any(|bond| bond.mtu.is_some() && one.name.as_ref() == Some(&bond.name))
    }

    /// Whether an interface with one of these names is below a VLAN or in a bond.
    #[must_use]
    pub fn is_below(&self, names: &[String]) -> bool {
        self.vlans.iter().any(|vlan| names.contains(&vlan.parent))
            || self
                .bonds
                .iter()
                .any(|bond| bond.members.iter().any(|member| names.contains(member)))
    }
}

impl Interface {
    /// Whether the interface is to get an address.
    #[must_use]
    pub fn wants_address(&self) -> bool {
        self.method != Method::Off || !self.addresses.is_empty()
    }
}
