//! What was given its end by a clock that was not synchronised: bootstrap tokens, and the upload of the shared keys. Each is kept until
//! the clock is set, so that its end can move with it.
//!
//! It is not in the journal: an earlier program may have to read that again, and knows no further field of it.

use std::collections::BTreeMap;
use std::fs::File;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use cluster::duration::{Duration, time, time_after};
use data_encoding::BASE64;
use image::paths::{RUN_CLOCK_LOCK, UNSET_CLOCK};
use linux::atomic_file;
use linux::mount::folder;
use linux::world::World;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::lock::lock;
use crate::this_boot::is_synchronized;

/// A clock that is set by less than this was right; seconds.
const SLACK: i64 = 60;

/// A reading of the clock.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    /// What it said.
    pub(crate) wall: SystemTime,
    /// How long the machine had been running, seconds.
    running: i64,
    /// The number of the boot.
    boot: String,
    is_synchronized: bool,
}

impl Reading {
    /// Reads the clock.
    pub(crate) fn now(world: &World) -> Self {
        // Asked before: a clock that is set in between counts as one that was not.
        let is_synchronized = is_synchronized(world);
        Self {
            is_synchronized,
            ..Self::at(world, SystemTime::now())
        }
    }

    /// The same with a clock that says this.
    pub(crate) fn at(world: &World, wall: SystemTime) -> Self {
        Self {
            wall,
            running: world.micros() / 1_000_000,
            boot: world.boot_id(),
            is_synchronized: is_synchronized(world),
        }
    }
}

/// An object with an end of a clock that was not synchronised.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry {
    /// The clock when the end was computed, seconds since 1970.
    wall: i64,
    /// How long the machine had been running then, seconds.
    running: i64,
    /// The number of that boot.
    boot: String,
    /// How long the object was to last, seconds.
    life: i64,
    /// The Secret whose `expiration` is the end, as it was sent.
    pub(crate) secret: Value,
    /// Of an upload, SHA-256 of the certificate key.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) key: Option<String>,
}

/// The objects by their paths in the API.
pub(crate) type Entries = BTreeMap<String, Entry>;

/// What is done about an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing yet: the clock may still be set.
    Wait,
    /// Nothing any more: the clock was right, or the object has lasted as long as it was to.
    Forget,
    /// It is given this end, seconds since 1970.
    Move(i64),
}

impl Entry {
    /// What is done about it now.
    pub(crate) fn verdict(&self, now: &Reading) -> Verdict {
        let is_same_boot = self.boot == now.boot;
        // Of a boot before this one it is not known how long that went on.
        let lasted = match is_same_boot {
            true => now.running - self.running,
            false => now.running,
        };
        if lasted >= self.life {
            return Verdict::Forget;
        }
        let set_by = seconds(now.wall) - self.wall - lasted;
        match (is_same_boot, now.is_synchronized) {
            (true, _) if set_by.abs() > SLACK => Verdict::Move(self.wall + self.life + set_by),
            (true, true) => Verdict::Forget,
            (false, true) => Verdict::Move(seconds(now.wall) + self.life),
            (_, false) => Verdict::Wait,
        }
    }

    /// Whether the end that it was given has passed, so that the cluster's token cleaner may have removed it.
    pub(crate) fn has_ended(&self, now: &Reading) -> bool {
        self.wall + self.life <= seconds(now.wall)
    }
}

/// Keeps an object that is sent next, if its end is of a clock that was not synchronised. `key` is the certificate key's SHA-256 of an
/// upload. To be called with [`alone`], until the object is sent.
///
/// # Errors
/// If the file cannot be read or written.
pub(crate) fn note(
    world: &World,
    by: &Reading,
    path: &str,
    secret: &Value,
    key: Option<&str>,
) -> Result<()> {
    let mut entries = read(world)?;
    let end = end(secret).filter(|_| !by.is_synchronized);
    match end {
        Some(end) => {
            let wall = seconds(by.wall);
            let entry = Entry {
                wall,
                running: by.running,
                boot: by.boot.clone(),
                life: seconds(end) - wall,
                secret: secret.clone(),
                key: key.map(str::to_owned),
            };
            entries.insert(path.to_owned(), entry);
        }
        // What an attempt before this one left.
        None if entries.remove(path).is_some() => {}
        None => return Ok(()),
    }
    write(world, &entries)
}

/// The objects that are kept. A file that cannot be used is named in the log, and holds up nothing.
///
/// # Errors
/// If the file cannot be read.
pub(crate) fn read(world: &World) -> Result<Entries> {
    let file = world.in_initrd(UNSET_CLOCK);
    let text = atomic_file::read(&file).with_context(|| format!("reading {}", file.display()))?;
    let Some(text) = text else {
        return Ok(Entries::new());
    };
    Ok(serde_json::from_slice(&text).unwrap_or_else(|error| {
        tracing::warn!("{UNSET_CLOCK} is not used: {error}");
        Entries::new()
    }))
}

/// Writes the objects that are kept; there is no file without one.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn write(world: &World, entries: &Entries) -> Result<()> {
    let file = world.in_initrd(UNSET_CLOCK);
    let about = || format!("writing {}", file.display());
    if entries.is_empty() {
        return atomic_file::remove(&file).with_context(about);
    }
    folder(file.parent().with_context(about)?, 0o755)?;
    let text = serde_json::to_vec_pretty(entries).with_context(about)?;
    atomic_file::write(&file, &text, 0o600).with_context(about)
}

