//! Remains: what builds that were killed leave in `tmp/`, removed by the next program that opens the cache.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Result;

use super::Cache;

impl Cache {
    /// Removes the remains of dead builds from `tmp/`: entries whose lock is free. Best effort: a rootless build that was killed
    /// leaves folders of subordinate ids, which only a program in a user namespace can remove, and nothing here depends on them.
    pub(super) fn sweep(&self, remove: impl Fn(&Path) -> Result<()>) -> Result<()> {
        for entry in fs::read_dir(self.root.join("tmp"))? {
            let entry = entry?;
            if let Err(error) = self.sweep_entry(&entry, &remove) {
                let path = entry.path();
                tracing::debug!("the remains {} stay: {error:#}", path.display());
            }
        }
        Ok(())
    }

    /// Removes an entry of `tmp/` if its lock is free. The lock file stays with an entry that cannot be removed.
    fn sweep_entry(
        &self,
        entry: &fs::DirEntry,
        remove: impl Fn(&Path) -> Result<()>,
    ) -> Result<()> {
        let path = self.root.join("locks").join(entry.file_name());
        // A scratch folder exists shortly before its lock; such a young folder is not dead.
        let young = entry
            .metadata()
            .and_then(|meta| meta.modified())
            .is_ok_and(|at| {
                SystemTime::now()
                    .duration_since(at)
                    .is_ok_and(|age| age < Duration::from_secs(2))
            });
        if young && !path.exists() {
            return Ok(());
        }
        let held = File::create(&path)?;
        if held.try_lock().is_ok()
            && fs::metadata(&path)
                .is_ok_and(|now| held.metadata().is_ok_and(|ours| ours.ino() == now.ino()))
        {
            remove(&entry.path())?;
            fs::remove_file(&path)?;
        }
        Ok(())
    }
}
