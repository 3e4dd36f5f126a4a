//! File: a config beside the program, for tests of the config alone.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use fetch::Identity;

use crate::env_keys;
use crate::found::Found;
use crate::machine::Machine;
use crate::metadata::Metadata;
use crate::problem::Problem;
use crate::provider::{Detection, LocalConfig, Provider};
use crate::userdata::{self, Foreign, UserConfig};

/// The row of the table.
pub(super) static PROVIDER: Provider = Provider {
    id: "file",
    recipe_name: None,
    summary: "A file in the initramfs: for tests of the config alone.",
    detection: Detection::CommandLine,
    needs_network: false,
    media: &[],
    source_modules: &[],
    drivers: &[],
    disks: None,
    storage_identity: Identity::Anonymous,
    env_keys: env_keys::CUSTOM,
    obtain,
    report: None,
    local: Some(LocalConfig {
        modules: &[],
        read: |_, file| Ok(read(file)?.0),
        name: |file| file.display().to_string(),
    }),
};

fn read(file: &Path) -> Result<(Option<UserConfig>, Vec<String>), Problem> {
    let path = file.display();
    let data = match fs::read(file) {
        Ok(data) => Some(data),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(Problem::local(format!("reading {path}: {error}"))),
    };
    userdata::only(data, &path.to_string(), Foreign::Refuse, false)
}

fn obtain(machine: &Machine<'_>) -> Result<Found, Problem> {
    let config = read(machine.file)?;
    Ok(Found::new(config, Metadata::default()))
}

#[cfg(test)]
mod tests;
