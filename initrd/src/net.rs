//! Network in the initrd: only when a source needs it. As the command line asks for it, else IPv4 by DHCP on the first
//! interface that gets a lease.
//!
//! Drivers are loaded, links made and set up, and carrier, leases and addresses waited for, all at once on all
//! interfaces, for as long as it takes, with a line every five seconds that says what each interface waits for. What was set is
//! taken back by [`flush`] before the handoff.

mod dhcp;
mod handover;
mod netlink;
mod shape;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket, sockopt,
};

use crate::failure::Fault;
use crate::modules::{Modules, Network};
use crate::world::World;
use dhcp::{Client, Lease};
pub(crate) use handover::hand_over;
use image::modules::{BOND, VLAN};
use image::network::{Interface, Method, Network as Plan};
use netlink::{Link, Netlink, Route};
use shape::Shaper;

/// How often a wait says what it waits for.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// How soon a wait sees that it is to stop.
const STOP_EVERY: Duration = Duration::from_millis(500);

/// Fixed addresses do not run out.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// What this boot has set up: until when the lease holds, and the links that were touched.
static STATE: Mutex<Option<State>> = Mutex::new(None);

#[derive(Debug, Default)]
struct State {
    until: Option<Instant>,
    links: Vec<u32>,
}

/// Brings the network up as the command line asks for it, unless it is up. Returns when one interface has an address or,
/// if interfaces are named, each of those; it waits for that for ever.
///
/// # Errors
/// Only what waiting cannot mend: no netlink, no sockets, a method that is not to be had.
pub(crate) fn up(world: &World, modules: &Modules, plan: &Plan) -> Result<()> {
    up_unless(world, modules, plan, &AtomicBool::new(false))
}

/// The same, until nobody wants it any more.
///
/// # Errors
/// As [`up`], and when it was told to stop.
pub(crate) fn up_unless(
    world: &World,
    modules: &Modules,
    plan: &Plan,
    stop: &AtomicBool,
) -> Result<()> {
    let mut state = STATE.lock().unwrap_or_else(|broken| broken.into_inner());
    let state = state.get_or_insert_default();
    if state.until.is_some_and(|until| Instant::now() < until) {
        return Ok(());
    }
    prepare(modules, plan)?;
    let drivers = || {
        modules.load_for_devices(Network::With);
    };
    let ready = wait(world, plan, state, &drivers, stop)?;
    let path = world.in_initrd("/etc/resolv.conf");
    crate::mount::folder(&world.in_initrd("/etc"), 0o755)?;
    fs::write(&path, resolv_conf(plan, &ready))
        .with_context(|| format!("writing {}", path.display()))?;
    let leases = ready.iter().filter_map(|one| one.lease.as_ref());
    let time = leases.map(|lease| lease.time / 2).min().unwrap_or(FOREVER);
    state.until = Some(Instant::now() + time);
    Ok(())
}

/// What is not there for any interface.
fn prepare(modules: &Modules, plan: &Plan) -> Result<()> {
    if plan
        .interfaces
        .iter()
        .any(|one| one.method == Method::Dhcp6)
    {
        return Err(Fault::new("the command line asks for DHCP version 6")
            .expected("ip=… with dhcp, auto6, either6 or off")
            .found("dhcp6, which this init does not speak")
            .fix("use auto6 where routers advertise a prefix, or a fixed address")
            .into());
    }
    for (module, wanted) in [
        (VLAN, !plan.vlans.is_empty()),
        (BOND, !plan.bonds.is_empty()),
    ] {
        if wanted {
            modules.load(&[module]).context(
                Fault::new(format!("the kernel module {module} does not load")).fix(format!(
                    "add {module:?} to `modules` in the recipe's [kernel]"
                )),
            )?;
        }
    }
    Ok(())
}

/// resolv.conf(5) for the C library's resolver: a dead server costs one second, not five.
fn resolv_conf(plan: &Plan, ready: &[Ready]) -> String {
    let mut servers = plan.resolvers.clone();
    let mut search: Vec<&str> = Vec::new();
    for one in ready {
        servers.extend(&one.resolvers);
        if let Some(lease) = &one.lease {
            servers.extend(lease.resolvers.iter().map(|server| IpAddr::V4(*server)));
            search.extend(lease.search.iter().map(String::as_str));
        }
    }
    let mut out = String::new();
    for server in servers.iter().take(3) {
        out.push_str(&format!("nameserver {server}\n"));
    }
    if !search.is_empty() {
        out.push_str(&format!("search {}\n", search.join(" ")));
    }
    out.push_str("options timeout:1 attempts:2\n");
    out
}

