//! Uevents: waiting for devices without udev.
//!
//! Events only wake a waiter, which reads sysfs: a lost event costs half a second and never a device.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};

use crate::waiter::Waiter;
use crate::world::World;

/// The longest pause of a wait until it reads sysfs again, event or not.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// A netlink socket that receives the kernel's device events.
#[derive(Debug)]
pub struct Monitor(OwnedFd);

impl Monitor {
    /// Listens from now on.
    ///
    /// # Errors
    /// If the kernel gives no socket.
    pub fn open() -> Result<Self> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::NetlinkKObjectUEvent,
        )
        .context("opening the socket for device events")?;
        // Group 1 is the kernel's own; group 2 would be udev's.
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 1)).context("listening for device events")?;
        Ok(Self(socket))
    }

    /// Waits for at least one event, at most `time`, and receives all pending ones.
    pub fn wait(&self, time: Duration) {
        let time = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        let mut polled = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        if let Err(error) = poll(&mut polled, time) {
            tracing::debug!("waiting for device events: {error}");
        }
        let mut message = [0; 4096];
        loop {
            match recv(self.0.as_raw_fd(), &mut message, MsgFlags::empty()) {
                // An overrun means that events were lost, so sysfs must be read.
                Ok(_) | Err(Errno::ENOBUFS | Errno::EINTR) => {}
                Err(_) => return,
            }
        }
    }
}

/// Calls `look`, and again at each device event, until it returns a value or `deadline` (for ever if none) has passed.
/// The [`Waiter`] prints the subject of the wait; each call is progress.
///
/// # Errors
/// Those of `look`, or that the kernel gives no socket.
pub fn wait_for<T>(
    world: &World,
    what: &str,
    deadline: Option<Duration>,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    if let Some(found) = look()? {
        return Ok(Some(found));
    }
    let monitor = Monitor::open()?;
    let mut waiter = Waiter::new(world, deadline);
    loop {
        waiter.examined();
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
        if waiter.is_over() {
            return Ok(None);
        }
        waiter.say(what);
        monitor.wait(waiter.pause(LOOK_AGAIN));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::world::Clock;

    #[test]
    fn a_wait_ends_with_what_it_waits_for_or_at_its_deadline() {
        let world = World::below(Path::new("/nowhere"), Clock::Real);
        let mut looks = 0;
        let found = wait_for(&world, "three", None, || {
            looks += 1;
            Ok((looks == 3).then_some(looks))
        });
        assert_eq!(found.unwrap(), Some(3));
        let short = Some(Duration::from_millis(30));
        let none = wait_for(&world, "nothing", short, || Ok(None::<()>));
        assert_eq!(none.unwrap(), None);
        let error = wait_for(&world, "an error", None, || {
            anyhow::bail!("broken") as Result<Option<()>>
        });
        assert_eq!(error.unwrap_err().to_string(), "broken");
    }
}
