//! The machine that a node runs on: which one it is, the config that it gives, and what it says of itself.
//!
//! One file for each provider. All give the same: [`Found`], the user's config as decoded text and the
//! machine's [`Metadata`], both over one connection. What the machine has not got is absent and no error;
//! a service that does not answer is asked again without end, and [`Machine::say`] hears what is missing.
//! Providers mount nothing and set no link up: the init does that through [`Machine`], so that all of this
//! runs on a laptop against a server on loopback and a plain folder.

pub mod detect;
pub mod endpoints;
pub mod env;
pub mod fragment;
pub mod metadata;
pub mod network;
pub mod userdata;

mod drive;
mod flat;
mod medium;
mod mime;
mod providers;
mod service;
#[cfg(test)]
mod testing;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use fetch::Patience;
use image::platform::Platform;

pub use endpoints::Endpoints;
pub use medium::{Medium, wait_for};
pub use metadata::Metadata;

/// The most that user data may hold, unpacked, in bytes.
pub const LIMIT: u64 = 64 << 20;

/// How the network is brought up: returns when it is there, or when it is told to stop.
pub type Network<'a> = &'a (dyn Fn(&AtomicBool) -> anyhow::Result<()> + Sync);
/// How a medium is mounted: the folder of its root, or none if no such medium is there now.
pub type Mount<'a> = &'a (dyn Fn(&Medium<'_>) -> anyhow::Result<Option<PathBuf>> + Sync);

/// Every outside fact that a provider may use.
#[derive(Clone, Copy)]
pub struct Machine<'a> {
    /// Where the vendors' services are.
    pub endpoints: &'a Endpoints,
    /// sysfs.
    pub sys: &'a Path,
    /// Device nodes.
    pub dev: &'a Path,
    /// The file that the provider `file` reads.
    pub file: &'a Path,
    /// How a service is waited for. Its `total` ends the waiting for media too.
    pub patience: Patience,
    /// How often is looked for a medium that is not there yet.
    pub look_every: Duration,
    /// How long a medium is waited for by those who can do without it.
    pub media_wait: Duration,
    /// Brings the network up. Called only by providers that need it, before their first request.
    pub network: Network<'a>,
    /// Mounts a medium read-only.
    pub mount: Mount<'a>,
    /// Hears what is waited for, at least every five seconds.
    pub say: &'a (dyn Fn(&str) + Sync),
}

impl fmt::Debug for Machine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine")
            .field("endpoints", &self.endpoints)
            .field("sys", &self.sys)
            .field("dev", &self.dev)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

/// What a machine gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The user's config, if there is one.
    pub config: Option<UserConfig>,
    /// What the machine says of itself.
    pub metadata: Metadata,
    /// What was passed over, for the log.
    pub notes: Vec<String>,
}

impl Found {
    fn new(config: Option<UserConfig>, metadata: Metadata) -> Self {
        Self {
            config,
            metadata,
            notes: Vec::new(),
        }
    }
}

/// A config as the machine gave it, unpacked.
#[derive(Clone, PartialEq, Eq)]
pub struct UserConfig {
    /// Ignition's JSON or Butane's YAML.
    pub text: Vec<u8>,
    /// What messages call it.
    pub name: String,
}

/// It may hold secrets: only its size is shown.
impl fmt::Debug for UserConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserConfig({}, {} bytes)", self.name, self.text.len())
    }
}

/// Why a machine gave nothing that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong, without any of the user data.
    pub what: String,
    /// Whether it came from a service, so that asking again may help.
    pub remote: bool,
}

impl Problem {
    fn local(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            remote: false,
        }
    }

    fn remote(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            remote: true,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Problem {}

/// The user's config as far as the machine shows it again at every boot, without network, medium or waiting: QEMU's
/// fw_cfg and the file. None for what is asked of others, and where there is none now.
///
/// # Errors
/// If it cannot be read.
pub fn shown(platform: Platform, sys: &Path, file: &Path) -> Result<Option<UserConfig>, Problem> {
    match platform {
        Platform::File => providers::file::shown(file),
        Platform::Qemu => providers::qemu::shown(sys),
        _ => Ok(None),
    }
}

/// Asks the machine for its config and its metadata.
///
/// # Errors
/// User data that cannot be used, or a service that refuses to answer. A service that is only not there yet is waited
/// for, as long as the machine's patience allows.
pub fn obtain(platform: Platform, machine: &Machine<'_>) -> Result<Found, Problem> {
    let mut found = match platform {
        Platform::Aws => providers::aws::obtain(machine),
        Platform::Azure => providers::azure::obtain(machine),
        Platform::DigitalOcean => providers::digitalocean::obtain(machine),
        Platform::File => providers::file::obtain(machine),
        Platform::Gcp => providers::gcp::obtain(machine),
        Platform::Hetzner => providers::hetzner::obtain(machine),
        Platform::Kubevirt => providers::kubevirt::obtain(machine),
        Platform::Metal => Ok(Found::new(None, Metadata::default())),
        Platform::Nutanix => providers::nutanix::obtain(machine),
        Platform::Openstack => providers::openstack::obtain(machine),
        Platform::Proxmoxve => providers::proxmoxve::obtain(machine),
        Platform::Qemu => providers::qemu::obtain(machine),
        Platform::Vmware => providers::vmware::obtain(machine),
    }?;
    let dropped = found.metadata.clean();
    found.notes.extend(dropped);
    if found.metadata.instance_id.is_none() {
        found.metadata.instance_id = detect::Dmi::read(machine.sys).uuid;
    }
    Ok(found)
}