/// Takes back what [`up`] did: addresses go, links are set down. Without an earlier `up` nothing happens.
///
/// # Errors
/// Names the link.
pub(crate) fn flush() -> Result<()> {
    let mut state = STATE.lock().unwrap_or_else(|broken| broken.into_inner());
    match state.take() {
        Some(state) => flush_links(&state),
        None => Ok(()),
    }
}

fn flush_links(state: &State) -> Result<()> {
    let mut netlink = Netlink::open()?;
    for link in netlink.links()? {
        if state.links.contains(&link.index) {
            let name = &link.name;
            netlink
                .flush_addresses(link.index)
                .and_then(|()| netlink.set_up(link.index, false))
                .with_context(|| format!("taking the link {name} down"))?;
        }
    }
    Ok(())
}

/// An interface that has a carrier.
struct Asking {
    link: Link,
    client: Client,
    socket: UdpSocket,
}

/// An interface that has its address.
struct Ready {
    /// What the command line calls it, else the kernel.
    name: String,
    index: u32,
    lease: Option<Lease>,
    /// Name servers that routers advertised.
    resolvers: Vec<IpAddr>,
}

/// Configures interfaces until those that are asked for have their addresses.
fn wait(
    world: &World,
    plan: &Plan,
    state: &mut State,
    drivers: &dyn Fn(),
    stop: &AtomicBool,
) -> Result<Vec<Ready>> {
    let mut netlink = Netlink::open()?;
    let monitor = Netlink::monitor()?;
    let mut shaper = Shaper::default();
    let began = Instant::now();
    let mut asking: BTreeMap<u32, Asking> = BTreeMap::new();
    let mut ready: Vec<Ready> = Vec::new();
    let mut advertised: Vec<IpAddr> = Vec::new();
    let mut next_line = Duration::ZERO;
    loop {
        if stop.load(Ordering::Relaxed) {
            bail!("nobody wants the network any more");
        }
        if began.elapsed() >= next_line {
            world.watchdog.feed();
            // A driver may find its device late.
            drivers();
        }
        advertised.extend(monitor.drain());
        shaper.shape(world, &mut netlink, plan)?;
        let links = usable(world, &mut netlink, plan)?;
        raise(&mut netlink, &links, state);
        follow(&links, &ready, &mut asking);
        settle(&mut netlink, plan, &links, &mut ready);
        if is_enough(plan, &ready) {
            if let Some(one) = ready.first_mut() {
                one.resolvers = advertised;
            }
            return Ok(ready);
        }
        if began.elapsed() >= next_line {
            if !next_line.is_zero() {
                tracing::warn!(
                    "net: waiting for {} s: {}",
                    began.elapsed().as_secs(),
                    said(plan, &links, &asking, &ready)
                );
            }
            next_line += LINE_EVERY;
        }
        let mut due = next_line;
        for one in asking.values_mut() {
            one.send(began.elapsed())?;
            due = due.min(one.client.due());
        }
        listen(&monitor, &asking, due.saturating_sub(began.elapsed()))?;
        for (index, one) in &mut asking {
            if let Some(lease) = one.receive(began.elapsed()) {
                configure(&mut netlink, &one.link, &lease)?;
                let link = links.iter().find(|link| link.link.index == *index);
                ready.push(Ready {
                    name: link.map_or_else(|| one.link.name.clone(), Wanted::name),
                    index: *index,
                    lease: Some(lease),
                    resolvers: Vec::new(),
                });
            }
        }
        asking.retain(|index, _| ready.iter().all(|one| one.index != *index));
    }
}

/// Waits for an event of a link or a message, at most as long as `left`.
fn listen(monitor: &Netlink, asking: &BTreeMap<u32, Asking>, left: Duration) -> Result<()> {
    let left = left.clamp(Duration::from_millis(1), STOP_EVERY);
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::from(1000_u16));
    let mut fds = vec![PollFd::new(monitor.as_fd(), PollFlags::POLLIN)];
    fds.extend(
        asking
            .values()
            .map(|one| PollFd::new(one.socket.as_fd(), PollFlags::POLLIN)),
    );
    match poll(&mut fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error).context("waiting for the network"),
    }
}

