//! Boots nodes of the demo's image many times in a row, each on another machine that a seed draws, with decoy disks beside its
//! own, and reports each failure with its seed and its console.
#![allow(clippy::print_stdout, reason = "a program that prints its results")]

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use image::layout::SectorSize;
use qemu_tests::disk_content::{Content, digest, ext4_identity, remove};
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::running::Running;
use qemu_tests::timeouts;
use slipway::vm::disks::{ETCD_SIZE, Node, blank, copy_sparse};
use slipway::vm::machine::Machine;
use slipway::vm::machine::disk::{Bus, Disk, Format};

/// Boots many nodes, twice each: a first boot and, after the power was cut, a later one. Exits with 1 if a boot fails.
#[derive(Debug, Parser)]
#[command(name = "soak")]
struct Arguments {
    /// Number of boots
    #[arg(default_value_t = 100)]
    boots: u64,
    /// Seed of the first node; each further node has the next number
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How far each boot goes
    #[arg(long, value_enum, default_value_t = Until::Handoff)]
    until: Until,
}

/// How far a boot goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Until {
    /// Until the init starts systemd
    Handoff,
    /// Until the kubelet is READY and etcd healthy
    Healthy,
}

/// What a disk beside the node's own holds; none is a blank one.
type Decoy = Option<Content>;

/// The machine of one node.
#[derive(Debug)]
struct Draw {
    direct: bool,
    bus: Bus,
    cpus: u32,
    memory: u32,
    /// Each with the place among the disks where it is inserted; the system disk stays the first, which the firmware starts
    /// from.
    decoys: Vec<(Decoy, usize)>,
}

impl Draw {
    /// The machine that this seed stands for, always the same.
    fn of(seed: u64) -> Self {
        let mut random = Random(seed);
        let bus = random.among(&[Bus::Virtio, Bus::Nvme, Bus::Scsi, Bus::Sata]);
        let count = random.below(4);
        let kinds: Vec<Decoy> = Content::ALL.map(Some).into_iter().chain([None]).collect();
        Self {
            direct: random.below(2) == 0,
            bus,
            cpus: random.among(&[1, 2]),
            memory: random.among(&[1536, 2048, 3072]),
            decoys: (0..count)
                .map(|at| (random.among(&kinds), random.below(at + 2)))
                .collect(),
        }
    }
}

impl fmt::Display for Draw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = if self.direct { "direct" } else { "UEFI" };
        let Self {
            bus, cpus, memory, ..
        } = self;
        write!(f, "{start}, {bus:?}, {cpus} cpus, {memory} MiB")?;
        for (decoy, place) in &self.decoys {
            let name = decoy.map_or_else(|| "blank".to_owned(), |content| format!("{content:?}"));
            write!(f, ", {name} at {}", place + 1)?;
        }
        Ok(())
    }
}

