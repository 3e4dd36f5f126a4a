//! Routes (rtnetlink(7), `linux/rtnetlink.h`).

use std::fmt;
use std::net::IpAddr;

use anyhow::Result;

use crate::message::attribute;
use crate::netlink::{CREATE, INET, INET6, Netlink, REPLACE, octets};

const NEW_ROUTE: u16 = 24;
const MAIN_TABLE: u8 = 254;
/// `RTPROT_DHCP`: the route was added by a DHCP client.
const BY_DHCP: u8 = 16;
const UNICAST: u8 = 1;
const SCOPE_UNIVERSE: u8 = 0;
const SCOPE_LINK: u8 = 253;
/// `RTNH_F_ONLINK`: the gateway is on the link, though no address of the link covers it.
const ON_LINK: u32 = 4;
// RTA_*
const DESTINATION: u16 = 1;
const OUTPUT: u16 = 4;
const GATEWAY: u16 = 5;
const PRIORITY: u16 = 6;

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) network: IpAddr,
    pub(crate) prefix: u8,
    /// Unspecified: the network is on the link itself.
    pub(crate) gateway: IpAddr,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            network,
            prefix,
            gateway,
        } = self;
        write!(f, "route to {network}/{prefix} through {gateway}")
    }
}

impl Netlink {
    /// Adds a route. Of two to the same network, the one with the lower metric is used.
    pub(crate) fn add_route(
        &mut self,
        index: u32,
        route: Route,
        on_link: bool,
        metric: u32,
    ) -> Result<()> {
        let through = !route.gateway.is_unspecified();
        let scope = if through || route.network.is_ipv6() {
            SCOPE_UNIVERSE
        } else {
            SCOPE_LINK
        };
        let flags = if through && on_link { ON_LINK } else { 0 };
        let family = if route.network.is_ipv4() { INET } else { INET6 };
        let mut body = vec![
            family,
            route.prefix,
            0,
            0,
            MAIN_TABLE,
            BY_DHCP,
            scope,
            UNICAST,
        ];
        body.extend(flags.to_ne_bytes());
        if route.prefix > 0 {
            attribute(&mut body, DESTINATION, &octets(route.network));
        }
        attribute(&mut body, OUTPUT, &index.to_ne_bytes());
        attribute(&mut body, PRIORITY, &metric.to_ne_bytes());
        if through {
            attribute(&mut body, GATEWAY, &octets(route.gateway));
        }
        self.request(NEW_ROUTE, CREATE | REPLACE, &body)?;
        Ok(())
    }
}
