//! Virtual links (bonds, VLANs, names), made as soon as the links below them appear; and the names of an interface.
//!
//! The kernel names interfaces `eth0`, `eth1`, … in the order in which their drivers load; on the running node udev gives
//! them predictable names. Both are accepted here.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use data_encoding::HEXLOWER;
use image::bond::MODE;
use image::mac::Mac;
use image::network::{Bond, Network, Vlan};

use crate::bond::Options;
use crate::link::Link;
use crate::log_once::LogOnce;
use crate::netlink::Netlink;
use linux::block;
use linux::world::World;

/// Makes virtual links, and logs each error once.
#[derive(Debug, Default)]
pub(crate) struct Shaper {
    log: LogOnce,
    /// Options that the kernel has refused, by the bond's index.
    refused: BTreeSet<(u32, String)>,
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
            let found = links.iter().find(|link| {
                link.own_mac() == mac.0 && !link.stacked && link.ethernet && link.name != *name
            });
            let taken = links.iter().any(|link| link.name == *name);
            if let Some(link) = found.filter(|_| !taken) {
                let done = rename(netlink, link, name);
                self.log
                    .warn(done.with_context(|| format!("naming {} {name}", link.name)));
            }
        }
        for bond in &plan.bonds {
            let done = self.make_bond(world, netlink, plan, bond);
            self.log
                .warn(done.with_context(|| format!("making the bond {}", bond.name)));
        }
        for vlan in &plan.vlans {
            let done = make_vlan(world, netlink, plan, vlan);
            self.log
                .warn(done.with_context(|| format!("making the VLAN {}", vlan.name)));
        }
        Ok(())
    }

    /// Makes a bond, unless it is there, with its options and those of its members that are there. Which of the two made it,
    /// this program or the kernel's module, makes no difference to its options.
    fn make_bond(
        &mut self,
        world: &World,
        netlink: &mut Netlink,
        plan: &Network,
        bond: &Bond,
    ) -> Result<()> {
        let mut links = netlink.links()?;
        let made = !links.iter().any(|link| link.name == bond.name);
        if made {
            netlink.add_bond(&bond.name)?;
            links = netlink.links()?;
        }
        let own = links.iter().find(|link| link.name == bond.name).cloned();
        let own = own.context("the kernel made it and does not list it")?;
        let options = Options::new(world, bond);
        let changed = self.set_options(netlink, &links, &own, &options)?;
        if changed {
            links = netlink.links()?;
        }
        if made || changed {
            if let Some(mtu) = bond.mtu {
                let done = netlink.set_mtu(own.index, mtu);
                self.log
                    .warn(done.with_context(|| format!("{}: MTU {mtu}", own.name)));
            }
            tracing::info!("net: {}: {}", own.name, options.shown());
        }
        for member in &bond.members {
            let Some(link) = find(world, plan, &links, member) else {
                continue;
            };
            if link.master != Some(own.index) {
                netlink.set_up(link.index, false)?;
                netlink
                    .enslave(link.index, own.index)
                    .with_context(|| format!("adding {}", link.name))?;
                tracing::info!("net: {}: added {}", bond.name, link.name);
            }
            // The kernel knows its members by its own names.
            let of_member = options.of_members().filter(|(_, value)| value == member);
            for (key, _) in of_member.filter(|(key, _)| !options.has(key, &link.name)) {
                self.try_option(&own, &options, key, &link.name);
            }
        }
        Ok(())
    }

    /// Sets the options that differ; says whether there were any. A mode that the kernel refuses is an error, so that no link
    /// is added to a bond of another mode; any other option is left out with a warning.
    fn set_options(
        &mut self,
        netlink: &mut Netlink,
        links: &[Link],
        own: &Link,
        options: &Options<'_>,
    ) -> Result<bool> {
        let is_open =
            |(key, _): &&(String, String)| !self.refused.contains(&(own.index, key.clone()));
        let differing: Vec<_> = options.differing().into_iter().filter(is_open).collect();
        if differing.is_empty() {
            return Ok(false);
        }
        // Some options are changed only while the bond is down (Documentation/networking/bonding.rst).
        netlink.set_up(own.index, false)?;
        if Options::need_no_members(&differing) {
            release(netlink, links, own)?;
        }
        for (key, value) in &differing {
            match key.as_str() {
                MODE => options.set(key, value)?,
                key => self.try_option(own, options, key, value),
            }
        }
        Ok(true)
    }

    fn try_option(&mut self, own: &Link, options: &Options<'_>, key: &str, value: &str) {
        let refused = (own.index, key.to_owned());
        if self.refused.contains(&refused) {
            return;
        }
        if let Err(error) = options.set(key, value) {
            tracing::warn!("net: {}: {error:#}; it is left out", own.name);
            self.refused.insert(refused);
        }
    }
}

fn rename(netlink: &mut Netlink, link: &Link, name: &str) -> Result<()> {
    netlink.set_up(link.index, false)?;
    netlink.rename(link.index, name)
}

/// The link that goes by a name.
fn find<'a>(world: &World, plan: &Network, links: &'a [Link], name: &str) -> Option<&'a Link> {
    let is = |link: &&Link| names(world, plan, link).iter().any(|own| own == name);
    links.iter().find(is)
}

