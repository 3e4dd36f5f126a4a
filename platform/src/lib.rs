//! The platform of the machine that a node runs on: its detection, and the config and the metadata that it provides.
//!
//! [`providers`] has a folder and a row for each platform; all other modules read the rows. All platforms return the
//! same type: [`found::Found`], the user's config as decoded text and the machine's [`metadata`], both over one
//! connection. Absent data is not an error; a service that does not answer is retried without end, and
//! [`machine::Machine::say`] logs the missing answer.

// Floor: formats and shared types
mod base64;
pub mod dmi;
mod drivers;
pub mod medium;
pub mod network;
pub mod outcome;
pub mod problem;
mod vendor_yaml;
mod xml;

// Floor: metadata, and what providers need from outside
pub mod machine;
pub mod metadata;
mod mime;

// Floor: user data, and network data in other forms
pub mod env_keys;
mod nocloud_network;
pub mod userdata;

// Floor: the answer of a platform
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
