//! Releases of Kubernetes: tables of every program and image that a version implies, each with its hash.

// Floor: the versions that a release implies
mod implied;

// Floor: tables
mod table;

// Floor: a new entry
mod add;

pub use add::{Bases, Request, add};
pub(crate) use implied::Implied;
pub use implied::{ARCHITECTURES, Unpack};
pub use table::{Binary, FILE, Image, Module, Release, Table, Tables};
