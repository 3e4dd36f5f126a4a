//! The folder of a cluster that runs on this host, and what is known of it: one process at a time has it.

use std::fs::{self, File, TryLockError};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow};
use serde::{Deserialize, Serialize};

use crate::host::atomic_file;

/// The ending of the folder's name, in place of the object's.
const ENDING: &str = "machines";
/// How often the lock is tried, and the time between: whoever looks whether a process has it has it for a moment.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// The folder.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

/// How far the cluster is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct State {
    /// The process that runs the machines, or builds their image.
    pub process: u32,
    /// Whether the image is not built yet: no machine runs.
    #[serde(default)]
    pub building: bool,
    /// Whether all nodes were Ready, and the machines do not power off since.
    pub ready: bool,
    /// What is waited for.
    pub waits_for: String,
    /// Nodes and pods as `kubectl` printed them when the nodes were Ready.
    pub cluster: String,
    /// Whether the machines are powering off.
    #[serde(default)]
    pub ending: bool,
    /// How long the power-off may take, in seconds, with what may be before it.
    #[serde(default)]
    pub end_seconds: u64,
}

/// As long as it is held, the machines are this process's.
#[derive(Debug)]
pub struct Held {
    _lock: File,
}

impl Folder {
    /// The folder beside a cluster object.
    #[must_use]
    pub fn of(object: &Path) -> Self {
        let folder = object.with_extension(ENDING);
        // The path is printed for use in other folders; only an empty one has no absolute form.
        Self(std::path::absolute(&folder).unwrap_or(folder))
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The file of the administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.0.join("kubeconfig")
    }

    /// What the process that runs the machines said.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    fn state_file(&self) -> PathBuf {
        self.0.join("state.json")
    }

    /// Takes the folder for this process; it is made if it is missing.
    ///
    /// # Errors
    /// If another process has it.
    pub fn hold(&self) -> Result<Held> {
        fs::create_dir_all(&self.0).with_context(|| format!("making {}", self.0.display()))?;
        let file = self.lock_file()?;
        for _ in 0..TRIES {
            match file.try_lock() {
                Ok(()) => return Ok(Held { _lock: file }),
                Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| self.locking());
                }
            }
        }
        Err(self.running())
    }

    /// Looks whether [`Folder::hold`] would find another process, for callers that first do what takes long. Nothing is made.
    ///
    /// # Errors
    /// If another process has it.
    pub fn check_free(&self) -> Result<()> {
        match self.is_held()? {
            true => Err(self.running()),
            false => Ok(()),
        }
    }

    fn running(&self) -> Error {
        let folder = self.0.display();
        // Without a state that can be read it is not known how far the other process is.
        let state = self.state().ok().flatten();
        match state.filter(|state| state.building) {
            Some(State { process, .. }) => anyhow!(
                "`cluster up` is building the image of the machines in {folder} (process {process}); `slipway cluster down` ends it"
            ),
            None => {
                anyhow!("the machines in {folder} are running; `slipway cluster down` ends them")
            }
        }
    }

    /// Whether a process runs the machines, or builds their image.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn is_held(&self) -> Result<bool> {
        if !self.0.exists() {
            return Ok(false);
        }
        // Shared: of two that look at once neither takes the other for the process of the machines.
        match self.lock_file()?.try_lock_shared() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => Err(error).with_context(|| self.locking()),
        }
    }

    /// The file whose lock is the process's that has the folder. It ends with that process.
    fn lock_file(&self) -> Result<File> {
        let mut options = File::options();
        let file = options.create(true).append(true).open(self.lock_path());
        file.with_context(|| self.locking())
    }

    fn lock_path(&self) -> PathBuf {
        self.0.join("lock")
    }

    fn locking(&self) -> String {
        format!("locking {}", self.lock_path().display())
    }

    /// What is known of the cluster; nothing before its image is built.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn state(&self) -> Result<Option<State>> {
        let path = self.state_file();
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .with_context(|| format!("reading {}", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
        }
    }

    /// Keeps what is known of the cluster.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn keep(&self, state: &State) -> Result<()> {
        let text = serde_json::to_vec(state)?;
        atomic_file::write(&self.state_file(), 0o600, |file| Ok(file.write_all(&text)?))
    }

    /// Forgets what was known.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub fn forget(&self) -> Result<()> {
        match fs::remove_file(self.state_file()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).context("removing an old state")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `down` would end whatever process has the number that an earlier one left in the state.
    #[test]
    fn whoever_looks_at_the_folder_does_not_have_it() {
        let folder = tempfile::tempdir().unwrap();
        let folder = Folder::of(&folder.path().join("blue.toml"));
        drop(folder.hold().unwrap());
        let other = File::open(folder.lock_path()).unwrap();
        other.lock_shared().unwrap();
        assert!(!folder.is_held().unwrap());
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(PAUSE * 3);
                other.unlock().unwrap();
            });
            drop(folder.hold().unwrap());
        });
    }

    #[test]
    fn one_process_at_a_time_has_the_machines() {
        let folder = tempfile::tempdir().unwrap();
        let folder = Folder::of(&folder.path().join("blue.toml"));
        assert!(!folder.is_held().unwrap());
        folder.check_free().unwrap();
        assert!(!folder.path().exists());
        let held = folder.hold().unwrap();
        assert!(folder.is_held().unwrap());
        let error = folder.hold().unwrap_err().to_string();
        assert!(
            error.ends_with("`slipway cluster down` ends them"),
            "{error}"
        );
        assert_eq!(folder.check_free().unwrap_err().to_string(), error);
        let building = State {
            process: 7,
            building: true,
            ..State::default()
        };
        folder.keep(&building).unwrap();
        for error in [folder.hold().unwrap_err(), folder.check_free().unwrap_err()] {
            let error = error.to_string();
            let expected = "(process 7); `slipway cluster down` ends it";
            assert!(
                error.contains("is building") && error.ends_with(expected),
                "{error}"
            );
        }
        folder.forget().unwrap();
        drop(held);
        assert!(!folder.is_held().unwrap());
        assert_eq!(folder.state().unwrap(), None);
        let state = State {
            process: 7,
            ..State::default()
        };
        folder.keep(&state).unwrap();
        assert_eq!(folder.state().unwrap(), Some(state));
        folder.forget().unwrap();
        folder.forget().unwrap();
        assert_eq!(folder.state().unwrap(), None);
    }
}
