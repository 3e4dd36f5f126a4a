//! Disks: the config's partitions, arrays, encrypted volumes and file systems. Only on a first boot.

use anyhow::Result;
use apply::disks::{self, Made};
use apply::fetched::Fetched;
use apply::journal::disks::DiskJournal;
use apply::provision;
use apply::target::Target;

use crate::context::Boot;
use crate::root::Root;
use crate::state::State;

/// Plans all changes to the disks and checks the files, then makes `state`, which holds the journal, and applies the
/// plan.
///
/// # Errors
/// All problems, before the first write; then the first failure.
pub(crate) fn make(
    boot: &Boot,
    root: &Root,
    target: &Target,
    fetched: &Fetched,
    state: &mut State,
) -> Result<Made> {
    let journal = DiskJournal::open(state.made(), &fetched.hash());
    let mut journal = journal.map_err(|error| state.with_reset(error))?;
    let system = state.system(boot, root)?;
    let storage = fetched.model.storage.as_ref();
    let plan = disks::plan(target, storage, &fetched.keys, system.as_ref(), &journal)?;
    provision::check(target, fetched)?;
    journal.keep_in(&state.make(boot, root)?);
    disks::apply(target, &plan, &mut journal)
}
