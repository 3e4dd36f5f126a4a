//! Virtual machines: an image in QEMU from the tools tree, its console, and the record of its boots.

// Floor: parts of a machine
pub mod channel;
pub mod control;
pub mod hub;
pub mod machine;
pub mod pxe;
mod reap;
mod system_size;
pub mod timeline;

// Floor: what a machine is given, and who answers in it
pub mod agent;
pub mod disks;
mod tpm;

// Floor: the running machine
pub mod process;

// Floor: its acceleration and its console, what it asks of the host
pub mod accel;
pub mod preflight;
pub mod terminal;

// Floor: an image in a machine
pub mod run;

// Floor: the demo
pub mod demo;
