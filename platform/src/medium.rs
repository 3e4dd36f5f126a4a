//! Media: discs and small file systems that a hypervisor puts into a machine. The init finds and mounts them.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::{Machine, Problem};

/// A medium that a provider looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium<'a> {
    /// A file system with one of these labels: ISO 9660 or VFAT. Case counts, as each spelling is listed.
    Labels(&'a [&'a str]),
    /// The disc in the machine's drive: UDF or ISO 9660.
    Disc,
}

impl fmt::Display for Medium<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Labels(labels) => {
                write!(f, "a file system with the label {}", labels.join(" or "))
            }
            Self::Disc => f.write_str("a disc in the drive"),
        }
    }
}

/// How often a wait says what it waits for.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Waits for a medium, for ever or until a time; the folder where it is mounted, or none if the time is over.
///
/// # Errors
/// If it is there and does not mount.
pub fn wait_for(
    machine: &Machine<'_>,
    medium: &Medium<'_>,
    until: Option<Instant>,
) -> Result<Option<PathBuf>, Problem> {
    let began = Instant::now();
    let limit = machine.patience.total.map(|total| began + total);
    let until = [until, limit].into_iter().flatten().min();
    let mut next_line = LINE_EVERY;
    loop {
        if let Some(folder) = look(machine, medium)? {
            return Ok(Some(folder));
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            return Ok(None);
        }
        if began.elapsed() >= next_line {
            let seconds = began.elapsed().as_secs();
            (machine.say)(&format!("waiting for {medium} for {seconds} s"));
            next_line += LINE_EVERY;
        }
        std::thread::sleep(machine.look_every);
    }
}

/// The medium if it is there now.
pub(crate) fn look(machine: &Machine<'_>, medium: &Medium<'_>) -> Result<Option<PathBuf>, Problem> {
    (machine.mount)(medium).map_err(|error| Problem::local(format!("{error:#}")))
}
