//! Netlink: links, addresses and routes by hand-made messages (rtnetlink(7)); six kinds are all that is needed.

mod message;

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    socket,
};

use message::{attribute, attributes, half, message, messages, nested, word};

// linux/netlink.h
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
const REPLACE: u16 = 0x100;
const EXCLUSIVE: u16 = 0x200;
const CREATE: u16 = 0x400;
const ERROR: u16 = 2;
const DONE: u16 = 3;
// linux/rtnetlink.h
const GET_LINK: u16 = 18;
const NEW_LINK: u16 = 16;
const SET_LINK: u16 = 19;
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;
const NEW_ROUTE: u16 = 24;
const GROUP_LINK: u32 = 1;
const GROUP_ADDRESS6: u32 = 0x100;
const GROUP_FLAGS6: u32 = 0x800;
const GROUP_ND: u32 = 1 << 19;
const NEW_ND: u16 = 68;
const MAIN_TABLE: u8 = 254;
const BY_DHCP: u8 = 16;
const ON_LINK: u32 = 4;
// linux/if.h, linux/if_arp.h
const UP: u32 = 1;
const LOWER_UP: u32 = 0x1_0000;
const ETHERNET: u16 = 1;
const INET: u8 = 2;
const INET6: u8 = 10;
// linux/if_link.h
const ADDRESS: u16 = 1;
const NAME: u16 = 3;
const MTU: u16 = 4;
const LINK: u16 = 5;
const MASTER: u16 = 10;
const INFO: u16 = 18;
const FAMILIES: u16 = 26;
const PERMANENT: u16 = 54;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const VLAN_ID: u16 = 1;
// linux/if_link.h, net/if_inet6.h: what the last router's advertisement said.
const FLAGS6: u16 = 1;
const MANAGED: u32 = 0x40;
const OTHER: u32 = 0x80;
// linux/rtnetlink.h
const SCOPE_LINK: u8 = 253;
// linux/if_addr.h: an address whose uniqueness is still being asked for, or was denied.
const TENTATIVE: u32 = 0x40;
const DENIED: u32 = 0x08;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mac: Vec<u8>,
    /// The device's own address, if it has one: in a bond it carries another.
    pub(crate) permanent: Option<Vec<u8>>,
    pub(crate) up: bool,
    pub(crate) carrier: bool,
    pub(crate) ethernet: bool,
    /// The bond that it is in.
    pub(crate) master: Option<u32>,
    /// A bond or a VLAN, which carries the Ethernet address of what is below it.
    pub(crate) stacked: bool,
    /// What routers say about DHCP, version 6.
    pub(crate) advertised: Advertised,
}

/// The flags of the last router's advertisement (RFC 4861, section 4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Advertised {
    /// Addresses are to be had.
    pub(crate) managed: bool,
    /// Other things are, as name servers.
    pub(crate) other: bool,
}

/// An address of a link.
struct Held {
    address: IpAddr,
    prefix: u8,
    scope: u8,
    flags: u32,
}

