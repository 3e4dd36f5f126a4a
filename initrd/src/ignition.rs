//! Ignition: accounts, files and units of the config, written to the root. Only on a first boot.

use anyhow::Result;
use apply::disks::Made;
use apply::journal::files::FileJournal;
use apply::provision::{self, Applied, DiskResults};
use apply::target::Target;
use linux::kernel_call;

use crate::config::Obtained;
use crate::context::Boot;
use crate::metadata;
use crate::provisioned;
use crate::root::Root;
use crate::state::State;

/// Applies the config with its file systems mounted, keeps the machine's metadata, and marks the node as provisioned.
///
/// # Errors
/// The first write that failed; the next boot undoes and repeats the writes.
pub(crate) fn apply(
    boot: &Boot,
    root: &Root,
    target: &Target,
    state: &State,
    disks: &Made,
    Obtained {
        fetched, machine, ..
    }: &Obtained,
) -> Result<()> {
    let journal = FileJournal::open(state.dir()?);
    let mut journal = journal.map_err(|error| state.with_reset(error))?;
    let step = &boot.timeline;
    let mut mounted = step.step("ignition.mount", || disks.mount(target, &mut journal))?;
    let brought = DiskResults {
        mounted: mounted.folders.clone(),
        volumes: disks.volumes.clone(),
    };
    let world = &boot.world;
    let applied = step.step("ignition.files", || {
        kernel_call::on_disks(world, "the disks to take the config's files", || {
            provision::apply(target, fetched, &brought, &mut journal)
        })
    })?;
    log(&applied);
    // Before the marker: a later boot has nothing to remove.
    fetched.remove_spool()?;
    metadata::keep(state, boot.identity.platform, machine)?;
    provisioned::note(boot, state)?;
    // The marker must never be on the disk before what it vouches for.
    kernel_call::on_disks(world, "the disks to write everything", nix::unistd::sync);
    mounted.unmount()?;
    disks.close(&root.programs)?;
    state.mark_provisioned(boot, fetched)
}

fn log(applied: &Applied) {
    for warning in &applied.warnings {
        tracing::warn!("ignition: {warning}");
    }
    tracing::info!(
        "ignition: {} files and folders, {} users and groups, {} units",
        applied.entries,
        applied.accounts,
        applied.units
    );
}
