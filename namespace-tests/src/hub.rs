//! The networks of nodes: bridges in a namespace of its own, and a link to each node.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use nix::unistd::Pid;

use crate::host_settings::Values;
use crate::namespace::{Space, View};
use crate::service::run;

/// A network, of addresses of 24 bits. The hub's own one in it is its first, the default route of its nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// The usual one. Nothing answers behind the hub.
    #[default]
    Near,
    /// The one behind [`Hub::route_to_far`].
    Far,
}

impl Network {
    /// The address of this last number.
    #[must_use]
    pub fn address(self, number: u8) -> String {
        match self {
            Self::Near => format!("10.77.0.{number}"),
            Self::Far => format!("10.78.0.{number}"),
        }
    }

    /// The address of IPv6 of this last number.
    #[must_use]
    pub fn address_6(self, number: u8) -> String {
        match self {
            Self::Near => format!("fd77::{number}"),
            Self::Far => format!("fd78::{number}"),
        }
    }

    /// The hub's address.
    #[must_use]
    pub fn gateway(self) -> String {
        self.address(1)
    }

    /// The name of its bridge.
    const fn bridge(self) -> &'static str {
        match self {
            Self::Near => "hub",
            Self::Far => "far",
        }
    }
}

/// The hardware address of a node's card, the same on each start: its neighbours know it as they know a machine's. A local one, of the
/// name's last five bytes.
fn hardware_address(name: &str) -> String {
    let mut bytes = [0; 5];
    for (byte, of_name) in bytes.iter_mut().rev().zip(name.bytes().rev()) {
        *byte = of_name;
    }
    bytes
        .iter()
        .fold("02".to_owned(), |text, byte| format!("{text}:{byte:02x}"))
}

/// How long a command about links may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The bridges.
#[derive(Debug)]
pub struct Hub {
    space: Space,
}

impl Hub {
    /// Makes it, with the programs of an image's root; `mount` is an empty folder.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub(crate) fn new(tree: &Path, mount: &Path, settings: Values) -> Result<Self> {
        let view = View::Hub {
            root: tree.to_owned(),
            mount: mount.to_owned(),
            settings,
        };
        let hub = Self {
            space: Space::start(&view)?,
        };
        hub.run("ip link set lo up")?;
        hub.bridge(Network::Near)?;
        Ok(hub)
    }

    fn bridge(&self, network: Network) -> Result<()> {
        let (bridge, gateway) = (network.bridge(), network.gateway());
        let gateway_6 = network.address_6(1);
        self.run(&format!(
            "ip link add {bridge} type bridge && ip addr add {gateway}/24 dev {bridge} && ip addr add {gateway_6}/64 dev {bridge} nodad && ip link set {bridge} up"
        ))?;
        Ok(())
    }

    /// Makes the far network, and the hub a router between the two, which knows no address of a pod.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn route_to_far(&self) -> Result<()> {
        self.bridge(Network::Far)?;
        self.run("echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding")?;
        Ok(())
    }

    /// Takes the far network away again.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn end_far(&self) -> Result<()> {
        let bridge = Network::Far.bridge();
        self.run(&format!(
            "echo 0 > /proc/sys/net/ipv4/ip_forward; echo 0 > /proc/sys/net/ipv6/conf/all/forwarding; ip link del {bridge}"
        ))?;
        Ok(())
    }

    /// Gives the node whose namespaces this process holds a card `eth0` on this network.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub(crate) fn attach(&self, name: &str, network: Network, holder: Pid) -> Result<()> {
        let bridge = network.bridge();
        let hardware = hardware_address(name);
        self.run(&format!(
            "ip link add v-{name} type veth peer name eth0 address {hardware} netns {holder}; ip link set v-{name} master {bridge} up"
        ))?;
        Ok(())
    }

    /// Unplugs the node's cable, or plugs it in again.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn plug(&self, name: &str, plugged: bool) -> Result<()> {
        let state = if plugged { "up" } else { "down" };
        self.run(&format!("ip link set v-{name} {state}"))?;
        Ok(())
    }

    /// Moves the calling thread, and what it starts, into the hub's network.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn enter(&self) -> Result<()> {
        self.space.enter_network()
    }

    /// Runs a script in the hub's network.
    ///
    /// # Errors
    /// If it fails, with what it printed.
    pub fn run(&self, script: &str) -> Result<String> {
        run(&self.space, script, PATIENCE)
    }
}
