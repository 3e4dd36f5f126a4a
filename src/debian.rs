//! The Debian archive: mirror, signed index, package choice.

// Floor: fields, relations, signatures
pub mod deb822;
pub mod pinned;
pub mod relation;
pub mod signature;

// Floor: the files of an archive
pub mod mirror;
pub mod packages;
pub mod release;

// Floor: a whole archive, and a choice from it
pub mod archive;
pub mod solve;

pub use mirror::Mirrors;

#[cfg(test)]
pub(crate) mod loopback;
