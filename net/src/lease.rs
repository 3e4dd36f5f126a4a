//! A DHCP lease: the configuration that a server granted, in the form that both versions of the protocol share.

use std::net::IpAddr;
use std::time::Duration;

use crate::route::Route;

/// The configuration that a server granted. Without an address it is only information (DHCPv6's Information-request).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lease {
    /// Addresses with the length of their prefixes.
    pub(crate) addresses: Vec<(IpAddr, u8)>,
    pub(crate) routes: Vec<Route>,
    pub(crate) resolvers: Vec<IpAddr>,
    pub(crate) search: Vec<String>,
    pub(crate) mtu: Option<u16>,
    /// Its lifetime.
    pub(crate) time: Duration,
}

/// Whether a server's text is a domain name. Only such text goes into resolv.conf: a line break would add a line to it.
pub(crate) fn is_domain(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
}
