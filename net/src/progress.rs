//! Progress of the configuration: the DHCP exchanges of each interface, which interfaces are ready, and what each of
//! the others waits for.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use image::network::{Interface, Method, Network as Plan};

use crate::address::AddressState;
use crate::assign::{apply_fixed, apply_lease, apply_route, remove_lease};
use crate::exchange::{Exchange, Protocol};
use crate::fixed_route::fixed_routes;
use crate::identity::iaid;
use crate::lease::Lease;
use crate::link::Link;
use crate::log_once::LogOnce;
use crate::netlink::Netlink;

/// What an interface without a router waits for.
const NO_ROUTER: &str = "no router has advertised a prefix";
/// How long an interface with an address waits for a name server from DHCPv6, if it has no other, and one with a fixed address
/// for what it asks for beside it.
const PATIENCE: Duration = Duration::from_secs(5);
/// A server that grants shorter leases than twice this is not asked more often.
const SHORTEST_RENEWAL: Duration = Duration::from_secs(1);
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
    /// The kernel's name.
    pub(crate) link: String,
    pub(crate) index: u32,
}

/// A lease that a link is configured by. All times are on the clock of the exchanges.
#[derive(Debug)]
struct Held {
    lease: Lease,
    protocol: Protocol,
    ends: Duration,
    /// When the server is asked again; at once after the link was without a carrier.
    renew: Duration,
    /// Whether the link was not without a carrier since.
    confirmed: bool,
}

impl Held {
    fn new(lease: Lease, protocol: Protocol, now: Duration) -> Self {
        Self {
            ends: now.saturating_add(lease.time),
            // T1 of both versions (RFC 2131, section 4.4.5; RFC 8415, section 14.2).
            renew: now.saturating_add((lease.time / 2).max(SHORTEST_RENEWAL)),
            confirmed: true,
            lease,
            protocol,
        }
    }
}

/// What an interface with an address may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum More {
    Resolver,
    Address,
}

