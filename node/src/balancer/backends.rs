//! The API servers behind the balancer: which of them are well, in which order a connection tries them, and which connections are
//! closed.

use std::net::SocketAddr;
use std::time::Instant;

use tokio::sync::watch;

/// Checks that fail in a row until the connections to an API server are closed. One failure may be a lost packet; three are at
/// least four seconds in which it answered nothing.
pub(crate) const FAILURES: u32 = 3;

/// What is known of an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// It is ready.
    Well,
    /// It was not asked yet.
    Unknown,
    /// It answers that it is not ready, and why.
    NotReady(String),
    /// It does not answer, and why.
    Away(String),
}

/// An API server.
#[derive(Debug)]
struct Backend {
    address: SocketAddr,
    /// Whether it is this node's.
    own: bool,
    health: Health,
    /// Checks that failed in a row.
    failures: u32,
    failed: Option<Instant>,
    connections: usize,
    /// Dropped to close the connections: each has a receiver.
    open: watch::Sender<()>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Backends {
    all: Vec<Backend>,
}

impl Backend {
    fn new(address: SocketAddr, own: bool) -> Self {
        Self {
            address,
            own,
            health: Health::Unknown,
            failures: 0,
            failed: None,
            connections: 0,
            open: watch::Sender::new(()),
        }
    }

    /// The place in the order of attempts, the lowest first.
    fn class(&self) -> u8 {
        match self.health {
            Health::Well => 0,
            Health::Unknown => 1,
            // It may still answer some requests; a server that does not answer serves none.
            Health::NotReady(_) => 2,
            Health::Away(_) => 3,
        }
    }
}

impl Backends {
    /// Takes another list of addresses; `own` is this node's. An API server that is well stays although the list does not have it, as
    /// long as none of the list is: a list that leads nowhere (addresses behind another network) replaces nothing that serves.
    pub(crate) fn replace(&mut self, addresses: &[SocketAddr], own: Option<SocketAddr>) {
        for address in addresses {
            if self.find(*address).is_none() {
                self.all.push(Backend::new(*address, own == Some(*address)));
            }
        }
        let listed = |backend: &Backend| addresses.contains(&backend.address);
        let well = |backend: &Backend| backend.health == Health::Well;
        let serves = self
            .all
            .iter()
            .any(|backend| listed(backend) && well(backend));
        self.all
            .retain(|backend| listed(backend) || (well(backend) && !serves));
    }

    /// Whether each of these has been asked and is not well.
    pub(crate) fn have_failed(&self, addresses: &[SocketAddr]) -> bool {
        let failed = |address: &SocketAddr| {
            let mut all = self.all.iter();
            all.any(|backend| {
                let health = &backend.health;
                let is_failure = matches!(health, Health::NotReady(_) | Health::Away(_));
                backend.address == *address && is_failure
            })
        };
        !addresses.is_empty() && addresses.iter().all(failed)
    }

    /// The addresses in the order in which a connection tries them: those that are well, this node's own first, then the one with
    /// the fewest connections; at last those that failed, the one whose failure is the longest ago first. `random` decides between
    /// equals, so that the nodes of a cluster do not all ask the same API server.
    pub(crate) fn order(&self, random: impl Fn() -> u64) -> Vec<SocketAddr> {
        let mut ranked: Vec<_> = self
            .all
            .iter()
            .map(|backend| {
                let away = matches!(backend.health, Health::Away(_));
                let failed = backend.failed.filter(|_| away);
                let rank = (
                    backend.class(),
                    failed,
                    !backend.own,
                    backend.connections,
                    random(),
                );
                (rank, backend.address)
            })
            .collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(_, address)| address).collect()
    }

    /// Notes the result of a check. Returns whether the health has changed; another reason is no change.
    pub(crate) fn checked(&mut self, address: SocketAddr, health: Health, now: Instant) -> bool {
        let Some(backend) = self.find(address) else {
            return false;
        };
        if health == Health::Well {
            backend.failures = 0;
        } else {
            backend.failures += 1;
            backend.failed = Some(now);
        }
        let before = backend.class();
        backend.health = health;
        let changed = backend.class() != before;
        self.close_lost();
        changed
    }

    /// Notes that a connection was not made. The next check decides whether it counts. Returns whether the health has changed.
    pub(crate) fn refused(&mut self, address: SocketAddr, reason: String, now: Instant) -> bool {
        let Some(backend) = self.find(address) else {
            return false;
        };
        let before = backend.class();
        backend.health = Health::Away(reason);
        backend.failed = Some(now);
        backend.class() != before
    }

    /// Closes the connections to the API servers whose checks have failed several times, if another one is well: a kubelet would
    /// wait for its own ping of HTTP/2, 45 s, or on one that lost its etcd for errors of each request. Where none is well nothing is
    /// gained by it, and a connection may survive what ails the checks, as a cable that is out for a moment.
    fn close_lost(&mut self) {
        if !self.all.iter().any(|other| other.health == Health::Well) {
            return;
        }
        for backend in &mut self.all {
            if backend.failures >= FAILURES {
                // The receivers learn that their sender is gone.
                backend.open = watch::Sender::new(());
            }
        }
    }

    /// Counts a connection; it is to be closed once the receiver has no sender any more. None if the API server is no longer listed.
    pub(crate) fn opened(&mut self, address: SocketAddr) -> Option<watch::Receiver<()>> {
        let backend = self.find(address)?;
        backend.connections += 1;
        Some(backend.open.subscribe())
    }

