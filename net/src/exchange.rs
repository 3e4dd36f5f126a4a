//! Asking: one DHCP exchange on one link, with its socket.

use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, SockaddrLike, bind, setsockopt,
    socket, sockopt,
};

use crate::dhcp::Client;
use crate::lease::Lease;
use crate::link::Link;
use crate::{dhcp4, dhcp6};

/// What is asked for. One link may have one exchange of each version at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exchange {
    /// An address of version 4.
    Four,
    /// An address of version 6.
    Six,
    /// What servers of version 6 tell without giving an address.
    Information,
}

/// A link whose DHCP servers are asked.
#[derive(Debug)]
pub(crate) struct Asking {
    pub(crate) link: Link,
    pub(crate) exchange: Exchange,
    client: Client,
    socket: UdpSocket,
    to: SocketAddr,
    /// What was granted, and is on the link.
    pub(crate) granted: Option<Lease>,
}

impl Asking {
    /// Begins an exchange. `iaid` tells the addresses of version 6 on one Ethernet address apart.
    ///
    /// # Errors
    /// If there is no socket for it.
    pub(crate) fn new(link: &Link, exchange: Exchange, iaid: u32, now: Duration) -> Result<Self> {
        let random = RandomState::new().build_hasher().finish();
        let (client, socket, to) = match exchange {
            Exchange::Four => {
                let xid = u32::try_from(random & u64::from(u32::MAX))?;
                let client = Client::Four(dhcp4::Client::new(&link.mac, xid));
                let socket = bound(link, AddressFamily::Inet, &SockaddrIn::new(0, 0, 0, 0, 68))?;
                socket.set_broadcast(true)?;
                let to = (Ipv4Addr::BROADCAST, 67).into();
                (client, socket, to)
            }
            Exchange::Six | Exchange::Information => {
                let inform = exchange == Exchange::Information;
                let client = dhcp6::Client::new(&link.mac, iaid, inform, random, now);
                let any = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 546, 0, 0);
                let socket = bound(link, AddressFamily::Inet6, &SockaddrIn6::from(any))?;
                // All_DHCP_Relay_Agents_and_Servers (RFC 8415, section 7.1).
                let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
                let to = SocketAddrV6::new(all, 547, 0, link.index).into();
                (Client::Six(client), socket, to)
            }
        };
        Ok(Self {
            link: link.clone(),
            exchange,
            client,
            socket,
            to,
            granted: None,
        })
    }

    /// When there is something to send.
    pub(crate) const fn due(&self) -> Duration {
        self.client.due()
    }

    /// What it is doing, for people.
    pub(crate) fn doing(&self) -> String {
        self.client.doing()
    }

    /// Sends what is due.
    ///
    /// # Errors
    /// If the message cannot be made.
    pub(crate) fn send(&mut self, now: Duration) -> Result<()> {
        if let Some(message) = self.client.send(now)? {
            // A link that goes down under us is seen by its carrier.
            if let Err(error) = self.socket.send_to(&message, self.to) {
                tracing::debug!("net: {}: sending: {error}", self.link.name);
            }
        }
        Ok(())
    }

    /// Takes what has arrived; gives the lease when there is one.
    pub(crate) fn receive(&mut self, now: Duration) -> Option<Lease> {
        let mut buffer = [0; 4096];
        while let Ok((len, _)) = self.socket.recv_from(&mut buffer) {
            if let Some(lease) = self.client.receive(&buffer[..len], now) {
                return Some(lease);
            }
        }
        None
    }

    /// Asks anew, since the link cannot have what was granted.
    pub(crate) fn refuse(&mut self, now: Duration) {
        self.granted = None;
        self.client.refuse(now);
    }

    /// Asks anew, and tells the server that somebody else has what it granted.
    pub(crate) fn decline(&mut self, now: Duration) {
        self.granted = None;
        self.client.decline(now);
    }
}

impl AsFd for Asking {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A socket on one link alone, whose address nobody has to have yet.
fn bound(link: &Link, family: AddressFamily, port: &dyn SockaddrLike) -> Result<UdpSocket> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(family, SockType::Datagram, flags, None).context("opening a socket")?;
    if family == AddressFamily::Inet6 {
        setsockopt(&fd, sockopt::Ipv6V6Only, &true)?;
    }
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    setsockopt(&fd, sockopt::BindToDevice, &OsString::from(&link.name))
        .with_context(|| format!("binding a socket to {}", link.name))?;
    bind(fd.as_raw_fd(), port).context("binding the DHCP client's port")?;
    Ok(fd.into())
}
