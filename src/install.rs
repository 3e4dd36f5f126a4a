//! Install: turns Debian packages into a tree: the root of a node or of a container, or the tools of a build.

// Floor: a package, and what is kept of it
pub(crate) mod deb;
mod options;

// Floor: packages in a tree
mod unpack;

// Floor: dpkg's record of them
mod database;

// Floor: what is done to the tree
mod clean;
mod configure;
mod layout;
mod pack;

// Floor: a root file system
mod rootfs;

// Floor: tools
pub mod tools;

pub use options::{Options, Purpose};
pub use rootfs::{Rootfs, install, unpack_only};
