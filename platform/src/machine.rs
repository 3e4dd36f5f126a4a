//! Machine: the interface of providers to the outside. The init and the program `ignition` each make one.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use fetch::{Links, Patience};

use crate::medium::Medium;
use crate::problem::Problem;

/// Brings the network up: returns when it is up, and fails when the flag is set before.
pub type Network<'a> = &'a (dyn Fn(&AtomicBool) -> anyhow::Result<()> + Sync);
/// What is done when bytes of an address have come.
pub type Received<'a> = &'a (dyn Fn(&str, u64) + Sync);
/// How a medium is mounted: the folder of its root, or none if there is no such medium now.
pub type Mount<'a> = &'a (dyn Fn(&Medium<'_>) -> anyhow::Result<Option<PathBuf>> + Sync);

/// Every outside fact and action that a provider may use. Providers mount nothing and set no link up themselves, so
/// that all of this runs against a server on loopback and a plain folder.
#[derive(Clone, Copy)]
pub struct Machine<'a> {
    /// Base of the metadata service's URLs in place of the provider's own: tests use a server on loopback.
    pub service: Option<&'a str>,
    /// sysfs.
    pub sys: &'a Path,
    /// Device nodes.
    pub dev: &'a Path,
    /// The file that the provider `file` reads.
    pub file: &'a Path,
    /// The patience for requests to a service. Its `total` limits the wait for media and that for the network too.
    pub patience: Patience,
    /// The pause between two searches for a medium that is not there yet.
    pub look_every: Duration,
    /// The time limit for a medium that is optional, or that the command line names.
    pub media_wait: Duration,
    /// Loads those of these kernel modules that the kernel has as modules. It logs failures itself: a config may be
    /// elsewhere.
    pub load_modules: &'a (dyn Fn(&[&str]) + Sync),
    /// Over which links a service is asked.
    pub links: &'a Links,
    /// Brings the network up. Called only by providers that need it, before their first request.
    pub network: Network<'a>,
    /// Mounts a medium read-only.
    pub mount: Mount<'a>,
    /// Logs the subject of a wait, at least every five seconds.
    pub say: &'a (dyn Fn(&str) + Sync),
    /// Called with an address, without its query, and the number of bytes that have come from it since the last call.
    pub received: Received<'a>,
}

impl fmt::Debug for Machine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine")
            .field("service", &self.service)
            .field("sys", &self.sys)
            .field("dev", &self.dev)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

/// [`Machine::look_every`] of a node.
pub const LOOK_EVERY: Duration = Duration::from_millis(500);
/// [`Machine::media_wait`] of a node: as long as Ignition waits.
pub const MEDIA_WAIT: Duration = Duration::from_secs(30);
/// The interval of the lines of a wait.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// How long a medium may be there and not mount: a drive shows a disc that is being attached before it can be read. Azure's
/// agent mounts six times, five seconds apart.
const UNREADY: Duration = Duration::from_secs(30);

impl Machine<'_> {
    /// Brings the network up, within the patience's total if it has one.
    ///
    /// # Errors
    /// If the network does not come up.
    pub(crate) fn bring_up(&self) -> Result<(), Problem> {
        let stop = AtomicBool::new(false);
        let Some(total) = self.patience.total else {
            return (self.network)(&stop).map_err(|error| Problem::remote(format!("{error:#}")));
        };
        let (done, is_done) = channel::<()>();
        let up = std::thread::scope(|scope| {
            let stop = &stop;
            // It ends with the call, which drops the sender.
            let timer = move || {
                if is_done.recv_timeout(total) == Err(RecvTimeoutError::Timeout) {
                    stop.store(true, Ordering::Relaxed);
                }
            };
            if let Err(error) = Builder::new().spawn_scoped(scope, timer) {
                (self.say)(&format!("waiting for the network without a limit: {error}"));
            }
            let up = (self.network)(stop);
            drop(done);
            up
        });
        up.map_err(|error| match stop.load(Ordering::Relaxed) {
            true => {
                let seconds = total.as_secs_f64();
                Problem::remote(format!("the network is not up within {seconds:.1} s"))
            }
            false => Problem::remote(format!("{error:#}")),
        })
    }

    /// Waits for a medium, for ever or until a time; returns the folder where it is mounted, or none if the time is
    /// over.
    ///
    /// # Errors
    /// If the medium exists and does not mount, for half a minute or at the end of the time.
    pub fn wait_for(
        &self,
        medium: &Medium<'_>,
        until: Option<Instant>,
    ) -> Result<Option<PathBuf>, Problem> {
        self.wait_within(medium, until, UNREADY)
    }

    fn wait_within(
        &self,
        medium: &Medium<'_>,
        until: Option<Instant>,
        unready: Duration,
    ) -> Result<Option<PathBuf>, Problem> {
        let began = Instant::now();
        // A time beyond the clock's range is no limit.
        let limit = self
            .patience
            .total
            .and_then(|total| began.checked_add(total));
        let until = [until, limit].into_iter().flatten().min();
        let mut next_line = LINE_EVERY;
        let mut there_since = None;
        loop {
            let failed = match self.look(medium) {
                Ok(Some(folder)) => return Ok(Some(folder)),
                Ok(None) => None,
                Err(problem) => Some(problem),
            };
            there_since = failed
                .as_ref()
                .map(|_| there_since.unwrap_or_else(Instant::now));
            let is_unready = there_since.is_some_and(|since: Instant| since.elapsed() >= unready);
            if is_unready || until.is_some_and(|until| Instant::now() >= until) {
                return failed.map_or(Ok(None), Err);
            }
            if began.elapsed() >= next_line {
                let seconds = began.elapsed().as_secs();
                let why = failed.map_or_else(String::new, |problem| format!(" ({problem})"));
                (self.say)(&format!("waiting for {medium}{why} for {seconds} s"));
                next_line += LINE_EVERY;
            }
            std::thread::sleep(self.look_every);
        }
    }

    /// The folder of a medium if it exists now.
    pub(crate) fn look(&self, medium: &Medium<'_>) -> Result<Option<PathBuf>, Problem> {
        (self.mount)(medium).map_err(|error| Problem::local(format!("{error:#}")))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::testing::Bench;

    #[test]
    fn a_medium_that_cannot_be_read_yet_is_waited_for_and_one_that_never_can_is_an_error() {
        let bench = Bench::new();
        let folder = bench.path("medium");
        let medium = Medium::Disc("ovf-env.xml");
        let looks = AtomicUsize::new(0);
        let wait = |ready: usize, until: Option<Duration>, unready: Duration| {
            looks.store(0, Ordering::SeqCst);
            let mount = |_: &Medium<'_>| match looks.fetch_add(1, Ordering::SeqCst) {
                look if look >= ready => Ok(Some(folder.clone())),
                _ => anyhow::bail!("no medium found"),
            };
            bench.run(|machine| {
                let machine = Machine {
                    mount: &mount,
                    ..*machine
                };
                let until = until.map(|until| Instant::now() + until);
                machine.wait_within(&medium, until, unready)
            })
        };
        let (short, long) = (Duration::from_millis(50), Duration::from_secs(10));
        assert_eq!(wait(3, None, long).unwrap(), Some(folder.clone()));
        let problem = wait(usize::MAX, None, short).unwrap_err();
        assert!(problem.what.contains("no medium found"), "{problem}");
        assert!(looks.load(Ordering::SeqCst) > 1);
        // The end of the time comes first.
        assert!(wait(usize::MAX, Some(short), long).is_err());
        assert!(wait(usize::MAX, Some(Duration::ZERO), long).is_err());
    }
}
