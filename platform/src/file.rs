//! A file, for tests of the config alone.

use std::fs;
use std::io::ErrorKind;

use crate::userdata::{self, Foreign};
use crate::{Found, Machine, Metadata, Problem};

pub(crate) fn obtain(machine: &Machine<'_>) -> Result<Found, Problem> {
    let path = machine.file.display();
    let data = match fs::read(machine.file) {
        Ok(data) => Some(data),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(Problem::local(format!("reading {path}: {error}"))),
    };
    let (config, notes) = userdata::only(data, &path.to_string(), Foreign::Refuse, false)?;
    let mut found = Found::new(config, Metadata::default());
    found.notes.extend(notes);
    Ok(found)
}
