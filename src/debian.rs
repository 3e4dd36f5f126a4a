//! The Debian archive: mirror, signed index, package choice.

pub mod archive;
pub mod deb822;
pub mod mirror;
pub mod packages;
pub mod pinned;
pub mod relation;
pub mod release;
pub mod signature;
pub mod solve;

pub use mirror::Mirrors;

#[cfg(test)]
pub(crate) mod loopback;
