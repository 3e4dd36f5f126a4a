//! Settling: all devices of this machine are there. Whoever chooses between devices that look alike waits for it, since
//! the first one that is visible may not be the only one.
//!
//! The loading of a driver ends only when the probing that it began in the background has ended (`async_synchronize_full`
//! in the kernel's `do_init_module`): SCSI scans, SATA ports and NVMe namespaces among it. What has no such end (USB,
//! fabrics, hot-plugged disks) shows itself by device events. While a disk has stalled that end is not waited for; such a
//! disk has not answered this program either ([`crate::disk_answers`]), and who settles waits for its answer.

use std::fs;
use std::time::Duration;

use crate::block::entries;
use crate::world::World;

/// How long no device event may come.
const QUIET: Duration = Duration::from_millis(250);
/// How long the wait lasts at most: a device may send events for ever.
const DEADLINE: Duration = Duration::from_secs(10);
/// States of an NVMe controller whose namespaces are still to come (`nvme_sysfs_show_state` in the kernel).
const NVME_UNSETTLED: [&str; 3] = ["new", "resetting", "connecting"];

/// A wait until the devices have settled.
#[derive(Debug)]
pub struct Settling<'a> {
    world: &'a World,
    /// Of `world`'s clock, in microseconds.
    began: i64,
    /// Number of the last device event, and since when it is the last one.
    last: (Option<u64>, i64),
}

impl<'a> Settling<'a> {
    /// Waits from now on. The drivers of all devices were loaded before.
    #[must_use]
    pub fn begin(world: &'a World) -> Self {
        let now = world.micros();
        Self {
            world,
            began: now,
            last: (last_event(world), now),
        }
    }

    /// Whether the devices have settled, or the deadline has passed.
    #[must_use]
    pub fn is_over(&mut self) -> bool {
        let now = self.world.micros();
        let event = last_event(self.world);
        if event != self.last.0 {
            self.last = (event, now);
        }
        if passed(self.began, now, DEADLINE) {
            tracing::warn!(
                "devices have not settled within {} s; continuing with those that are there",
                DEADLINE.as_secs()
            );
            return true;
        }
        passed(self.last.1, now, QUIET) && !nvme_is_unsettled(self.world)
    }

    /// How long to pause before [`Settling::is_over`] is asked again.
    #[must_use]
    pub const fn pause() -> Duration {
        Duration::from_millis(50)
    }
}

fn passed(since: i64, now: i64, time: Duration) -> bool {
    u128::try_from(now - since).is_ok_and(|passed| passed >= time.as_micros())
}

/// Number of the kernel's last device event: <https://docs.kernel.org/admin-guide/abi-testing.html> (`uevent_seqnum`).
fn last_event(world: &World) -> Option<u64> {
    let text = fs::read_to_string(world.sys.join("kernel/uevent_seqnum")).ok()?;
    text.trim().parse().ok()
}

fn nvme_is_unsettled(world: &World) -> bool {
    let class = world.sys.join("class/nvme");
    entries(&class).iter().any(|name| {
        fs::read_to_string(class.join(name).join("state"))
            .is_ok_and(|state| NVME_UNSETTLED.contains(&state.trim()))
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::AtomicI64;

    use super::*;
    use crate::world::Clock;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn devices_have_settled_after_a_time_without_events_and_without_controllers_that_start() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Fake(AtomicI64::new(0)));
        let event = world.sys.join("kernel/uevent_seqnum");
        let controller = world.sys.join("class/nvme/nvme0/state");
        write(&event, "100\n");
        let mut settling = Settling::begin(&world);
        world.sleep(QUIET - Duration::from_millis(1));
        assert!(!settling.is_over());
        // An event begins the time anew.
        write(&event, "101\n");
        world.sleep(Duration::from_millis(1));
        assert!(!settling.is_over());
        write(&controller, "connecting\n");
        world.sleep(QUIET);
        assert!(!settling.is_over());
        write(&controller, "live\n");
        assert!(settling.is_over());
    }

    #[test]
    fn devices_that_never_settle_do_not_hold_the_node() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Fake(AtomicI64::new(0)));
        let event = world.sys.join("kernel/uevent_seqnum");
        let mut settling = Settling::begin(&world);
        let mut asked = 0;
        while !settling.is_over() {
            asked += 1;
            write(&event, &asked.to_string());
            world.sleep(Settling::pause());
        }
        assert_eq!(asked, 10_000 / 50);
    }
}
