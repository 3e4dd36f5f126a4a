//! `slipway-init`: PID 1 from the start of `/init` until the handoff.

mod block;
mod boot;
mod chroot;
mod config;
mod dm;
mod etcd;
mod failure;
mod handoff;
mod kubelet;
mod log;
mod modules;
mod mount;
mod net;
mod platform;
mod provision;
mod root;
mod settings;
mod state;
mod timeline;
mod uevent;
mod watchdog;
mod world;

fn main() {}
