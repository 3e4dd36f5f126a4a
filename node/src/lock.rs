//! Locks between the processes of this program.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use linux::mount::folder;
use linux::world::World;

/// Waits until no other process has locked this file below `/run`, and keeps others from it until the result is dropped.
///
/// # Errors
/// If the file cannot be made.
pub(crate) fn lock(world: &World, path: &str) -> Result<File> {
    let path = world.in_run(path);
    let about = || format!("locking {}", path.display());
    folder(path.parent().unwrap_or(Path::new("/")), 0o755)?;
    let mut options = File::options();
    let options = options.create(true).truncate(false).write(true).mode(0o600);
    let file = options.open(&path).with_context(about)?;
    file.lock().with_context(about)?;
    Ok(file)
}
