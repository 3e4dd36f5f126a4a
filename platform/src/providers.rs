//! The providers, a folder for each.

pub(crate) mod aws;
pub(crate) mod azure;
pub(crate) mod digitalocean;
pub(crate) mod file;
pub(crate) mod gcp;
pub(crate) mod hetzner;
pub(crate) mod kubevirt;
pub(crate) mod nutanix;
pub(crate) mod openstack;
pub(crate) mod proxmoxve;
pub(crate) mod qemu;
pub(crate) mod vmware;
