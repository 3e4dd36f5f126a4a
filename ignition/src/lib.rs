//! The Ignition configuration language, without I/O: parse, merge, validate. The tool checks with it, the init applies
//! it.
//!
//! A config goes through plain functions, each in its own module: text → [`read`] (JSON or YAML with lines and columns)
//! → [`tree`] by [`schema`] (Go's JSON habits normalised, unknown keys and wrong types reported; [`butane`] expands its
//! sugar, `spec2` translates configs of specification 2) → [`validate`] (by the rules of the config's own version) → translated to the newest version → [`merge`]
//! (base under user) → validated again → [`model`] (the types that the init applies). Nothing here touches a disk or a
//! network: [`source`] checks sources, and [`contents`] unpacks and verifies the bytes that the caller fetched.
//!
//! No message of this crate holds a value of the config that may be secret (contents, password hashes, keys): messages
//! name the place, and only values that are names, paths or numbers.

// Floor: single values
pub mod contents;
pub mod encoding;
pub mod local_files;
mod mode;
pub mod report;
pub mod schema;
pub mod unit;

// Floor: texts
pub mod data_url;
mod origins;
pub mod read;

// Floor: trees
pub mod source;
pub mod tree;

// Floor: operations on trees
pub mod merge;
pub mod model;
pub mod validate;

// Floor: specification 2
mod spec2;

// Floor: sugar
mod sugar;

// Floor: Butane
pub mod butane;

// Floor: configs
pub mod config;

pub use config::Config;
pub use report::{Entry, Kind, Report};
