//! The configuration language, pure: what the tool checks and the init applies.
//!
//! A config goes through plain functions, each in a room of its own:
//! text → [`read`] (a tree with lines and columns) → [`tree`] by [`schema`] (Go's JSON habits folded away,
//! unknown keys and wrong types reported) → [`validate`] (by the rules of the config's own version) →
//! translated to the newest version → [`merge`] (base under user) → validated again → [`model`]
//! (the types that the init applies). Nothing here touches a disk or a network: sources are checked by
//! [`source`] and their bytes, once somebody fetched them, are unpacked and verified by [`contents`].
//!
//! No message of this crate ever holds a value of the config that may be secret (contents, password
//! hashes, keys): messages name the place, and only values that are names, paths or numbers.

pub mod butane;
pub mod config;
pub mod contents;

pub mod merge;
pub mod model;
pub mod read;
pub mod report;
pub mod schema;
pub mod source;
pub mod tree;
pub mod unit;
pub mod validate;

pub use config::Config;
pub use report::{Entry, Kind, Report};
