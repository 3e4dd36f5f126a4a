//! Runs a built image in QEMU from the tools tree.
