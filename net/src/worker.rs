//! Worker: configures the interfaces of a plan, and keeps them so until it is ended. Others come up after the first one is
//! ready, leases are renewed, and a link whose carrier comes back is asked for anew.

use std::fs;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use image::network::Network as Plan;
use linux::mount;
use linux::world::World;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::link::Link;
use crate::log_once::LogOnce;
use crate::netlink::Netlink;
use crate::progress::{Candidate, Progress, Ready};
use crate::shape::{self, Shaper};

/// How often the links are examined while one of them still waits, and else: events come in between.
const WHILE_OPEN: Duration = Duration::from_millis(500);
const ELSE: Duration = Duration::from_secs(5);
/// How long the name servers of one link are asked first while no source has answered.
const TURN: Duration = Duration::from_secs(10);
/// Name servers that the C library's resolver asks (`MAXNS`).
const RESOLVERS: usize = 3;

/// The configuration of the interfaces, with its sockets.
#[derive(Debug)]
pub(crate) struct Worker {
    world: Arc<World>,
    plan: Plan,
    netlink: Netlink,
    monitor: Netlink,
    shaper: Shaper,
    pub(crate) progress: Progress,
    /// The links as they were when they were last examined.
    candidates: Vec<Candidate>,
    /// The indices of the links that were set up.
    pub(crate) links: Vec<u32>,
    log: LogOnce,
    began: Instant,
    /// What resolv.conf holds, and the link whose name servers come first in it.
    names: String,
    first: Option<u32>,
}

impl Worker {
    pub(crate) fn new(world: Arc<World>, plan: Plan) -> Result<Self> {
        Ok(Self {
            world,
            plan,
            netlink: Netlink::open()?,
            monitor: Netlink::monitor()?,
            shaper: Shaper::default(),
            progress: Progress::default(),
            candidates: Vec::new(),
            links: Vec::new(),
            log: LogOnce::default(),
            began: Instant::now(),
            names: String::new(),
            first: None,
        })
    }

    /// Whether a source can be asked now.
    pub(crate) fn is_enough(&self) -> bool {
        self.progress.is_enough(&self.plan)
    }

    /// What each interface waits for, for the console.
    pub(crate) fn status(&self) -> String {
        self.progress.status(&self.plan, &self.candidates)
    }

    /// Does what can be done now. Gives how long [`Worker::wait`] may wait. `answered` is the way by which a source has
    /// answered.
    pub(crate) fn examine(&mut self, answered: Answered<'_>) -> Result<Duration> {
        let now = self.began.elapsed();
        let Self {
            netlink,
            plan,
            progress,
            ..
        } = self;
        for server in self.monitor.drain() {
            if !progress.advertised.contains(&server) {
                progress.advertised.push(server);
            }
        }
        self.shaper.shape(&self.world, netlink, plan)?;
        self.candidates = candidates(&self.world, netlink, plan)?;
        set_links_up(netlink, &self.candidates, &mut self.links, &mut self.log);
        progress.drop_ended(netlink, &self.candidates, now);
        progress.start_exchanges(netlink, plan, &self.candidates, now);
        progress.update_ready(netlink, plan, &self.candidates, now);
        for one in progress.exchanges.values_mut() {
            one.send(now)?;
        }
        let longest = match progress.is_open(&self.candidates) {
            true => WHILE_OPEN,
            false => ELSE,
        };
        let due = progress.due(now).map(|due| due.saturating_sub(now));
        self.write_names(answered)?;
        Ok(due.map_or(longest, |due| due.min(longest)))
    }

    /// Waits for an event of a link, a message of a server or `wake`, at most as long as `left`, and takes the messages.
    pub(crate) fn wait(&mut self, left: Duration, wake: Option<BorrowedFd<'_>>) -> Result<()> {
        let left = left.max(Duration::from_millis(1));
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::from(1000_u16));
        let exchanges = self.progress.exchanges.values().map(AsFd::as_fd);
        let all = [self.monitor.as_fd()]
            .into_iter()
            .chain(wake)
            .chain(exchanges);
        let mut fds: Vec<PollFd<'_>> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("waiting for the network"),
        }
        let now = self.began.elapsed();
        self.progress.receive(&mut self.netlink, now);
        Ok(())
    }

    /// Writes resolv.conf once a link is ready and whenever its content changes. A name server that comes late is used by
    /// the next lookup.
    fn write_names(&mut self, answered: Answered<'_>) -> Result<()> {
        let ready = &self.progress.ready;
        self.first = turn(ready, self.first, answered, self.began.elapsed());
        let text = resolv_conf(&self.plan, &self.progress, self.first);
        if ready.is_empty() || text == self.names {
            return Ok(());
        }
        let path = self.world.in_initrd(image::paths::RESOLV_CONF);
        if let Some(folder) = path.parent() {
            mount::folder(folder, 0o755)?;
        }
        fs::write(&path, &text).with_context(|| format!("writing {}", path.display()))?;
        self.names = text;
        Ok(())
    }
}

/// The way by which a source has answered, if one has: a link, or the kernel's routes.
type Answered<'a> = Option<Option<&'a str>>;

