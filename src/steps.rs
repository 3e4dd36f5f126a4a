//! Steps of a build: one module each, in the order of the line.

// Floor: packages
pub mod kernel;
pub mod kubelet;
pub mod overlay;

// Floor: the sealed root
pub mod root;

// Floor: the initramfs
pub mod initramfs;

// Floor: what firmware starts
pub mod bootable;

// Floor: the disk
pub mod disk;
