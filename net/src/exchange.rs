//! A DHCP exchange on one link: the client and its socket.

use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
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

/// What an exchange requests. A link has at most one exchange of each IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// An address of version 4.
    Dhcp4,
    /// An address of version 6.
    Dhcp6,
    /// Configuration without an address, by DHCPv6 (Information-request).
    Information,
}

impl Protocol {
    /// Whether it is of version 6.
    pub(crate) const fn is_six(self) -> bool {
        !matches!(self, Self::Dhcp4)
    }
}

/// An exchange with the DHCP servers of one link.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) link: Link,
    pub(crate) protocol: Protocol,
    client: Client,
    socket: UdpSocket,
    to: SocketAddr,
    /// Whether the plan has the MTU of the link.
    has_mtu: bool,
    /// The lease that configures the link.
    pub(crate) granted: Option<Lease>,
}

impl Exchange {
    /// Starts an exchange. `iaid` distinguishes the VLANs of one Ethernet address in DHCPv6; `wished` is the lease that the link
    /// has, if it has one.
    pub(crate) fn new(
        link: &Link,
        protocol: Protocol,
        iaid: u32,
        wished: Option<&Lease>,
        now: Duration,
    ) -> Result<Self> {
        let random = RandomState::new().build_hasher().finish();
        let (client, socket, to) = match protocol {
            Protocol::Dhcp4 => {
                let xid = u32::try_from(random & u64::from(u32::MAX))?;
                let wished = wished.and_then(|lease| lease.addresses.first());
                let wished = wished.and_then(|(address, _)| match address {
                    IpAddr::V4(address) => Some(*address),
                    IpAddr::V6(_) => None,
                });
                let client = Client::V4(dhcp4::Client::new(&link.mac, xid).wishing(wished));
                let socket = bound(link, AddressFamily::Inet, &SockaddrIn::new(0, 0, 0, 0, 68))?;
                socket.set_broadcast(true)?;
                let to = (Ipv4Addr::BROADCAST, 67).into();
                (client, socket, to)
            }
            Protocol::Dhcp6 | Protocol::Information => {
                let inform = protocol == Protocol::Information;
                let client = dhcp6::Client::new(&link.mac, iaid, inform, random, now);
                let any = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 546, 0, 0);
                let socket = bound(link, AddressFamily::Inet6, &SockaddrIn6::from(any))?;
                // All_DHCP_Relay_Agents_and_Servers (RFC 8415, section 7.1).
                let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
                let to = SocketAddrV6::new(all, 547, 0, link.index).into();
                (Client::V6(client), socket, to)
            }
        };
        Ok(Self {
            link: link.clone(),
            protocol,
            client,
            socket,
            to,
            has_mtu: false,
            granted: None,
        })
    }

    /// With whether the plan has the MTU of the link, which a server's does not replace then.
    pub(crate) fn with_mtu_of_plan(mut self, has_mtu: bool) -> Self {
        self.has_mtu = has_mtu;
        self
    }

    /// When the next message is due.
    pub(crate) const fn due(&self) -> Duration {
        self.client.due()
    }

    /// The state of the client, for the console.
    pub(crate) fn status(&self) -> String {
        self.client.status()
    }

    /// Sends the message that is due, if one is.
    pub(crate) fn send(&mut self, now: Duration) -> Result<()> {
        if let Some(message) = self.client.send(now)? {
            // A link that went down loses its carrier, and Progress ends the exchange.
            if let Err(error) = self.socket.send_to(&message, self.to) {
                tracing::debug!("net: {}: sending: {error}", self.link.name);
            }
        }
        Ok(())
    }

    /// Receives all pending messages; returns the lease once it is granted.
    pub(crate) fn receive(&mut self, now: Duration) -> Option<Lease> {
        let mut buffer = [0; 4096];
        while let Ok((len, _)) = self.socket.recv_from(&mut buffer) {
            if let Some(mut lease) = self.client.receive(&buffer[..len], now) {
                lease.mtu = lease.mtu.filter(|_| !self.has_mtu);
                return Some(lease);
            }
        }
        None
    }

    /// Starts again: the link does not accept the granted lease.
    pub(crate) fn reject(&mut self, now: Duration) {
        self.granted = None;
        self.client.reject(now);
    }

    /// Starts again: another host uses the granted address. The server is informed.
    pub(crate) fn decline(&mut self, now: Duration) {
        self.granted = None;
        self.client.decline(now);
    }
}

impl AsFd for Exchange {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A socket that is bound to one link, which needs no address yet.
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
