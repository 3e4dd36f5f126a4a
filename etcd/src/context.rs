//! What each step on the volume needs.

use std::path::Path;

use image::node::{EtcdAdopt, EtcdSettings};
use linux::block::Disk;
use linux::modules::Modules;
use linux::mount::Flags;
use linux::programs::Programs;
use linux::timeline::Timeline;
use linux::world::World;

/// The volume holds data only: no programs, no device nodes, no set-user-id files.
pub(crate) const FLAGS: Flags = Flags::MS_NOATIME
    .union(Flags::MS_NODEV)
    .union(Flags::MS_NOSUID)
    .union(Flags::MS_NOEXEC);
/// Data is on the disk before the metadata that points to it, and after an error nothing more is written.
pub(crate) const OPTIONS: &str = "data=ordered,errors=remount-ro";

/// The node, its settings, and where things are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'a> {
    pub(crate) world: &'a World,
    pub(crate) timeline: &'a Timeline,
    pub(crate) root: &'a Programs,
    pub(crate) system_disk: Option<&'a Disk>,
    pub(crate) modules: &'a Modules,
    pub(crate) settings: &'a EtcdSettings,
    pub(crate) cluster: &'a str,
    pub(crate) adopt: Option<EtcdAdopt>,
    /// The folder of `state`.
    pub(crate) state: &'a Path,
    pub(crate) machine_id: &'a str,
}
