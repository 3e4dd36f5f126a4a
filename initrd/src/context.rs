//! The context of the steps of the boot line.

use std::sync::Arc;

use fetch::Links;
use image::cmdline::Cmdline;
use image::manifest::Manifest;
use linux::modules::Modules;
use linux::timeline::Timeline;
use linux::world::World;
use net::network::Network;
use platform::provider::Provider;

/// The context before the command line is read. The report of a failure needs no more.
#[derive(Clone, Debug)]
pub(crate) struct Early {
    /// The machine: paths, clocks, watchdog.
    pub(crate) world: Arc<World>,
    /// The record of this boot.
    pub(crate) timeline: Timeline,
    /// The network, which is down until a source needs it.
    pub(crate) network: Arc<Network>,
}

impl Early {
    /// The machine that the init runs on.
    pub(crate) fn real() -> Self {
        let world = Arc::new(World::real());
        Self {
            timeline: Timeline::new(Arc::clone(&world)),
            network: Arc::new(Network::new(Arc::clone(&world))),
            world,
        }
    }
}

/// The context of every step after `platform`.
#[derive(Debug)]
pub(crate) struct Boot {
    /// The machine: paths, clocks, watchdog.
    pub(crate) world: Arc<World>,
    /// The record of this boot.
    pub(crate) timeline: Timeline,
    /// The network.
    pub(crate) network: Arc<Network>,
    /// The parsed kernel command line.
    pub(crate) cmdline: Cmdline,
    /// The image's manifest.
    pub(crate) manifest: Manifest,
    /// The platform and the id of this machine.
    pub(crate) identity: Identity,
    /// The modules of the initramfs: `boot.modules.load(&["qemu_fw_cfg"])`.
    pub(crate) modules: Arc<Modules>,
}

impl Boot {
    /// Over which links servers are asked.
    pub(crate) fn links(&self) -> Links {
        links(&self.network)
    }
}

/// The links of a network, for a download.
pub(crate) fn links(network: &Arc<Network>) -> Links {
    let (ways, answered) = (Arc::clone(network), Arc::clone(network));
    Links::new(
        move || ways.ways(),
        move |way| answered.answered(way.as_deref()),
    )
}

/// Which machine this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The platform.
    pub(crate) platform: &'static Provider,
    /// The id of this instance that needs no network: the SMBIOS UUID.
    pub(crate) instance: Option<String>,
}
