//! A file, for tests of the config alone.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use crate::found::Found;
use crate::machine::Machine;
use crate::metadata::Metadata;
use crate::problem::Problem;
use crate::userdata::{self, Foreign, UserConfig};

/// What the file has.
pub(crate) fn shown(file: &Path) -> Result<Option<UserConfig>, Problem> {
    read(file).map(|(config, _)| config)
}

fn read(file: &Path) -> Result<(Option<UserConfig>, Vec<String>), Problem> {
    let path = file.display();
    let data = match fs::read(file) {
        Ok(data) => Some(data),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(Problem::local(format!("reading {path}: {error}"))),
    };
    userdata::only(data, &path.to_string(), Foreign::Refuse, false)
}

pub(crate) fn obtain(machine: &Machine<'_>) -> Result<Found, Problem> {
    let config = read(machine.file)?;
    Ok(Found::new(config, Metadata::default()))
}

#[cfg(test)]
mod tests;
