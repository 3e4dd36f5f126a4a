//! Network in the initrd: only when a source needs it; IPv4 by DHCP on the first interface that gets a lease.
//!
//! Drivers are loaded, links set up, and carrier and leases waited for, all at once on all interfaces, for as
//! long as it takes, with a line every five seconds that says what each interface waits for. What was set is
//! taken back by [`flush`] before the handoff.

mod dhcp;
mod netlink;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket, sockopt,
};

use crate::modules::{Modules, Network};
use crate::world::World;
use dhcp::{Client, Lease};
use netlink::{Link, Netlink};

/// How often a wait says what it waits for.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// What this boot has set up: until when the lease holds, and the links that were touched.
static STATE: Mutex<Option<State>> = Mutex::new(None);

#[derive(Debug, Default)]
struct State {
    until: Option<Instant>,
    links: Vec<u32>,
}

/// Brings the network up, unless it is. Returns when an interface has a lease; it waits for that for ever.
///
/// # Errors
/// Only what waiting cannot mend: no netlink, no sockets.
pub(crate) fn up(world: &World, modules: &Modules) -> Result<()> {
    let mut state = STATE.lock().unwrap_or_else(|broken| broken.into_inner());
    let state = state.get_or_insert_default();
    if state.until.is_some_and(|until| Instant::now() < until) {
        return Ok(());
    }
    let drivers = || {
        modules.load_for_devices(Network::With);
    };
    let (link, lease) = wait(world, state, &drivers)?;
    let mut netlink = Netlink::open()?;
    configure(&mut netlink, &link, &lease)?;
    let path = world.in_initrd("/etc/resolv.conf");
    crate::mount::folder(&world.in_initrd("/etc"), 0o755)?;
    fs::write(&path, dhcp::resolv_conf(&lease))
        .with_context(|| format!("writing {}", path.display()))?;
    state.until = Some(Instant::now() + lease.time / 2);
    tracing::info!(
        "net: {}: {}/{} from {}, name servers {:?}",
        link.name,
        lease.address,
        lease.prefix,
        lease.server,
        lease.resolvers
    );
    Ok(())
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

/// Waits until one interface has a lease.
fn wait(world: &World, state: &mut State, drivers: &dyn Fn()) -> Result<(Link, Lease)> {
    let mut netlink = Netlink::open()?;
    let monitor = Netlink::monitor()?;
    let began = Instant::now();
    let mut asking: BTreeMap<u32, Asking> = BTreeMap::new();
    let mut next_line = Duration::ZERO;
    loop {
        if began.elapsed() >= next_line {
            world.watchdog.feed();
            // A driver may find its device late.
            drivers();
        }
        monitor.drain();
        let links = usable(&mut netlink)?;
        raise(&mut netlink, &links, state);
        follow(&links, &mut asking);
        if began.elapsed() >= next_line {
            if !next_line.is_zero() {
                tracing::warn!(
                    "net: waiting for {} s: {}",
                    began.elapsed().as_secs(),
                    said(&links, &asking)
                );
            }
            next_line += LINE_EVERY;
        }
        let mut due = next_line;
        for one in asking.values_mut() {
            one.send(began.elapsed())?;
            due = due.min(one.client.due());
        }
        let left = due
            .saturating_sub(began.elapsed())
            .max(Duration::from_millis(1));
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::from(1000_u16));
        let mut fds = vec![PollFd::new(monitor.as_fd(), PollFlags::POLLIN)];
        fds.extend(
            asking
                .values()
                .map(|one| PollFd::new(one.socket.as_fd(), PollFlags::POLLIN)),
        );
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("waiting for the network"),
        }
        for one in asking.values_mut() {
            if let Some(lease) = one.receive(began.elapsed()) {
                return Ok((one.link.clone(), lease));
            }
        }
    }
}

fn usable(netlink: &mut Netlink) -> Result<Vec<Link>> {
    let mut links = netlink.links()?;
    links.retain(|link| link.ethernet && link.mac.len() == 6);
    Ok(links)
}

fn raise(netlink: &mut Netlink, links: &[Link], state: &mut State) {
    for link in links.iter().filter(|link| !link.up) {
        match netlink.set_up(link.index, true) {
            Ok(()) => tracing::info!("net: {}: set up", link.name),
            Err(error) => tracing::warn!("net: {}: {error:#}", link.name),
        }
        if !state.links.contains(&link.index) {
            state.links.push(link.index);
        }
    }
}

/// An interface asks as long as it has a carrier.
fn follow(links: &[Link], asking: &mut BTreeMap<u32, Asking>) {
    asking.retain(|index, _| {
        links
            .iter()
            .any(|link| link.index == *index && link.carrier)
    });
    for link in links.iter().filter(|link| link.carrier) {
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

fn said(links: &[Link], asking: &BTreeMap<u32, Asking>) -> String {
    if links.is_empty() {
        return "no network interface".to_owned();
    }
    let one = |link: &Link| match asking.get(&link.index) {
        Some(asking) => format!("{}: {}", link.name, asking.client.doing()),
        None => format!("{}: no carrier", link.name),
    };
    links.iter().map(one).collect::<Vec<_>>().join("; ")
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
    netlink
        .add_address(link.index, lease.address, lease.prefix)
        .with_context(|| format!("{name}: adding {}/{}", lease.address, lease.prefix))?;
    let network = |address: Ipv4Addr| {
        u32::from(address)
            .checked_shr(32 - u32::from(lease.prefix))
            .unwrap_or(0)
    };
    for route in &lease.routes {
        let on_link = network(route.gateway) != network(lease.address);
        netlink
            .add_route(link.index, *route, on_link)
            .with_context(|| format!("{name}: routing {}/{}", route.network, route.prefix))?;
    }
    Ok(())
}
