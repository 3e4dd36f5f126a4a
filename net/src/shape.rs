//! Shape: the links that the command line asks for are made as soon as those below them are there; and which names an
//! interface answers to.
//!
//! The kernel calls interfaces `eth0`, `eth1`, … in the order in which their drivers load; a person knows them by the
//! names that udev gives them in the running system. Both are understood here.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use data_encoding::HEXLOWER;
use image::mac::Mac;
use image::network::{Bond, Network, Vlan};

use crate::link::Link;
use crate::netlink::Netlink;
use linux::block;
use linux::world::World;

/// What was tried, so that a mistake is told once.
#[derive(Debug, Default)]
pub(crate) struct Shaper {
    told: BTreeSet<String>,
}

impl Shaper {
    /// Makes what can be made now. What fails is logged once and tried again with the next change.
    pub(crate) fn shape(
        &mut self,
        world: &World,
        netlink: &mut Netlink,
        plan: &Network,
    ) -> Result<()> {
        if plan.is_default() {
            return Ok(());
        }
        for (name, mac) in &plan.names {
            let links = netlink.links()?;
            let found = links
                .iter()
                .find(|link| link.mac == mac.0 && link.ethernet && link.name != *name);
            let taken = links.iter().any(|link| link.name == *name);
            if let Some(link) = found.filter(|_| !taken) {
                let done = renamed(netlink, link, name);
                self.tell(done.with_context(|| format!("naming {} {name}", link.name)));
            }
        }
        for bond in &plan.bonds {
            let done = bonded(world, netlink, plan, bond);
            self.tell(done.with_context(|| format!("making the bond {}", bond.name)));
        }
        for vlan in &plan.vlans {
            let done = tagged(world, netlink, plan, vlan);
            self.tell(done.with_context(|| format!("making the VLAN {}", vlan.name)));
        }
        Ok(())
    }

    fn tell(&mut self, done: Result<()>) {
        if let Err(error) = done {
            let text = format!("{error:#}");
            if self.told.insert(text.clone()) {
                tracing::warn!("net: {text}");
            }
        }
    }
}

fn renamed(netlink: &mut Netlink, link: &Link, name: &str) -> Result<()> {
    netlink.set_up(link.index, false)?;
    netlink.rename(link.index, name)
}

fn bonded(world: &World, netlink: &mut Netlink, plan: &Network, bond: &Bond) -> Result<()> {
    let find = |links: &[Link], name: &str| {
        links
            .iter()
            .find(|link| answers(world, plan, link).iter().any(|own| own == name))
            .cloned()
    };
    let mut links = netlink.links()?;
    if find(&links, &bond.name).is_none() {
        netlink.add_bond(&bond.name)?;
        // Before the first member, as the kernel wants it of `mode`.
        let folder = world.sys.join("class/net").join(&bond.name).join("bonding");
        for (key, value) in &bond.options {
            fs::write(folder.join(key), value)
                .with_context(|| format!("setting {key} to {value}"))?;
        }
        links = netlink.links()?;
    }
    let own = find(&links, &bond.name).context("it was made and is not there")?;
    for member in &bond.members {
        let Some(link) = find(&links, member) else {
            continue;
        };
        if link.master != Some(own.index) {
            netlink.set_up(link.index, false)?;
            netlink
                .enslave(link.index, own.index)
                .with_context(|| format!("adding {}", link.name))?;
        }
    }
    Ok(())
}

fn tagged(world: &World, netlink: &mut Netlink, plan: &Network, vlan: &Vlan) -> Result<()> {
    let links = netlink.links()?;
    if links.iter().any(|link| link.name == vlan.name) {
        return Ok(());
    }
    let parent = links
        .iter()
        .find(|link| answers(world, plan, link).contains(&vlan.parent));
    match parent {
        Some(parent) => netlink.add_vlan(&vlan.name, vlan.id, parent.index),
        None => Ok(()),
    }
}

/// Every name by which a plan may call an interface: those of [`names`], and the plan's own for its Ethernet address. A
/// bond and a VLAN carry the address of what is below them, which is not meant.
pub(crate) fn answers(world: &World, plan: &Network, link: &Link) -> Vec<String> {
    let mut out = names(world, link);
    let own = link.permanent.as_ref().unwrap_or(&link.mac);
    let meant = |(_, mac): &&(String, Mac)| !link.stacked && *own == mac.0;
    out.extend(
        plan.aliases
            .iter()
            .filter(meant)
            .map(|(name, _)| name.clone()),
    );
    out
}

