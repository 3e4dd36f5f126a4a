//! Proves the promises: boots real images in QEMU.
