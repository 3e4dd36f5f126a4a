//! The machine that a node runs on: which platform it is, the config that it gives, and what it says of itself.
//!
//! [`providers`] has a folder and a row for each platform; everything else reads the rows. All platforms give the same:
//! [`found::Found`], the user's config as decoded text and the machine's [`metadata`], both over one connection. What a
//! machine does not have is absent and no error; a service that does not answer is asked again without end, and
//! [`machine::Machine::say`] logs what is missing.

// Floor: vocabulary
mod base64;
pub mod dmi;
mod drivers;
pub mod medium;
pub mod network;
pub mod problem;
mod vendor_yaml;

// Floor: metadata, and what providers need from outside
pub mod machine;
pub mod metadata;
mod mime;

// Floor: user data
pub mod env_keys;
pub mod userdata;

// Floor: what a platform gives
pub mod found;

// Floor: metadata services, and the row of the table
pub mod provider;
mod service;

// Floor: config drives
mod config_drive;

// Floor: the table
pub mod providers;

// Floor: readers of the table
pub mod config_source;
pub mod detect;
pub mod env;
pub mod fragment;

#[cfg(test)]
mod testing;
