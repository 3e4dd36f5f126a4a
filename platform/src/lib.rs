//! The machine that a node runs on: which one it is, the config that it gives, and what it says of itself.
//!
//! One file for each provider. All give the same: [`Found`], the user's config as decoded text and the
//! machine's [`Metadata`], both over one connection. What the machine has not got is absent and no error;
//! a service that does not answer is asked again without end, and [`Machine::say`] hears what is missing.
//! Providers mount nothing and set no link up: the init does that through [`Machine`], so that all of this
//! runs on a laptop against a server on loopback and a plain folder.

// Floor: words
mod base64;
pub mod endpoints;
pub mod medium;
pub mod network;
pub mod problem;
mod vendor_yaml;

// Floor: what a machine says, and what it needs
pub mod machine;
pub mod metadata;
mod mime;

// Floor: user data
pub mod userdata;

// Floor: what a machine gives
pub mod dmi;
pub mod env;
pub mod found;
pub mod fragment;

// Floor: services
mod service;

// Floor: drives
mod config_drive;

// Floor: providers
mod providers;

// Floor: which platform this is
pub mod detect;

#[cfg(test)]
mod testing;

use std::path::Path;

use image::platform::Platform;

pub use endpoints::Endpoints;
pub use found::Found;
pub use machine::Machine;
pub use medium::Medium;
pub use metadata::Metadata;
pub use problem::Problem;
pub use userdata::UserConfig;

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
        Platform::Metal => Ok(Found::new((None, Vec::new()), Metadata::default())),
        Platform::Nutanix => providers::nutanix::obtain(machine),
        Platform::Openstack => providers::openstack::obtain(machine),
        Platform::Proxmoxve => providers::proxmoxve::obtain(machine),
        Platform::Qemu => providers::qemu::obtain(machine),
        Platform::Vmware => providers::vmware::obtain(machine),
    }?;
    let dropped = found.metadata.clean();
    found.notes.extend(dropped);
    if found.metadata.instance_id.is_none() {
        found.metadata.instance_id = dmi::Dmi::read(machine.sys).uuid;
    }
    Ok(found)
}

/// Whose rights the clouds' storage is asked with on a machine of this platform.
#[must_use]
pub const fn fetch_identity(platform: Platform) -> fetch::Identity {
    match platform {
        Platform::Aws => fetch::Identity::Ec2Role,
        Platform::Gcp => fetch::Identity::ComputeAccount,
        _ => fetch::Identity::Anonymous,
    }
}