/// Every name that an interface answers to: the kernel's, and those that udev would give it (systemd.net-naming-scheme(7):
/// on board, slot, path, Ethernet address).
fn names(world: &World, link: &Link) -> Vec<String> {
    let folder = world.sys.join("class/net").join(&link.name);
    let mut out = vec![link.name.clone()];
    let device = folder.join("device");
    for file in ["acpi_index", "index"] {
        if let Some(index) = number(&device.join(file), 10).filter(|index| *index > 0) {
            out.push(format!("eno{index}"));
        }
    }
    if let Some(path) = pci(&device) {
        let port = number(&folder.join("dev_port"), 10).unwrap_or(0);
        let suffix = |text: String| match port {
            0 => text,
            port => format!("{text}d{port}"),
        };
        let Pci {
            domain,
            bus,
            slot,
            function,
        } = path;
        let domain = match domain {
            0 => String::new(),
            domain => format!("P{domain}"),
        };
        let many = world
            .sys
            .join(format!("bus/pci/devices/{}", path.name(1)))
            .exists();
        let tail = if function > 0 || many {
            format!("f{function}")
        } else {
            String::new()
        };
        out.push(suffix(format!("en{domain}p{bus}s{slot}{tail}")));
        if let Some(hotplug) = slot_of(world, &path) {
            out.push(suffix(format!("en{domain}s{hotplug}{tail}")));
        }
    }
    // A bond and a VLAN carry the address of what is below them.
    if link.mac.len() == 6 && device.exists() {
        out.push(format!("enx{}", HEXLOWER.encode(&link.mac)));
    }
    out
}

/// Where a device sits on the PCI bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pci {
    domain: u64,
    bus: u64,
    slot: u64,
    function: u64,
}

impl Pci {
    fn parse(name: &str) -> Option<Self> {
        let (domain, rest) = name.split_once(':')?;
        let (bus, rest) = rest.split_once(':')?;
        let (slot, function) = rest.split_once('.')?;
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        Some(Self {
            domain: number(domain)?,
            bus: number(bus)?,
            slot: number(slot)?,
            function: number(function)?,
        })
    }

    /// The name in sysfs of another function of the same device.
    fn name(&self, function: u64) -> String {
        format!(
            "{:04x}:{:02x}:{:02x}.{function}",
            self.domain, self.bus, self.slot
        )
    }
}

/// The PCI device of an interface: its own, or the one above a virtio device.
fn pci(device: &Path) -> Option<Pci> {
    let real = fs::canonicalize(device).ok()?;
    real.ancestors()
        .take(2)
        .find_map(|path| Pci::parse(path.file_name()?.to_str()?))
}

/// The number of the hotplug slot that a device or a bridge above it sits in.
fn slot_of(world: &World, pci: &Pci) -> Option<String> {
    let slots = world.sys.join("bus/pci/slots");
    let wanted = format!("{:04x}:{:02x}:{:02x}", pci.domain, pci.bus, pci.slot);
    block::entries(&slots).into_iter().find(|slot| {
        fs::read_to_string(slots.join(slot).join("address"))
            .is_ok_and(|address| address.trim() == wanted)
    })
}

fn number(path: &Path, base: u32) -> Option<u64> {
    u64::from_str_radix(fs::read_to_string(path).ok()?.trim(), base).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Advertised;
    use linux::world::Clock;

    #[test]
    fn an_interface_answers_to_the_names_of_udev() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let device = world.sys.join("devices/pci0000:00/0000:00:03.0/virtio1");
        fs::create_dir_all(&device).unwrap();
        let net = world.sys.join("class/net/eth0");
        fs::create_dir_all(&net).unwrap();
        std::os::unix::fs::symlink(&device, net.join("device")).unwrap();
        fs::write(net.join("dev_port"), "0\n").unwrap();
        let slot = world.sys.join("bus/pci/slots/3");
        fs::create_dir_all(&slot).unwrap();
        fs::write(slot.join("address"), "0000:00:03\n").unwrap();
        let link = Link {
            index: 2,
            name: "eth0".to_owned(),
            mac: vec![0x52, 0x54, 0, 0x12, 0x34, 0x56],
            up: false,
            carrier: false,
            ethernet: true,
            master: None,
            permanent: None,
            stacked: false,
            advertised: Advertised::default(),
        };
        assert_eq!(
            names(&world, &link),
            ["eth0", "enp0s3", "ens3", "enx525400123456"]
        );
        let above = Link {
            name: "bond0".to_owned(),
            ..link
        };
        assert_eq!(names(&world, &above), ["bond0"]);
    }
}