/// How far an address of version 6 is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It is in use.
    Ours,
    /// It is still being asked for whether somebody else has it, or is not there.
    Open,
    /// Somebody else has it.
    Denied,
}

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) network: IpAddr,
    pub(crate) prefix: u8,
    /// Unspecified: the network is on the link itself.
    pub(crate) gateway: IpAddr,
}

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

    /// A socket that becomes readable when a link, an IPv6 address or what routers say changes.
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

    /// Takes what a monitor heard, and gives the name servers that routers advertised meanwhile.
    pub(crate) fn drain(&self) -> Vec<IpAddr> {
        let mut out = Vec::new();
        let mut buffer = [0; 8192];
        while let Ok(len @ 1..) = recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            for (header, body) in messages(&buffer[..len]) {
                if header.kind == NEW_ND {
                    out.extend(resolvers(body));
                }
            }
        }
        out
    }

    /// Sends a request and gives the bodies of the answers of a dump; the kernel's error is an error.
    fn request(&mut self, kind: u16, flags: u16, body: &[u8]) -> Result<Vec<Vec<u8>>> {
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

    /// All links.
    pub(crate) fn links(&mut self) -> Result<Vec<Link>> {
        let answers = self
            .request(GET_LINK, DUMP, &link_header(0, 0, 0))
            .context("listing the links")?;
        Ok(answers.iter().filter_map(|body| link(body)).collect())
    }

    /// Sets a link up or down.
    pub(crate) fn set_up(&mut self, index: u32, up: bool) -> Result<()> {
        let flags = if up { UP } else { 0 };
        self.request(SET_LINK, 0, &link_header(index, flags, UP))?;
        Ok(())
    }

    /// Makes a veth pair: `name` here, `peer` in the network namespace that `namespace` is open on.
    #[cfg(test)]
    pub(crate) fn add_veth(&mut self, name: &str, peer: &str, namespace: i32) -> Result<()> {
        let mut other = link_header(0, 0, 0);
        attribute(&mut other, NAME, format!("{peer}\0").as_bytes());
        attribute(&mut other, 28, &namespace.to_ne_bytes());
        let data = nested(1, &other);
        self.add_link(name, "veth", &data, &[])
    }

    /// Makes a link of a kind that the kernel knows by name, with the data of that kind.
    fn add_link(&mut self, name: &str, kind: &str, data: &[u8], more: &[u8]) -> Result<()> {
        let mut info = nested(INFO_KIND, kind.as_bytes());
        if !data.is_empty() {
            info.extend(nested(INFO_DATA, data));
        }
        let mut body = link_header(0, 0, 0);
        attribute(&mut body, NAME, format!("{name}\0").as_bytes());
        attribute(&mut body, INFO, &info);
        body.extend(more);
        self.request(NEW_LINK, CREATE | EXCLUSIVE, &body)
            .with_context(|| format!("making the {kind} {name}"))?;
        Ok(())
    }

    /// Makes a VLAN above another link.
    pub(crate) fn add_vlan(&mut self, name: &str, id: u16, parent: u32) -> Result<()> {
        let data = nested(VLAN_ID, &id.to_ne_bytes());
        let below = nested(LINK, &parent.to_ne_bytes());
        self.add_link(name, "vlan", &data, &below)
    }

    /// Makes a bond without members.
    pub(crate) fn add_bond(&mut self, name: &str) -> Result<()> {
        self.add_link(name, "bond", &[], &[])
    }

    /// Puts a link, which must be down, into a bond.
    pub(crate) fn enslave(&mut self, index: u32, bond: u32) -> Result<()> {
        self.change(index, MASTER, &bond.to_ne_bytes())
    }

    /// Names a link, which must be down.
    pub(crate) fn rename(&mut self, index: u32, name: &str) -> Result<()> {
        self.change(index, NAME, format!("{name}\0").as_bytes())
    }

    /// Gives a link another Ethernet address.
    pub(crate) fn set_mac(&mut self, index: u32, mac: &[u8; 6]) -> Result<()> {
        self.change(index, ADDRESS, mac)
    }

    fn change(&mut self, index: u32, kind: u16, value: &[u8]) -> Result<()> {
        let mut body = link_header(index, 0, 0);
        attribute(&mut body, kind, value);
        self.request(SET_LINK, 0, &body)?;
        Ok(())
    }

    /// Sets a link's MTU.
    pub(crate) fn set_mtu(&mut self, index: u32, mtu: u32) -> Result<()> {
        self.change(index, MTU, &mtu.to_ne_bytes())
    }

    /// Adds an address.
    pub(crate) fn add_address(&mut self, index: u32, address: IpAddr, prefix: u8) -> Result<()> {
        self.add_peer(index, address, prefix, address)
    }

    /// Adds an address whose link has `peer` at its other end.
    pub(crate) fn add_peer(
        &mut self,
        index: u32,
        address: IpAddr,
        prefix: u8,
        peer: IpAddr,
    ) -> Result<()> {
        let body = address_body(index, address, prefix, peer);
        self.request(NEW_ADDRESS, CREATE | REPLACE, &body)?;
        Ok(())
    }

    /// The addresses of a link of one version with their prefixes; of IPv6 only those that are in use and reach
    /// beyond the link.
    pub(crate) fn addresses(&mut self, index: u32, six: bool) -> Result<Vec<(IpAddr, u8)>> {
        let mut held = self.held(index, six)?;
        held.retain(|one| !six || (one.scope == 0 && one.flags & (TENTATIVE | DENIED) == 0));
        Ok(held.iter().map(|one| (one.address, one.prefix)).collect())
    }

    /// Whether a link has an address of version 6 that is in use and reaches no farther than the link.
    pub(crate) fn has_link_local(&mut self, index: u32) -> Result<bool> {
        let local = |one: &Held| one.scope == SCOPE_LINK && one.flags & (TENTATIVE | DENIED) == 0;
        Ok(self.held(index, true)?.iter().any(local))
    }

    /// How far an address of version 6 is.
    pub(crate) fn claim(&mut self, index: u32, address: IpAddr) -> Result<Claim> {
        let held = self.held(index, true)?;
        let flags = held.iter().find(|one| one.address == address);
        Ok(match flags.map(|one| one.flags) {
            Some(flags) if flags & DENIED != 0 => Claim::Denied,
            Some(flags) if flags & TENTATIVE == 0 => Claim::Ours,
            _ => Claim::Open,
        })
    }

    fn held(&mut self, index: u32, six: bool) -> Result<Vec<Held>> {
        let mut all = vec![if six { INET6 } else { INET }];
        all.extend([0; 7]);
        let mut out = Vec::new();
        for body in self.request(GET_ADDRESS, DUMP, &all)? {
            let Some((&[family, prefix, flags, scope], of)) =
                body.first_chunk::<4>().zip(word(&body, 4))
            else {
                continue;
            };
            if of != index || family != all[0] {
                continue;
            }
            let find = |wanted: u16| attributes(&body, 8).find(|(kind, _)| *kind == wanted);
            let flags = find(8)
                .and_then(|(_, value)| word(value, 0))
                .unwrap_or_else(|| flags.into());
            let value = find(2).or_else(|| find(1)).map(|(_, value)| value);
            out.extend(value.and_then(address).map(|address| Held {
                address,
                prefix,
                scope,
                flags,
            }));
        }
        Ok(out)
    }

    /// Removes an address.
    pub(crate) fn remove_address(&mut self, index: u32, address: IpAddr, prefix: u8) -> Result<()> {
        let body = address_body(index, address, prefix, address);
        self.request(DELETE_ADDRESS, 0, &body)?;
        Ok(())
    }

    /// Removes all addresses of a link; their routes go with them.
    pub(crate) fn flush_addresses(&mut self, index: u32) -> Result<()> {
        for (address, prefix) in self.addresses(index, false)? {
            self.remove_address(index, address, prefix)?;
        }
        for (address, prefix) in self.addresses(index, true)? {
            // The kernel takes back those of the routers' advertisements itself when the link goes down.
            if let Err(error) = self.remove_address(index, address, prefix) {
                tracing::debug!("net: removing {address}: {error:#}");
            }
        }
        Ok(())
    }

    /// Adds a route.
    pub(crate) fn add_route(&mut self, index: u32, route: Route, on_link: bool) -> Result<()> {
        let through = !route.gateway.is_unspecified();
        let scope = if through || route.network.is_ipv6() {
            0
        } else {
            253
        };
        let flags = if through && on_link { ON_LINK } else { 0 };
        let family = if route.network.is_ipv4() { INET } else { INET6 };
        let mut body = vec![family, route.prefix, 0, 0, MAIN_TABLE, BY_DHCP, scope, 1];
        body.extend(flags.to_ne_bytes());
        if route.prefix > 0 {
            attribute(&mut body, 1, &octets(route.network));
        }
        attribute(&mut body, 4, &index.to_ne_bytes());
        if through {
            attribute(&mut body, 5, &octets(route.gateway));
        }
        self.request(NEW_ROUTE, CREATE | REPLACE, &body)?;
        Ok(())
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

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        _ => None,
    }
}

