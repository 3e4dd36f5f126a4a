//! Calls of the kernel that may take minutes: a sync, growing a file system, mounting one, loading a driver.
//!
//! While one runs, a thread beside it prints what is waited for and feeds the watchdog, but only as long as the kernel shows
//! that it works. A disk that answers no more starves the watchdog, which then resets the machine.

use std::collections::BTreeMap;
use std::fs;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{Builder, scope};
use std::time::Duration;

use crate::block::entries;
use crate::waiter::Waiter;
use crate::world::World;

/// How often the kernel's counters are read.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What the lines on the consoles call a call, asked anew for each.
type Name<'a> = &'a (dyn Fn() -> String + Sync);

/// Runs `call`, which waits for disks. `what` is what the lines on the consoles call it.
pub fn on_disks<T>(world: &World, what: &str, call: impl FnOnce() -> T) -> T {
    let what = || what.to_owned();
    watched(world, &what, Duration::ZERO, LOOK_EVERY, call)
}

/// As [`on_disks`], and `silent` is how long the kernel may work at it without a sign. `what` is asked for each line.
pub fn with_silence<T>(
    world: &World,
    what: Name<'_>,
    silent: Duration,
    call: impl FnOnce() -> T,
) -> T {
    watched(world, what, silent, LOOK_EVERY, call)
}

/// Runs `call`, which waits for disks, in a thread that is left alone once the kernel has shown no sign of work for so long: a disk
/// that does not answer may keep it for ever. `what` is what the lines on the consoles call it. Whether the call has ended.
///
/// The watchdog is fed until then: the wait has an end.
pub fn until_silent(
    world: &World,
    what: &str,
    silent: Duration,
    call: impl FnOnce() + Send + 'static,
) -> bool {
    left_alone(world, what, silent, LOOK_EVERY, call)
}

fn left_alone(
    world: &World,
    what: &str,
    silent: Duration,
    look_every: Duration,
    call: impl FnOnce() + Send + 'static,
) -> bool {
    let (done, ended) = channel::<()>();
    let work = move || {
        call();
        drop(done);
    };
    if let Err(error) = Builder::new().spawn(work) {
        tracing::warn!("{what}: no thread to do it: {error}");
        return false;
    }
    let mut waiter = Waiter::for_ever(world);
    let (mut before, mut quiet) = (Signs::read(world), Duration::ZERO);
    while ended.recv_timeout(look_every) == Err(RecvTimeoutError::Timeout) {
        let now = Signs::read(world);
        quiet = match now == before {
            true => quiet + look_every,
            false => Duration::ZERO,
        };
        before = now;
        if quiet >= silent {
            let seconds = silent.as_secs();
            tracing::warn!("waiting for {what}: no sign of it for {seconds} s");
            return false;
        }
        waiter.worked();
        waiter.say(what);
    }
    true
}

fn watched<T>(
    world: &World,
    what: Name<'_>,
    silent: Duration,
    look_every: Duration,
    call: impl FnOnce() -> T,
) -> T {
    let (done, ended) = channel();
    scope(|scope| {
        let watch = || watch(world, what, silent, look_every, ended);
        // Without the thread the call runs as well, only unseen.
        if let Err(error) = Builder::new().spawn_scoped(scope, watch) {
            tracing::warn!("{}: no thread to watch it: {error}", what());
        }
        let result = call();
        drop(done);
        result
    })
}

fn watch(
    world: &World,
    what: Name<'_>,
    silent: Duration,
    look_every: Duration,
    ended: Receiver<()>,
) {
    let mut waiter = Waiter::for_ever(world);
    // The usual call has ended before the first look, and costs none.
    let mut before: Option<Signs> = None;
    while ended.recv_timeout(look_every) == Err(RecvTimeoutError::Timeout) {
        let now = Signs::read(world);
        let works = before.as_ref().is_some_and(|before| *before != now);
        before = Some(now);
        if works || waiter.elapsed() < silent {
            waiter.worked();
        }
        waiter.say(&what());
    }
}

/// What changes while the kernel gets on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Signs {
    /// Requests that the machine's disks have completed.
    requests: u64,
    /// Events of devices so far.
    events: String,
}

impl Signs {
    pub(crate) fn read(world: &World) -> Self {
        let block = world.sys.join("block");
        let disks = entries(&block);
        let stats = disks
            .iter()
            .filter_map(|disk| fs::read_to_string(block.join(disk).join("stat")).ok());
        Self {
            requests: stats.map(|text| completed(&text)).sum(),
            events: fs::read_to_string(world.sys.join("kernel/uevent_seqnum")).unwrap_or_default(),
        }
    }
}

/// Disks that have requests and complete none.
#[derive(Debug, Default)]
pub(crate) struct Stalled {
    /// By disk: its completed requests, and since when there is no further one, by the world's clock in microseconds.
    since: BTreeMap<String, (u64, i64)>,
}

impl Stalled {
    /// The disks that have completed nothing for so long, by the looks until now, and have requests.
    pub(crate) fn look(&mut self, world: &World, least: Duration) -> Vec<String> {
        const IN_FLIGHT: usize = 8;
        let now = world.micros();
        let block = world.sys.join("block");
        let mut found = BTreeMap::new();
        for disk in entries(&block) {
            let stat = fs::read_to_string(block.join(&disk).join("stat")).unwrap_or_default();
            let in_flight = stat.split_whitespace().nth(IN_FLIGHT);
            if in_flight.is_none_or(|count| count == "0") {
                continue;
            }
            let completed = completed(&stat);
            let before = self
                .since
                .get(&disk)
                .filter(|(count, _)| *count == completed);
            found.insert(disk, before.copied().unwrap_or((completed, now)));
        }
        self.since = found;
        let stalled = self.since.iter().filter(|(_, (_, since))| {
            u128::try_from(now - since).is_ok_and(|time| time >= least.as_micros())
        });
        stalled.map(|(disk, _)| disk.clone()).collect()
    }
}

