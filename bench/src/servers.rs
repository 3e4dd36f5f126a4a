//! Servers for the measured stages: files after a delay, and the part of systemd that Ignition uses.

pub(crate) mod delayed_http;
pub(crate) mod systemd;
