//! `slipway-init`: PID 1 from the start of `/init` until the handoff.

// Floor: what every step may look at
mod machine;

// Floor: context
mod context;

mod boot;
mod config;
mod failure;
mod handoff;
mod kernel_arguments;
mod kubelet;
mod report;
mod root;
mod settings;
mod state;

use std::process::ExitCode;

use linux::modprobe;
use linux::world::World;

fn main() -> ExitCode {
    if std::process::id() == 1 {
        boot::run();
    }
    let arguments: Vec<String> = std::env::args_os()
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    // The kernel starts this program as its modprobe while volumes and arrays are made.
    modprobe::answer(&arguments, &World::real()).unwrap_or_else(|| {
        eprintln!("slipway-init: expected to be started by the kernel as process 1");
        ExitCode::from(2)
    })
}
