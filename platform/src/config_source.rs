//! Config source: finds the user's config, in this order of precedence:
//!
//! 1. the URL on the kernel command line
//! 2. the file on a device, both named on the kernel command line
//! 3. the platform's own: drive, service, hypervisor, file
//!
//! The init follows the complete order by [`user`]. The program `ignition` has a file of its system between 2 and 3, so
//! it calls [`Named::find`] and [`obtain`] itself.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use fetch::Patience;
use image::cmdline::{CONFIG_DEVICE, Cmdline};

use crate::dmi::Dmi;
use crate::found::Found;
use crate::machine::Machine;
use crate::medium::Medium;
use crate::metadata::Metadata;
use crate::problem::Problem;
use crate::provider::Provider;
use crate::userdata::UserConfig;

/// The time limit for the metadata when the config comes from elsewhere, and for the network that they need: a missing host
/// name does not delay such a boot.
const METADATA_ONLY: Duration = Duration::from_secs(10);

/// The config that the kernel command line names, if it names one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// Its URL.
    pub url: Option<String>,
    /// The label of its file system, and its path there.
    pub device: Option<(String, String)>,
}

/// The user's config: its text or its URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The URL to fetch it from.
    Url(String),
    /// Its text.
    Text(UserConfig),
}

/// The result of [`user`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The config, if there is one.
    pub source: Option<Source>,
    /// The machine's metadata.
    pub metadata: Metadata,
    /// Notes of ignored data, for the log.
    pub notes: Vec<String>,
}

impl From<&Cmdline> for Named {
    fn from(cmdline: &Cmdline) -> Self {
        Self {
            url: cmdline.config_url.clone(),
            device: cmdline
                .config_device
                .clone()
                .zip(cmdline.config_path.clone()),
        }
    }
}

impl Named {
    /// The config that the command line names; none if it names none.
    ///
    /// # Errors
    /// A device that does not appear within [`Machine::media_wait`], a file that cannot be read or whose path leaves
    /// the device.
    pub fn find(&self, machine: &Machine<'_>) -> Result<Option<Source>, Problem> {
        if let Some(url) = &self.url {
            return Ok(Some(Source::Url(url.clone())));
        }
        let Some((label, path)) = &self.device else {
            return Ok(None);
        };
        let text = on_device(machine, label, path)?;
        let name = format!("{path} of {label}");
        Ok(Some(Source::Text(UserConfig { text, name })))
    }
}

/// The user's config: the one that the command line names, else the platform's own; and the platform's metadata in both
/// cases.
///
/// # Errors
/// As [`Named::find`] and [`obtain`]. Missing metadata beside a config of the command line is a note.
pub fn user(provider: &Provider, named: &Named, machine: &Machine<'_>) -> Result<User, Problem> {
    user_within(provider, named, machine, METADATA_ONLY)
}

fn user_within(
    provider: &Provider,
    named: &Named,
    machine: &Machine<'_>,
    metadata_only: Duration,
) -> Result<User, Problem> {
    let Some(source) = named.find(machine)? else {
        let found = obtain(provider, machine)?;
        return Ok(User {
            source: found.config.map(Source::Text),
            metadata: found.metadata,
            notes: found.notes,
        });
    };
    let briefly = Machine {
        patience: Patience {
            total: Some(metadata_only),
            ..machine.patience
        },
        ..*machine
    };
    let (metadata, notes) = match obtain(provider, &briefly) {
        Ok(found) => {
            let ignored = found.config.map(|config| {
                let name = config.name;
                format!("ignoring {name}: the command line names a config")
            });
            let notes = found.notes.into_iter().chain(ignored).collect();
            (found.metadata, notes)
        }
        Err(problem) => {
            let note = format!("no metadata from the platform: {problem}");
            (Metadata::default(), vec![note])
        }
    };
    Ok(User {
        source: Some(source),
        metadata,
        notes,
    })
}

/// Reads the config and the metadata of the platform.
///
/// # Errors
/// User data that cannot be used, or a service that refuses to answer. A service that is not reachable yet is retried
/// as long as the machine's patience allows.
pub fn obtain(provider: &Provider, machine: &Machine<'_>) -> Result<Found, Problem> {
    (machine.load_modules)(provider.source_modules);
    let mut found = (provider.obtain)(machine)?;
    let dropped = found.metadata.clean();
    found.notes.extend(dropped);
    if found.metadata.instance_id.is_none() {
        found.metadata.instance_id = Dmi::read(machine.sys).uuid;
    }
    Ok(found)
}

/// The file that `ignition.config.device=` and `ignition.config.path=` name.
fn on_device(machine: &Machine<'_>, label: &str, path: &str) -> Result<Vec<u8>, Problem> {
    let labels = [label];
    let medium = Medium::Labels(&labels);
    let until = Instant::now() + machine.media_wait;
    let folder = machine.wait_for(&medium, Some(until))?.ok_or_else(|| {
        let seconds = machine.media_wait.as_secs();
        Problem::local(format!(
            "{CONFIG_DEVICE}: {medium} did not appear within {seconds} s"
        ))
    })?;
    // No file outside of the medium, whatever its links point to.
    let below = |file: &Path| {
        let folder = fs::canonicalize(&folder)?;
        let file = fs::canonicalize(folder.join(file))?;
        match file.starts_with(&folder) {
            true => fs::read(file),
            false => Err(std::io::Error::other("it leads out of the medium")),
        }
    };
    below(Path::new(path.trim_start_matches('/'))).map_err(|error| {
        Problem::local(format!(
            "{CONFIG_DEVICE}: reading {path} of {label}: {error}"
        ))
    })
}

#[cfg(test)]
mod tests;