fn release(netlink: &mut Netlink, links: &[Link], bond: &Link) -> Result<()> {
    let members = links.iter().filter(|link| link.master == Some(bond.index));
    for member in members {
        netlink
            .release(member.index)
            .with_context(|| format!("taking out {}", member.name))?;
    }
    Ok(())
}

/// Makes a VLAN once the link below it is there, and makes one anew that is another than requested.
fn make_vlan(world: &World, netlink: &mut Netlink, plan: &Network, vlan: &Vlan) -> Result<()> {
    let links = netlink.links()?;
    let Some(parent) = find(world, plan, &links, &vlan.parent) else {
        return Ok(());
    };
    let is_it = |link: &Link| link.tag == Some((vlan.id, parent.index));
    let own = |links: &[Link]| links.iter().find(|link| link.name == vlan.name).cloned();
    match own(&links) {
        Some(link) if is_it(&link) => return Ok(()),
        Some(link) if link.tag.is_some() => netlink.delete(link.index)?,
        Some(_) => bail!("another link has this name"),
        None => {}
    }
    netlink.add_vlan(&vlan.name, vlan.id, parent.index)?;
    let made = own(&netlink.links()?);
    ensure!(
        made.as_ref().is_some_and(is_it),
        "expected the tag {} on {}, found {made:?}",
        vlan.id,
        parent.name
    );
    tracing::info!("net: {}: tag {} on {}", vlan.name, vlan.id, parent.name);
    Ok(())
}

/// All names by which a plan may refer to an interface: those of [`udev_names`], and the plan's aliases of its Ethernet
/// address. Not for a bond or a VLAN, which has the address of the link below it.
pub(crate) fn names(world: &World, plan: &Network, link: &Link) -> Vec<String> {
    let mut out = udev_names(world, link);
    let meant = |(_, mac): &&(String, Mac)| !link.stacked && link.own_mac() == mac.0;
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
    let device = folder.join("device");
    let mut places = on_board(&device);
    if let Some(pci) = pci(&device) {
        places.extend(on_bus(world, &pci));
    }
    let mut out = vec![link.name.clone()];
    let ports = ports(&folder);
    for place in places {
        out.extend(ports.iter().map(|port| format!("{place}{port}")));
    }
    // A bond and a VLAN have the address of the link below them.
    if link.own_mac().len() == 6 && device.exists() {
        out.push(format!("enx{}", HEXLOWER.encode(link.own_mac())));
    }
    out
}

/// The suffixes of udev's names for the port of a device that may have several: by the port's name, and by its number, as where
/// the kernel's driver knows no names of ports.
fn ports(folder: &Path) -> Vec<String> {
    let name = fs::read_to_string(folder.join("phys_port_name")).unwrap_or_default();
    let name = Some(name.trim()).filter(|name| !name.is_empty());
    let number = number(&folder.join("dev_port"), 10).filter(|port| *port > 0);
    let by_number = number.map_or_else(String::new, |port| format!("d{port}"));
    let by_name = name.map(|name| format!("n{name}"));
    by_name.into_iter().chain([by_number]).collect()
}

/// The name by the firmware's number of a device on the board.
fn on_board(device: &Path) -> Vec<String> {
    let numbers = ["acpi_index", "index"].map(|file| number(&device.join(file), 10));
    let numbers = numbers.into_iter().flatten().filter(|index| *index > 0);
    numbers.map(|index| format!("eno{index}")).collect()
}

/// The names by the position on the PCI bus, and by its hotplug slot.
fn on_bus(world: &World, pci: &Pci) -> Vec<String> {
    let domain = match pci.domain {
        0 => String::new(),
        domain => format!("P{domain}"),
    };
    let second = world.sys.join("bus/pci/devices").join(pci.name(1));
    let function = match pci.function {
        0 if !second.exists() => String::new(),
        function => format!("f{function}"),
    };
    let (bus, slot) = (pci.bus, pci.slot);
    let mut out = vec![format!("en{domain}p{bus}s{slot}{function}")];
    out.extend(slot_of(world, pci).map(|hotplug| format!("en{domain}s{hotplug}{function}")));
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
            tag: None,
            advertised: Advertised::default(),
        };
        assert_eq!(
            udev_names(&world, &link),
            ["eth0", "enp0s3", "ens3", "enx525400123456"]
        );
        // As mlx5, bnxt_en and ice have it.
        fs::write(net.join("phys_port_name"), "p0\n").unwrap();
        fs::write(device.join("acpi_index"), "2\n").unwrap();
        let named = [
            "eth0",
            "eno2np0",
            "eno2",
            "enp0s3np0",
            "enp0s3",
            "ens3np0",
            "ens3",
        ];
        assert_eq!(udev_names(&world, &link)[..7], named);
        fs::write(net.join("phys_port_name"), "").unwrap();
        fs::write(net.join("dev_port"), "1\n").unwrap();
        let numbered = ["eth0", "eno2d1", "enp0s3d1", "ens3d1"];
        assert_eq!(udev_names(&world, &link)[..4], numbered);
        let above = Link {
            name: "bond0".to_owned(),
            ..link
        };
        assert_eq!(udev_names(&world, &above), ["bond0"]);
    }
}
