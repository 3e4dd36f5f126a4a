//! The network of one boot, brought up only when a source needs it: as the kernel command line describes it, else the
//! platform's network data, else the default (DHCP and router advertisements on the first interface that gets an address).
//!
//! All interfaces are configured at the same time and without a deadline; every five seconds a line names what each of them
//! waits for. [`Network::flush`] undoes it before the handoff.

#[cfg(test)]
mod tests;

use std::fs;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::handover;
use crate::netlink::Netlink;
use crate::progress::{Candidate, Progress};
use crate::shape::{self, Shaper};
use image::fault::Fault;
use image::modules::{BOND, VLAN};
use image::network::Network as Plan;
use linux::modules::{self, Modules};
use linux::waiter::Waiter;
use linux::world::World;

/// How often the wait examines its stop flag.
const STOP_EVERY: Duration = Duration::from_millis(500);

/// Validity of a network without a lease.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The network of one boot: the requested configuration, and the part of it that is set up.
#[derive(Debug)]
pub struct Network {
    world: Arc<World>,
    requested: Mutex<Requested>,
    state: Mutex<State>,
}

/// The requested configuration, by source.
#[derive(Debug, Default)]
struct Requested {
    cmdline: Plan,
    platform: Option<Plan>,
}

/// The state of the links: the plan that they were set up by, the time until which the leases are valid, and their
/// indices.
#[derive(Debug, Default)]
struct State {
    until: Option<Instant>,
    links: Vec<u32>,
    plan: Plan,
}

impl State {
    /// Flushes the links that another plan set up.
    fn adopt(&mut self, plan: &Plan) -> Result<()> {
        if self.plan != *plan {
            flush_links(self)?;
            *self = Self {
                plan: plan.clone(),
                ..Self::default()
            };
        }
        Ok(())
    }
}

impl Network {
    /// A network with the default configuration.
    #[must_use]
    pub fn new(world: Arc<World>) -> Self {
        Self {
            world,
            requested: Mutex::default(),
            state: Mutex::default(),
        }
    }

    /// Sets the configuration of the kernel command line, which wins over the platform's.
    pub fn set_cmdline(&self, cmdline: &Plan) {
        lock(&self.requested).cmdline = cmdline.clone();
    }

    /// Sets the platform's network data, unless the command line configures the network.
    pub fn set_platform_data(&self, platform: Plan) {
        let mut requested = lock(&self.requested);
        if requested.cmdline.is_default() {
            requested.platform = Some(platform);
        } else {
            tracing::info!("net: ignoring platform network data: ip= is set on the command line");
        }
    }

    /// The configuration in force: the command line's, else the platform's, else the default.
    #[must_use]
    pub fn plan(&self) -> Plan {
        let requested = lock(&self.requested);
        let platform = requested.platform.clone();
        platform.unwrap_or_else(|| requested.cmdline.clone())
    }

    /// Brings the network up unless it is up. Returns when one interface is configured or, if the plan names
    /// interfaces, all of those; waits for that without a deadline.
    ///
    /// # Errors
    /// A failure that waiting does not cure: no netlink, no socket, a kernel module that does not load.
    pub fn up(&self, modules: &Modules) -> Result<()> {
        self.up_unless(modules, &AtomicBool::new(false))
    }

    /// As [`Network::up`], until `stop` is set.
    ///
    /// # Errors
    /// As [`Network::up`], and when `stop` is set.
    pub fn up_unless(&self, modules: &Modules, stop: &AtomicBool) -> Result<()> {
        let mut state = lock(&self.state);
        let plan = &self.plan();
        state.adopt(plan)?;
        if state.until.is_some_and(|until| Instant::now() < until) {
            return Ok(());
        }
        prepare(modules, plan)?;
        let drivers = || {
            modules.load_for_devices(modules::Network::With);
        };
        let ready = wait(&self.world, plan, &mut state, &drivers, stop)?;
        let path = self.world.in_initrd(image::paths::RESOLV_CONF);
        linux::mount::folder(&self.world.in_initrd("/etc"), 0o755)?;
        fs::write(&path, resolv_conf(plan, &ready))
            .with_context(|| format!("writing {}", path.display()))?;
        let leases = ready.ready.iter().flat_map(|one| &one.leases);
        let time = leases.map(|lease| lease.time / 2).min().unwrap_or(FOREVER);
        state.until = Some(Instant::now() + time);
        Ok(())
    }

    /// Writes the configuration as files of systemd-networkd, so that the running node has the same network.
    ///
    /// # Errors
    /// Names the file that cannot be written.
    pub fn hand_over(&self) -> Result<()> {
        handover::hand_over(&self.world, &self.plan())
    }

