//! `slipway-node`: what the node's units run after the handoff.

// Floor: the container's bundle
mod bundle;

// Floor: one command each
mod bless;
mod gate;
mod prepare;

use std::process::ExitCode;

use image::kubelet::{BLESS_COMMAND, GATE_COMMAND, PREPARE_COMMAND};
use linux::world::World;

fn main() -> ExitCode {
    let command = std::env::args().nth(1).unwrap_or_default();
    let world = World::real();
    let done = match command.as_str() {
        GATE_COMMAND => gate::run(&world),
        PREPARE_COMMAND => prepare::run(&world),
        BLESS_COMMAND => bless::run(&world),
        _ => {
            eprintln!(
                "slipway-node: expected one of {GATE_COMMAND}, {PREPARE_COMMAND}, {BLESS_COMMAND}; found {command:?}"
            );
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            gate::say(&world, &format!("{command}: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