fn link_header(index: u32, flags: u32, change: u32) -> Vec<u8> {
    let mut out = vec![0; 4];
    out.extend(index.to_ne_bytes());
    out.extend(flags.to_ne_bytes());
    out.extend(change.to_ne_bytes());
    out
}

fn address_body(index: u32, address: IpAddr, prefix: u8, peer: IpAddr) -> Vec<u8> {
    let family = if address.is_ipv4() { INET } else { INET6 };
    let mut out = vec![family, prefix, 0, 0];
    out.extend(index.to_ne_bytes());
    attribute(&mut out, 1, &octets(peer));
    attribute(&mut out, 2, &octets(address));
    if let IpAddr::V4(address) = address
        && prefix < 31
        && peer == IpAddr::V4(address)
    {
        let broadcast = u32::from(address) | (u32::MAX.checked_shr(u32::from(prefix)).unwrap_or(0));
        attribute(&mut out, 4, &broadcast.to_be_bytes());
    }
    out
}

fn link(body: &[u8]) -> Option<Link> {
    let flags = word(body, 8)?;
    let mut out = Link {
        index: word(body, 4)?,
        name: String::new(),
        mac: Vec::new(),
        permanent: None,
        up: flags & UP != 0,
        carrier: flags & LOWER_UP != 0,
        ethernet: half(body, 2)? == ETHERNET,
        master: None,
        stacked: false,
        advertised: Advertised::default(),
    };
    let inner = |value, wanted| attributes(value, 0).find(|(kind, _)| *kind == wanted);
    for (kind, value) in attributes(body, 16) {
        match kind {
            ADDRESS => out.mac = value.to_vec(),
            INFO => {
                let kind = inner(value, INFO_KIND).map(|(_, kind)| kind);
                out.stacked = matches!(kind, Some(b"bond\0" | b"vlan\0" | b"bond" | b"vlan"));
            }
            FAMILIES => {
                let flags = inner(value, INET6.into())
                    .and_then(|(_, six)| inner(six, FLAGS6))
                    .and_then(|(_, flags)| word(flags, 0))
                    .unwrap_or(0);
                out.advertised = Advertised {
                    managed: flags & MANAGED != 0,
                    other: flags & OTHER != 0,
                };
            }
            PERMANENT => out.permanent = Some(value.to_vec()),
            MASTER => out.master = word(value, 0),
            NAME => {
                out.name = String::from_utf8_lossy(value)
                    .trim_end_matches('\0')
                    .to_owned()
            }
            _ => {}
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_has_a_loopback() {
        let links = Netlink::open().unwrap().links().unwrap();
        let lo = links.iter().find(|link| link.name == "lo").unwrap();
        assert!(!lo.ethernet && lo.index > 0, "{lo:?}");
    }

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
