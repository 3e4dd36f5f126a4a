//! QEMU's command line as it is collected: arguments, and the host's folders that they name.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Where the folders of a machine's files appear inside the tools tree.
pub const INSIDE: &str = "/run/vm";

/// QEMU's arguments, and the folders in them.
#[derive(Debug, Default)]
pub struct Line {
    /// The arguments after the program's name.
    pub args: Vec<String>,
    /// Host folders and their paths inside.
    pub binds: Vec<(PathBuf, String)>,
}

impl Line {
    pub(super) fn arg(&mut self, name: &str, value: impl Into<String>) {
        self.args.push(name.to_owned());
        self.args.push(value.into());
    }

    /// The path of a host file inside; its folder is bound there.
    pub(super) fn inside(&mut self, path: &Path) -> Result<String> {
        let path = path
            .canonicalize()
            .with_context(|| format!("looking for {}", path.display()))?;
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            bail!("{} is not a file", path.display());
        };
        let name = name
            .to_str()
            .with_context(|| format!("{} is not UTF-8", path.display()))?;
        let inside = match self.binds.iter().find(|(host, _)| host == folder) {
            Some((_, inside)) => inside.clone(),
            None => {
                let inside = format!("{INSIDE}/{}", self.binds.len());
                self.binds.push((folder.to_owned(), inside.clone()));
                inside
            }
        };
        Ok(format!("{inside}/{name}"))
    }
}

/// A value inside QEMU's comma-separated options: a comma is written twice.
pub(super) fn escape(text: &str) -> String {
    text.replace(',', ",,")
}
