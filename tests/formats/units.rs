//! The units of the sources, and what `docs/security.md` says of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::{Bench, PLACE};

/// The units of the sources, by name, with a program in the place of each word that is filled in later.
fn files() -> Result<BTreeMap<String, String>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut units = BTreeMap::new();
    let mut folders = ["src", "initrd/src", "node/src"]
        .map(|name| folder.join(name))
        .to_vec();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.context("a name is not UTF-8")?;
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(".service") {
                units.insert(name.to_owned(), filled(&fs::read_to_string(&path)?));
            }
        }
    }
    Ok(units)
}

/// A unit's text with a program for each `@WORD@`; a line that is nothing else is left out.
fn filled(text: &str) -> String {
    let is_word =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    let lines = text.lines().filter(|line| !is_word(line.trim_matches('@')));
    let lines = lines.map(|line| {
        let parts = line.split('@');
        let parts = parts.map(|part| if is_word(part) { "/usr/bin/true" } else { part });
        // What is no placeholder keeps its sign: `@system-service`.
        let joined: Vec<&str> = parts.collect();
        match joined.contains(&"/usr/bin/true") {
            true => joined.concat() + "\n",
            false => format!("{line}\n"),
        }
    });
    lines.collect()
}

/// The units of the table in `docs/security.md` with the most that their exposure may be.
fn documented() -> Result<BTreeMap<String, f64>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/security.md");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let rows = text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split('|');
        let name = cells.next()?.trim().strip_suffix('`')?;
        Some((name.to_owned(), cells.next()?.trim().parse::<f64>()))
    });
    rows.map(|(name, bound)| Ok((name, bound.context("a bound is no number")?)))
        .collect()
}

impl Bench {
    /// The exposure that `systemd-analyze security` computes for each of our units is at most the one of `docs/security.md`.
    pub(super) fn units(&self) -> Result<()> {
        let bounds = documented()?;
        let files = files()?;
        let names: BTreeSet<&String> = files.keys().collect();
        ensure!(
            names == bounds.keys().collect(),
            "the units are {names:?}, those of docs/security.md {:?}",
            bounds.keys()
        );
        let folder = self.place.path().join("units/usr/lib/systemd/system");
        fs::create_dir_all(&folder)?;
        fs::create_dir_all(self.place.path().join("units/etc"))?;
        for (name, text) in &files {
            fs::write(folder.join(name), text)?;
            let said = self.shell(&format!(
                "LC_ALL=C systemd-analyze security --no-pager --offline=true --root={PLACE}/units {name}"
            ))?;
            let last = format!("Overall exposure level for {name}: ");
            let exposure: Option<f64> = said
                .lines()
                .find_map(|line| line.split_once(&last)?.1.split(' ').next()?.parse().ok());
            let exposure = exposure.with_context(|| format!("no exposure in {said}"))?;
            println!("{name}: {exposure}");
            ensure!(
                exposure <= bounds[name],
                "{name} has an exposure of {exposure}; docs/security.md allows {}: {said}",
                bounds[name]
            );
        }
        Ok(())
    }
}
