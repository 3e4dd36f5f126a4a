//! The network of one boot, brought up only when a source needs it: as the kernel command line describes it, else the
//! platform's network data, else the default (DHCP and router advertisements on every interface).
//!
//! All interfaces are configured at the same time and without a deadline; while somebody waits, every five seconds a line names
//! what each of them waits for. By default a source is asked as soon as one of them has an address. The others go on, and
//! [`Network::ways`] has those over which a source can be asked. [`Network::flush`] ends it before the handoff.

#[cfg(test)]
mod tests;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::handover;
use crate::worker::{Worker, flush_links};
use image::fault::Fault;
use image::modules::{BOND, VLAN};
use image::network::Network as Plan;
use linux::modules::{self, Modules};
use linux::waiter::Waiter;
use linux::world::World;

/// How often a wait examines its stop flag.
const STOP_EVERY: Duration = Duration::from_millis(500);

/// As long as a switch may take to let a port through (802.1D: two forward delays and the age of its information).
const FOR_OTHERS: Duration = Duration::from_secs(60);

/// The network of one boot: the requested configuration, and the part of it that is set up.
#[derive(Debug)]
pub struct Network {
    world: Arc<World>,
    requested: Mutex<Requested>,
    running: Mutex<Option<Running>>,
    /// How long the other links of a plan that names them are waited for once one is ready.
    for_others: Duration,
}

/// The requested configuration, by source.
#[derive(Debug, Default)]
struct Requested {
    cmdline: Plan,
    platform: Option<Plan>,
}

/// A worker on a thread, and the plan that it follows.
#[derive(Debug)]
struct Running {
    plan: Plan,
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

/// What a worker shows of itself after each look at the links.
#[derive(Debug)]
struct Shared {
    view: Mutex<View>,
    changed: Condvar,
    ended: AtomicBool,
    /// Wakes the worker.
    wake: EventFd,
}

#[derive(Debug, Default)]
struct View {
    /// How often the worker has looked.
    looks: u64,
    enough: bool,
    /// The kernel's names of the links that are ready.
    ready: Vec<String>,
    /// The way by which a source has answered last: a link, or the kernel's routes.
    answered: Option<Option<String>>,
    /// Whether the links that are not ready have been waited for long enough.
    without_others: bool,
    status: String,
    /// The indices of the links that were set up.
    links: Vec<u32>,
    /// Why the worker has ended by itself.
    failure: Option<String>,
}

impl Shared {
    fn new() -> Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self {
            view: Mutex::default(),
            changed: Condvar::new(),
            ended: AtomicBool::new(false),
            wake: EventFd::from_flags(flags).context("making an event descriptor")?,
        })
    }

    fn publish(&self, worker: &Worker) {
        let mut view = lock(&self.view);
        view.looks += 1;
        view.enough = worker.is_enough();
        view.ready = worker
            .progress
            .ready
            .iter()
            .map(|one| one.link.clone())
            .collect();
        view.status = worker.status();
        view.links.clone_from(&worker.links);
        self.changed.notify_all();
    }

    /// Runs until it is ended, or until the kernel's network configuration cannot be reached any more.
    fn run(&self, mut worker: Worker) {
        while !self.ended.load(Ordering::Relaxed) {
            let answered = lock(&self.view).answered.clone();
            let done = worker
                .examine(answered.as_ref().map(Option::as_deref))
                .and_then(|pause| {
                    self.publish(&worker);
                    worker.wait(pause, Some(self.wake.as_fd()))
                });
            // Nothing to read: it was not woken.
            self.wake.read().unwrap_or_default();
            if let Err(error) = done {
                lock(&self.view).failure = Some(format!("{error:#}"));
                return self.changed.notify_all();
            }
        }
    }
}

impl Running {
    fn start(world: &Arc<World>, plan: &Plan) -> Result<Self> {
        let shared = Arc::new(Shared::new()?);
        let worker = Worker::new(Arc::clone(world), plan.clone())?;
        let inside = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("network".to_owned())
            .spawn(move || inside.run(worker))
            .context("starting the network's thread")?;
        Ok(Self {
            plan: plan.clone(),
            shared,
            thread,
        })
    }

    /// Ends the worker, and undoes what it has set up.
    fn end(self) -> Result<()> {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.shared
            .wake
            .write(1)
            .context("waking the network's thread")?;
        if self.thread.join().is_err() {
            bail!("the network's thread panicked");
        }
        flush_links(&lock(&self.shared.view).links, &self.plan)
    }
}