/// `SplitMix64` (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).unwrap_or(u64::MAX);
        usize::try_from(self.next() % end).unwrap_or_default()
    }

    fn among<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    slipway::host::sandbox::become_root_of_namespace()?;
    let mut soak = Soak {
        lab: Lab::open()?,
        arguments,
        times: Vec::new(),
        done: 0,
        failures: 0,
    };
    let mut seed = soak.arguments.seed;
    while soak.done < soak.arguments.boots {
        soak.node(seed)?;
        seed += 1;
    }
    soak.sum_up();
    Ok(match soak.failures {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// The run.
struct Soak {
    lab: Lab,
    arguments: Arguments,
    /// Seconds of each boot that came to its end.
    times: Vec<f64>,
    done: u64,
    failures: u64,
}

impl Soak {
    /// The boots of one node. A failure is reported, and the next node begins.
    fn node(&mut self, seed: u64) -> Result<()> {
        let draw = Draw::of(seed);
        println!("seed {seed}: {draw}");
        self.lab.begin()?;
        let node = self.lab.node()?;
        let decoys = self.decoys(&node, &draw)?;
        for boot in ["first", "later"] {
            if self.done == self.arguments.boots {
                break;
            }
            self.done += 1;
            let begin = Instant::now();
            let result = self.once(&node, &draw, &decoys);
            let seconds = begin.elapsed().as_secs_f64();
            let number = self.done;
            if let Err(error) = result {
                self.failures += 1;
                let file = self.lab.folder().join(format!("soak-{seed}-{boot}.log"));
                fs::write(&file, self.lab.consoles().join("\n"))?;
                println!("{number:4} {boot}: FAILED after {seconds:.1} s: {error:#}");
                println!(
                    "     `soak 2 --seed {seed}` repeats it; console: {}",
                    file.display()
                );
                break;
            }
            println!("{number:4} {boot}: {seconds:5.1} s");
            self.times.push(seconds);
        }
        fs::remove_dir_all(node.folder()).context("removing the node's disks")
    }

    /// Makes the disks beside the node's own.
    fn decoys(&self, node: &Node, draw: &Draw) -> Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        for (number, (decoy, _)) in draw.decoys.iter().enumerate() {
            let path = node.folder().join(format!("decoy-{number}.raw"));
            match decoy {
                Some(content) => content.write(&path, &self.lab.tools)?,
                None => blank(&path, ETCD_SIZE)?,
            }
            paths.push(path);
        }
        Ok(paths)
    }

    /// One boot, at whose end the power is cut. No decoy may have changed.
    fn once(&mut self, node: &Node, draw: &Draw, decoys: &[PathBuf]) -> Result<()> {
        let plan = BootOptions {
            direct: draw.direct,
            bus: draw.bus,
            ..BootOptions::default()
        };
        let mut machine = self.lab.machine(node, &plan)?;
        (machine.cpus, machine.memory) = (draw.cpus, draw.memory);
        let before = copies(decoys)?;
        // None before the first boot.
        let etcd = ext4_identity(&node.etcd(), 0).ok();
        insert(&mut machine, draw, decoys);
        let running = self.lab.start(node, machine, None)?;
        self.wait(&running)?;
        running.vm.pull_plug();
        let made = ext4_identity(&node.etcd(), 0).context("looking for the etcd volume")?;
        ensure!(
            etcd.is_none_or(|etcd| etcd == made),
            "the etcd volume was made anew"
        );
        for (path, copy) in decoys.iter().zip(before) {
            let name = path.display();
            ensure!(digest(path)? == digest(&copy)?, "the boot changed {name}");
            remove(&copy)?;
        }
        Ok(())
    }

    fn wait(&self, running: &Running) -> Result<()> {
        running.wait_handoff(timeouts::HANDOFF)?;
        if self.arguments.until == Until::Healthy {
            running.wait_services()?;
            running.wait_healthy()?;
        }
        Ok(())
    }

    fn sum_up(&mut self) {
        self.times.sort_by(f64::total_cmp);
        let times = &self.times;
        if let (Some(least), Some(middle), Some(most)) =
            (times.first(), times.get(times.len() / 2), times.last())
        {
            println!("{least:.1} to {most:.1} s each, median {middle:.1} s");
        }
        println!("{} boots, {} failures", self.done, self.failures);
    }
}

/// Copies of the decoys, beside them.
fn copies(decoys: &[PathBuf]) -> Result<Vec<PathBuf>> {
    decoys
        .iter()
        .map(|path| {
            let copy = path.with_extension("copy");
            copy_sparse(path, &copy)?;
            Ok(copy)
        })
        .collect()
}

/// Attaches the decoys, each at its place behind the system disk.
fn insert(machine: &mut Machine, draw: &Draw, decoys: &[PathBuf]) {
    for (number, (path, (_, place))) in decoys.iter().zip(&draw.decoys).enumerate() {
        let disk = Disk {
            path: path.clone(),
            format: Format::Raw,
            bus: draw.bus,
            serial: format!("decoy{number}"),
            sector: SectorSize::B512,
            read_only: false,
        };
        machine.disks.insert(place + 1, disk);
    }
}
