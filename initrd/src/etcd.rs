//! Etcd: the volume of a control plane, by the node's settings.

use anyhow::Result;
use etcd::volume::{self, Node};

use crate::context::Boot;
use crate::root::Root;
use crate::settings;
use crate::state::State;

/// Mounts the etcd volume of a control plane and writes the conditions that the kubelet's gate checks; on a worker it
/// only writes the latter.
///
/// # Errors
/// If the settings name no volume, or for a failure that waiting does not cure.
pub(crate) fn mount(boot: &Boot, root: &Root, state: &State, machine_id: &str) -> Result<()> {
    let settings = settings::read(&root.programs.sysroot, &boot.manifest.node)?;
    let kubernetes = boot.manifest.kubernetes.as_ref();
    let node = Node {
        programs: &root.programs,
        system_disk: root.disk.as_ref(),
        modules: &boot.modules,
        timeline: &boot.timeline,
        state: state.dir()?,
        machine_id,
        adopt: boot.cmdline.etcd_adopt,
        image: kubernetes.and_then(|has| has.images.get("etcd").map(String::as_str)),
    };
    volume::mount(node, &settings).map(drop)
}
