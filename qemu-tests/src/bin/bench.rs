//! Our numbers, for `docs/`: the build without work and with a changed file, and a second boot in virtual time.
#![allow(
    clippy::print_stdout,
    reason = "a program that speaks to whoever runs it"
)]

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use image::report::HANDOFF_LINE;
use qemu_tests::lab::{Lab, Plan};
use slipway::lock::Mode;
use slipway::pipeline::{self, Request};
use slipway::progress::{Kind, Progress};
use slipway::qemu::channel::Waited;
use slipway::qemu::machine::{Accel, Clock};
use slipway::timeline;

/// A boot in virtual time runs on one emulated processor.
const HANDOFF: Duration = Duration::from_secs(600);

fn main() -> Result<()> {
    slipway::run::become_root_of_namespace()?;
    let mut lab = Lab::open()?;
    builds(&lab)?;
    boots(&mut lab)
}

/// Seconds of a build with nothing to do, with a changed file, and with nothing to do again.
fn builds(lab: &Lab) -> Result<()> {
    let folder = lab.folder().join("bench");
    fs::create_dir_all(&folder)?;
    let recipe = folder.join("bench.toml");
    let base = lab.recipes().join("demo.toml");
    let write = |word: &str| {
        let text = format!(
            "extends = {:?}\n[image]\nname = \"bench\"\n[files.\"/etc/bench\"]\ncontent = {word:?}\n",
            base.display().to_string()
        );
        fs::write(&recipe, text).context("writing the bench's recipe")
    };
    let build = || -> Result<f64> {
        let request = Request {
            recipe: recipe.clone(),
            output: folder.clone(),
            lock: Mode::Make,
        };
        let begin = Instant::now();
        pipeline::build(&request, &Progress::new(Kind::Quiet))?;
        Ok(begin.elapsed().as_secs_f64())
    };
    write("first")?;
    build()?;
    println!("{:<44} {:8.3} s", "build, nothing to do", build()?);
    write(&format!("{:?}", std::time::SystemTime::now()))?;
    println!(
        "{:<44} {:8.3} s",
        "build, one file of the overlay changed",
        build()?
    );
    Ok(())
}

/// Virtual milliseconds of the second boot, by direct boot on one processor.
fn boots(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let mut handoff = 0;
    let mut lines = String::new();
    for _ in 0..2 {
        let mut machine = lab.machine(&node, &Plan::default())?;
        machine.accel = Accel::Tcg;
        machine.clock = Clock::Virtual;
        machine.cpus = 1;
        if let slipway::qemu::machine::Start::Direct { cmdline, .. } = &mut machine.start {
            cmdline.push_str(" quiet");
        }
        let running = lab.start(&node, machine, None)?;
        let found = running.vm.console().wait(HANDOFF, |text| {
            let line = text.split_once(HANDOFF_LINE)?.1;
            let (line, _) = line.split_once('\n')?;
            let value: serde_json::Value = serde_json::from_str(line.trim()).ok()?;
            value["micros"].as_i64()
        });
        let Waited::Found(micros) = found else {
            anyhow::bail!("no handoff: {found:?}");
        };
        handoff = micros;
        running.agent()?.wait(1, HANDOFF)?;
        lines = running
            .agent()?
            .ask("cat /run/slipway/timeline.jsonl", HANDOFF)?
            .output;
        running.power_off()?;
    }
    let spans = timeline::read(&lines)?;
    let start = spans
        .iter()
        .find(|span| span.source == "init")
        .context("finding the init's first step")?
        .start;
    println!(
        "{:<44} {:8} ms",
        "virtual time, kernel's start to /init",
        start / 1000
    );
    println!(
        "{:<44} {:8} ms",
        "virtual time, /init to the handoff, second boot",
        (handoff - start) / 1000
    );
    print!("{}", timeline::table(&spans));
    Ok(())
}
