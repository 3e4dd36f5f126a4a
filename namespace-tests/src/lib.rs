//! Nodes of an image in namespaces of this host: containerd, the kubelet in its container and `slipway-node` run as they do
//! behind the handoff, at the speed of the host, without a machine and without systemd.
//!
//! What a virtual machine alone can prove (the boot, power cuts of disks, systemd's units) is in `qemu-tests/`.

// Floor: control groups, settings of the kernel
mod control_groups;
mod host_settings;

// Floor: what a process sees, the image's root as a folder
pub mod image_root;
mod mounts;

// Floor: namespaces and the programs in them; the files of a node
mod disks;
mod namespace;

// Floor: what systemd's units start
mod service;

// Floor: the network between nodes, the units of a node
pub mod hub;
mod units;

// Floor: what the init hands over
mod handover;

// Floor: the writes of a node's journal, as a test waits for them
pub mod journal_watch;

// Floor: a node
pub mod node;

// Floor: the lab
pub mod lab;

// Floor: the order of the tests
pub mod runner;
