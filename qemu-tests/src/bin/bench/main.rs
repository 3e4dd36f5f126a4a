//! Our numbers and the peers', side by side: builds (mkosi), boots (dracut, mkosi's initrd), sizes.
//!
//! The peers run from a tree of Debian packages that our own machinery installs; nothing of the host is used. What is
//! made on the way is in the cache's scratch folder, which goes with this program.
#![allow(
    clippy::print_stdout,
    reason = "a program that speaks to whoever runs it"
)]

mod bench;
mod boots;
mod builds;
mod dracut;
mod mkosi;
mod ours;
mod packages;
mod peers;
mod printk;
mod sizes;
mod table;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::bench::Bench;
use crate::table::Table;

const USAGE: &str = "usage: bench [builds] [boots] [sizes] [--repeats N] [--json FILE]";

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
struct Wish {
    builds: bool,
    boots: bool,
    sizes: bool,
    repeats: usize,
    json: Option<PathBuf>,
}

impl Wish {
    fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self> {
        let mut wish = Self {
            builds: false,
            boots: false,
            sizes: false,
            repeats: 3,
            json: None,
        };
        let mut arguments = arguments.into_iter();
        while let Some(word) = arguments.next() {
            let mut value = || {
                let value = arguments.next();
                value.with_context(|| format!("{word} wants a value\n{USAGE}"))
            };
            match word.as_str() {
                "builds" => wish.builds = true,
                "boots" => wish.boots = true,
                "sizes" => wish.sizes = true,
                "--json" => wish.json = Some(value()?.into()),
                "--repeats" => {
                    let text = value()?;
                    wish.repeats = text
                        .parse()
                        .ok()
                        .filter(|repeats| *repeats > 0)
                        .with_context(|| format!("--repeats: {text:?} is no number above 0"))?;
                }
                _ => bail!("what is {word:?}?\n{USAGE}"),
            }
        }
        if !(wish.builds || wish.boots || wish.sizes) {
            (wish.builds, wish.boots, wish.sizes) = (true, true, true);
        }
        Ok(wish)
    }
}

fn main() -> Result<ExitCode> {
    let wish = Wish::parse(std::env::args().skip(1))?;
    slipway::run::become_root_of_namespace()?;
    let mut bench = Bench::open()?;
    let mut table = Table::default();
    // A part that fails takes nothing from the others: each costs minutes.
    let mut failed = Vec::new();
    if wish.boots {
        failed.extend(boots::measure(&mut bench, wish.repeats, &mut table).err());
    }
    if wish.sizes {
        failed.extend(sizes::measure(&mut bench, &mut table).err());
    }
    if wish.builds {
        failed.extend(builds::measure(&mut bench, wish.repeats, &mut table).err());
    }
    print!("{}", table.text());
    if let Some(path) = &wish.json {
        let text = serde_json::to_string_pretty(&table.json())? + "\n";
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    for error in &failed {
        bench.say(&format!("failed: {error:#}"));
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

    fn parse(line: &str) -> Result<Wish> {
        Wish::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn nothing_named_is_everything() {
        let wish = parse("--json out.json").unwrap();
        assert!(wish.builds && wish.boots && wish.sizes);
        assert_eq!(wish.json, Some("out.json".into()));
        let wish = parse("sizes --repeats 5").unwrap();
        assert!(!wish.builds && !wish.boots && wish.sizes);
        assert_eq!(wish.repeats, 5);
    }

    #[test]
    fn a_wrong_word_is_named() {
        for (line, word) in [
            ("boot", "boot"),
            ("--repeats 0", "\"0\""),
            ("--json", "--json"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
