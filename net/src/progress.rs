//! Progress of the configuration: the DHCP exchanges of each interface, which interfaces are ready, and what each of
//! the others waits for.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use image::network::{Interface, Method, Network as Plan};

use crate::address::AddressState;
use crate::exchange::{Exchange, Protocol};
use crate::identity::iaid;
use crate::lease::Lease;
use crate::link::Link;
use crate::netlink::Netlink;
use crate::route::Route;

/// How long an interface with an address waits for a name server from DHCPv6, if it has no other.
const RESOLVER_WAIT: Duration = Duration::from_secs(5);

/// A link that the plan configures.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) link: Link,
    pub(crate) settings: Interface,
    /// Whether a bond or a VLAN stands above it: the link must be up, without an address.
    pub(crate) below: bool,
}

impl Candidate {
    /// The plan's name of it, else the kernel's.
    pub(crate) fn name(&self) -> String {
        let name = self.settings.name.clone();
        name.unwrap_or_else(|| self.link.name.clone())
    }

    /// The DHCP exchanges that the interface needs now. The flags of the last router advertisement decide over version 6
    /// (RFC 4861, section 4.2).
    fn protocols(&self) -> impl Iterator<Item = Protocol> {
        let method = self.settings.method;
        let routers = self.link.advertised;
        let six = if method.asks_six() || (method.hears_routers() && routers.managed) {
            Some(Protocol::Dhcp6)
        } else {
            (method.hears_routers() && routers.other).then_some(Protocol::Information)
        };
        let four = method.asks_four().then_some(Protocol::Dhcp4);
        four.into_iter()
            .chain(six)
            .filter(move |_| self.link.carrier)
    }
}

/// An interface that is configured.
#[derive(Debug)]
pub(crate) struct Ready {
    /// The plan's name of it, else the kernel's.
    pub(crate) name: String,
    pub(crate) index: u32,
    pub(crate) leases: Vec<Lease>,
}

