//! Waiting: every loop that waits asks a [`Waiter`] how long to pause, whether a line is due and whether its deadline has
//! passed, and reports its progress, which alone feeds the watchdog.

use std::fmt;
use std::time::Duration;

use crate::log;
use crate::world::World;

/// How often a wait prints what it waits for.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// How often progress reaches the watchdog at most: a download reports every few KiB, and each write to an emulated
/// watchdog leaves the virtual machine.
const FEED_EVERY: Duration = Duration::from_secs(1);

/// One wait: its begin, its deadline, and the time of its next line.
#[derive(Debug)]
pub struct Waiter<'a> {
    world: &'a World,
    /// Of `world`'s clock, in microseconds.
    began: i64,
    deadline: Option<Duration>,
    next_line: Duration,
    fed: Option<Duration>,
}

/// How long a wait has lasted, and its deadline: `5 s of 30 s`, or `5 s, no deadline`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    elapsed: Duration,
    deadline: Option<Duration>,
}

impl fmt::Display for Waited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let elapsed = self.elapsed.as_secs();
        match self.deadline {
            Some(deadline) => write!(f, "{elapsed} s of {} s", deadline.as_secs()),
            None => write!(f, "{elapsed} s, no deadline"),
        }
    }
}

impl<'a> Waiter<'a> {
    /// Waits for `deadline` at most, for ever if none, from now on.
    #[must_use]
    pub fn new(world: &'a World, deadline: Option<Duration>) -> Self {
        Self {
            world,
            began: world.micros(),
            deadline,
            next_line: LINE_EVERY,
            fed: None,
        }
    }

    /// A wait without a deadline.
    #[must_use]
    pub fn for_ever(world: &'a World) -> Self {
        Self::new(world, None)
    }

    /// A wait of at most `deadline` from now.
    #[must_use]
    pub fn until(world: &'a World, deadline: Duration) -> Self {
        Self::new(world, Some(deadline))
    }

    /// The first line is due at once and not after five seconds.
    #[must_use]
    pub fn with_line_at_once(mut self) -> Self {
        self.next_line = Duration::ZERO;
        self
    }