/// Completed reads, writes, discards and flushes of a disk, by its file `stat` in sysfs
/// (<https://docs.kernel.org/block/stat.html>).
fn completed(stat: &str) -> u64 {
    const COUNTERS: [usize; 4] = [0, 4, 11, 15];
    let fields: Vec<u64> = stat
        .split_whitespace()
        .map(|field| field.parse().unwrap_or(0))
        .collect();
    COUNTERS.iter().filter_map(|at| fields.get(*at)).sum()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::atomic::AtomicI64;

    use super::*;
    use crate::world::Clock;

    const LOOK: Duration = Duration::from_millis(2);

    /// A machine with one disk and a watchdog, a plain file to which each feeding adds a byte.
    fn world(folder: &Path) -> World {
        let world = World::below(folder, Clock::Fake(AtomicI64::new(0)));
        fs::create_dir_all(world.sys.join("block/vda")).unwrap();
        fs::create_dir_all(&world.dev).unwrap();
        for name in ["console", "watchdog0"] {
            fs::write(world.dev.join(name), "").unwrap();
        }
        world.watchdog.want(Duration::from_secs(120));
        world.watchdog.arm(&world.dev, &world.sys).unwrap();
        world
    }

    #[test]
    fn a_disk_stalls_while_it_has_requests_and_completes_none() {
        let folder = tempfile::tempdir().unwrap();
        let world = world(folder.path());
        let stat = world.sys.join("block/vda/stat");
        let second = Duration::from_secs(1);
        let mut stalled = Stalled::default();
        // By line: completed reads, requests in flight, whether it has stalled then.
        for (reads, in_flight, has) in [
            (1, 1, false),
            (1, 1, true),
            (2, 1, false),
            (2, 2, true),
            (2, 0, false),
            (2, 1, false),
            (2, 1, true),
        ] {
            let text = format!("{reads} 0 8 0 0 0 0 0 {in_flight} 0 0 0 0 0 0 0 0\n");
            fs::write(&stat, text).unwrap();
            assert_eq!(
                !stalled.look(&world, second).is_empty(),
                has,
                "{reads} {in_flight}"
            );
            world.sleep(second);
        }
        fs::remove_file(&stat).unwrap();
        assert!(stalled.look(&world, second).is_empty());
    }

    fn fed(world: &World) -> u64 {
        fs::metadata(world.dev.join("watchdog0")).unwrap().len()
    }

    /// Ten minutes in which the disk completes a request each second, if it works.
    fn ten_minutes(world: &World, works: bool, silent: u64) -> u64 {
        let before = fed(world);
        let silent = Duration::from_secs(silent);
        watched(world, &|| "the disk".to_owned(), silent, LOOK, || {
            for second in 0..600 {
                if works {
                    let stat = format!("1 0 0 0 {second} 0 0 0 1 9 9 0 0 0 0 0 0\n");
                    fs::write(world.sys.join("block/vda/stat"), stat).unwrap();
                }
                world.sleep(Duration::from_secs(1));
                std::thread::sleep(LOOK);
            }
        });
        fed(world) - before
    }

    #[test]
    fn a_disk_that_works_feeds_and_one_that_hangs_starves_the_watchdog() {
        let folder = tempfile::tempdir().unwrap();
        let world = world(folder.path());
        assert!(ten_minutes(&world, true, 0) > 60);
        let console = fs::read_to_string(world.dev.join("console")).unwrap();
        let line = console
            .lines()
            .find(|line| line.contains("for the disk ("))
            .unwrap();
        assert!(line.ends_with(" s, no deadline)"), "{line}");
        assert_eq!(ten_minutes(&world, false, 0), 0);
        // For a while the kernel may be silent.
        let while_silent = ten_minutes(&world, false, 300);
        assert!((30..=301).contains(&while_silent), "{while_silent}");
    }

    #[test]
    fn a_call_is_left_alone_when_no_disk_works_any_more() {
        let folder = tempfile::tempdir().unwrap();
        let world = world(folder.path());
        let stat = world.sys.join("block/vda/stat");
        let silent = LOOK * 50;
        // It works for longer than it may be silent.
        let works = move || {
            for second in 0..100 {
                fs::write(&stat, format!("1 0 0 0 {second} 0 0 0 1 9 9\n")).unwrap();
                std::thread::sleep(LOOK * 2);
            }
        };
        let before = fed(&world);
        assert!(left_alone(&world, "the disks", silent, LOOK, works));
        assert!(fed(&world) > before);
        let (_never, told) = channel::<()>();
        let hangs = move || assert!(told.recv().is_err());
        assert!(!left_alone(&world, "the disks", silent, LOOK, hangs));
    }

    #[test]
    fn the_result_is_the_calls() {
        let folder = tempfile::tempdir().unwrap();
        let world = world(folder.path());
        assert_eq!(on_disks(&world, "nothing", || 7), 7);
        assert_eq!(fs::read_to_string(world.dev.join("console")).unwrap(), "");
    }

    #[test]
    fn completed_requests_are_counted_by_the_kernels_columns() {
        let stat = " 1000 5 80000 200 300 7 90000 400 2 500 600 30 0 4000 10 4 20\n";
        assert_eq!(completed(stat), 1000 + 300 + 30 + 4);
        // Before Linux 4.18 there were no discards, before 5.5 no flushes.
        assert_eq!(completed("10 0 0 0 20 0 0 0 0 0 0"), 30);
        assert_eq!(completed(""), 0);
    }
}
