//! Virtual links (bonds, VLANs, names), made as soon as the links below them appear; and the names of an interface.
//!
//! The kernel names interfaces `eth0`, `eth1`, … in the order in which their drivers load; on the running node udev gives
//! them predictable names. Both are accepted here.

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

/// Makes virtual links, and logs each error once.
#[derive(Debug, Default)]
pub(crate) struct Shaper {
    logged: BTreeSet<String>,
}

impl Shaper {
    /// Makes the links that can be made now. An error is logged once, and the link tried again at the next event.
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
                let done = rename(netlink, link, name);
                self.log_once(done.with_context(|| format!("naming {} {name}", link.name)));
            }
        }
        for bond in &plan.bonds {
            let done = make_bond(world, netlink, plan, bond);
            self.log_once(done.with_context(|| format!("making the bond {}", bond.name)));
        }
        for vlan in &plan.vlans {
            let done = make_vlan(world, netlink, plan, vlan);
            self.log_once(done.with_context(|| format!("making the VLAN {}", vlan.name)));
        }
        Ok(())
    }

    fn log_once(&mut self, done: Result<()>) {
        if let Err(error) = done {
            let text = format!("{error:#}");
            if self.logged.insert(text.clone()) {
                tracing::warn!("net: {text}");
            }
        }
    }
}

fn rename(netlink: &mut Netlink, link: &Link, name: &str) -> Result<()> {
    netlink.set_up(link.index, false)?;
    netlink.rename(link.index, name)
}

fn make_bond(world: &World, netlink: &mut Netlink, plan: &Network, bond: &Bond) -> Result<()> {
    let find = |links: &[Link], name: &str| {
        links
            .iter()
            .find(|link| names(world, plan, link).iter().any(|own| own == name))
            .cloned()
    };
    let mut links = netlink.links()?;
    if find(&links, &bond.name).is_none() {
        netlink.add_bond(&bond.name)?;
        // Before the first member: the kernel refuses to change `mode` of a bond that has members
        // (Documentation/networking/bonding.rst).
        let folder = world.sys.join("class/net").join(&bond.name).join("bonding");
        for (key, value) in &bond.options {
            fs::write(folder.join(key), value)
                .with_context(|| format!("setting {key} to {value}"))?;
        }
        links = netlink.links()?;
    }
    let own = find(&links, &bond.name).context("the kernel made it and does not list it")?;
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

fn make_vlan(world: &World, netlink: &mut Netlink, plan: &Network, vlan: &Vlan) -> Result<()> {
    let links = netlink.links()?;
    if links.iter().any(|link| link.name == vlan.name) {
        return Ok(());
    }
    let parent = links
        .iter()
        .find(|link| names(world, plan, link).contains(&vlan.parent));
    match parent {
        Some(parent) => netlink.add_vlan(&vlan.name, vlan.id, parent.index),
        None => Ok(()),
    }
}

/// All names by which a plan may refer to an interface: those of [`udev_names`], and the plan's aliases of its Ethernet
/// address. Not for a bond or a VLAN, which has the address of the link below it.
pub(crate) fn names(world: &World, plan: &Network, link: &Link) -> Vec<String> {
    let mut out = udev_names(world, link);
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

/// The kernel's name of an interface, and those that udev gives it (systemd.net-naming-scheme(7):
/// on board, slot, path, Ethernet address).
fn udev_names(world: &World, link: &Link) -> Vec<String> {
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
    // A bond and a VLAN have the address of the link below them.
    if link.mac.len() == 6 && device.exists() {
        out.push(format!("enx{}", HEXLOWER.encode(&link.mac)));
    }
    out
}

/// The position of a device on the PCI bus.
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

/// The number of the hotplug slot of a device or of a bridge above it.
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
            udev_names(&world, &link),
            ["eth0", "enp0s3", "ens3", "enx525400123456"]
        );
        let above = Link {
            name: "bond0".to_owned(),
            ..link
        };
        assert_eq!(udev_names(&world, &above), ["bond0"]);
    }
}
