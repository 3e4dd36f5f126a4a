//! Network in the initrd: only when a source needs it. As the command line asks for it, else as the machine's config drive
//! does, else IPv4 by DHCP on the first interface that gets a lease.
//!
//! Drivers are loaded, links made and set up, and carrier, leases and addresses waited for, all at once on all
//! interfaces, for as long as it takes, with a line every five seconds that says what each interface waits for. What was set is
//! taken back by [`Network::flush`] before the handoff.

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
use crate::progress::{Progress, Wanted};
use crate::shape::{self, Shaper};
use image::fault::Fault;
use image::modules::{BOND, VLAN};
use image::network::Network as Plan;
use linux::modules::{self, Modules};
use linux::waiter::Waiter;
use linux::world::World;

/// How soon a wait sees that it is to stop.
const STOP_EVERY: Duration = Duration::from_millis(500);

/// Fixed addresses do not run out.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The network of one boot: what was asked for, and what is set up of it.
///
/// The words of the kernel command line decide; where they are silent, the machine's own description; where there is none,
/// the default (DHCP and router advertisements on the first interface that answers).
#[derive(Debug)]
pub struct Network {
    world: Arc<World>,
    asked: Mutex<Asked>,
    state: Mutex<State>,
}

/// The two descriptions of the network that a boot may have.
#[derive(Debug, Default)]
struct Asked {
    words: Plan,
    described: Option<Plan>,
}

/// What was set up: until when the lease holds, and the links that were touched.
#[derive(Debug, Default)]
struct State {
    until: Option<Instant>,
    links: Vec<u32>,
    plan: Plan,
}

impl State {
    /// Takes back what another plan has set up.
    fn follow(&mut self, plan: &Plan) -> Result<()> {
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
    /// A network that nothing was asked of yet: the default one.
    #[must_use]
    pub fn new(world: Arc<World>) -> Self {
        Self {
            world,
            asked: Mutex::default(),
            state: Mutex::default(),
        }
    }

    /// Takes the words of the kernel command line.
    pub fn ask(&self, words: &Plan) {
        lock(&self.asked).words = words.clone();
    }

    /// Takes the machine's own description, unless the command line has words of the network.
    pub fn describe(&self, described: Plan) {
        let mut asked = lock(&self.asked);
        if asked.words.is_default() {
            asked.described = Some(described);
        } else {
            tracing::info!("net: ignoring platform network data: ip= is set on the command line");
        }
    }

    /// What decides: the command line's words, else the machine's description, else the default.
    #[must_use]
    pub fn plan(&self) -> Plan {
        let asked = lock(&self.asked);
        let described = asked.described.clone();
        described.unwrap_or_else(|| asked.words.clone())
    }

    /// Brings the network up unless it is up. Returns when one interface has an address or, if interfaces are named, each
    /// of those; waits for that for ever.
    ///
    /// # Errors
    /// Only what waiting cannot mend: no netlink, no sockets, a method that is not available.
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
        state.follow(plan)?;
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

    /// Writes what was asked for as files of systemd-networkd, so that the running node has the same network.
    ///
    /// # Errors
    /// Names the file that cannot be written.
    pub fn hand_over(&self) -> Result<()> {
        handover::hand_over(&self.world, &self.plan())
    }

    /// Takes back what [`Network::up`] did: addresses go, links are set down. Without an earlier `up` nothing happens.
    ///
    /// # Errors
    /// Names the link.
    pub fn flush(&self) -> Result<()> {
        flush_links(&std::mem::take(&mut *lock(&self.state)))
    }
}

/// A thread that panicked while it held the lock has ended the boot already; its data is only read for the report.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Loads what no device asks for.
fn prepare(modules: &Modules, plan: &Plan) -> Result<()> {
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

/// Configures interfaces until those that are asked for have their addresses.
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
            bail!("nobody wants the network any more");
        }
        waiter.examined();
        progress.advertised.extend(monitor.drain());
        shaper.shape(world, &mut netlink, plan)?;
        let links = usable(world, &mut netlink, plan)?;
        raise(&mut netlink, &links, state);
        progress.follow(&mut netlink, plan, &links, waiter.elapsed());
        progress.settle(&mut netlink, plan, &links, waiter.elapsed());
        if progress.is_enough(plan) {
            return Ok(progress);
        }
        if let Some(waited) = waiter.line() {
            tracing::warn!("net: waiting ({waited}): {}", progress.said(plan, &links));
            // A device that the bus finds late has its driver loaded late.
            drivers();
        }
        let mut pause = waiter.pause(STOP_EVERY);
        for one in progress.asking.values_mut() {
            one.send(waiter.elapsed())?;
            pause = pause.min(one.due().saturating_sub(waiter.elapsed()));
        }
        listen(&monitor, &progress, pause)?;
        progress.hear(&mut netlink, waiter.elapsed());
    }
}

/// Waits for an event of a link or a message, at most as long as `left`.
fn listen(monitor: &Netlink, progress: &Progress, left: Duration) -> Result<()> {
    let left = left.max(Duration::from_millis(1));
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::from(1000_u16));
    let mut fds = vec![PollFd::new(monitor.as_fd(), PollFlags::POLLIN)];
    let sockets = progress.asking.values();
    fds.extend(sockets.map(|one| PollFd::new(one.as_fd(), PollFlags::POLLIN)));
    match poll(&mut fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error).context("waiting for the network"),
    }
}

fn usable(world: &World, netlink: &mut Netlink, plan: &Plan) -> Result<Vec<Wanted>> {
    let mut links = netlink.links()?;
    links.retain(|link| link.ethernet && link.mac.len() == 6);
    let wanted = links.into_iter().map(|link| {
        let names = shape::answers(world, plan, &link);
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
        if let Some(mtu) = asked.mtu
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
