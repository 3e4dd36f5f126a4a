//! The contract of a Slipway image, between the tool that builds it and the init that boots it.
//!
//! Types and constants, no I/O. Three things cross from builder to node and nothing else: the
//! kernel command line ([`cmdline`]), the partition table ([`layout`]) and the manifest
//! ([`manifest`]). The other modules hold the types and constants inside those that both sides share.

// Floor: values
pub mod addon;
pub mod bond;
pub mod fault;
pub mod guid;
pub mod iscsi;
pub mod mac;
pub mod paths;
pub mod platform;
pub mod report;
pub mod runtime_spec;
pub mod timeline;

// Floor: parts
pub mod kubelet;
pub mod modules;
pub mod network;
pub mod node;
pub mod var_list;
pub mod verity;

// Floor: the container, the disk, the network
pub mod container;
pub mod container_images;
pub mod layout;
pub mod module_words;
pub mod network_words;

// Floor: what crosses from builder to node
pub mod cmdline;
pub mod container_lint;
pub mod manifest;
