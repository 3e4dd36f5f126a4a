//! Root: the verified root file system, found by its hash, opened through dm-verity.

use std::path::PathBuf;
use std::sync::Arc;

use crate::block::Disk;
use crate::world::World;

/// The verified root, mounted read-only.
#[derive(Debug)]
pub(crate) struct Root {
    /// The machine.
    pub(crate) world: Arc<World>,
    /// Where it is mounted.
    pub(crate) sysroot: PathBuf,
    /// The disk that it was found on; none for a root that was fetched into memory.
    pub(crate) disk: Option<Disk>,
}