    /// Time since the wait began.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        let micros = u64::try_from(self.world.micros() - self.began).unwrap_or(0);
        Duration::from_micros(micros)
    }

    /// Whether the deadline has passed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    fn left(&self) -> Option<Duration> {
        let deadline = self.deadline?;
        Some(deadline.saturating_sub(self.elapsed()))
    }

    /// How long the loop may pause until it examines its condition again: at most `longest`, and not beyond the
    /// deadline or the next line.
    #[must_use]
    pub fn pause(&self, longest: Duration) -> Duration {
        let to_line = self.next_line.saturating_sub(self.elapsed());
        [self.left(), Some(to_line)]
            .into_iter()
            .flatten()
            // A due event does not shorten the pause to nothing: the loop acts on it after the pause.
            .filter(|left| !left.is_zero())
            .fold(longest, Duration::min)
    }

    /// Sleeps for a [`Waiter::pause`].
    pub fn sleep(&self, longest: Duration) {
        self.world.sleep(self.pause(longest));
    }

    /// Progress: the loop has examined the subject of its wait (devices, links, a channel, a file).
    pub fn examined(&mut self) {
        self.feed();
    }

    /// Progress: this number of bytes has arrived; zero is no progress.
    pub fn received(&mut self, bytes: u64) {
        if bytes > 0 {
            self.feed();
        }
    }

    /// Progress: the program that the loop waits for is running.
    pub fn running(&mut self) {
        self.feed();
    }

    /// Progress: an attempt has ended, or its own timeout is running, and another one follows.
    pub fn attempted(&mut self) {
        self.feed();
    }

    /// Progress: the kernel, which is waited for, has done something since it was last looked at.
    pub(crate) fn worked(&mut self) {
        self.feed();
    }

    // Time that passes is no progress, so that a loop that hangs starves the watchdog: nothing but the five above feeds.
    fn feed(&mut self) {
        let elapsed = self.elapsed();
        if self.fed.is_none_or(|fed| elapsed >= fed + FEED_EVERY) {
            self.fed = Some(elapsed);
            self.world.watchdog.feed();
        }
    }

    /// How long the wait has lasted, if a line is due: after 5, 10, 15 seconds and so on. A loop that was busy for longer
    /// does not catch up on the lines between.
    pub fn line(&mut self) -> Option<Waited> {
        let elapsed = self.elapsed();
        if elapsed < self.next_line {
            return None;
        }
        while self.next_line <= elapsed {
            self.next_line += LINE_EVERY;
        }
        Some(Waited {
            elapsed,
            deadline: self.deadline,
        })
    }

    /// Writes the subject of the wait to all consoles, and as a debug message to the log, if a line is due; returns
    /// whether it was.
    pub fn say(&mut self, what: &str) -> bool {
        let Some(waited) = self.line() else {
            return false;
        };
        let line = format!("waiting for {what} ({waited})");
        log::say(self.world, &format!("slipway: {line}"));
        tracing::debug!("{line}");
        true
    }

    /// Sleeps until the deadline. `line` gets the remaining time, at once and every five seconds.
    pub fn count_down(mut self, mut line: impl FnMut(Duration)) {
        self.next_line = Duration::ZERO;
        while let Some(left) = self.left().filter(|left| !left.is_zero()) {
            if self.line().is_some() {
                line(left);
            }
            self.examined();
            self.sleep(LINE_EVERY);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::atomic::AtomicI64;

    use super::*;
    use crate::world::Clock;

    fn world(folder: &Path) -> World {
        let world = World::below(folder, Clock::Fake(AtomicI64::new(7_000_000)));
        fs::create_dir_all(&world.dev).unwrap();
        fs::write(world.dev.join("console"), "").unwrap();
        world
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn lines_come_every_five_seconds_until_the_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let world = world(folder.path());
        let mut waiter = Waiter::until(&world, seconds(12));
        while !waiter.is_over() {
            waiter.say("a disk");
            waiter.sleep(Duration::from_millis(1700));
        }
        // The last pause ended at the deadline, not after it.
        assert_eq!(waiter.elapsed(), seconds(12));
        let console = fs::read_to_string(world.dev.join("console")).unwrap();
        let last = "slipway: waiting for a disk (10 s of 12 s)\n";
        assert!(console.ends_with(last), "{console}");
        assert_eq!(waiter.line(), None);
    }

    #[test]
    fn a_wait_without_deadline_never_ends_and_skips_missed_lines() {
        let folder = tempfile::tempdir().unwrap();
        let world = world(folder.path());
        let mut waiter = Waiter::for_ever(&world);
        assert_eq!(waiter.pause(seconds(100)), seconds(5));
        world.sleep(seconds(4));
        assert_eq!(waiter.line(), None);
        assert_eq!(waiter.pause(seconds(100)), seconds(1));
        world.sleep(seconds(19));
        let waited = waiter.line().map(|waited| waited.to_string());
        assert_eq!(waited.as_deref(), Some("23 s, no deadline"));
        assert_eq!(waiter.line(), None);
        assert_eq!(waiter.pause(seconds(100)), seconds(2));
        world.sleep(seconds(1_000_000));
        assert!(!waiter.is_over());
        // A loop that prints no lines is not woken for them.
        assert_eq!(waiter.pause(seconds(100)), seconds(100));
        let mut waiter = Waiter::for_ever(&world).with_line_at_once();
        assert!(waiter.line().is_some());
        assert_eq!(waiter.pause(seconds(100)), seconds(5));
    }

    #[test]
    fn a_count_down_says_what_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let world = world(folder.path());
        let mut left = Vec::new();
        Waiter::until(&world, seconds(12)).count_down(|time| left.push(time.as_secs()));
        assert_eq!(left, [12, 7, 2]);
        assert_eq!(world.micros(), 19_000_000);
    }

    #[test]
    fn only_progress_feeds_the_watchdog() {
        let folder = tempfile::tempdir().unwrap();
        let world = world(folder.path());
        // Each feeding writes one byte; a plain file counts them.
        let device = world.dev.join("watchdog0");
        fs::write(&device, "").unwrap();
        world.watchdog.want(seconds(120));
        world.watchdog.arm(&world.dev, &world.sys).unwrap();
        let fed = || fs::metadata(&device).unwrap().len();
        let armed = fed();
        let mut waiter = Waiter::until(&world, seconds(30));
        while !waiter.is_over() {
            waiter.say("what never comes");
            waiter.received(0);
            waiter.sleep(seconds(1));
        }
        assert_eq!(fed(), armed);
        let mut waiter = Waiter::for_ever(&world);
        let progress: [fn(&mut Waiter<'_>); 5] = [
            |waiter| waiter.examined(),
            |waiter| waiter.received(1),
            |waiter| waiter.running(),
            |waiter| waiter.attempted(),
            |waiter| waiter.worked(),
        ];
        for (progress, feedings) in progress.into_iter().zip(1..) {
            progress(&mut waiter);
            // Within the same second it does not write again.
            progress(&mut waiter);
            assert_eq!(fed(), armed + feedings);
            world.sleep(seconds(1));
        }
    }
}
