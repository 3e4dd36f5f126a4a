//! The network of the initrd: from the command line's words to links that are up, and the hand-over to systemd-networkd.

// Floor: the kernel's network configuration
mod netlink;

// Floor: leases
mod identity;
mod lease;

// Floor: the protocols
mod dhcp4;
mod dhcp6;

// Floor: one client of either protocol
mod dhcp;

// Floor: one interface
mod exchange;
mod handover;
mod shape;

// Floor: what each interface waits for
mod progress;

// Floor: the network
pub mod network;
