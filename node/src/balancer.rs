//! The node-local balancer of the cluster's API servers: TCP on a loopback address, TLS goes through it as it is, so that no
//! other balancer, name or address has to stand before them.

mod backends;
mod cache;
mod endpoint_slice;
pub(crate) mod record;
mod relay;
mod sources;

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use api::probe::{Probe, Unready};
use cluster::object::balancer::SERVER_NAME;
use linux::world::World;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::{AbortHandle, JoinHandle, spawn, spawn_blocking};
use tokio::time::{sleep, timeout};

use crate::control_plane::authority;
use crate::object::Bootstrap;
use backends::{Backends, FAILURES, Health};
use record::Record;
use relay::relay;
use sources::{Look, Sources};

/// Connections at the same time. A kubelet has two or three; each that is open has two buffers of 8 KiB.
const CONNECTIONS: usize = 256;
/// The pause after a connection that could not be taken, as when the process has no file descriptor left: it would be tried again at
/// once, for ever.
const PAUSE: Duration = Duration::from_millis(100);
/// How often the log says that connections were refused.
const SAY_EVERY: Duration = Duration::from_secs(60);

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
struct Shared {
    times: Times,
    /// The file of the cluster's authority.
    authority: PathBuf,
    backends: Mutex<Backends>,
    /// An API server was lost, or found.
    changed: Notify,
    /// The cluster's list is to be looked at soon.
    look: Notify,
    /// A check is to be made at once.
    check: Notify,
}

