//! Steps of a build: one module each, in the order of the line.

// Floor: accounts of installed packages
mod accounts;

// Floor: the packages of the root
pub mod rootfs;

// Floor: kernel and kubelet
pub mod kernel;
pub mod kubelet;

// Floor: what the image says of itself
pub mod identity;

// Floor: what is laid over the packages
pub mod layers;

// Floor: the sealed root
pub mod root;

// Floor: the initramfs
pub mod initramfs;

// Floor: what firmware starts
pub mod bootable;

// Floor: the disk
pub mod disk;
