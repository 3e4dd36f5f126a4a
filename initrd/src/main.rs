//! `slipway-init`: PID 1 from the start of `/init` until the handoff.

mod bless;
mod block;
mod boot;
mod chroot;
mod config;
mod disks;
mod dm;
mod dropin;
mod esp;
mod etcd;
mod failure;
mod firmware;
#[cfg(test)]
mod fuzz;
mod handoff;
mod kernel_arguments;
mod kubelet;
mod log;
mod machine;
mod media;
mod modprobe;
mod modules;
mod mount;
mod net;
mod provision;
mod report;
mod root;
mod settings;
mod state;
mod timeline;
mod uevent;
mod watchdog;
mod whole;
mod world;

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::process::id() == 1 {
        boot::run();
    }
    let arguments: Vec<String> = std::env::args_os()
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let world = world::World::real();
    if let Some(code) = modprobe::answer(&arguments, &world) {
        return code;
    }
    if let Some(arguments) = dropin::arguments(&arguments) {
        return dropin::run(arguments);
    }
    let command = arguments.get(1).cloned().unwrap_or_default();
    kubelet::command(&command, &world).unwrap_or_else(|| {
        eprintln!(
            "slipway-init: expected to be started by the kernel as process 1, or with one of the \
             commands that the node's units use; found {command:?}"
        );
        ExitCode::from(2)
    })
}
