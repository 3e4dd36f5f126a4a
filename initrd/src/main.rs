//! `slipway-init`: PID 1 from the start of `/init` until the handoff.

// Floor: the context of every step
mod context;

// Floor: the boot loader, and work that may hang
mod deadline;
mod loader;

// Floor: the report to the platform's vendor, and the reboot
mod restart;
mod vendor;

// Floor: the way out of a failed boot
mod recovery;

// Floor: before the root
mod cmdline;
mod manifest;
mod modules;
mod platform;
mod settings;
mod world;

// Floor: the verified root
mod root;

// Floor: names on the running node
mod boot_disk;
mod host_name;

// Floor: the system disk
mod settle;
mod system_disk;

// Floor: the state partition
mod state;

// Floor: stored metadata of the machine, and its report
mod metadata;
mod provisioned;

// Floor: the config
mod config;
mod config_drive;

// Floor: the steps behind state
mod disks;
mod etcd;
mod handoff;
mod ignition;
mod kernel_arguments;
mod kubelet;
mod var;

// Floor: folders and files on /var
mod etc;
mod spool;

// Floor: the line
mod boot;

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
