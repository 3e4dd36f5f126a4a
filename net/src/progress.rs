//! Progress: which interface asks for what, which has what it asks for, and in words what is missing.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use image::network::{Interface, Method, Network as Plan};

use crate::address::Claim;
use crate::exchange::{Asking, Exchange};
use crate::identity::iaid;
use crate::lease::Lease;
use crate::link::Link;
use crate::netlink::Netlink;
use crate::route::Route;

/// How long an interface that has an address waits for name servers of DHCP, version 6, while it knows of none.
const NAMES: Duration = Duration::from_secs(5);

/// A link with what is asked of it.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) link: Link,
    pub(crate) asked: Interface,
    pub(crate) below: bool,
}

impl Wanted {
    pub(crate) fn name(&self) -> String {
        let asked = self.asked.name.clone();
        asked.unwrap_or_else(|| self.link.name.clone())
    }

    /// What is to be asked of DHCP servers now, as far as routers have said.
    fn exchanges(&self) -> impl Iterator<Item = Exchange> {
        let method = self.asked.method;
        let routers = self.link.advertised;
        let six = if method.asks_six() || (method.hears_routers() && routers.managed) {
            Some(Exchange::Six)
        } else {
            (method.hears_routers() && routers.other).then_some(Exchange::Information)
        };
        let four = method.asks_four().then_some(Exchange::Four);
        four.into_iter()
            .chain(six)
            .filter(move |_| self.link.carrier)
    }
}

/// An interface that has what was asked for.
#[derive(Debug)]
pub(crate) struct Ready {
    /// What the command line calls it, else the kernel.
    pub(crate) name: String,
    pub(crate) index: u32,
    pub(crate) leases: Vec<Lease>,
}

/// What is under way while the network is waited for.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// By link, and whether it is version 6.
    pub(crate) asking: BTreeMap<(u32, bool), Asking>,
    pub(crate) ready: Vec<Ready>,
    /// Name servers that routers advertised.
    pub(crate) advertised: Vec<IpAddr>,
    /// Since when an interface has an address and knows no name server.
    nameless: BTreeMap<u32, Instant>,
}

impl Progress {
    /// Whether every named interface has its address, or any if none is named.
    pub(crate) fn is_enough(&self, plan: &Plan) -> bool {
        let mut named = plan
            .interfaces
            .iter()
            .filter(|one| one.wants_address())
            .filter_map(|one| one.name.as_ref())
            .peekable();
        if named.peek().is_none() {
            return !self.ready.is_empty();
        }
        named.all(|name| self.ready.iter().any(|one| one.name == *name))
    }

    fn is_ready(&self, index: u32) -> bool {
        self.ready.iter().any(|one| one.index == index)
    }

    /// An interface asks as long as it has a carrier and not what was asked for. Version 6 is asked from the link's own
    /// address, so not before it is in use.
    pub(crate) fn follow(
        &mut self,
        netlink: &mut Netlink,
        plan: &Plan,
        links: &[Wanted],
        now: Duration,
    ) {
        let open: Vec<&Wanted> = links
            .iter()
            .filter(|one| !self.is_ready(one.link.index))
            .collect();
        let wants = |index: u32, exchange: Exchange| {
            let mut all = open.iter().filter(|one| one.link.index == index);
            all.any(|one| one.exchanges().any(|own| own == exchange))
        };
        self.asking
            .retain(|(index, _), one| wants(*index, one.exchange));
        for one in open {
            let Link { index, name, .. } = &one.link;
            for exchange in one.exchanges() {
                let six = exchange != Exchange::Four;
                let later = six && !netlink.has_link_local(*index).unwrap_or(false);
                if later || self.asking.contains_key(&(*index, six)) {
                    continue;
                }
                tracing::info!("net: {name}: has a carrier; {}", told(exchange));
                let iaid = iaid(plan, &one.name());
                match Asking::new(&one.link, exchange, iaid, now) {
                    Ok(asking) => {
                        self.asking.insert((*index, six), asking);
                    }
                    Err(error) => tracing::warn!("net: {name}: {error:#}"),
                }
            }
        }
    }

