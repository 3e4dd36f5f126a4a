//! The kernel interfaces that Slipway uses: devices, tables, mounts, modules, uevents, programs by chroot, and waiting.
//!
//! No policy: the crates above decide what is done with a device or a mount.

// Floor: ioctls
pub mod ioctl;

// Floor: watchdog, consoles, answers of disks, random test input
pub mod console;
pub mod disk_reader;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
pub mod nvme;
pub mod watchdog;

// Floor: paths, clock
pub mod world;

// Floor: kernel interfaces, on-disk tables
pub mod atomic_file;
pub mod certificates;
pub mod device_mapper;
pub mod firmware;
pub mod gpt;
pub mod kernel_log;
pub mod log;
pub mod mount;
pub mod probe;
pub mod refusal;
pub mod reset;
pub mod timeline;

// Floor: waiting
pub mod waiter;

// Floor: disks that may not answer
pub mod disk_answers;

// Floor: devices and their contents
pub mod block;
pub mod filesystem;
pub mod md;
pub mod modprobe;
pub mod uevent;

// Floor: calls that take long
pub mod kernel_call;
mod module_process;

// Floor: names of devices, modules, programs
pub mod disk_identity;
pub mod disk_names;
pub mod esp;
pub mod modules;
pub mod programs;
#[cfg(any(test, feature = "testing"))]
pub mod samples;
pub mod settle;

// Floor: media, tools of the root, the host of a test
#[cfg(any(test, feature = "testing"))]
pub mod host;
pub mod media;
pub mod tools;

// Floor: making file systems
pub mod ext4;
