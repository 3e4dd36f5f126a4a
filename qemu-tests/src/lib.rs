//! Proves the promises: boots real images in QEMU.
//!
//! The image is the recipe's own, unchanged. Probes arrive by Ignition and answer through a virtio serial port, with a
//! token that only this run knows. Builds are cached between runs, verdicts never.

pub mod content;
pub mod lab;
pub mod patience;
pub mod runner;
pub mod writes;
