//! A netlink socket: requests to the kernel's network configuration, and its events (netlink(7), rtnetlink(7)).
//!
//! The messages are made by hand: six kinds of request are all that the init needs.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    socket,
};

use crate::message::{message, messages, word};

// linux/netlink.h
const REQUEST: u16 = 1;
const ACK: u16 = 4;
/// Flag of a request: list all objects.
pub(crate) const DUMP: u16 = 0x300;
/// Flag of a request: replace an existing object.
pub(crate) const REPLACE: u16 = 0x100;
/// Flag of a request: fail if the object exists.
pub(crate) const EXCLUSIVE: u16 = 0x200;
/// Flag of a request: create the object if it does not exist.
pub(crate) const CREATE: u16 = 0x400;
const ERROR: u16 = 2;
const DONE: u16 = 3;
// linux/rtnetlink.h: groups of events, as bits.
const GROUP_LINK: u32 = 1;
const GROUP_ADDRESS6: u32 = 0x100;
const GROUP_FLAGS6: u32 = 0x800;
const GROUP_ND: u32 = 1 << 19;
/// An option of neighbour discovery that the kernel passes on to user space.
const NEW_ND: u16 = 68;
/// Address family of IPv4 (`AF_INET`).
pub(crate) const INET: u8 = 2;
/// Address family of IPv6 (`AF_INET6`).
pub(crate) const INET6: u8 = 10;

/// A socket to the kernel's network configuration.
#[derive(Debug)]
pub(crate) struct Netlink {
    fd: OwnedFd,
    sequence: u32,
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Netlink {
    /// A socket for requests.
    pub(crate) fn open() -> Result<Self> {
        Self::bound(0, SockFlag::SOCK_CLOEXEC)
    }

    /// A socket that becomes readable when a link, an IPv6 address or a router advertisement changes.
    pub(crate) fn monitor() -> Result<Self> {
        Self::bound(
            GROUP_LINK | GROUP_ADDRESS6 | GROUP_FLAGS6 | GROUP_ND,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        )
    }

    fn bound(groups: u32, flags: SockFlag) -> Result<Self> {
        let make = || -> nix::Result<OwnedFd> {
            let protocol = SockProtocol::NetlinkRoute;
            let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
            bind(fd.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
            Ok(fd)
        };
        Ok(Self {
            fd: make().context("opening a netlink socket")?,
            sequence: 0,
        })
    }

    /// Reads the pending events of a monitor, and returns the name servers that routers advertised, each with its link's index.
    pub(crate) fn drain(&self) -> Vec<(u32, IpAddr)> {
        let mut out = Vec::new();
        let mut buffer = [0; 8192];
        while let Ok(len @ 1..) = recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            for (header, body) in messages(&buffer[..len]) {
                if header.kind == NEW_ND {
                    let index = word(body, 4).unwrap_or(0);
                    out.extend(resolvers(body).into_iter().map(|server| (index, server)));
                }
            }
        }
        out
    }

    /// Sends a request and returns the bodies of a dump's answers. The kernel's error code becomes an `Errno`.
    pub(crate) fn request(&mut self, kind: u16, flags: u16, body: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.sequence += 1;
        let message = message(kind, flags | REQUEST | ACK, self.sequence, body)?;
        send(self.fd.as_raw_fd(), &message, MsgFlags::empty())?;
        let mut out = Vec::new();
        let mut buffer = vec![0; 65_536];
        loop {
            let len = recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
            for (header, body) in messages(&buffer[..len]) {
                if header.sequence != self.sequence {
                    continue;
                }
                match header.kind {
                    DONE => return Ok(out),
                    ERROR => {
                        let code = body.get(..4).and_then(|b| b.try_into().ok());
                        match i32::from_ne_bytes(code.unwrap_or_default()) {
                            0 => return Ok(out),
                            code => return Err(nix::errno::Errno::from_raw(-code).into()),
                        }
                    }
                    _ => out.push(body.to_vec()),
                }
            }
        }
    }
}

/// The name servers of a router's advertisement (RFC 8106, section 5.1), as the kernel passes it on (`nduseroptmsg`).
fn resolvers(body: &[u8]) -> Vec<IpAddr> {
    const RDNSS: u8 = 25;
    let option = body.get(16..).unwrap_or_default();
    let (Some(&RDNSS), Some(&units)) = (option.first(), option.get(1)) else {
        return Vec::new();
    };
    let lifetime = option.get(4..8).unwrap_or_default();
    if lifetime == [0; 4] {
        return Vec::new();
    }
    let addresses = option.get(8..usize::from(units) * 8).unwrap_or_default();
    addresses.chunks_exact(16).filter_map(address).collect()
}

/// The octets of an address, in network order.
pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The address of 4 or 16 octets.
pub(crate) fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advertised_name_servers_are_read() {
        let mut body = vec![0; 16];
        body.extend([25, 3, 0, 0, 0, 0, 2, 88]);
        let server: std::net::Ipv6Addr = "2001:db8::53".parse().unwrap();
        body.extend(server.octets());
        assert_eq!(resolvers(&body), [IpAddr::V6(server)]);
        assert_eq!(resolvers(&body[..30]), [IpAddr::V6(server); 0]);
        body[20..24].fill(0);
        assert_eq!(resolvers(&body), [IpAddr::V6(server); 0]);
    }
}
