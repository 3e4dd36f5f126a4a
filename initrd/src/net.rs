//! Network in the initrd: only when a source needs it. As the command line asks for it, else as the machine's config drive
//! does, else IPv4 by DHCP on the first interface that gets a lease.
//!
//! Drivers are loaded, links made and set up, and carrier, leases and addresses waited for, all at once on all
//! interfaces, for as long as it takes, with a line every five seconds that says what each interface waits for. What was set is
//! taken back by [`flush`] before the handoff.

mod asking;
mod dhcp;
mod handover;
mod netlink;
mod progress;
mod shape;
#[cfg(test)]
mod tests;

use std::fs;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::failure::Fault;
use crate::modules::{Modules, Network};
use crate::world::World;
pub(crate) use handover::hand_over;
use image::modules::{BOND, VLAN};
use image::network::Network as Plan;
use netlink::Netlink;
use progress::{Progress, Wanted};
use shape::Shaper;

/// How often a wait says what it waits for.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// How soon a wait sees that it is to stop.
const STOP_EVERY: Duration = Duration::from_millis(500);

/// Fixed addresses do not run out.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// What this boot has set up: until when the lease holds, and the links that were touched.
static STATE: Mutex<Option<State>> = Mutex::new(None);

/// What the machine says of its own network: it counts where the command line says nothing.
static DESCRIBED: Mutex<Option<Plan>> = Mutex::new(None);

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

/// Takes what the machine says of its network for all that comes; `words` are the command line's, which have the word.
pub(crate) fn adopt(words: &Plan, described: &platform::network::Network) {
    if !words.is_default() {
        tracing::info!("net: the command line's words count, not the machine's network data");
        return;
    }
    let mut own = DESCRIBED
        .lock()
        .unwrap_or_else(|broken| broken.into_inner());
    *own = Some(shape::plan(described));
}

/// What counts: the command line's words, else what the machine says, else the default.
fn counting(words: &Plan) -> Plan {
    let own = DESCRIBED
        .lock()
        .unwrap_or_else(|broken| broken.into_inner());
    match own.as_ref().filter(|_| words.is_default()) {
        Some(own) => own.clone(),
        None => words.clone(),
    }
}

/// Brings the network up as the command line asks for it, or the machine where that says nothing, unless it is up. Returns
/// when one interface has an address or, if interfaces are named, each of those; it waits for that for ever.
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
    let plan = &counting(plan);
    state.follow(plan)?;
    if state.until.is_some_and(|until| Instant::now() < until) {
        return Ok(());
    }
    prepare(modules, plan)?;
    let drivers = || {
        modules.load_for_devices(Network::With);
    };
    let ready = wait(world, plan, state, &drivers, stop)?;
    let path = world.in_initrd(image::paths::RESOLV_CONF);
    crate::mount::folder(&world.in_initrd("/etc"), 0o755)?;
    fs::write(&path, resolv_conf(plan, &ready))
        .with_context(|| format!("writing {}", path.display()))?;
    let leases = ready.ready.iter().flat_map(|one| &one.leases);
    let time = leases.map(|lease| lease.time / 2).min().unwrap_or(FOREVER);
    state.until = Some(Instant::now() + time);
    Ok(())
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
    let began = Instant::now();
    let mut progress = Progress::default();
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
        progress.advertised.extend(monitor.drain());
        shaper.shape(world, &mut netlink, plan)?;
        let links = usable(world, &mut netlink, plan)?;
        raise(&mut netlink, &links, state);
        progress.follow(&mut netlink, plan, &links, began.elapsed());
        progress.settle(&mut netlink, plan, &links, began.elapsed());
        if progress.is_enough(plan) {
            return Ok(progress);
        }
        if began.elapsed() >= next_line {
            if !next_line.is_zero() {
                tracing::warn!(
                    "net: waiting for {} s: {}",
                    began.elapsed().as_secs(),
                    progress.said(plan, &links)
                );
            }
            next_line += LINE_EVERY;
        }
        let mut due = next_line;
        for one in progress.asking.values_mut() {
            one.send(began.elapsed())?;
            due = due.min(one.due());
        }
        listen(&monitor, &progress, due.saturating_sub(began.elapsed()))?;
        progress.hear(&mut netlink, began.elapsed());
    }
}

/// Waits for an event of a link or a message, at most as long as `left`.
fn listen(monitor: &Netlink, progress: &Progress, left: Duration) -> Result<()> {
    let left = left.clamp(Duration::from_millis(1), STOP_EVERY);
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
