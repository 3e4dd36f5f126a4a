//! The boot line: one function of named steps, from the kernel to the handoff.

use std::sync::Arc;

use image::cmdline::Cmdline;
use image::manifest::Manifest;

use crate::modules::Modules;
use crate::platform::Platform;
use crate::timeline::Timeline;
use crate::world::World;

/// What every step may look at.
#[derive(Debug)]
pub(crate) struct Boot {
    /// The machine: paths, clocks, watchdog.
    pub(crate) world: Arc<World>,
    /// What the kernel command line says.
    pub(crate) cmdline: Cmdline,
    /// Which image this is.
    pub(crate) manifest: Manifest,
    /// The record of this boot.
    pub(crate) timeline: Timeline,
    /// Which machine this is.
    pub(crate) platform: Platform,
    /// The modules of the initramfs: `boot.modules.load(&["qemu_fw_cfg"])`.
    pub(crate) modules: Modules,
}
