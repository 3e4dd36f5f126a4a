//! Our numbers and the peers', side by side: builds (mkosi), boots (dracut, mkosi's initrd), sizes, Ignition's stages.
//!
//! The peers run from a tree of Debian packages that our own machinery installs; nothing of the host is used. What is
//! made on the way is in the cache's scratch folder, which goes with this program.
#![allow(
    clippy::print_stdout,
    reason = "a program that speaks to whoever runs it"
)]

// Floor: figures, and what they are read from
mod kernel_log;
mod loop_device;
mod packages;
mod peers;
mod servers;
mod table;

// Floor: the programs that are measured
mod dracut;
mod ours;
mod stages;

// Floor: a build by mkosi of what ours builds
mod mkosi;

// Floor: one run of this program
mod session;

// Floor: the measurements
mod boots;
mod builds;
mod ignition;
mod sizes;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};

use crate::session::Session;
use crate::table::Table;

/// Measures Slipway beside its peers and prints both, with the goals; ends with 1 where a goal is missed.
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct Wish {
    /// What to measure; everything if nothing is named
    parts: Vec<Part>,
    /// How often each build and boot is repeated; the middle counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    repeats: u16,
    /// Write the table as JSON to FILE too
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
    /// Configs applied in Ignition's place, beside Debian's Ignition
    Ignition,
}

impl Wish {
    fn wants(&self, part: Part) -> bool {
        self.parts.is_empty() || self.parts.contains(&part)
    }
}

fn main() -> Result<ExitCode> {
    let wish = Wish::parse();
    let repeats = usize::from(wish.repeats);
    slipway::host::sandbox::become_root_of_namespace()?;
    let mut session = Session::open()?;
    let mut table = Table::default();
    // A part that fails takes nothing from the others: each costs minutes.
    let mut failed = Vec::new();
    if wish.wants(Part::Boots) {
        failed.extend(boots::measure(&mut session, repeats, &mut table).err());
    }
    if wish.wants(Part::Sizes) {
        failed.extend(sizes::measure(&mut session, &mut table).err());
    }
    if wish.wants(Part::Ignition) {
        failed.extend(ignition::measure(&session, repeats, &mut table).err());
    }
    if wish.wants(Part::Builds) {
        failed.extend(builds::measure(&mut session, repeats, &mut table).err());
    }
    print!("{}", table.text());
    if let Some(path) = &wish.json {
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

    fn parse(line: &str) -> Result<Wish, clap::Error> {
        Wish::try_parse_from(format!("bench {line}").split_whitespace())
    }

    #[test]
    fn nothing_named_is_everything() {
        let wish = parse("--json out.json").unwrap();
        assert!(wish.wants(Part::Builds) && wish.wants(Part::Boots) && wish.wants(Part::Sizes));
        assert_eq!(wish.json, Some("out.json".into()));
        let wish = parse("sizes --repeats 5").unwrap();
        assert!(!wish.wants(Part::Builds) && !wish.wants(Part::Boots) && wish.wants(Part::Sizes));
        assert!(!wish.wants(Part::Ignition));
        assert_eq!(wish.repeats, 5);
    }

    #[test]
    fn a_wrong_word_is_named() {
        for (line, word) in [("boot", "boot"), ("--repeats 0", "0"), ("--json", "--json")] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