/// The index of the link whose name servers are asked first: that over which a source has answered, else each in turn, since a
/// server that does not know a name of another network denies it, and no other one is asked then. The turns end once a source
/// has answered by the kernel's routes.
fn turn(
    ready: &[Ready],
    before: Option<u32>,
    answered: Answered<'_>,
    elapsed: Duration,
) -> Option<u32> {
    let count = u64::try_from(ready.len()).ok().filter(|count| *count > 0)?;
    let turn = usize::try_from(elapsed.as_secs() / TURN.as_secs() % count).ok()?;
    let first = match answered {
        Some(None) => ready.iter().find(|one| Some(one.index) == before),
        Some(Some(link)) => ready.iter().find(|one| one.link == link),
        None => None,
    };
    first.or(ready.get(turn)).map(|one| one.index)
}

/// resolv.conf(5) for the C library's resolver: a dead server costs one second, not five. The name servers of the link `first`
/// come first, then one of each other link, then the rest.
pub(crate) fn resolv_conf(plan: &Plan, progress: &Progress, first: Option<u32>) -> String {
    let fixed = plan.resolvers.iter();
    let mut servers: Vec<String> = fixed.map(IpAddr::to_string).collect();
    let mut of_links = progress.resolvers();
    servers.extend(
        first
            .and_then(|first| of_links.remove(&first))
            .unwrap_or_default(),
    );
    let longest = of_links.values().map(Vec::len).max().unwrap_or(0);
    for at in 0..longest {
        servers.extend(of_links.values().filter_map(|own| own.get(at)).cloned());
    }
    let mut out = String::new();
    let mut seen: Vec<String> = Vec::new();
    for server in servers {
        if !seen.contains(&server) && seen.len() < RESOLVERS {
            out.push_str(&format!("nameserver {server}\n"));
            seen.push(server);
        }
    }
    let search = progress.leases().flat_map(|lease| &lease.search);
    let search: Vec<&str> = search.map(String::as_str).collect();
    if !search.is_empty() {
        out.push_str(&format!("search {}\n", search.join(" ")));
    }
    out.push_str("options timeout:1 attempts:2\n");
    out
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

/// Sets the links up that are down. An Ethernet address or MTU that the device does not take is best effort.
fn set_links_up(
    netlink: &mut Netlink,
    candidates: &[Candidate],
    set_up: &mut Vec<u32>,
    log: &mut LogOnce,
) {
    for Candidate { link, settings, .. } in candidates.iter().filter(|one| !one.link.up) {
        let Link { index, name, .. } = link;
        if let Some(mac) = settings.mac {
            let done = netlink.set_mac(*index, &mac.0);
            log.warn(done.with_context(|| format!("{name}: address {mac}")));
        }
        if let Some(mtu) = settings.mtu {
            let done = netlink.set_mtu(*index, mtu);
            log.warn(done.with_context(|| format!("{name}: MTU {mtu}")));
        }
        let done = netlink.set_up(*index, true);
        if done.is_ok() {
            tracing::info!("net: {name}: set up");
        }
        log.warn(done.with_context(|| format!("{name}: setting the link up")));
        if !set_up.contains(index) {
            set_up.push(*index);
        }
    }
}

/// Removes the addresses of the links that were set up and sets them down; then removes the bonds and VLANs of their plan.
pub(crate) fn flush_links(links: &[u32], plan: &Plan) -> Result<()> {
    if links.is_empty() {
        return Ok(());
    }
    let mut netlink = Netlink::open()?;
    for link in netlink.links()? {
        if links.contains(&link.index) {
            let name = &link.name;
            netlink
                .flush_addresses(link.index)
                .and_then(|()| netlink.set_up(link.index, false))
                .with_context(|| format!("taking the link {name} down"))?;
        }
    }
    delete_virtual(&mut netlink, plan)
}

/// Removes the bonds and VLANs of a plan: systemd-networkd makes them at every boot from the same plan, on the first one too.
fn delete_virtual(netlink: &mut Netlink, plan: &Plan) -> Result<()> {
    let vlans = plan.vlans.iter().map(|vlan| &vlan.name);
    let bonds = plan.bonds.iter().map(|bond| &bond.name);
    // A bond takes the VLANs above it along.
    for name in vlans.chain(bonds) {
        let links = netlink.links()?;
        let own = links.iter().find(|link| link.name == *name && link.stacked);
        if let Some(link) = own {
            netlink
                .delete(link.index)
                .with_context(|| format!("removing the link {name}"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_local_name_server_has_its_link() {
        let servers = ["fe80::1", "2001:db8::53"].map(|text| text.parse().unwrap());
        let mut progress = Progress::default();
        progress.advertised = servers.map(|server| (3, server)).to_vec();
        let text = resolv_conf(&Plan::default(), &progress, None);
        let expected = "nameserver fe80::1%3\nnameserver 2001:db8::53\n";
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn each_link_has_its_turn_until_one_has_answered() {
        let ready = ["eth0", "eth1"].map(|link| Ready {
            name: link.to_owned(),
            link: link.to_owned(),
            index: u32::from(link.as_bytes()[3] - b'0') + 2,
        });
        let at = |seconds| Duration::from_secs(seconds);
        for (seconds, index) in [(0, 2), (9, 2), (10, 3), (20, 2), (35, 3)] {
            assert_eq!(
                turn(&ready, None, None, at(seconds)),
                Some(index),
                "{seconds}"
            );
            assert_eq!(
                turn(&ready, Some(2), Some(Some("eth1")), at(seconds)),
                Some(3)
            );
            assert_eq!(turn(&ready, Some(3), Some(None), at(seconds)), Some(3));
            assert_eq!(
                turn(&ready, None, Some(Some("eth7")), at(seconds)),
                Some(index)
            );
        }
        assert_eq!(turn(&[], None, None, at(0)), None);
    }
}
