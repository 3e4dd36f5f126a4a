//! Nodes of an image in namespaces of this host: containerd, the kubelet in its container and `slipway-node` run as they do
//! behind the handoff, at the speed of the host, without a machine and without systemd.
//!
//! What a virtual machine alone can prove (the boot, power cuts of disks, systemd's units) is in `qemu-tests/`.

// Floor: control groups, settings of the kernel
mod control_groups;
mod host_settings;

// Floor: namespaces and the programs in them
mod namespace;

// Floor: the image's root as a folder, what systemd's units start
pub mod image_root;
mod service;

// Floor: the network between nodes
pub mod hub;

// Floor: a node
pub mod node;

// Floor: the lab
pub mod lab;

// Floor: the order of the tests
pub mod runner;
