//! What a Slipway image is: the contract between the tool that builds it and the init that boots it.
//!
//! Types and constants, no I/O. Three things cross from builder to node and nothing else: the
//! kernel command line ([`cmdline`]), the partition table ([`layout`]) and the manifest
//! ([`manifest`]). The other modules hold the shapes that both sides must agree on inside those.

pub mod addon;
pub mod cmdline;
pub mod container;
pub mod container_lint;
pub mod fault;
pub mod guid;
pub mod kubelet;
pub mod layout;
pub mod manifest;
pub mod modules;
pub mod network;
pub mod node;
pub mod paths;
pub mod platform;
pub mod report;
pub mod timeline;
pub mod verity;
