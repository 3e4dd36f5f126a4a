//! DHCP, what both versions have in common. The clients are state machines without sockets or clocks: the caller passes
//! what arrives and what time it is, and sends what comes out.

use std::time::Duration;

use anyhow::Result;

use crate::lease::Lease;
use crate::{dhcp4, dhcp6};

/// One exchange with the servers of one link.
#[derive(Debug)]
pub(crate) enum Client {
    Four(dhcp4::Client),
    Six(dhcp6::Client),
}

impl Client {
    /// When [`Client::send`] has something to say.
    pub(crate) const fn due(&self) -> Duration {
        match self {
            Self::Four(client) => client.due(),
            Self::Six(client) => client.due(),
        }
    }

    /// What this client is doing, for people.
    pub(crate) fn doing(&self) -> String {
        match self {
            Self::Four(client) => client.doing(),
            Self::Six(client) => client.doing(),
        }
    }

    /// What is to be sent now, if anything.
    pub(crate) fn send(&mut self, now: Duration) -> Result<Option<Vec<u8>>> {
        match self {
            Self::Four(client) => client.send(now),
            Self::Six(client) => client.send(now),
        }
    }

    /// Takes what arrived. Gives the lease when it is granted; what is not for us is passed over.
    pub(crate) fn receive(&mut self, bytes: &[u8], now: Duration) -> Option<Lease> {
        match self {
            Self::Four(client) => client.receive(bytes, now),
            Self::Six(client) => client.receive(bytes, now),
        }
    }

    /// Drops a lease that cannot be used, and begins anew after a pause.
    pub(crate) fn refuse(&mut self, now: Duration) {
        match self {
            Self::Four(client) => client.again(now),
            Self::Six(client) => client.again(now),
        }
    }

    /// Gives a lease back whose address somebody else has. Of version 4 nobody is asked for that.
    pub(crate) fn decline(&mut self, now: Duration) {
        match self {
            Self::Four(client) => client.again(now),
            Self::Six(client) => client.decline(now),
        }
    }
}