    /// Takes what servers have answered, and gives it to the links. What a link cannot have is refused and asked for anew:
    /// no answer ends the waiting.
    pub(crate) fn hear(&mut self, netlink: &mut Netlink, now: Duration) {
        for one in self.asking.values_mut() {
            let Some(lease) = one.receive(now) else {
                continue;
            };
            match configure(netlink, &one.link, &lease) {
                Ok(()) => one.granted = Some(lease),
                Err(error) => {
                    tracing::warn!(
                        "net: {}: a lease that cannot be used: {error:#}",
                        one.link.name
                    );
                    take_back(netlink, &one.link, &lease);
                    one.refuse(now);
                }
            }
        }
    }

    /// Gives fixed addresses, and sees which interfaces have all that was asked for.
    pub(crate) fn settle(
        &mut self,
        netlink: &mut Netlink,
        plan: &Plan,
        links: &[Wanted],
        now: Duration,
    ) {
        for one in links.iter().filter(|one| one.link.carrier) {
            let Link { index, name, .. } = &one.link;
            if self.is_ready(*index) || !one.asked.wants_address() {
                continue;
            }
            match self.is_settled(netlink, plan, one, now) {
                Ok(true) => {
                    tracing::info!("net: {name}: has its address");
                    let keys = [(*index, false), (*index, true)];
                    let done = keys.iter().filter_map(|key| self.asking.remove(key));
                    let leases = done.filter_map(|asking| asking.granted).collect();
                    self.ready.push(Ready {
                        name: one.name(),
                        index: *index,
                        leases,
                    });
                }
                Ok(false) => {}
                Err(error) => tracing::warn!("net: {name}: {error:#}"),
            }
        }
    }

    fn is_settled(
        &mut self,
        netlink: &mut Netlink,
        plan: &Plan,
        one: &Wanted,
        now: Duration,
    ) -> Result<bool> {
        let index = one.link.index;
        let mut fixed = true;
        for address in &one.asked.addresses {
            fixed &= fix(netlink, plan, one, *address)?;
        }
        let mut leased = false;
        for six in [false, true] {
            if let Some(asking) = self.asking.get_mut(&(index, six)) {
                leased |= is_held(netlink, asking, now)?;
            }
        }
        let is_fixed = |found: &IpAddr| one.asked.addresses.iter().any(|own| own.0 == *found);
        let automatic = one.asked.method.hears_routers() && {
            let found = netlink.addresses(index, true)?;
            found.iter().any(|(address, _)| !is_fixed(address))
        };
        if !fixed || (one.asked.method != Method::Off && !leased && !automatic) {
            return Ok(false);
        }
        Ok(!self.waits_for_names(plan, index))
    }

    /// Whether an interface with an address has a reason to wait for a name server: it knows none, and version 6 is
    /// being asked. Not for long, since routers that promise one do not make one.
    fn waits_for_names(&mut self, plan: &Plan, index: u32) -> bool {
        let of_leases = self.asking.range((index, false)..=(index, true));
        let granted = of_leases.filter_map(|(_, one)| one.granted.as_ref());
        let known = !plan.resolvers.is_empty()
            || !self.advertised.is_empty()
            || granted.into_iter().any(|lease| !lease.resolvers.is_empty());
        let asking = self.asking.get(&(index, true));
        if known || asking.is_none_or(|one| one.granted.is_some()) {
            return false;
        }
        let since = self.nameless.entry(index).or_insert_with(Instant::now);
        if since.elapsed() < NAMES {
            return true;
        }
        tracing::warn!("net: no DHCPv6 server has named a name server; going on without");
        false
    }

    /// What each interface waits for.
    pub(crate) fn said(&self, plan: &Plan, links: &[Wanted]) -> String {
        let wanting = links.iter().filter(|wanted| wanted.asked.wants_address());
        let mut out: Vec<String> = wanting.map(|wanted| self.said_of(wanted)).collect();
        let absent = plan.interfaces.iter().filter_map(|asked| {
            let name = asked.name.as_ref().filter(|_| asked.wants_address())?;
            let there = links.iter().any(|wanted| wanted.name() == *name);
            (!there).then(|| format!("{name}: no such interface"))
        });
        out.extend(absent);
        if out.is_empty() {
            return "no network interface".to_owned();
        }
        out.join("; ")
    }

    fn said_of(&self, wanted: &Wanted) -> String {
        let Wanted { link, asked, .. } = wanted;
        let name = &link.name;
        if self.is_ready(link.index) {
            return format!("{name}: has its address");
        }
        let range = (link.index, false)..=(link.index, true);
        let doing = self.asking.range(range).map(|(_, one)| one.doing());
        let doing: Vec<String> = doing.collect();
        match doing.is_empty() {
            false => format!("{name}: {}", doing.join(", ")),
            true if !link.carrier => format!("{name}: no carrier"),
            true if asked.method == Method::Auto6 => {
                format!("{name}: no router has advertised a prefix")
            }
            true => format!("{name}: its address is not in use yet"),
        }
    }
}

