//! Tests the promises: boots real images in QEMU.
//!
//! The image is the recipe's, unchanged. Probes arrive by Ignition and answer through a virtio serial port, with a
//! random token of the run. Builds are cached between runs, results never.

// Floor: chance
pub mod random;

// Floor: disks, deadlines, a switch, servers
pub mod disk_content;
pub mod disk_fault;
pub mod etcd;
pub mod full_fat;
pub mod http;
pub mod packed_disk;
pub mod switch;
pub mod timeouts;
pub mod write_log;

// Floor: the machine
pub mod running;

// Floor: the lab that starts it
pub mod lab;

// Floor: the order of the promises
pub mod runner;