    /// Undoes [`Network::up`]: removes the addresses and sets the links down. Does nothing without an earlier `up`.
    ///
    /// # Errors
    /// Names the link.
    pub fn flush(&self) -> Result<()> {
        flush_links(&std::mem::take(&mut *lock(&self.state)))
    }
}

/// Locks despite poisoning: a thread that panicked with the lock has ended the boot already, and its data is only read for
/// the report.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Loads the modules of virtual links: no device has an alias for them.
fn prepare(modules: &Modules, plan: &Plan) -> Result<()> {
    for (module, candidate) in [
        (VLAN, !plan.vlans.is_empty()),
        (BOND, !plan.bonds.is_empty()),
    ] {
        if candidate {
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
fn resolv_conf(plan: &Plan, progress: &Progress) -> String {
    let mut servers = [plan.resolvers.as_slice(), &progress.advertised].concat();
    let mut search: Vec<&str> = Vec::new();
    for lease in progress.ready.iter().flat_map(|one| &one.leases) {
        servers.extend(&lease.resolvers);
        search.extend(lease.search.iter().map(String::as_str));
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

/// Removes the addresses of the links that were set up, and sets them down.
fn flush_links(state: &State) -> Result<()> {
    if state.links.is_empty() {
        return Ok(());
    }
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

/// Configures interfaces until those of the plan are ready.
fn wait(
    world: &World,
    plan: &Plan,
    state: &mut State,
    drivers: &dyn Fn(),
    stop: &AtomicBool,
) -> Result<Progress> {
    let mut netlink = Netlink::open()?;
    let monitor = Netlink::monitor()?;
    let mut shaper = Shaper::default();
    let mut waiter = Waiter::for_ever(world);
    let mut progress = Progress::default();
    drivers();
    loop {
        if stop.load(Ordering::Relaxed) {
            bail!("the network is not needed any more");
        }
        waiter.examined();
        progress.advertised.extend(monitor.drain());
        shaper.shape(world, &mut netlink, plan)?;
        let links = candidates(world, &mut netlink, plan)?;
        set_links_up(&mut netlink, &links, state);
        progress.start_exchanges(&mut netlink, plan, &links, waiter.elapsed());
        progress.update_ready(&mut netlink, plan, &links, waiter.elapsed());
        if progress.is_enough(plan) {
            return Ok(progress);
        }
        if let Some(waited) = waiter.line() {
            tracing::warn!("net: waiting ({waited}): {}", progress.status(plan, &links));
            // If the bus finds a device late, its driver is loaded late.
            drivers();
        }
        let mut pause = waiter.pause(STOP_EVERY);
        for one in progress.exchanges.values_mut() {
            one.send(waiter.elapsed())?;
            pause = pause.min(one.due().saturating_sub(waiter.elapsed()));
        }
        poll_sockets(&monitor, &progress, pause)?;
        progress.receive(&mut netlink, waiter.elapsed());
    }
}

/// Waits for an event of a link or a message of a server, at most as long as `left`.
fn poll_sockets(monitor: &Netlink, progress: &Progress, left: Duration) -> Result<()> {
    let left = left.max(Duration::from_millis(1));
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::from(1000_u16));
    let mut fds = vec![PollFd::new(monitor.as_fd(), PollFlags::POLLIN)];
    let sockets = progress.exchanges.values();
    fds.extend(sockets.map(|one| PollFd::new(one.as_fd(), PollFlags::POLLIN)));
    match poll(&mut fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error).context("waiting for the network"),
    }
}

/// The links that the plan configures.
fn candidates(world: &World, netlink: &mut Netlink, plan: &Plan) -> Result<Vec<Candidate>> {
    let mut links = netlink.links()?;
    links.retain(|link| link.ethernet && link.mac.len() == 6);
    let candidate = links.into_iter().map(|link| {
        let names = shape::names(world, plan, &link);
        Candidate {
            settings: plan.interface(&names),
            below: plan.is_below(&names),
            link,
        }
    });
    Ok(candidate
        .filter(|one| one.settings.wants_address() || one.below)
        .collect())
}

/// Sets the links up that are down. An Ethernet address or MTU that the device does not support is best effort.
fn set_links_up(netlink: &mut Netlink, links: &[Candidate], state: &mut State) {
    for Candidate { link, settings, .. } in links.iter().filter(|one| !one.link.up) {
        if let Some(mac) = settings.mac
            && let Err(error) = netlink.set_mac(link.index, &mac.0)
        {
            tracing::warn!("net: {}: address {mac}: {error:#}", link.name);
        }
        if let Some(mtu) = settings.mtu
            && let Err(error) = netlink.set_mtu(link.index, mtu)
        {
            tracing::warn!("net: {}: MTU {mtu}: {error:#}", link.name);
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
