//! Routes that one program keeps: it knows its own by their protocol number, and touches no other.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use anyhow::{Context, Result};

use crate::message::attributes;
use crate::netlink::{CREATE, DUMP, INET, INET6, Netlink, REPLACE, address, octets};

const NEW_ROUTE: u16 = 24;
const DELETE_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;
const MAIN_TABLE: u8 = 254;
/// The protocol number of the routes to other nodes' pods: none that `linux/rtnetlink.h` or iproute2's `rt_protos` names.
const OURS: u8 = 83;
const UNICAST: u8 = 1;
/// Bytes of `struct rtmsg`, before the attributes.
const HEAD: usize = 12;
// RTA_*
const DESTINATION: u16 = 1;
const GATEWAY: u16 = 5;

/// A network behind another machine of a network that this one is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Behind {
    /// Its first address.
    pub network: IpAddr,
    /// Its length in bits.
    pub prefix: u8,
    /// The machine's address, of the same version.
    pub gateway: IpAddr,
}

impl fmt::Display for Behind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} by {}", self.network, self.prefix, self.gateway)
    }
}

/// What was changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Routes that were missing.
    pub added: Vec<Behind>,
    /// Routes that nobody wants any more.
    pub removed: Vec<Behind>,
    /// Routes that the kernel refused, and why: a gateway on no network of this machine.
    pub refused: Vec<(Behind, String)>,
}

/// Adds those of these routes that are missing, and removes those of an earlier call that are not among them.
///
/// # Errors
/// If the kernel does not give its routes, or keeps one that is to be removed.
pub fn keep(wanted: &BTreeSet<Behind>) -> Result<Changes> {
    let mut netlink = Netlink::open()?;
    let there = netlink.ours().context("reading the routes")?;
    let mut changes = Changes::default();
    for route in there.difference(wanted) {
        let body = body(route);
        netlink
            .request(DELETE_ROUTE, 0, &body)
            .with_context(|| format!("removing the route to {route}"))?;
        changes.removed.push(*route);
    }
    for route in wanted.difference(&there) {
        match netlink.request(NEW_ROUTE, CREATE | REPLACE, &body(route)) {
            Ok(_) => changes.added.push(*route),
            Err(error) => changes.refused.push((*route, format!("{error:#}"))),
        }
    }
    Ok(changes)
}

fn body(route: &Behind) -> Vec<u8> {
    let family = if route.network.is_ipv4() { INET } else { INET6 };
    let mut body = vec![family, route.prefix, 0, 0, MAIN_TABLE, OURS, 0, UNICAST];
    body.extend([0; 4]);
    crate::message::attribute(&mut body, DESTINATION, &octets(route.network));
    crate::message::attribute(&mut body, GATEWAY, &octets(route.gateway));
    body
}

/// The route of an answer, if it is one of ours.
fn route(body: &[u8]) -> Option<Behind> {
    let (prefix, protocol) = (*body.get(1)?, *body.get(5)?);
    let find = |wanted: u16| {
        let mut all = attributes(body, HEAD);
        all.find_map(|(kind, value)| (kind == wanted).then(|| address(value)).flatten())
    };
    (protocol == OURS).then_some(())?;
    Some(Behind {
        network: find(DESTINATION)?,
        prefix,
        gateway: find(GATEWAY)?,
    })
}

impl Netlink {
    fn ours(&mut self) -> Result<BTreeSet<Behind>> {
        let mut found = BTreeSet::new();
        for family in [INET, INET6] {
            let mut body = vec![family];
            body.resize(HEAD, 0);
            let answers = self.request(GET_ROUTE, DUMP, &body)?;
            found.extend(answers.iter().filter_map(|answer| route(answer)));
        }
        Ok(found)
    }
}