impl Shared {
    fn backends(&self) -> MutexGuard<'_, Backends> {
        // No panic leaves the list half changed.
        self.backends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn noted(&self, address: SocketAddr, health: &Health) {
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

/// Serves on the listener for ever.
///
/// # Errors
/// If the listener cannot be used.
pub(crate) async fn serve(
    world: &World,
    bootstrap: &Bootstrap,
    listener: std::net::TcpListener,
    times: Times,
) -> Result<()> {
    let object = &bootstrap.object;
    listener.set_nonblocking(true).context("the listener")?;
    let listener = TcpListener::from_std(listener).context("the listener")?;
    let listen = listener.local_addr().context("the listener's address")?;
    let mut sources = Sources::begin(world, object);
    let shared = Arc::new(Shared {
        times,
        authority: world.in_initrd(&authority(object)),
        backends: Mutex::default(),
        changed: Notify::new(),
        look: Notify::new(),
        check: Notify::new(),
    });
    let mut checks = HashMap::new();
    take_list(&shared, &sources, &mut checks);
    spawn(accept(listener, Arc::clone(&shared)));
    let (every, soon) = times.look;
    let mut next = Instant::now();
    let mut looking: Option<JoinHandle<Look>> = None;
    loop {
        let record = Record::of(listen, sources.list, &shared.backends());
        if let Err(error) = record.write(world) {
            tracing::warn!("{error:#}");
        }
        let idle = looking.is_none();
        let looked = async {
            match &mut looking {
                Some(task) => task.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            look = looked => {
                looking = None;
                sources.take(world, look.context("looking for the API servers")?);
                take_list(&shared, &sources, &mut checks);
                next = Instant::now() + jittered(every);
            }
            () = shared.changed.notified() => {}
            () = shared.look.notified(), if idle => {
                next = next.min(Instant::now() + jittered(soon));
            }
            () = sleep(next.saturating_duration_since(Instant::now())), if idle => {
                let looker = sources.looker();
                looking = Some(spawn_blocking(move || looker.look()));
            }
        }
    }
}

/// Gives the list of addresses to the backends, and each address its checks.
fn take_list(
    shared: &Arc<Shared>,
    sources: &Sources,
    checks: &mut HashMap<SocketAddr, AbortHandle>,
) {
    let listed = {
        let mut backends = shared.backends();
        backends.replace(&sources.addresses(), sources.own);
        backends.list()
    };
    checks.retain(|address, check| {
        let stays = listed.iter().any(|(listed, ..)| listed == address);
        if !stays {
            check.abort();
        }
        stays
    });
    for (address, ..) in listed {
        checks
            .entry(address)
            .or_insert_with(|| spawn(check_for_ever(Arc::clone(shared), address)).abort_handle());
    }
}

/// Checks an API server again and again: one that fails more often at first, and then less.
async fn check_for_ever(shared: Arc<Shared>, address: SocketAddr) {
    let mut probe: Option<(String, Probe)> = None;
    loop {
        let health = check(&shared, address, &mut probe).await;
        let failures = {
            let mut backends = shared.backends();
            let changed = backends.checked(address, health.clone(), Instant::now());
            let failures = backends.failures(address);
            drop(backends);
            if changed {
                shared.noted(address, &health);
            }
            failures
        };
        let Times { every, again, .. } = shared.times;
        let pause = match failures {
            0 => every,
            count => again
                .saturating_mul(1 << count.saturating_sub(FAILURES).min(16))
                .min(every * 2),
        };
        tokio::select! {
            () = sleep(jittered(pause)) => {}
            // A connection has failed: the check says whether that was a chance.
            () = shared.check.notified() => {}
        }
    }
}

/// One check: by TLS and `/readyz`, since an API server that has lost its etcd takes connections; by a connection alone as long as
/// the cluster's authority is not known here.
async fn check(
    shared: &Shared,
    address: SocketAddr,
    probe: &mut Option<(String, Probe)>,
) -> Health {
    let limit = shared.times.check;
    let Ok(authority) = std::fs::read_to_string(&shared.authority) else {
        return match connect(address, limit).await {
            Ok(_) => Health::Well,
            Err(reason) => Health::Away(reason),
        };
    };
    // Authorities may be replaced.
    if probe.as_ref().is_none_or(|(known, _)| *known != authority) {
        match Probe::new(address, SERVER_NAME, &authority, limit) {
            Ok(made) => *probe = Some((authority, made)),
            Err(error) => return Health::Away(format!("{error:#}")),
        }
    }
    let Some((_, made)) = probe.as_ref() else {
        return Health::Unknown;
    };
    match made.ready().await {
        Ok(()) => Health::Well,
        Err(error) if error.is::<Unready>() => Health::NotReady(format!("{error:#}")),
        Err(error) => Health::Away(format!("{error:#}")),
    }
}

async fn connect(address: SocketAddr, limit: Duration) -> Result<TcpStream, String> {
    match timeout(limit, TcpStream::connect(address)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no connection within {} ms", limit.as_millis())),
    }
}

/// Takes connections for ever, [`CONNECTIONS`] at the same time; one more is closed at once, and the log says it.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let mut said: Option<Instant> = None;
    loop {
        let refused = match listener.accept().await {
            Ok((client, _)) => match Arc::clone(&permits).try_acquire_owned() {
                Ok(permit) => {
                    let shared = Arc::clone(&shared);
                    spawn(async move {
                        carry(&shared, client).await;
                        drop(permit);
                    });
                    continue;
                }
                Err(_) => format!("{CONNECTIONS} connections are open"),
            },
            Err(error) => {
                sleep(PAUSE).await;
                error.to_string()
            }
        };
        if said.is_none_or(|at| at.elapsed() >= SAY_EVERY) {
            said = Some(Instant::now());
            tracing::warn!("a connection is refused: {refused}");
        }
    }
}

/// Carries a connection to the first API server that takes it.
async fn carry(shared: &Shared, client: TcpStream) {
    let order = shared
        .backends()
        .order(|| RandomState::new().build_hasher().finish());
    for address in order {
        match connect(address, shared.times.connect).await {
            Ok(server) => {
                let open = shared.backends().opened(address);
                let Some(open) = open else {
                    continue;
                };
                relay(client, server, open, shared.times.half_open).await;
                shared.backends().closed(address);
                return;
            }
            Err(reason) => {
                let health = Health::Away(reason.clone());
                let changed = shared.backends().refused(address, reason, Instant::now());
                if changed {
                    shared.noted(address, &health);
                    shared.check.notify_waiters();
                }
            }
        }
    }
}

/// A time up to a fifth shorter or longer: all nodes of a cluster may have begun at the same moment.
fn jittered(time: Duration) -> Duration {
    let random = u32::try_from(RandomState::new().build_hasher().finish() % 401).unwrap_or(0);
    time.saturating_mul(800 + random) / 1000
}

#[cfg(test)]
mod tests;
