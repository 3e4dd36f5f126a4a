//! The context of the steps of the boot line.

use std::sync::{Arc, Mutex, PoisonError};

use fetch::Links;
use image::cmdline::Cmdline;
use image::manifest::Manifest;
use linux::modules::Modules;
use linux::timeline::Timeline;
use linux::world::World;
use net::network::Network;
use platform::provider::Provider;

/// The provider whose vendor waits for a report on how the first boot ends: none before a first boot, on a later one whose
/// vendor knows, and elsewhere.
#[derive(Clone, Debug, Default)]
pub(crate) struct Awaiting(Arc<Mutex<Option<&'static Provider>>>);

impl Awaiting {
    /// The provider whose vendor waits.
    pub(crate) fn get(&self) -> Option<&'static Provider> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets it.
    pub(crate) fn set(&self, provider: Option<&'static Provider>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = provider;
    }
}

/// The context before the command line is read. The report of a failure needs no more.
#[derive(Clone, Debug)]
pub(crate) struct Early {
    /// The machine: paths, clocks, watchdog.
    pub(crate) world: Arc<World>,
    /// The record of this boot.
    pub(crate) timeline: Timeline,
    /// The network, which is down until a source needs it.
    pub(crate) network: Arc<Network>,
    /// Whose vendor waits for a report.
    pub(crate) awaiting: Awaiting,
}

impl Early {
    /// The machine that the init runs on.
    pub(crate) fn real() -> Self {
        let world = Arc::new(World::real());
        Self {
            timeline: Timeline::new(Arc::clone(&world)),
            network: Arc::new(Network::new(Arc::clone(&world))),
            awaiting: Awaiting::default(),
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
    /// Whose vendor waits for a report.
    pub(crate) awaiting: Awaiting,
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

#[cfg(test)]
impl Boot {
    /// The context of an image that is for no platform, on QEMU.
    pub(crate) fn of_tests(world: &Arc<World>) -> Self {
        use image::layout::{Architecture, MIB, Sizes};
        use image::manifest::{CONTRACT, ImageId};

        Self {
            world: Arc::clone(world),
            timeline: Timeline::new(Arc::clone(world)),
            network: Arc::new(Network::new(Arc::clone(world))),
            awaiting: Awaiting::default(),
            cmdline: Cmdline::default(),
            manifest: Manifest {
                contract: CONTRACT,
                image: ImageId {
                    name: "test".into(),
                    version: "1".into(),
                },
                architecture: Architecture::X86_64,
                kernel: "6.12".into(),
                epoch: 0,
                sizes: Sizes {
                    esp: MIB,
                    root: 8 * MIB,
                    verity: MIB,
                    state: 64 * MIB,
                    var_minimum: 64 * MIB,
                },
                kubernetes: None,
                platforms: Vec::new(),
                node: image::node::NodeSettings::default(),
            },
            identity: Identity {
                platform: platform::providers::by_id("qemu").unwrap(),
                instance: Some("one".into()),
            },
            modules: Arc::new(Modules::none(Arc::clone(world))),
        }
    }
}
