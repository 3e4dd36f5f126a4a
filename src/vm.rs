//! Virtual machines: an image in QEMU from the tools tree, its console, and the record of its boots.

// Floor: a machine's parts
pub mod channel;
pub mod control;
pub mod machine;
pub mod pxe;
pub mod timeline;

// Floor: a running machine
pub mod accel;
pub mod agent;
pub mod disks;
pub mod process;
pub mod terminal;
mod tpm;

// Floor: an image in a machine
pub mod run;

// Floor: the demo
pub mod demo;