/// The state of all interfaces while the network is brought up.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// By the link's index, and whether it is version 6.
    pub(crate) exchanges: BTreeMap<(u32, bool), Exchange>,
    pub(crate) ready: Vec<Ready>,
    /// Name servers that routers advertised.
    pub(crate) advertised: Vec<IpAddr>,
    /// Interfaces that have an address and no name server, by index, and since when.
    without_resolver: BTreeMap<u32, Instant>,
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

    /// Starts the exchanges that interfaces need, and ends those that they no longer need. DHCPv6 sends from the
    /// link-local address (RFC 8415, section 17), so it starts once that is in use.
    pub(crate) fn start_exchanges(
        &mut self,
        netlink: &mut Netlink,
        plan: &Plan,
        links: &[Candidate],
        now: Duration,
    ) {
        let open: Vec<&Candidate> = links
            .iter()
            .filter(|one| !self.is_ready(one.link.index))
            .collect();
        let wants = |index: u32, protocol: Protocol| {
            let mut all = open.iter().filter(|one| one.link.index == index);
            all.any(|one| one.protocols().any(|own| own == protocol))
        };
        self.exchanges
            .retain(|(index, _), one| wants(*index, one.protocol));
        for one in open {
            let Link { index, name, .. } = &one.link;
            for protocol in one.protocols() {
                let six = protocol != Protocol::Dhcp4;
                let later = six && !netlink.has_link_local(*index).unwrap_or(false);
                if later || self.exchanges.contains_key(&(*index, six)) {
                    continue;
                }
                tracing::info!("net: {name}: carrier; {}", first_message(protocol));
                let iaid = iaid(plan, &one.name());
                match Exchange::new(&one.link, protocol, iaid, now) {
                    Ok(exchange) => {
                        self.exchanges.insert((*index, six), exchange);
                    }
                    Err(error) => tracing::warn!("net: {name}: {error:#}"),
                }
            }
        }
    }

    /// Receives the servers' answers, and configures the links. A lease that a link does not accept is rejected, and
    /// its exchange starts again: no answer of a server ends the wait.
    pub(crate) fn receive(&mut self, netlink: &mut Netlink, now: Duration) {
        for one in self.exchanges.values_mut() {
            let Some(lease) = one.receive(now) else {
                continue;
            };
            match apply_lease(netlink, &one.link, &lease) {
                Ok(()) => one.granted = Some(lease),
                Err(error) => {
                    tracing::warn!("net: {}: unusable lease: {error:#}", one.link.name);
                    remove_lease(netlink, &one.link, &lease);
                    one.reject(now);
                }
            }
        }
    }

    /// Adds fixed addresses, and records the interfaces that are configured.
    pub(crate) fn update_ready(
        &mut self,
        netlink: &mut Netlink,
        plan: &Plan,
        links: &[Candidate],
        now: Duration,
    ) {
        for one in links.iter().filter(|one| one.link.carrier) {
            let Link { index, name, .. } = &one.link;
            if self.is_ready(*index) || !one.settings.wants_address() {
                continue;
            }
            match self.is_configured(netlink, plan, one, now) {
                Ok(true) => {
                    tracing::info!("net: {name}: configured");
                    let keys = [(*index, false), (*index, true)];
                    let done = keys.iter().filter_map(|key| self.exchanges.remove(key));
                    let leases = done.filter_map(|exchange| exchange.granted).collect();
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

    fn is_configured(
        &mut self,
        netlink: &mut Netlink,
        plan: &Plan,
        one: &Candidate,
        now: Duration,
    ) -> Result<bool> {
        let index = one.link.index;
        let mut fixed = true;
        for address in &one.settings.addresses {
            fixed &= apply_fixed(netlink, plan, one, *address)?;
        }
        let mut leased = false;
        for six in [false, true] {
            if let Some(exchange) = self.exchanges.get_mut(&(index, six)) {
                leased |= is_in_use(netlink, exchange, now)?;
            }
        }
        let is_fixed = |found: &IpAddr| one.settings.addresses.iter().any(|own| own.0 == *found);
        let automatic = one.settings.method.hears_routers() && {
            let found = netlink.addresses(index, true)?;
            found.iter().any(|(address, _)| !is_fixed(address))
        };
        if !fixed || (one.settings.method != Method::Off && !leased && !automatic) {
            return Ok(false);
        }
        Ok(!self.waits_for_resolver(plan, index))
    }

    /// Whether an interface with an address waits for a name server: it has none, and a DHCPv6 exchange may bring one.
    /// The wait is short: there may be no server although routers advertise one.
    fn waits_for_resolver(&mut self, plan: &Plan, index: u32) -> bool {
        let of_leases = self.exchanges.range((index, false)..=(index, true));
        let granted = of_leases.filter_map(|(_, one)| one.granted.as_ref());
        let known = !plan.resolvers.is_empty()
            || !self.advertised.is_empty()
            || granted.into_iter().any(|lease| !lease.resolvers.is_empty());
        let exchange = self.exchanges.get(&(index, true));
        if known || exchange.is_none_or(|one| one.granted.is_some()) {
            return false;
        }
        let since = self
            .without_resolver
            .entry(index)
            .or_insert_with(Instant::now);
        if since.elapsed() < RESOLVER_WAIT {
            return true;
        }
        tracing::warn!(
            "net: no name server from DHCPv6 after {} s; continuing without one",
            RESOLVER_WAIT.as_secs()
        );
        false
    }

    /// What each interface waits for, for the console.
    pub(crate) fn status(&self, plan: &Plan, links: &[Candidate]) -> String {
        let wanting = links
            .iter()
            .filter(|candidate| candidate.settings.wants_address());
        let mut out: Vec<String> = wanting.map(|candidate| self.status_of(candidate)).collect();
        let absent = plan.interfaces.iter().filter_map(|settings| {
            let name = settings
                .name
                .as_ref()
                .filter(|_| settings.wants_address())?;
            let there = links.iter().any(|candidate| candidate.name() == *name);
            (!there).then(|| format!("{name}: no such interface"))
        });
        out.extend(absent);
        if out.is_empty() {
            return "no network interface".to_owned();
        }
        out.join("; ")
    }

    fn status_of(&self, candidate: &Candidate) -> String {
        let Candidate { link, settings, .. } = candidate;
        let name = &link.name;
        if self.is_ready(link.index) {
            return format!("{name}: configured");
        }
        let range = (link.index, false)..=(link.index, true);
        let status = self.exchanges.range(range).map(|(_, one)| one.status());
        let status: Vec<String> = status.collect();
        match status.is_empty() {
            false => format!("{name}: {}", status.join(", ")),
            true if !link.carrier => format!("{name}: no carrier"),
            true if settings.method == Method::Auto6 => {
                format!("{name}: no router has advertised a prefix")
            }
            true => format!("{name}: duplicate address detection is under way"),
        }
    }
}

/// The console's text for the start of an exchange.
fn first_message(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Dhcp4 => "requesting an address by DHCP",
        Protocol::Dhcp6 => "requesting an address by DHCPv6",
        Protocol::Information => "requesting name servers by DHCPv6",
    }
}

/// Whether the granted addresses are in use. An address of version 6 is in use once duplicate address detection has
/// succeeded (RFC 4862, section 5.4); a duplicate one is declined.
fn is_in_use(netlink: &mut Netlink, exchange: &mut Exchange, now: Duration) -> Result<bool> {
    let Some(lease) = &exchange.granted else {
        return Ok(false);
    };
    let mut in_use = !lease.addresses.is_empty();
    for (address, _) in lease.addresses.iter().filter(|one| one.0.is_ipv6()) {
        match netlink.address_state(exchange.link.index, *address)? {
            AddressState::Ready => {}
            AddressState::Tentative => in_use = false,
            AddressState::Duplicate => {
                tracing::warn!(
                    "net: {}: another host uses {address}: declining it",
                    exchange.link.name
                );
                remove_lease(netlink, &exchange.link, lease);
                exchange.decline(now);
                return Ok(false);
            }
        }
    }
    Ok(in_use)
}

/// Adds a fixed address to a link, and the routes of its version. False while duplicate address detection is under way:
/// the kernel accepts no route through such an address.
fn apply_fixed(
    netlink: &mut Netlink,
    plan: &Plan,
    one: &Candidate,
    (address, prefix): (IpAddr, u8),
) -> Result<bool> {
    let index = one.link.index;
    let peer = one
        .settings
        .peer
        .filter(|peer| peer.is_ipv4() == address.is_ipv4());
    netlink
        .add_peer(index, address, prefix, peer.unwrap_or(address))
        .with_context(|| format!("adding {address}/{prefix}"))?;
    if address.is_ipv6() && netlink.address_state(index, address)? != AddressState::Ready {
        return Ok(false);
    }
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let default = one.settings.gateway.map(|gateway| (any, 0, gateway));
    let own = plan.routes.iter().filter(|route| match &route.interface {
        Some(name) => Some(name) == one.settings.name.as_ref(),
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

/// Configures a link by a lease. A server's MTU is best effort: some offer one that the device does not support.
fn apply_lease(netlink: &mut Netlink, link: &Link, lease: &Lease) -> Result<()> {
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

/// Removes the addresses of a lease that a link has.
fn remove_lease(netlink: &mut Netlink, link: &Link, lease: &Lease) {
    for (address, prefix) in &lease.addresses {
        if let Err(error) = netlink.remove_address(link.index, *address, *prefix) {
            tracing::debug!("net: {}: removing {address}: {error:#}", link.name);
        }
    }
}