impl Network {
    /// A network with the default configuration.
    #[must_use]
    pub fn new(world: Arc<World>) -> Self {
        Self {
            world,
            requested: Mutex::default(),
            running: Mutex::default(),
            for_others: FOR_OTHERS,
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

    /// Brings the network up unless it is up. Returns when one interface is configured or, if the plan names interfaces,
    /// all of those; waits for one without a deadline, for the others of a plan a minute. Interfaces that come later are
    /// configured all the same.
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
        self.bring_up(modules, stop, self.for_others)
    }

    /// As [`Network::up`], without waiting for the other interfaces of a plan: for what has little time, such as a report.
    ///
    /// # Errors
    /// As [`Network::up`].
    pub fn up_with_any(&self, modules: &Modules) -> Result<()> {
        self.bring_up(modules, &AtomicBool::new(false), Duration::ZERO)
    }

    fn bring_up(&self, modules: &Modules, stop: &AtomicBool, for_others: Duration) -> Result<()> {
        let shared = self.started(modules)?;
        let mut waiter = Waiter::for_ever(&self.world);
        let mut view = lock(&shared.view);
        let mut looks = view.looks;
        loop {
            if let Some(failure) = &view.failure {
                bail!("{failure}");
            }
            if view.enough || (view.without_others && !view.ready.is_empty()) {
                return Ok(());
            }
            if !view.ready.is_empty() && waiter.elapsed() >= for_others {
                tracing::warn!(
                    "net: going on with {}: {}",
                    view.ready.join(", "),
                    view.status
                );
                view.without_others = true;
                return Ok(());
            }
            if stop.load(Ordering::Relaxed) {
                bail!("the network is not needed any more");
            }
            if view.looks != looks {
                looks = view.looks;
                waiter.examined();
            }
            if let Some(waited) = waiter.line() {
                tracing::warn!("net: waiting ({waited}): {}", view.status);
                drop(view);
                // A device that the bus finds late has its driver loaded late.
                modules.load_for_devices(modules::Network::With);
                view = lock(&shared.view);
                continue;
            }
            let timeout = waiter.pause(STOP_EVERY);
            let woken = shared.changed.wait_timeout(view, timeout);
            view = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The worker of the plan in force, started if there is none; what another plan has set up is flushed before.
    fn started(&self, modules: &Modules) -> Result<Arc<Shared>> {
        let mut running = lock(&self.running);
        let plan = self.plan();
        let is_it = |one: &Running| one.plan == plan && lock(&one.shared.view).failure.is_none();
        if let Some(one) = running.as_ref().filter(|one| is_it(one)) {
            return Ok(Arc::clone(&one.shared));
        }
        if let Some(other) = running.take() {
            other.end()?;
        }
        prepare(modules, &plan)?;
        modules.load_for_devices(modules::Network::With);
        let one = running.insert(Running::start(&self.world, &plan)?);
        Ok(Arc::clone(&one.shared))
    }

    /// The ways to a source, in the order in which they are to be tried: as the kernel's routes lead, then over each link that is
    /// ready if there are several, by the kernel's names. The one by which a source answered last comes first.
    #[must_use]
    pub fn ways(&self) -> Vec<Option<String>> {
        let running = lock(&self.running);
        let Some(view) = running.as_ref().map(|one| lock(&one.shared.view)) else {
            return vec![None];
        };
        let mut ways = vec![None];
        if view.ready.len() > 1 {
            // The kernel takes the first of equal routes: the others are more likely to lead elsewhere.
            ways.extend(view.ready.iter().rev().cloned().map(Some));
        }
        // The others keep their order.
        ways.sort_by_key(|way| Some(way) != view.answered.as_ref());
        ways
    }

    /// Records by which way a source has answered.
    pub fn answered(&self, way: Option<&str>) {
        let running = lock(&self.running);
        let Some(shared) = running.as_ref().map(|one| &one.shared) else {
            return;
        };
        let mut view = lock(&shared.view);
        let way = way.map(str::to_owned);
        if view.answered.as_ref() == Some(&way) {
            return;
        }
        if let Some(link) = &way {
            tracing::warn!(
                "net: a source has answered over {link} alone; it is asked over this link first"
            );
        }
        view.answered = Some(way);
        // Its name servers come first then.
        if let Err(error) = shared.wake.write(1) {
            tracing::debug!("net: waking the network's thread: {error}");
        }
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
        match lock(&self.running).take() {
            Some(running) => running.end(),
            None => Ok(()),
        }
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
