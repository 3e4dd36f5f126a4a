//! Measurements of Slipway beside its peers: builds (mkosi), boots (dracut, mkosi's initrd), clusters natively and booted (kubeadm),
//! sizes, Ignition's stages.
//!
//! The peers run from a tree of Debian packages that Slipway installs, without any program of the host. Intermediate
//! files are in the cache's scratch folder, which is removed at the end.
#![allow(clippy::print_stdout, reason = "a program that prints its results")]

// Floor: figures and their sources
mod kernel_log;
mod loop_device;
mod packages;
mod peers;
mod servers;
mod table;

// Floor: the measured programs
mod control_plane;
mod dracut;
mod import;
mod ours;
mod stages;

// Floor: mkosi with our recipe
mod mkosi;

// Floor: the session
mod session;

// Floor: the measurements
mod boots;
mod builds;
mod cluster_boots;
mod clusters;
mod ignition;
mod sizes;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};

use crate::session::Session;
use crate::table::Table;

/// Measures Slipway beside its peers and prints both, with the goals; exits with 1 if a goal is missed.
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct Arguments {
    /// What to measure [default: everything]
    parts: Vec<Part>,
    /// How often each build and boot is repeated, at least 3 times; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(3..))]
    repeats: u16,
    /// The etcd of `clusters`, ours and kubeadm's; twice for both
    #[arg(long, value_name = "RELEASE", default_value = "3.5")]
    etcd: Vec<clusters::Etcd>,
    /// Also write the table as JSON to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Cold, changed and unchanged builds beside mkosi's
    Builds,
    /// Second boots in virtual time beside dracut's and mkosi's initrds
    Boots,
    /// Initrds, init, and its memory
    Sizes,
    /// From the handoff to a Ready control plane in namespaces, beside kubeadm; as root
    Clusters,
    /// The same in a machine of QEMU under software emulation, with a second boot
    ClusterBoots,
    /// Configs applied by the drop-in for Ignition, beside Debian's Ignition
    Ignition,
}

impl Arguments {
    fn includes(&self, part: Part) -> bool {
        self.parts.is_empty() || self.parts.contains(&part)
    }
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let repeats = usize::from(arguments.repeats);
    slipway::host::sandbox::become_root_of_namespace()?;
    let mut table = Table::default();
    // A part that fails does not stop the others: each takes minutes.
    let mut failed = Vec::new();
    // Before the session has threads: the nodes' mounts are a namespace of this process.
    if arguments.includes(Part::Clusters) {
        for etcd in &arguments.etcd {
            failed.extend(clusters::measure(*etcd, repeats, &mut table).err());
        }
    }
    let mut session = Session::open()?;
    if arguments.includes(Part::Boots) {
        failed.extend(boots::measure(&mut session, repeats, &mut table).err());
    }
    if arguments.includes(Part::ClusterBoots) {
        failed.extend(cluster_boots::measure(&mut session, repeats, &mut table).err());
    }
    if arguments.includes(Part::Sizes) {
        failed.extend(sizes::measure(&mut session, &mut table).err());
    }
    if arguments.includes(Part::Ignition) {
        failed.extend(ignition::measure(&session, repeats, &mut table).err());
    }
    if arguments.includes(Part::Builds) {
        failed.extend(builds::measure(&mut session, repeats, &mut table).err());
    }
    print!("{}", table.text());
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&table.json())? + "\n";
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    for error in &failed {
        session.say(&format!("failed: {error:#}"));
    }
    let missed = table.rows.iter().any(|row| row.reached() == Some(false));
    Ok(if missed || !failed.is_empty() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(format!("bench {line}").split_whitespace())
    }

    #[test]
    fn without_a_part_everything_is_measured() {
        let arguments = parse("--json out.json").unwrap();
        assert!(
            arguments.includes(Part::Builds)
                && arguments.includes(Part::Boots)
                && arguments.includes(Part::Sizes)
        );
        assert_eq!(arguments.json, Some("out.json".into()));
        let arguments = parse("sizes --repeats 5").unwrap();
        assert!(
            !arguments.includes(Part::Builds)
                && !arguments.includes(Part::Boots)
                && arguments.includes(Part::Sizes)
        );
        assert!(!arguments.includes(Part::Ignition));
        assert_eq!(arguments.repeats, 5);
    }

    #[test]
    fn a_wrong_argument_is_named() {
        for (line, word) in [("boot", "boot"), ("--repeats 2", "2"), ("--json", "--json")] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