    /// The connection has ended.
    pub(crate) fn closed(&mut self, address: SocketAddr) {
        if let Some(backend) = self.find(address) {
            backend.connections = backend.connections.saturating_sub(1);
        }
    }

    /// Checks of this API server that failed in a row.
    pub(crate) fn failures(&mut self, address: SocketAddr) -> u32 {
        self.find(address).map_or(0, |backend| backend.failures)
    }

    /// Each address with its health and whether it is this node's, by the address.
    pub(crate) fn list(&self) -> Vec<(SocketAddr, Health, bool)> {
        let mut list: Vec<_> = self
            .all
            .iter()
            .map(|backend| (backend.address, backend.health.clone(), backend.own))
            .collect();
        list.sort_by_key(|(address, ..)| *address);
        list
    }

    fn find(&mut self, address: SocketAddr) -> Option<&mut Backend> {
        self.all
            .iter_mut()
            .find(|backend| backend.address == address)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 6443))
    }

    fn away() -> Health {
        Health::Away("Connection refused".to_owned())
    }

    /// Four API servers; 4 is this node's.
    fn four() -> Backends {
        let mut backends = Backends::default();
        backends.replace(&[1, 2, 3, 4].map(address), Some(address(4)));
        backends
    }

    fn lasts(backends: &Backends) -> Vec<SocketAddr> {
        backends.order(|| 0)
    }

    #[test]
    fn a_connection_tries_the_own_then_the_well_then_the_least_recently_failed() {
        let mut backends = four();
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(lasts(&backends)[0], address(4));
        assert!(backends.checked(address(1), away(), at(5)));
        assert!(!backends.checked(address(1), away(), at(6)));
        backends.checked(address(2), away(), at(3));
        backends.checked(
            address(3),
            Health::NotReady("readyz: etcd".to_owned()),
            at(4),
        );
        assert_eq!(lasts(&backends), [4, 3, 2, 1].map(address));
        // Well before unknown, even if the unknown one is this node's own.
        backends.checked(address(1), Health::Well, at(7));
        assert_eq!(lasts(&backends), [1, 4, 3, 2].map(address));
        // Its own is not well: others are.
        backends.refused(address(4), "Connection refused".to_owned(), at(8));
        assert_eq!(lasts(&backends), [1, 3, 2, 4].map(address));
        backends.checked(address(4), Health::Well, at(9));
        assert_eq!(lasts(&backends), [4, 1, 3, 2].map(address));
        // The fewest connections among equals.
        backends.checked(address(2), Health::Well, at(9));
        backends.opened(address(1)).unwrap();
        assert_eq!(lasts(&backends), [4, 2, 1, 3].map(address));
        backends.closed(address(1));
        let random = std::cell::Cell::new(9);
        let order = backends.order(|| random.replace(random.get() - 1));
        assert_eq!(order[1..3], [2, 1].map(address));
    }

    #[test]
    fn connections_are_closed_after_three_failures_and_only_if_another_is_well() {
        let mut backends = four();
        let now = Instant::now();
        let open = backends.opened(address(1)).unwrap();
        let is_open = || open.has_changed().is_ok();
        for _ in 0..5 {
            backends.checked(address(1), away(), now);
        }
        // None is known to be well.
        assert!(is_open());
        backends.checked(address(2), Health::Well, now);
        assert!(!is_open());
        // It recovered between two failures.
        let open = backends.opened(address(2)).unwrap();
        backends.checked(address(3), Health::Well, now);
        for health in [away(), away(), Health::Well, away(), away()] {
            backends.checked(address(2), health, now);
        }
        assert!(open.has_changed().is_ok());
        backends.checked(address(2), Health::NotReady("etcd".to_owned()), now);
        assert!(open.has_changed().is_err());
    }

    #[test]
    fn servers_have_failed_once_each_was_asked_and_is_not_well() {
        let mut backends = four();
        let all = [1, 2].map(address);
        let now = Instant::now();
        assert!(!backends.have_failed(&[]) && !backends.have_failed(&all));
        backends.checked(all[0], away(), now);
        assert!(backends.have_failed(&all[..1]) && !backends.have_failed(&all));
        backends.checked(all[1], Health::NotReady("etcd".to_owned()), now);
        assert!(backends.have_failed(&all));
        assert!(!backends.have_failed(&[all[0], address(9)]));
        backends.checked(all[0], Health::Well, now);
        assert!(!backends.have_failed(&all));
    }

    #[test]
    fn a_list_without_a_server_that_is_well_replaces_none_that_is() {
        let mut backends = four();
        let now = Instant::now();
        backends.checked(address(1), Health::Well, now);
        let open = backends.opened(address(1)).unwrap();
        let listed = |backends: &Backends| {
            let list = backends.list().into_iter();
            list.map(|(address, ..)| address).collect::<Vec<_>>()
        };
        backends.replace(&[8, 9].map(address), None);
        assert_eq!(listed(&backends), [1, 8, 9].map(address));
        assert!(open.has_changed().is_ok());
        backends.checked(address(8), Health::Well, now);
        backends.replace(&[8, 9].map(address), None);
        assert_eq!(listed(&backends), [8, 9].map(address));
        assert!(open.has_changed().is_err());
        assert!(backends.opened(address(1)).is_none());
    }
}
