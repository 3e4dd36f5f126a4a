//! The record of the paths that images have brought to a node's `/var`.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use image::paths::VAR_BROUGHT;
use linux::atomic_file;

use super::staged::Staged;

/// The paths that were brought to this node.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Brought(BTreeSet<String>);

impl Brought {
    /// Reads the record; it is empty on a node that none was written on.
    pub(super) fn read(sysroot: &Path) -> Result<Self> {
        let path = sysroot.join(VAR_BROUGHT);
        let text =
            atomic_file::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let text = text.unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        Ok(Self(text.lines().map(str::to_owned).collect()))
    }

    /// Writes the record, whose folder is there.
    pub(super) fn write(&self, sysroot: &Path) -> Result<()> {
        self.stage(sysroot)?.place()
    }

    /// Writes the record beside the one that is there, which it is to replace.
    pub(super) fn stage(&self, sysroot: &Path) -> Result<Staged> {
        Staged::write(sysroot.join(VAR_BROUGHT), &self.text())
    }

    fn text(&self) -> String {
        self.0.iter().map(|path| format!("{path}\n")).collect()
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.0.contains(path)
    }

    pub(super) fn add<'a>(&mut self, paths: impl Iterator<Item = &'a str>) {
        self.0.extend(paths.map(str::to_owned));
    }

    pub(super) fn remove(&mut self, path: &str) {
        self.0.remove(path);
    }
}
