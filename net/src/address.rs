//! Addresses of interfaces (rtnetlink(7), `linux/if_addr.h`).

use std::net::IpAddr;

use anyhow::Result;
use image::network::masked;

use crate::message::{attribute, attributes, word};
use crate::netlink::{CREATE, DUMP, INET, INET6, Netlink, REPLACE, address, octets};

// linux/rtnetlink.h
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;
const SCOPE_LINK: u8 = 253;
// linux/if_addr.h: IFA_*
const PEER: u16 = 1;
const LOCAL: u16 = 2;
const BROADCAST: u16 = 4;
const FLAGS: u16 = 8;
// linux/if_addr.h: duplicate address detection (RFC 4862, section 5.4) is under way, or has failed.
const TENTATIVE: u32 = 0x40;
const DADFAILED: u32 = 0x08;

/// An address of a link.
struct Assigned {
    address: IpAddr,
    prefix: u8,
    scope: u8,
    flags: u32,
}

/// The state of an address of version 6 in duplicate address detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressState {
    /// In use.
    Ready,
    /// Detection is under way, or the link does not have the address.
    Tentative,
    /// Another host uses it.
    Duplicate,
}

impl Netlink {
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

    /// The addresses of a link of one IP version, with their prefixes; of version 6 only those in use, without link-local
    /// ones.
    pub(crate) fn addresses(&mut self, index: u32, six: bool) -> Result<Vec<(IpAddr, u8)>> {
        let mut assigned = self.assigned(index, six)?;
        assigned.retain(|one| {
            !six || (one.scope < SCOPE_LINK && one.flags & (TENTATIVE | DADFAILED) == 0)
        });
        Ok(assigned
            .iter()
            .map(|one| (one.address, one.prefix))
            .collect())
    }

    /// Whether a link-local address of version 6 is in use.
    pub(crate) fn has_link_local(&mut self, index: u32) -> Result<bool> {
        let local =
            |one: &Assigned| one.scope == SCOPE_LINK && one.flags & (TENTATIVE | DADFAILED) == 0;
        Ok(self.assigned(index, true)?.iter().any(local))
    }

    /// The state of an address of version 6.
    pub(crate) fn address_state(&mut self, index: u32, address: IpAddr) -> Result<AddressState> {
        let assigned = self.assigned(index, true)?;
        let flags = assigned.iter().find(|one| one.address == address);
        Ok(match flags.map(|one| one.flags) {
            Some(flags) if flags & DADFAILED != 0 => AddressState::Duplicate,
            Some(flags) if flags & TENTATIVE == 0 => AddressState::Ready,
            _ => AddressState::Tentative,
        })
    }

    fn assigned(&mut self, index: u32, six: bool) -> Result<Vec<Assigned>> {
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
            let flags = find(FLAGS)
                .and_then(|(_, value)| word(value, 0))
                .unwrap_or_else(|| flags.into());
            let value = find(LOCAL).or_else(|| find(PEER)).map(|(_, value)| value);
            out.extend(value.and_then(address).map(|address| Assigned {
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
            // The kernel itself removes the addresses from router advertisements when the link goes down.
            if let Err(error) = self.remove_address(index, address, prefix) {
                tracing::debug!("net: removing {address}: {error:#}");
            }
        }
        Ok(())
    }
}

/// Whether an address is in the network of one of these, which have the lengths of their prefixes.
pub(crate) fn covers(addresses: &[(IpAddr, u8)], other: IpAddr) -> bool {
    let is_near = |(own, prefix): &(IpAddr, u8)| {
        own.is_ipv4() == other.is_ipv4() && masked(*own, *prefix) == masked(other, *prefix)
    };
    addresses.iter().any(is_near)
}

fn address_body(index: u32, address: IpAddr, prefix: u8, peer: IpAddr) -> Vec<u8> {
    let family = if address.is_ipv4() { INET } else { INET6 };
    let mut out = vec![family, prefix, 0, 0];
    out.extend(index.to_ne_bytes());
    attribute(&mut out, PEER, &octets(peer));
    attribute(&mut out, LOCAL, &octets(address));
    if let IpAddr::V4(address) = address
        && prefix < 31
        && peer == IpAddr::V4(address)
    {
        let broadcast = u32::from(address) | (u32::MAX.checked_shr(u32::from(prefix)).unwrap_or(0));
        attribute(&mut out, BROADCAST, &broadcast.to_be_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_cover_their_networks() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        for (own, prefix, other, covered) in [
            ("192.0.2.7", 24, "192.0.2.1", true),
            ("192.0.2.7", 25, "192.0.2.129", false),
            ("192.0.2.7", 32, "192.0.2.1", false),
            ("192.0.2.7", 0, "198.51.100.1", true),
            ("192.0.2.7", 0, "2001:db8::1", false),
            ("2001:db8::7", 64, "2001:db8::1:0:0:1", true),
            ("2001:db8::7", 128, "2001:db8::1", false),
        ] {
            let found = covers(&[(address(own), prefix)], address(other));
            assert_eq!(found, covered, "{own}/{prefix} {other}");
        }
        assert!(!covers(&[], address("192.0.2.1")));
    }
}
