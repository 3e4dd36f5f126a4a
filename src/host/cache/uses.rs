//! Uses: which entries of the cache the running programs use, so that none of them is removed.
//!
//! Each program has a file in `runs/`, locked as long as the program lives, with a line for each entry that it may use. A line
//! is written under a shared lock of the gate; entries are removed under an exclusive one. So an entry is either recorded before
//! it can be removed, or is absent when it is looked for.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};

use super::lock_file;

/// The folder of the files of all programs.
pub(super) const RUNS: &str = "runs";
/// The gate's file.
const GATE: &str = ".slipway-gate";
/// The first line of a file that has all uses of its program. A file without it counts as a use of everything: its program
/// could not write it, as on a full disk.
const COMPLETE: &str = "slipway uses";

/// The entries that this program may use.
#[derive(Debug)]
pub(super) struct Uses {
    root: PathBuf,
    /// None on a disk that is too full for one.
    path: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Locked until it is closed.
    file: Option<File>,
    seen: HashSet<String>,
}

/// The entries that other programs use.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Others {
    /// These.
    Some(HashSet<String>),
    /// It cannot be told.
    Unknown,
}

impl Others {
    /// Whether another program may use the entry of this id.
    pub(super) fn use_it(&self, id: &str) -> bool {
        match self {
            Self::Some(entries) => entries.contains(id),
            Self::Unknown => true,
        }
    }
}

impl Uses {
    /// Begins the record of this program.
    pub(super) fn begin(root: &Path) -> Result<Self> {
        // Nobody looks for free locks meanwhile.
        let gate = gate(root)?;
        gate.lock_shared().context("locking the cache's gate")?;
        let made = tempfile::Builder::new()
            .prefix("run-")
            .tempfile_in(root.join(RUNS))
            .and_then(|file| Ok(file.keep()?));
        let (file, path) = match made {
            Ok((mut file, path)) => {
                file.lock().context("locking the record of uses")?;
                // Without its first line it counts as a use of everything.
                drop(writeln!(file, "{COMPLETE}"));
                (Some(file), Some(path))
            }
            // To remove entries is then all that can be done, and needs no record.
            Err(error) if error.kind() == ErrorKind::StorageFull => (None, None),
            Err(error) => return Err(error).context("making the record of uses"),
        };
        let seen = HashSet::new();
        Ok(Self {
            root: root.to_owned(),
            path,
            state: Mutex::new(State { file, seen }),
        })
    }

    /// Records that this program may use the entry of this id from now on.
    pub(super) fn add(&self, id: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.seen.insert(id.to_owned()) {
            return;
        }
        let Some(file) = &mut state.file else { return };
        let written = gate(&self.root).and_then(|gate| {
            gate.lock_shared()?;
            Ok(writeln!(file, "{id}")?)
        });
        if let Err(error) = written {
            tracing::debug!("recording a use: {error:#}");
            // Needs no space: from now on everything is in use.
            if let Err(error) = file.set_len(0) {
                tracing::warn!("recording a use: {error}");
            }
        }
    }

    /// Whether this program may use the entry of this id.
    pub(super) fn has(&self, id: &str) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.seen.contains(id)
    }

    /// The entries that other programs may use; for the holder of the closed gate. Records of programs that ended are removed.
    pub(super) fn of_others(&self) -> Result<Others> {
        let mut all = HashSet::new();
        for entry in fs::read_dir(self.root.join(RUNS))? {
            let path = entry?.path();
            if Some(&path) == self.path.as_ref() {
                continue;
            }
            let file = match lock_file(&path, false) {
                Ok(file) => file,
                // It ended just now.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error.into()),
            };
            if file.try_lock().is_ok() {
                super::remove(&path)?;
                continue;
            }
            // By the opened file: its program may end now and remove the name.
            let text = std::io::read_to_string(&file)?;
            let mut lines = text.lines();
            if lines.next() != Some(COMPLETE) {
                return Ok(Others::Unknown);
            }
            all.extend(lines.map(str::to_owned));
        }
        Ok(Others::Some(all))
    }
}

impl Drop for Uses {
    fn drop(&mut self) {
        if let Some(path) = &self.path
            && let Err(error) = super::remove(path)
        {
            tracing::debug!("removing the record of uses: {error:#}");
        }
    }
}

/// The gate, not locked yet; closing it unlocks it.
pub(super) fn gate(root: &Path) -> Result<File> {
    let path = root.join(GATE);
    lock_file(&path, true).with_context(|| format!("opening {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join(RUNS)).unwrap();
        place
    }

    #[test]
    fn uses_of_living_programs_count_and_those_of_dead_ones_do_not() {
        let place = place();
        let own = Uses::begin(place.path()).unwrap();
        own.add("own");
        let other = Uses::begin(place.path()).unwrap();
        other.add("other");
        other.add("other");
        let dead = place.path().join(RUNS).join("run-dead");
        fs::write(&dead, format!("{COMPLETE}\ndead\n")).unwrap();
        let found = own.of_others().unwrap();
        assert_eq!(found, Others::Some(HashSet::from(["other".to_owned()])));
        assert!(!dead.exists() && own.has("own") && !own.has("other"));
        drop(other);
        assert_eq!(own.of_others().unwrap(), Others::Some(HashSet::new()));
    }

    /// NFS refuses a shared lock of a file that is not open for reading, and an exclusive one of a file that is not open for writing.
    #[test]
    fn the_gate_is_open_for_both_kinds_of_locks() {
        let place = place();
        let gate = gate(place.path()).unwrap();
        assert_eq!(std::io::read_to_string(&gate).unwrap(), "");
        (&gate).write_all(b"x").unwrap();
        let absent = place.path().join("absent");
        let error = lock_file(&absent, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(!absent.exists());
    }

    #[test]
    fn a_record_that_could_not_be_written_is_a_use_of_everything() {
        let place = place();
        let own = Uses::begin(place.path()).unwrap();
        let other = Uses::begin(place.path()).unwrap();
        other.add("other");
        let state = other.state.lock().unwrap();
        state.file.as_ref().unwrap().set_len(0).unwrap();
        drop(state);
        assert!(own.of_others().unwrap().use_it("anything"));
    }
}
