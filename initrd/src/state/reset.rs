//! Reset: `slipway.reset=` on the command line makes `state` and `var`, or `var` alone, anew on purpose.

use anyhow::Result;
use image::layout::{LABEL_STATE, LABEL_VAR};
use linux::block::Disk;
use linux::log::announce;

use crate::context::Boot;
use crate::root::Root;
use crate::settle;
use crate::system_disk::{self, table};

/// Makes anew what the command line names; gives the disk as it is then. A reset of `state` takes `var` with it: its layer of
/// `/etc` is the result of the provisioning that `state` forgets.
///
/// The partitions get new GUIDs in the write that notes them as unformatted, so the word names nothing on the next boot: it
/// may stay on a command line for ever, and does nothing on any other node.
///
/// # Errors
/// If the disk cannot be written, or there is a copy of it.
pub(super) fn apply(boot: &Boot, root: &Root, disk: &Disk) -> Result<Option<Disk>> {
    let Some(word) = &boot.cmdline.reset else {
        return Ok(None);
    };
    let named = |label: &&&str| {
        let part = table::find(disk, label);
        part.and_then(|part| part.guid)
            .is_some_and(|guid| word.names(&guid))
    };
    let labels: &[&str] = match [LABEL_STATE, LABEL_VAR].iter().find(named) {
        None => {
            tracing::info!("{word} names no partition {LABEL_STATE} or {LABEL_VAR}: ignored");
            return Ok(None);
        }
        Some(&LABEL_STATE) => &[LABEL_STATE, LABEL_VAR],
        Some(_) => &[LABEL_VAR],
    };
    // Of a disk and its copy the word may mean either: GUIDs are copied too.
    settle::wait(boot, root)?;
    let line = format!(
        "slipway: {word}: the content of {} is discarded",
        labels.join(" and ")
    );
    announce(&boot.world, &line);
    system_disk::anew(boot, disk, labels)?;
    system_disk::again(boot, disk).map(Some)
}
