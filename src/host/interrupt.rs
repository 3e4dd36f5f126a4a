//! Signal handling: one flag, guards around work that must finish, and a list of what is removed if it is not finished.
//!
//! Steps of a build need no guard: their partial results are in folders of the cache that the next build removes, and
//! their programs end with the tool. A guest that must be stopped, or a terminal whose settings must be restored,
//! holds a [`Guard`] and checks [`Interrupt::requested`].

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often a folder is removed in which the abandoned work still makes files, and the time between.
const ATTEMPTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(20);

/// Whether the user requested an interrupt. Clones share the flag and the guards.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<State>);

#[derive(Debug, Default)]
struct State {
    requests: AtomicUsize,
    guards: AtomicUsize,
    /// Seconds that the guarded work may take to end in order; 0 for the usual time.
    patience: AtomicU64,
    unfinished: Mutex<BTreeSet<PathBuf>>,
}

impl Interrupt {
    /// Whether the user has requested an interrupt.
    #[must_use]
    pub fn requested(&self) -> bool {
        self.requests() > 0
    }

    /// How often it was requested. The second request is for an end without order.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.0.requests.load(Ordering::SeqCst)
    }

    /// Requests an interrupt; called on a signal.
    pub fn request(&self) {
        self.0.requests.fetch_add(1, Ordering::SeqCst);
    }

    /// Says that the guarded work may take so long to end in order. After another request it has a moment.
    pub fn allow(&self, time: Duration) {
        self.0.patience.store(time.as_secs(), Ordering::SeqCst);
    }

    /// How long guarded work may take to end in order, if it has said it.
    #[must_use]
    pub fn allowed(&self) -> Option<Duration> {
        let seconds = self.0.patience.load(Ordering::SeqCst);
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    /// Begins work that must finish. The holder of the guard checks [`Interrupt::requested`] often.
    #[must_use]
    pub fn guard(&self) -> Guard {
        self.0.guards.fetch_add(1, Ordering::SeqCst);
        Guard(self.clone())
    }

    /// Begins a folder outside the cache that is complete only once it has another name.
    #[must_use]
    pub fn unfinished(&self, path: &Path) -> Unfinished {
        self.list(|paths| paths.insert(path.to_owned()));
        Unfinished {
            path: path.to_owned(),
            interrupt: self.clone(),
        }
    }

    /// Begins the renames that give an unfinished folder its other name, which must finish: from now on an interrupt does not remove
    /// the folder. None if an interrupt was requested: the folder is removed, or is about to be.
    #[must_use]
    pub fn finish(&self, path: &Path) -> Option<Guard> {
        // Before the look at the requests: who requests an interrupt looks for guards afterwards, so one of both sees the other.
        let guard = self.guard();
        if self.requested() {
            return None;
        }
        self.list(|paths| paths.remove(path)).then_some(guard)
    }

    /// Removes what the abandoned work leaves unfinished; called before an interrupted program ends.
    pub fn clean(&self) {
        let mut paths = BTreeSet::new();
        self.list(|list| std::mem::swap(list, &mut paths));
        for path in paths {
            let removed = (0..ATTEMPTS).any(|_| {
                let removed = remove(&path);
                if removed.is_err() {
                    std::thread::sleep(PAUSE);
                }
                removed.is_ok()
            });
            if !removed {
                tracing::warn!("{} is unfinished and could not be removed", path.display());
            }
        }
    }

    fn list<T>(&self, change: impl FnOnce(&mut BTreeSet<PathBuf>) -> T) -> T {
        let list = &self.0.unfinished;
        change(&mut list.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether any [`Guard`] exists.
    #[must_use]
    pub fn guarded(&self) -> bool {
        self.0.guards.load(Ordering::SeqCst) > 0
    }
}

/// While a guard exists, an interrupted program waits for it before it ends.
#[derive(Debug)]
pub struct Guard(Interrupt);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.0.guards.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A folder that is removed when this is dropped or the program is interrupted, unless it has been renamed.
#[derive(Debug)]
pub struct Unfinished {
    path: PathBuf,
    interrupt: Interrupt,
}

impl Unfinished {
    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.interrupt.list(|paths| paths.remove(&self.path));
        if let Err(error) = remove(&self.path) {
            tracing::warn!("removing {}: {error}", self.path.display());
        }
    }
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unfinished_is_removed_and_what_was_renamed_stays() {
        let place = tempfile::tempdir().unwrap();
        let interrupt = Interrupt::default();
        let make = |name: &str| {
            let path = place.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("disk.raw"), b"half").unwrap();
            interrupt.unfinished(&path)
        };
        drop(make("failed"));
        let finished = make("finished");
        fs::rename(finished.path(), place.path().join("out")).unwrap();
        drop(finished);
        let interrupted = make("interrupted");
        interrupt.clean();
        assert!(!interrupted.path().exists());
        let left: Vec<_> = fs::read_dir(place.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left, ["out"]);
    }

    #[test]
    fn a_folder_that_is_being_renamed_is_not_removed() {
        let place = tempfile::tempdir().unwrap();
        let interrupt = Interrupt::default();
        let make = |name: &str| {
            let path = place.path().join(name);
            fs::create_dir(&path).unwrap();
            interrupt.unfinished(&path)
        };
        let finishing = make("finishing");
        let guard = interrupt.finish(finishing.path()).unwrap();
        assert!(interrupt.guarded());
        // As after a second signal, which does not wait for guards.
        interrupt.clean();
        assert!(finishing.path().exists());
        drop(guard);
        assert!(!interrupt.guarded());
        let path = finishing.path().to_owned();
        drop(finishing);
        assert!(!path.exists(), "its renames failed");
        let cleaned = make("cleaned");
        interrupt.clean();
        assert!(interrupt.finish(cleaned.path()).is_none());
        let late = make("late");
        interrupt.request();
        assert!(interrupt.finish(late.path()).is_none());
        assert!(!interrupt.guarded());
    }
}
