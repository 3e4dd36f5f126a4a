//! The network between nodes: a bridge in a namespace of its own, and a link to each node.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use nix::unistd::Pid;

use crate::host_settings::Values;
use crate::namespace::{Space, View};
use crate::service::run;

/// The hub's own address, the default route of all nodes. Nothing answers behind it.
pub const GATEWAY: &str = "10.77.0.1";
const BRIDGE: &str = "hub";
/// How long a command about links may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The bridge.
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
        hub.run(&format!(
            "ip link set lo up; ip link add {BRIDGE} type bridge; ip addr add {GATEWAY}/24 dev {BRIDGE}; ip link set {BRIDGE} up"
        ))?;
        Ok(hub)
    }

    /// Gives the node whose namespaces this process holds a card `eth0`.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub(crate) fn attach(&self, name: &str, holder: Pid) -> Result<()> {
        self.run(&format!(
            "ip link add v-{name} type veth peer name eth0 netns {holder}; ip link set v-{name} master {BRIDGE} up"
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
