//! What the balancer's tasks share, and its times.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::backends::{Backends, Health};

/// The times of the balancer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// How long an API server may take to take a connection: a machine that is gone does not even refuse it.
    pub(crate) connect: Duration,
    /// How long a check may take.
    pub(crate) check: Duration,
    /// How often an API server that is well is checked, and at the most one that is not.
    pub(crate) every: Duration,
    /// The pause after each of the first failures; then it doubles up to twice `every`.
    pub(crate) again: Duration,
    /// How often the cluster's list is looked at, and how soon again after an API server was lost.
    pub(crate) look: (Duration, Duration),
    /// How long one side of a connection may go on after the other one has ended.
    pub(crate) half_open: Duration,
}

/// The times on a node.
pub(crate) const TIMES: Times = Times {
    connect: Duration::from_secs(1),
    check: Duration::from_secs(2),
    every: Duration::from_secs(5),
    again: Duration::from_secs(1),
    look: (Duration::from_secs(30), Duration::from_secs(2)),
    half_open: Duration::from_secs(60),
};

/// What the tasks share.
pub(super) struct Shared {
    pub(super) times: Times,
    /// The file of the cluster's authority.
    pub(super) authority: PathBuf,
    pub(super) backends: Mutex<Backends>,
    /// An API server was lost, or found.
    pub(super) changed: Notify,
    /// The cluster's list is to be looked at soon.
    pub(super) look: Notify,
    /// A check is to be made at once.
    pub(super) check: Notify,
}

impl Shared {
    /// The API servers, for a moment: never across a wait.
    pub(super) fn backends(&self) -> MutexGuard<'_, Backends> {
        // No panic leaves the list half changed.
        self.backends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs another health of an API server; one that was lost may have a successor in the cluster's list.
    pub(super) fn noted(&self, address: SocketAddr, health: &Health) {
        match health {
            Health::Well => tracing::info!("API server {address} is ready"),
            Health::Unknown => {}
            Health::NotReady(reason) | Health::Away(reason) => {
                tracing::warn!("API server {address}: {reason}");
                self.look.notify_one();
            }
        }
        self.changed.notify_one();
    }
}

/// A connection to an API server, or why there is none within the limit.
pub(super) async fn connect(address: SocketAddr, limit: Duration) -> Result<TcpStream, String> {
    match timeout(limit, TcpStream::connect(address)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no connection within {} ms", limit.as_millis())),
    }
}

/// A time up to a fifth shorter or longer: all nodes of a cluster may have begun at the same moment.
pub(super) fn jittered(time: Duration) -> Duration {
    let random = u32::try_from(random() % 401).unwrap_or(0);
    time.saturating_mul(800 + random) / 1000
}

/// A random number.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
