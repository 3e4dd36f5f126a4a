//! The network of the initrd: from the command line's words to links that are up, and the hand-over to systemd-networkd.

// Floor: the kernel's and the servers' messages
mod netlink;

// Floor: DHCP
mod dhcp;

// Floor: one exchange, and the links
mod exchange;
mod handover;
mod shape;

// Floor: what each interface waits for
mod progress;

// Floor: the network
pub mod network;
