//! Makes a merged Ignition config true on a target: disks, file systems, accounts, files, units.

// Floor: words of a config
pub mod digest;
pub mod target;

// Floor: the config with all that it names
pub mod config_source;
pub mod contents;

// Floor: fetched
pub mod fetched;

// Floor: fetching
pub mod gather;

// Floor: the root that is written to, and the devices
pub mod device_name;
pub mod disk_journal;
mod partition_table;
pub mod tree;

// Floor: devices
pub mod device;
#[cfg(test)]
mod fake;
pub mod file_journal;

// Floor: one kind of thing each
mod accounts;
pub mod array;
pub mod filesystem;
pub mod mounts;
mod partition;
mod result;
mod units;
pub mod volume;

// Floor: what is decided about them
mod crypttab;
mod files;
pub mod plan;
mod users;

// Floor: below /var
pub mod below_var;

// Floor: the two stages
pub mod disks;
pub mod provision;
