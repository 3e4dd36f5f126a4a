//! A DHCP client of either version. The clients are state machines without sockets or clocks: the caller passes received
//! messages and the time, and sends the messages that they return.

use std::time::Duration;

use anyhow::Result;

use crate::lease::Lease;
use crate::{dhcp4, dhcp6};

/// The client of one exchange.
#[derive(Debug)]
pub(crate) enum Client {
    V4(dhcp4::Client),
    V6(dhcp6::Client),
}

impl Client {
    /// When [`Client::send`] has a message.
    pub(crate) const fn due(&self) -> Duration {
        match self {
            Self::V4(client) => client.due(),
            Self::V6(client) => client.due(),
        }
    }

    /// The state, for the console.
    pub(crate) fn status(&self) -> String {
        match self {
            Self::V4(client) => client.status(),
            Self::V6(client) => client.status(),
        }
    }

    /// The message that is due now, if one is.
    pub(crate) fn send(&mut self, now: Duration) -> Result<Option<Vec<u8>>> {
        match self {
            Self::V4(client) => client.send(now),
            Self::V6(client) => client.send(now),
        }
    }

    /// Takes a received message. Returns the lease once it is granted; messages for other clients are ignored.
    pub(crate) fn receive(&mut self, bytes: &[u8], now: Duration) -> Option<Lease> {
        match self {
            Self::V4(client) => client.receive(bytes, now),
            Self::V6(client) => client.receive(bytes, now),
        }
    }

    /// Drops an unusable lease, and starts again after a pause.
    pub(crate) fn reject(&mut self, now: Duration) {
        match self {
            Self::V4(client) => client.restart(now),
            Self::V6(client) => client.restart(now),
        }
    }

    /// Declines a lease whose address another host uses. Version 4 only starts again: the kernel does not detect its
    /// duplicates.
    pub(crate) fn decline(&mut self, now: Duration) {
        match self {
            Self::V4(client) => client.restart(now),
            Self::V6(client) => client.decline(now),
        }
    }
}