/// Waits until no other process of this program makes or moves such an object, and keeps others from it until this ends.
///
/// # Errors
/// If the lock cannot be made.
pub(crate) fn alone(world: &World) -> Result<File> {
    lock(world, RUN_CLOCK_LOCK)
}

/// The end of a Secret of a bootstrap token; none if it has none.
fn end(secret: &Value) -> Option<SystemTime> {
    let text = secret["data"]["expiration"].as_str()?;
    let text = BASE64.decode(text.as_bytes()).ok()?;
    time(str::from_utf8(&text).ok()?)
}

/// A time in seconds since 1970, RFC 3339.
pub(crate) fn shown(seconds: i64) -> String {
    time_after(UNIX_EPOCH, Duration(seconds.saturating_mul(1_000_000_000)))
}

fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use image::paths::TIME_SYNCHRONIZED;
    use linux::world::Clock;
    use serde_json::json;

    use super::*;
    use crate::samples::put;

    const PATH: &str = "/api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef";
    const HOUR: i64 = 3600;
    /// The clock of a machine that is behind, and the right one of the same moment.
    const WRONG: i64 = 1_790_000_000;
    const MONTHS: i64 = 100 * 24 * HOUR;

    fn at(seconds: i64) -> SystemTime {
        time(&shown(seconds)).unwrap()
    }

    fn token(end: i64) -> Value {
        json!({"data": {"expiration": BASE64.encode(shown(end).as_bytes())}})
    }

    /// A machine that has been running for an hour, and a token of 24 hours that it made then by a clock that was behind.
    fn noted(root: &std::path::Path) -> (World, Entry) {
        let clock = Clock::Fake(AtomicI64::new(HOUR * 1_000_000));
        let world = World::below(root, clock);
        put(&world.proc.join("sys/kernel/random/boot_id"), "one\n");
        let by = Reading::at(&world, at(WRONG));
        note(&world, &by, PATH, &token(WRONG + 24 * HOUR), None).unwrap();
        let mut entries = read(&world).unwrap();
        let entry = entries.remove(PATH).unwrap();
        assert!(entries.is_empty());
        (world, entry)
    }

    #[test]
    fn an_end_moves_by_what_the_clock_was_set_by_and_a_clock_that_was_right_moves_none() {
        use Verdict::{Forget, Move, Wait};
        let folder = tempfile::tempdir().unwrap();
        let (world, entry) = noted(folder.path());
        let boot = world.proc.join("sys/kernel/random/boot_id");
        let (end, day) = (WRONG + 24 * HOUR, 24 * HOUR);
        // The boot, how long after the token, what the clock says beyond the time that has passed, with and without a time server.
        for (name, later, set_by, synchronised, otherwise) in [
            ("one", 0, 0, Forget, Wait),
            ("one", HOUR, 60, Forget, Wait),
            ("one", HOUR, -60, Forget, Wait),
            ("one", HOUR, 61, Move(end + 61), Move(end + 61)),
            ("one", HOUR, -61, Move(end - 61), Move(end - 61)),
            ("one", 5, MONTHS, Move(end + MONTHS), Move(end + MONTHS)),
            // It has lasted as long as it was to, whatever the clock said.
            ("one", day, MONTHS, Forget, Forget),
            ("one", day, 0, Forget, Forget),
            // After a restart nobody knows when it was made: it lasts as long as it was to from now on.
            ("two", 0, MONTHS, Move(WRONG + MONTHS + day), Wait),
            ("two", 0, 0, Move(WRONG + day), Wait),
            ("two", day, MONTHS, Forget, Forget),
        ] {
            put(&boot, name);
            let Clock::Fake(clock) = &world.clock else {
                panic!("a clock of tests");
            };
            clock.store((HOUR + later) * 1_000_000, Ordering::Relaxed);
            let about = format!("{name} {later} {set_by}");
            let mut now = Reading::at(&world, at(WRONG + later + set_by));
            assert_eq!(entry.verdict(&now), otherwise, "{about}");
            now.is_synchronized = true;
            assert_eq!(entry.verdict(&now), synchronised, "{about}");
        }
    }

    #[test]
    fn nothing_is_kept_of_a_clock_that_is_synchronised_and_a_damaged_file_holds_up_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (world, _) = noted(folder.path());
        let file = world.in_initrd(UNSET_CLOCK);
        put(&world.in_run(TIME_SYNCHRONIZED), "");
        let by = Reading::now(&world);
        // Another one stays, and that of the same path is not of that clock any more.
        note(&world, &by, "/other", &token(WRONG), None).unwrap();
        assert!(read(&world).unwrap().keys().eq([PATH]));
        note(&world, &by, PATH, &token(WRONG), None).unwrap();
        assert!(!file.exists());
        put(&file, "{\"/api\": {\"wall\": ");
        assert!(read(&world).unwrap().is_empty());
        std::fs::remove_file(world.in_run(TIME_SYNCHRONIZED)).unwrap();
        let by = Reading::now(&world);
        note(&world, &by, PATH, &token(WRONG), Some("hash")).unwrap();
        assert_eq!(read(&world).unwrap()[PATH].key.as_deref(), Some("hash"));
        // A token without an end has none that could move.
        note(&world, &by, PATH, &json!({"data": {}}), None).unwrap();
        assert!(!file.exists());
    }
}