/// The state of all interfaces.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// By the link's index, and whether it is version 6.
    pub(crate) exchanges: BTreeMap<(u32, bool), Exchange>,
    held: BTreeMap<(u32, bool), Held>,
    pub(crate) ready: Vec<Ready>,
    /// Name servers that routers advertised, each with its link's index.
    pub(crate) advertised: Vec<(u32, IpAddr)>,
    /// Since when interfaces that have an address wait for more, by index.
    waiting: BTreeMap<(u32, More), Instant>,
    /// The addresses of a link, by its index and whether they are version 6, when the plan's routes were added to it.
    routed: BTreeMap<(u32, bool), Vec<(IpAddr, u8)>>,
    /// Why interfaces cannot be configured, by index.
    failed: BTreeMap<u32, String>,
    log: LogOnce,
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

    /// The leases that links are configured by.
    pub(crate) fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.held.values().map(|held| &held.lease)
    }

    /// The name servers of each link, by its index, as resolv.conf has them: a link-local one with its link's number as the zone
    /// (RFC 4007, section 11.2).
    pub(crate) fn resolvers(&self) -> BTreeMap<u32, Vec<String>> {
        let advertised = self.advertised.iter().copied();
        let leased = self.held.iter().flat_map(|((index, _), held)| {
            let servers = held.lease.resolvers.iter();
            servers.map(|server| (*index, *server))
        });
        let mut out: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for (index, server) in advertised.chain(leased) {
            let text = match server {
                IpAddr::V6(six) if six.is_unicast_link_local() => format!("{six}%{index}"),
                other => other.to_string(),
            };
            out.entry(index).or_default().push(text);
        }
        out
    }

    fn is_ready(&self, index: u32) -> bool {
        self.ready.iter().any(|one| one.index == index)
    }

    /// Drops what is over: leases that have ended, and what was of links that are gone or without a carrier. A lease of the
    /// latter is asked for anew once the carrier is back, since the link may be in another network then.
    pub(crate) fn drop_ended(&mut self, netlink: &mut Netlink, links: &[Candidate], now: Duration) {
        let find = |index: u32| links.iter().find(|one| one.link.index == index);
        self.held.retain(|(index, _), held| {
            let Some(one) = find(*index) else {
                return false;
            };
            if now >= held.ends {
                tracing::warn!(
                    "net: {}: the lease of {} has ended",
                    one.link.name,
                    list(&held.lease)
                );
                remove_lease(netlink, &one.link, &held.lease.addresses);
                return false;
            }
            if !one.link.carrier {
                (held.confirmed, held.renew) = (false, now);
            }
            true
        });
        // The routes go with a link that is down.
        self.routed
            .retain(|(index, _), _| find(*index).is_some_and(|one| one.link.carrier));
        let held = &self.held;
        self.ready.retain(|ready| {
            let found = find(ready.index);
            let carrier = found.is_some_and(|one| one.link.carrier);
            let leased = [false, true].map(|six| (ready.index, six));
            let method = found.map_or(Method::Off, |one| one.settings.method);
            let fixed = found.is_some_and(|one| !one.settings.addresses.is_empty());
            let kept = method == Method::Off
                || fixed
                || leased.iter().any(|key| held.contains_key(key))
                // What routers give, the kernel keeps and takes back.
                || (method.hears_routers()
                    && netlink.addresses(ready.index, true).is_ok_and(|found| !found.is_empty()));
            if !carrier {
                tracing::warn!("net: {}: lost its carrier", ready.link);
            }
            carrier && kept
        });
    }

    /// Starts the exchanges that interfaces need, and ends those that they need no more. DHCPv6 sends from the link-local
    /// address (RFC 8415, section 17), so it starts once that is in use.
    pub(crate) fn start_exchanges(
        &mut self,
        netlink: &mut Netlink,
        plan: &Plan,
        links: &[Candidate],
        now: Duration,
    ) {
        let held = &self.held;
        let wants = |one: &Candidate, protocol: Protocol| {
            let key = (one.link.index, protocol.is_six());
            let due = |held: &Held| held.protocol != protocol || now >= held.renew;
            one.protocols().any(|own| own == protocol) && held.get(&key).is_none_or(due)
        };
        self.exchanges.retain(|(index, _), exchange| {
            let mut own = links.iter().filter(|one| one.link.index == *index);
            own.any(|one| wants(one, exchange.protocol))
        });
        for one in links {
            let Link { index, name, .. } = &one.link;
            for protocol in one.protocols().filter(|protocol| wants(one, *protocol)) {
                let six = protocol.is_six();
                let key = (*index, six);
                let later = six && !netlink.has_link_local(*index).unwrap_or(false);
                if later || self.exchanges.contains_key(&key) {
                    continue;
                }
                match held.get(&key) {
                    Some(held) => tracing::info!("net: {name}: renewing {}", list(&held.lease)),
                    None => tracing::info!("net: {name}: carrier; {}", first_message(protocol)),
                }
                let iaid = iaid(plan, &one.name());
                let wished = held.get(&key).map(|held| &held.lease);
                match Exchange::new(&one.link, protocol, iaid, wished, now) {
                    Ok(exchange) => {
                        let exchange = exchange.with_mtu_of_plan(plan.has_mtu(&one.settings));
                        self.exchanges.insert(key, exchange);
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
            match apply_lease(netlink, &one.link, &lease, &mut self.log) {
                Ok(()) => one.granted = Some(lease),
                Err(error) => {
                    tracing::warn!("net: {}: unusable lease: {error:#}", one.link.name);
                    remove_lease(netlink, &one.link, &lease.addresses);
                    one.reject(now);
                }
            }
        }
    }

    /// Adds fixed addresses, and records the leases that are in use and the interfaces that are configured.
    pub(crate) fn update_ready(
        &mut self,
        netlink: &mut Netlink,
        plan: &Plan,
        links: &[Candidate],
        now: Duration,
    ) {
        for one in links.iter().filter(|one| one.link.carrier) {
            let Link { index, name, .. } = &one.link;
            let done = self.hold_leases(netlink, &one.link, now);
            self.log.warn(done.with_context(|| name.clone()));
            if !one.settings.wants_address() {
                continue;
            }
            if !self.is_ready(*index) {
                let done = self.note_ready(netlink, plan, one);
                match &done {
                    Ok(()) => self.failed.remove(index),
                    Err(error) => self.failed.insert(*index, format!("{error:#}")),
                };
                self.log.warn(done.with_context(|| name.clone()));
            }
            for six in [false, true] {
                let done = self.add_routes(netlink, plan, one, six);
                self.log.warn(done.with_context(|| name.clone()));
            }
        }
    }

    fn note_ready(&mut self, netlink: &mut Netlink, plan: &Plan, one: &Candidate) -> Result<()> {
        if self.is_configured(netlink, plan, one)? {
            let Link { index, name, .. } = &one.link;
            tracing::info!("net: {name}: configured");
            self.ready.push(Ready {
                name: one.name(),
                link: name.clone(),
                index: *index,
            });
        }
        Ok(())
    }

    /// Adds the plan's routes of one IP version to an interface once it has an address, and anew when its addresses change: the
    /// kernel drops routes with the last of them. Each route is best effort.
    fn add_routes(
        &mut self,
        netlink: &mut Netlink,
        plan: &Plan,
        one: &Candidate,
        six: bool,
    ) -> Result<()> {
        let Link { index, name, .. } = &one.link;
        let addresses = netlink.addresses(*index, six)?;
        let before = self.routed.insert((*index, six), addresses.clone());
        if addresses.is_empty() || before.as_ref() == Some(&addresses) {
            return Ok(());
        }
        let mut routes = fixed_routes(plan, &one.settings, &addresses);
        routes.retain(|route| route.gateway.is_ipv6() == six);
        for route in routes {
            let done = apply_route(netlink, *index, route, &addresses);
            self.log
                .warn(done.with_context(|| format!("{name}: adding the {route}")));
        }
        Ok(())
    }

    /// Ends the exchanges whose leases are in use.
    fn hold_leases(&mut self, netlink: &mut Netlink, link: &Link, now: Duration) -> Result<()> {
        for key in [(link.index, false), (link.index, true)] {
            let Some(exchange) = self.exchanges.get_mut(&key) else {
                continue;
            };
            let information = exchange.protocol == Protocol::Information;
            if !is_in_use(netlink, exchange, now)? && !information {
                continue;
            }
            let Some(lease) = exchange.granted.take() else {
                continue;
            };
            let protocol = exchange.protocol;
            self.exchanges.remove(&key);
            let held = Held::new(lease, protocol, now);
            if let Some(before) = self.held.insert(key, held) {
                // The server has given another address.
                let mut gone = before.lease.addresses;
                gone.retain(|one| !self.held[&key].lease.addresses.contains(one));
                remove_lease(netlink, link, &gone);
            }
        }
        Ok(())
    }

    fn is_configured(
        &mut self,
        netlink: &mut Netlink,
        plan: &Plan,
        one: &Candidate,
    ) -> Result<bool> {
        let index = one.link.index;
        let mut fixed = true;
        for address in &one.settings.addresses {
            fixed &= apply_fixed(netlink, one.link.index, &one.settings, *address)?;
        }
        let is_used = |held: &Held| held.confirmed && !held.lease.addresses.is_empty();
        let of_link = self.held.range((index, false)..=(index, true));
        let leased = of_link.into_iter().any(|(_, held)| is_used(held));
        let is_fixed = |found: &IpAddr| one.settings.addresses.iter().any(|own| own.0 == *found);
        let automatic = one.settings.method.hears_routers() && {
            let found = netlink.addresses(index, true)?;
            found.iter().any(|(address, _)| !is_fixed(address))
        };
        let lacks = one.settings.method != Method::Off && !leased && !automatic;
        if !fixed || (lacks && self.waits_beside_fixed(one)) {
            return Ok(false);
        }
        Ok(!self.waits_for_resolver(plan, index))
    }

    /// Whether an interface without a lease or an advertised address waits for one. Not for long where it has a fixed one.
    fn waits_beside_fixed(&mut self, one: &Candidate) -> bool {
        let Link { index, name, .. } = &one.link;
        if one.settings.addresses.is_empty() || self.waits_for(*index, More::Address) {
            return true;
        }
        let seconds = PATIENCE.as_secs();
        self.log.warn(Err(anyhow!(
            "{name}: no server and no router after {seconds} s; continuing with the fixed address"
        )));
        false
    }

    /// Whether an interface with an address waits for a name server: it has none, and a DHCPv6 exchange may bring one. Not
    /// for long: there may be no server although routers advertise one. Nor beside a lease of version 4, which has what its
    /// server wants to say: what comes later is used once it is there.
    fn waits_for_resolver(&mut self, plan: &Plan, index: u32) -> bool {
        let known = !plan.resolvers.is_empty()
            || !self.advertised.is_empty()
            || self.held.contains_key(&(index, false))
            || self.leases().any(|lease| !lease.resolvers.is_empty());
        if known || !self.exchanges.contains_key(&(index, true)) {
            return false;
        }
        if self.waits_for(index, More::Resolver) {
            return true;
        }
        tracing::warn!(
            "net: no name server from DHCPv6 after {} s; continuing without one",
            PATIENCE.as_secs()
        );
        false
    }

    /// Whether an interface has not waited for this for long enough.
    fn waits_for(&mut self, index: u32, more: More) -> bool {
        let since = self.waiting.entry((index, more));
        since.or_insert_with(Instant::now).elapsed() < PATIENCE
    }

    /// When something is to be done that no event brings: a message, a renewal, the end of a lease.
    pub(crate) fn due(&self, now: Duration) -> Option<Duration> {
        let messages = self.exchanges.values().map(Exchange::due);
        let held = self.held.values();
        // A renewal that was due before has its exchange, or waits for the link.
        let later = held
            .flat_map(|held| [held.renew, held.ends])
            .filter(|at| *at > now);
        messages.chain(later).min()
    }

    /// Whether an interface still waits for something.
    pub(crate) fn is_open(&self, links: &[Candidate]) -> bool {
        let mut wanting = links.iter().filter(|one| one.settings.wants_address());
        !self.exchanges.is_empty() || wanting.any(|one| !self.is_ready(one.link.index))
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
        if let Some(failure) = self.failed.get(&link.index) {
            return format!("{name}: {failure}");
        }
        let range = (link.index, false)..=(link.index, true);
        let status = self.exchanges.range(range).map(|(_, one)| one.status());
        let mut status: Vec<String> = status.collect();
        if settings.method == Method::Both && !self.exchanges.contains_key(&(link.index, true)) {
            status.extend(link.carrier.then(|| NO_ROUTER.to_owned()));
        }
        match status.is_empty() {
            false => format!("{name}: {}", status.join(", ")),
            true if !link.carrier => format!("{name}: no carrier"),
            true if settings.method == Method::Auto6 => {
                format!("{name}: {NO_ROUTER}")
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
                remove_lease(netlink, &exchange.link, &lease.addresses);
                exchange.decline(now);
                return Ok(false);
            }
        }
    }
    Ok(in_use)
}

/// The addresses of a lease, for the log.
fn list(lease: &Lease) -> String {
    let mut addresses: Vec<String> = lease
        .addresses
        .iter()
        .map(|(one, _)| one.to_string())
        .collect();
    if addresses.is_empty() {
        addresses.push("name servers".to_owned());
    }
    addresses.join(", ")
}