/// Whether every named interface has its address, or any if none is named.
fn is_enough(plan: &Plan, ready: &[Ready]) -> bool {
    let mut named = plan
        .interfaces
        .iter()
        .filter(|one| one.wants_address())
        .filter_map(|one| one.name.as_ref())
        .peekable();
    if named.peek().is_none() {
        return !ready.is_empty();
    }
    named.all(|name| ready.iter().any(|one| one.name == *name))
}

/// A link with what the command line asks of it.
struct Wanted {
    link: Link,
    asked: Interface,
    below: bool,
}

impl Wanted {
    fn name(&self) -> String {
        let asked = self.asked.name.clone();
        asked.unwrap_or_else(|| self.link.name.clone())
    }
}

fn usable(world: &World, netlink: &mut Netlink, plan: &Plan) -> Result<Vec<Wanted>> {
    let mut links = netlink.links()?;
    links.retain(|link| link.ethernet && link.mac.len() == 6);
    let wanted = links.into_iter().map(|link| {
        let names = shape::names(world, &link);
        Wanted {
            asked: plan.interface(&names),
            below: plan.is_below(&names),
            link,
        }
    });
    Ok(wanted
        .filter(|one| one.asked.wants_address() || one.below)
        .collect())
}

fn raise(netlink: &mut Netlink, links: &[Wanted], state: &mut State) {
    for Wanted { link, asked, .. } in links.iter().filter(|one| !one.link.up) {
        if let Some(mac) = asked.mac
            && let Err(error) = netlink.set_mac(link.index, &mac.0)
        {
            tracing::warn!("net: {}: address {mac}: {error:#}", link.name);
        }
        match netlink.set_up(link.index, true) {
            Ok(()) => tracing::info!("net: {}: set up", link.name),
            Err(error) => tracing::warn!("net: {}: {error:#}", link.name),
        }
        if !state.links.contains(&link.index) {
            state.links.push(link.index);
        }
    }
}

/// An interface asks by DHCP as long as it has a carrier and no address.
fn follow(links: &[Wanted], ready: &[Ready], asking: &mut BTreeMap<u32, Asking>) {
    let asks = |one: &&Wanted| {
        one.link.carrier
            && matches!(one.asked.method, Method::Dhcp4 | Method::Either)
            && ready.iter().all(|ready| ready.index != one.link.index)
    };
    asking.retain(|index, _| {
        links
            .iter()
            .filter(asks)
            .any(|one| one.link.index == *index)
    });
    for Wanted { link, .. } in links.iter().filter(asks) {
        if asking.contains_key(&link.index) {
            continue;
        }
        tracing::info!("net: {}: has a carrier", link.name);
        match Asking::new(link) {
            Ok(one) => {
                asking.insert(link.index, one);
            }
            Err(error) => tracing::warn!("net: {}: {error:#}", link.name),
        }
    }
}

/// Gives fixed addresses, and sees which ones the routers' advertisements gave.
fn settle(netlink: &mut Netlink, plan: &Plan, links: &[Wanted], ready: &mut Vec<Ready>) {
    for one in links.iter().filter(|one| one.link.carrier) {
        let link = &one.link;
        if ready.iter().any(|ready| ready.index == link.index) {
            continue;
        }
        let done = match one.asked.address {
            Some(fixed) => fix(netlink, plan, one, fixed),
            None if matches!(one.asked.method, Method::Auto6 | Method::Either) => netlink
                .addresses(link.index, true)
                .map(|found| !found.is_empty()),
            None => Ok(false),
        };
        match done {
            Ok(true) => {
                tracing::info!("net: {}: has its address", link.name);
                ready.push(Ready {
                    name: one.name(),
                    index: link.index,
                    lease: None,
                    resolvers: Vec::new(),
                });
            }
            Ok(false) => {}
            Err(error) => tracing::warn!("net: {}: {error:#}", link.name),
        }
    }
}