fn told(exchange: Exchange) -> &'static str {
    match exchange {
        Exchange::Four => "asking for an address by DHCP",
        Exchange::Six => "asking for an address by DHCPv6",
        Exchange::Information => "asking for name servers by DHCPv6",
    }
}

/// Whether what a server granted is in use. An address of version 6 is, once nobody else claims it; one that somebody
/// has is given back.
fn is_held(netlink: &mut Netlink, asking: &mut Asking, now: Duration) -> Result<bool> {
    let Some(lease) = &asking.granted else {
        return Ok(false);
    };
    let mut held = !lease.addresses.is_empty();
    for (address, _) in lease.addresses.iter().filter(|one| one.0.is_ipv6()) {
        match netlink.claim(asking.link.index, *address)? {
            Claim::Ours => {}
            Claim::Open => held = false,
            Claim::Denied => {
                tracing::warn!("net: {}: somebody else has {address}", asking.link.name);
                take_back(netlink, &asking.link, lease);
                asking.decline(now);
                return Ok(false);
            }
        }
    }
    Ok(held)
}

/// Gives a link one of its fixed addresses and the routes of that version. An address of version 6 is only used once
/// nobody else claims it: false until then.
fn fix(
    netlink: &mut Netlink,
    plan: &Plan,
    one: &Wanted,
    (address, prefix): (IpAddr, u8),
) -> Result<bool> {
    let index = one.link.index;
    let peer = one
        .asked
        .peer
        .filter(|peer| peer.is_ipv4() == address.is_ipv4());
    netlink
        .add_peer(index, address, prefix, peer.unwrap_or(address))
        .with_context(|| format!("adding {address}/{prefix}"))?;
    if address.is_ipv6() && netlink.claim(index, address)? != Claim::Ours {
        return Ok(false);
    }
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let default = one.asked.gateway.map(|gateway| (any, 0, gateway));
    let own = plan.routes.iter().filter(|route| match &route.interface {
        Some(name) => Some(name) == one.asked.name.as_ref(),
        None => true,
    });
    let routes = own.map(|route| (route.network, route.prefix, route.gateway));
    for (network, length, gateway) in default.into_iter().chain(routes) {
        if gateway.is_ipv4() != address.is_ipv4() {
            continue;
        }
        let on_link = !same_network(address, prefix, gateway);
        let route = Route {
            network,
            prefix: length,
            gateway,
        };
        netlink
            .add_route(index, route, on_link)
            .with_context(|| format!("routing {network}/{length} through {gateway}"))?;
    }
    Ok(true)
}

/// Whether two addresses have the first `prefix` bits in common.
fn same_network(one: IpAddr, prefix: u8, other: IpAddr) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
        IpAddr::V6(address) => u128::from(address),
    };
    let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
    (bits(one) ^ bits(other)) & mask == 0
}

/// Gives a link what a server granted.
fn configure(netlink: &mut Netlink, link: &Link, lease: &Lease) -> Result<()> {
    if let Some(mtu) = lease.mtu
        && let Err(error) = netlink.set_mtu(link.index, mtu.into())
    {
        tracing::warn!("net: {}: MTU {mtu}: {error:#}", link.name);
    }
    for (address, prefix) in &lease.addresses {
        netlink
            .add_address(link.index, *address, *prefix)
            .with_context(|| format!("adding {address}/{prefix}"))?;
    }
    for route in &lease.routes {
        let own = |(address, prefix): &(IpAddr, u8)| same_network(*address, *prefix, route.gateway);
        let on_link = !lease.addresses.iter().any(own);
        netlink
            .add_route(link.index, *route, on_link)
            .with_context(|| format!("routing {}/{}", route.network, route.prefix))?;
    }
    Ok(())
}

/// Takes a lease's addresses from a link again, those that it has.
fn take_back(netlink: &mut Netlink, link: &Link, lease: &Lease) {
    for (address, prefix) in &lease.addresses {
        if let Err(error) = netlink.remove_address(link.index, *address, *prefix) {
            tracing::debug!("net: {}: removing {address}: {error:#}", link.name);
        }
    }
}
