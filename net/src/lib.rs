//! The network of the initrd: from `ip=` on the kernel command line to configured links, and the hand-over to
//! systemd-networkd. And the routes of a running node to other nodes' pods.

// Floor: netlink's messages, the log
mod log_once;
mod message;

// Floor: a netlink socket
mod netlink;

// Floor: the kernel's network configuration
mod address;
mod link;
mod route;
pub mod routes;

// Floor: leases
mod dhcp4_options;
mod identity;
mod lease;

// Floor: the protocols
mod dhcp4;
mod dhcp6;

// Floor: one client of either protocol
mod dhcp;

// Floor: bonds
mod bond;

// Floor: one interface
mod assign;
mod exchange;
mod fixed_route;
mod shape;

// Floor: progress of the interfaces, the hand-over
mod handover;
mod progress;

// Floor: all interfaces of a plan
mod worker;

// Floor: the network
pub mod network;
