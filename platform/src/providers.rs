//! The table of platforms: a folder and a row for each.

mod aws;
mod azure;
mod digitalocean;
mod file;
mod gcp;
mod hetzner;
mod kubevirt;
mod metal;
mod nutanix;
mod openstack;
mod oraclecloud;
mod proxmoxve;
mod qemu;
mod scaleway;
mod vmware;
mod vultr;

use crate::provider::Provider;

/// Every platform, sorted by id.
pub static TABLE: &[&Provider] = &[
    &aws::PROVIDER,
    &azure::PROVIDER,
    &digitalocean::PROVIDER,
    &file::PROVIDER,
    &gcp::PROVIDER,
    &hetzner::PROVIDER,
    &kubevirt::PROVIDER,
    &metal::PROVIDER,
    &nutanix::PROVIDER,
    &openstack::PROVIDER,
    &oraclecloud::PROVIDER,
    &proxmoxve::PROVIDER,
    &qemu::PROVIDER,
    &scaleway::PROVIDER,
    &vmware::PROVIDER,
    &vultr::PROVIDER,
];

/// The platform of a machine that no other row matches.
pub static METAL: &Provider = &metal::PROVIDER;

/// The row with this id.
///
/// # Errors
/// An id that is not in the table; lists the valid ones.
pub fn by_id(id: &str) -> Result<&'static Provider, String> {
    let found = TABLE.iter().find(|provider| provider.id == id);
    found.copied().ok_or_else(|| {
        let all: Vec<&str> = TABLE.iter().map(|provider| provider.id).collect();
        format!(
            "{id:?} is not a platform; expected one of {}",
            all.join(", ")
        )
    })
}

#[cfg(test)]
mod tests;
