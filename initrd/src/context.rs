//! What every step of the boot line may look at.

use std::sync::Arc;

use fetch::Links;
use image::cmdline::Cmdline;
use image::manifest::Manifest;
use linux::modules::Modules;
use linux::timeline::Timeline;
use linux::world::World;
use net::network::Network;
use platform::provider::Provider;

/// What there is before the command line is read. The report of a failure needs no more.
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

/// What every step behind `platform` may look at.
#[derive(Debug)]
pub(crate) struct Boot {
    /// The machine: paths, clocks, watchdog.
    pub(crate) world: Arc<World>,
    /// The record of this boot.
    pub(crate) timeline: Timeline,
    /// The network.
    pub(crate) network: Arc<Network>,
    /// What the kernel command line says.
    pub(crate) cmdline: Cmdline,
    /// Which image this is.
    pub(crate) manifest: Manifest,
    /// Which machine this is.
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
    let (names, answered) = (Arc::clone(network), Arc::clone(network));
    Links::new(move || names.links(), move |link| answered.answered(link))
}

/// Which machine this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The platform.
    pub(crate) platform: &'static Provider,
    /// What names this instance without asking anybody: the SMBIOS UUID.
    pub(crate) instance: Option<String>,
}
