//! What Slipway asks of the kernel: devices, tables, mounts, modules, uevents, programs by chroot, and waiting.
//!
//! No policy: what is done with a device or a mount is decided in the crates above.

// Floor: the facts of the machine
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
pub mod watchdog;

// Floor: where the facts are read
pub mod world;

// Floor: single interfaces of the kernel
pub mod atomic_file;
pub mod certificates;
pub mod device_mapper;
pub mod firmware;
pub mod gpt;
pub mod ioctl;
pub mod log;
pub mod mount;
pub mod probe;
pub mod refusal;
pub mod timeline;

// Floor: waiting
pub mod waiter;

// Floor: what is made of them
pub mod block;
pub mod filesystem;
pub mod md;
pub mod modprobe;
pub mod uevent;

// Floor: devices and programs
pub mod esp;
pub mod modules;
pub mod programs;
#[cfg(any(test, feature = "testing"))]
pub mod samples;

// Floor: what needs all of it
pub mod media;
pub mod tools;

// Floor: file systems
pub mod ext4;
