//! The Debian archive: mirror, signed index, package choice.

// Floor: fields, relations, signatures
pub mod deb822;
pub mod files;
pub mod pinned;
pub mod relation;
pub mod signature;

// Floor: packages of an index
pub mod packages;

// Floor: archives of the recipe
pub mod third_party;

// Floor: the files of an archive
pub mod mirror;
pub mod release;

// Floor: a whole archive, and a choice from it
pub mod archive;
pub mod solve;

pub use mirror::Mirrors;

#[cfg(test)]
pub(crate) mod loopback;
#[cfg(test)]
pub(crate) mod vendor;
