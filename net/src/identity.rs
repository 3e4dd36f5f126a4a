//! The identifiers of a DHCP client. The running node's systemd-networkd sends the same ones, so that it gets the same
//! lease.
//!
//! Version 4: the Ethernet address, as `ClientIdentifier=mac` (systemd.network(5)). Version 6: a DUID-LL, which is the
//! Ethernet address too (RFC 8415, section 11.4), as `DUIDType=link-layer`. Not a DUID-UUID: many boards have no UUID
//! in their firmware or share it with their whole batch, whereas two equal Ethernet addresses on one link do not work
//! anyhow. Since the DUID differs with the link, the IAID only has to distinguish the VLANs of one link; see [`iaid`].

use image::network::Network;

/// Hardware type of Ethernet (RFC 1700, "Number Hardware Type").
const ETHERNET: u8 = 1;

/// The client identifier of version 4 (RFC 2132, section 9.14).
pub(crate) fn client_identifier(mac: &[u8]) -> Vec<u8> {
    [&[ETHERNET], mac].concat()
}

/// The DUID-LL of an Ethernet address.
pub(crate) fn duid(mac: &[u8]) -> Vec<u8> {
    [&[0, 3, 0, ETHERNET], mac].concat()
}

/// The identity association's number of an interface: a VLAN's number, else 0. Both the client and the files for
/// systemd-networkd take it from here.
pub(crate) fn iaid(plan: &Network, name: &str) -> u32 {
    let vlan = plan.vlans.iter().find(|vlan| vlan.name == name);
    vlan.map_or(0, |vlan| vlan.id.into())
}
