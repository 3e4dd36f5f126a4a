//! Lines on the console, for an operator who has no shell on the node.

use std::fs::OpenOptions;
use std::io::Write as _;

use linux::world::World;

/// Writes a warning to the console, and to the log.
pub(crate) fn warn(world: &World, line: &str) {
    tracing::warn!("{line}");
    let path = world.dev.join("console");
    let written = OpenOptions::new()
        .append(true)
        .open(&path)
        .and_then(|mut console| console.write_all(format!("slipway: {line}\r\n").as_bytes()));
    // A machine without a console still has the journal.
    if let Err(error) = written {
        tracing::debug!("writing to {}: {error}", path.display());
    }
}
