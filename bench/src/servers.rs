//! Servers that the measured stages talk to: files after a delay, and the part of systemd that Ignition needs.

pub(crate) mod delayed_http;
pub(crate) mod systemd;
