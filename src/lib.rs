//! Slipway as a library: the parts that the program `slipway` and the tests drive.

pub mod artifact;
pub mod bootable;
pub mod cache;
pub mod debian;
pub mod demo;
pub mod disk;
pub mod doctor;
pub mod initramfs;
pub mod inspect;
pub mod interrupt;
pub mod kernel;
pub mod kubelet;
pub mod layer;
pub mod local_files;
pub mod lock;
pub mod node_config;
pub mod oci;
pub mod output;
pub mod pipeline;
pub mod progress;
pub mod pxe;
pub mod qemu;
pub mod recipe;
pub mod root;
pub mod rootfs;
pub mod run;
pub mod sbom;
pub mod timeline;
pub mod tools;

/// `slipway-init`, built by the build script and carried in this program.
pub const INIT_PROGRAM: &[u8] = include_bytes!(env!("SLIPWAY_INIT_PROGRAM"));
