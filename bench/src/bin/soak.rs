//! Boots the demo N times in a row, each time a new node with blank disks, and reports each failure with its console.
#![allow(clippy::print_stdout, reason = "a program that prints its results")]

use std::fs;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::timeouts;

/// Boots the demo many times, each time a new node with blank disks; exits with 1 if a boot fails.
#[derive(Debug, Parser)]
#[command(name = "soak")]
struct Arguments {
    /// Number of boots
    #[arg(default_value_t = 10)]
    boots: usize,
}

fn main() -> Result<ExitCode> {
    let count = Arguments::parse().boots;
    slipway::host::sandbox::become_root_of_namespace()?;
    let mut lab = Lab::open()?;
    let mut failures = 0;
    let mut times = Vec::new();
    for number in 1..=count {
        lab.begin();
        let begin = Instant::now();
        match once(&mut lab) {
            Ok((handoff, healthy)) => {
                println!("{number:3} of {count}: handoff {handoff:6.1} s, healthy {healthy:6.1} s");
                times.push(healthy);
            }
            Err(error) => {
                failures += 1;
                let file = lab.folder().join(format!("soak-{number}.log"));
                fs::write(&file, lab.consoles().join("\n"))?;
                println!(
                    "{number:3} of {count}: FAILED after {:.1} s: {error:#}\n    console: {}",
                    begin.elapsed().as_secs_f64(),
                    file.display()
                );
            }
        }
    }
    times.sort_by(f64::total_cmp);
    if let (Some(least), Some(middle), Some(most)) =
        (times.first(), times.get(times.len() / 2), times.last())
    {
        println!("healthy after {least:.1} to {most:.1} s, median {middle:.1} s");
    }
    println!("{} of {count} boots were healthy", count - failures);
    Ok(if failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A first boot by UEFI to a healthy control plane: seconds to the handoff and to health.
fn once(lab: &mut Lab) -> Result<(f64, f64)> {
    let node = lab.node()?;
    let plan = BootOptions {
        direct: false,
        ..BootOptions::default()
    };
    let begin = Instant::now();
    let running = lab.boot(&node, &plan)?;
    running.wait_handoff(timeouts::HANDOFF)?;
    let handoff = begin.elapsed().as_secs_f64();
    running.wait_services()?;
    running.wait_healthy()?;
    let healthy = begin.elapsed().as_secs_f64();
    drop(running);
    fs::remove_dir_all(node.folder()).context("removing the node's disks")?;
    Ok((handoff, healthy))
}