/// Gives a link its fixed address and routes. An address of version 6 is only used once nobody else claims it: false
/// until then.
fn fix(
    netlink: &mut Netlink,
    plan: &Plan,
    one: &Wanted,
    (address, prefix): (IpAddr, u8),
) -> Result<bool> {
    let index = one.link.index;
    if let Some(mtu) = one.asked.mtu {
        netlink
            .set_mtu(index, mtu)
            .with_context(|| format!("MTU {mtu}"))?;
    }
    let peer = one.asked.peer.unwrap_or(address);
    netlink
        .add_peer(index, address, prefix, peer)
        .with_context(|| format!("adding {address}/{prefix}"))?;
    if address.is_ipv6()
        && !netlink
            .addresses(index, true)?
            .iter()
            .any(|(found, _)| *found == address)
    {
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

fn said(plan: &Plan, links: &[Wanted], asking: &BTreeMap<u32, Asking>, ready: &[Ready]) -> String {
    let one = |wanted: &Wanted| {
        let Wanted { link, asked, .. } = wanted;
        if ready.iter().any(|ready| ready.index == link.index) {
            return format!("{}: has its address", link.name);
        }
        match asking.get(&link.index) {
            Some(asking) => format!("{}: {}", link.name, asking.client.doing()),
            None if !link.carrier => format!("{}: no carrier", link.name),
            None if asked.method == Method::Auto6 => {
                format!("{}: no router has advertised a prefix", link.name)
            }
            None => format!("{}: its address is not in use yet", link.name),
        }
    };
    let mut out: Vec<String> = links
        .iter()
        .filter(|wanted| wanted.asked.wants_address())
        .map(one)
        .collect();
    let absent = plan.interfaces.iter().filter_map(|asked| {
        let name = asked.name.as_ref()?;
        let there = links.iter().any(|wanted| wanted.name() == *name);
        (!there).then(|| format!("{name}: no such interface"))
    });
    out.extend(absent);
    if out.is_empty() {
        return "no network interface".to_owned();
    }
    out.join("; ")
}

impl Asking {
    fn new(link: &Link) -> Result<Self> {
        let fd = socket(
            AddressFamily::Inet,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            None,
        )?;
        setsockopt(&fd, sockopt::ReuseAddr, &true)?;
        setsockopt(&fd, sockopt::Broadcast, &true)?;
        setsockopt(&fd, sockopt::BindToDevice, &OsString::from(&link.name))
            .with_context(|| format!("binding a socket to {}", link.name))?;
        bind(fd.as_raw_fd(), &SockaddrIn::new(0, 0, 0, 0, 68))
            .context("binding the DHCP client's port")?;
        let random = RandomState::new().build_hasher().finish();
        let xid = u32::try_from(random & u64::from(u32::MAX))?;
        Ok(Self {
            link: link.clone(),
            client: Client::new(&link.mac, xid),
            socket: fd.into(),
        })
    }

    fn send(&mut self, now: Duration) -> Result<()> {
        if let Some(message) = self.client.send(now)? {
            // A link that goes down under us is seen by its carrier.
            if let Err(error) = self.socket.send_to(&message, (Ipv4Addr::BROADCAST, 67)) {
                tracing::debug!("net: {}: sending: {error}", self.link.name);
            }
        }
        Ok(())
    }

    fn receive(&mut self, now: Duration) -> Option<Lease> {
        let mut buffer = [0; 4096];
        while let Ok((len, _)) = self.socket.recv_from(&mut buffer) {
            if let Some(lease) = self.client.receive(&buffer[..len], now) {
                return Some(lease);
            }
        }
        None
    }
}

fn configure(netlink: &mut Netlink, link: &Link, lease: &Lease) -> Result<()> {
    let name = &link.name;
    if let Some(mtu) = lease.mtu
        && let Err(error) = netlink.set_mtu(link.index, mtu.into())
    {
        tracing::warn!("net: {name}: MTU {mtu}: {error:#}");
    }
    let address = IpAddr::V4(lease.address);
    netlink
        .add_address(link.index, address, lease.prefix)
        .with_context(|| format!("{name}: adding {}/{}", lease.address, lease.prefix))?;
    for route in &lease.routes {
        let on_link = !same_network(address, lease.prefix, route.gateway);
        netlink
            .add_route(link.index, *route, on_link)
            .with_context(|| format!("{name}: routing {}/{}", route.network, route.prefix))?;
    }
    Ok(())
}
