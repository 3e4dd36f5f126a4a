//! Network interfaces: listed, made, changed (rtnetlink(7), `linux/if_link.h`).

use anyhow::{Context, Result};

use crate::message::{attribute, attributes, half, nested, word};
use crate::netlink::{CREATE, DUMP, EXCLUSIVE, INET6, Netlink};

// linux/rtnetlink.h
const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const SET_LINK: u16 = 19;
// linux/if.h, linux/if_arp.h
const UP: u32 = 1;
const LOWER_UP: u32 = 0x1_0000;
const ETHERNET: u16 = 1;
// linux/if_link.h: IFLA_*
const ADDRESS: u16 = 1;
const NAME: u16 = 3;
const MTU: u16 = 4;
const LINK: u16 = 5;
const MASTER: u16 = 10;
const INFO: u16 = 18;
const FAMILIES: u16 = 26;
#[cfg(test)]
const NAMESPACE: u16 = 28;
const PERMANENT: u16 = 54;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const VLAN_ID: u16 = 1;
#[cfg(test)]
const VETH_PEER: u16 = 1;
// linux/if_link.h, net/if_inet6.h: the flags of the last router's advertisement.
const FLAGS6: u16 = 1;
const MANAGED: u32 = 0x40;
const OTHER: u32 = 0x80;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mac: Vec<u8>,
    /// The device's permanent address, if it has one: a member of a bond shows the bond's as its current one.
    pub(crate) permanent: Option<Vec<u8>>,
    pub(crate) up: bool,
    pub(crate) carrier: bool,
    pub(crate) ethernet: bool,
    /// The index of its bond.
    pub(crate) master: Option<u32>,
    /// Whether it is a bond or a VLAN, which has the Ethernet address of the link below it.
    pub(crate) stacked: bool,
    /// A VLAN's number, and the link below it.
    pub(crate) tag: Option<(u16, u32)>,
    /// What the last router advertisement says of DHCPv6.
    pub(crate) advertised: Advertised,
}

impl Link {
    /// The address by which the device is known, whatever it is a member of.
    pub(crate) fn own_mac(&self) -> &[u8] {
        self.permanent.as_ref().unwrap_or(&self.mac)
    }
}

/// The flags of the last router's advertisement (RFC 4861, section 4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Advertised {
    /// M: DHCPv6 has addresses.
    pub(crate) managed: bool,
    /// O: DHCPv6 has other configuration, such as name servers.
    pub(crate) other: bool,
}

impl Netlink {
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
        attribute(&mut other, NAMESPACE, &namespace.to_ne_bytes());
        let data = nested(VETH_PEER, &other);
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

    /// Takes a link out of its bond.
    pub(crate) fn release(&mut self, index: u32) -> Result<()> {
        self.change(index, MASTER, &0_u32.to_ne_bytes())
    }

    /// Removes a virtual link. A bond gives its members their own Ethernet addresses back.
    pub(crate) fn delete(&mut self, index: u32) -> Result<()> {
        self.request(DELETE_LINK, 0, &link_header(index, 0, 0))?;
        Ok(())
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
}

fn link_header(index: u32, flags: u32, change: u32) -> Vec<u8> {
    let mut out = vec![0; 4];
    out.extend(index.to_ne_bytes());
    out.extend(flags.to_ne_bytes());
    out.extend(change.to_ne_bytes());
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
        tag: None,
        advertised: Advertised::default(),
    };
    let (mut number, mut below) = (None, None);
    let inner = |value, wanted| attributes(value, 0).find(|(kind, _)| *kind == wanted);
    for (kind, value) in attributes(body, 16) {
        match kind {
            ADDRESS => out.mac = value.to_vec(),
            INFO => {
                let kind = inner(value, INFO_KIND).map(|(_, kind)| kind);
                out.stacked = matches!(kind, Some(b"bond\0" | b"vlan\0" | b"bond" | b"vlan"));
                if matches!(kind, Some(b"vlan\0" | b"vlan")) {
                    let data = inner(value, INFO_DATA).and_then(|(_, data)| inner(data, VLAN_ID));
                    number = data.and_then(|(_, id)| half(id, 0));
                }
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
            LINK => below = word(value, 0),
            NAME => {
                out.name = String::from_utf8_lossy(value)
                    .trim_end_matches('\0')
                    .to_owned()
            }
            _ => {}
        }
    }
    out.tag = number.zip(below);
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
}
