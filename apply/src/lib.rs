//! Makes a merged Ignition config true on a target: disks, file systems, accounts, files, units.

// Floor: the target, and names
pub mod device_name;
pub mod digest;
pub mod target;

// Floor: the config with all that it names
pub mod config_source;
pub mod fetched;

// Floor: the content of one file
mod joined;

// Floor: fetching it
pub mod gather;

// Floor: the root that is written to, and the devices
pub mod content;
pub mod device;
#[cfg(test)]
mod fake;
pub mod tree;

// Floor: journals of earlier boots
pub mod journal;

// Floor: one section of the config each
mod accounts;
pub mod arrays;
pub mod filesystems;
pub mod mounts;
mod partitions;
mod units;
pub mod volumes;

// Floor: plans
mod files;
pub mod plan;

// Floor: the file system at /var
pub mod var;

// Floor: the two stages
pub mod disks;
pub mod provision;
