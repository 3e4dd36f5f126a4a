//! Units: written, masked, enabled by the links that `systemctl enable` makes, disabled, and recorded as presets.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use ignition::model::{Config, Unit};
use ignition::unit::{Install, parse};

use crate::fetched::Contents;
use crate::journal::files::Intent;
use crate::tree::{Tree, join, split};

mod enable;
#[cfg(test)]
mod tests;

/// The folder of the config's units.
const SYSTEM: &str = "/etc/systemd/system";
/// The folders of units, the first one wins. `/run` is empty before the handoff.
const FOLDERS: [&str; 4] = [
    SYSTEM,
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];
/// The preset file that Ignition writes too.
const PRESET: &str = "/etc/systemd/system-preset/20-ignition.preset";

/// The planned changes to units.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Units {
    /// Path → content.
    files: BTreeMap<String, Vec<u8>>,
    /// Link → target.
    links: BTreeMap<String, String>,
    /// Links to remove.
    removed: BTreeSet<String>,
    preset: String,
}

/// Plans all changes. Problems are added to `wrong`, warnings to `warnings`.
///
/// `files` are the contents of `storage.files`, which may contain units too.
pub(crate) fn plan(
    config: &Config,
    tree: &Tree,
    files: &[Contents],
    wrong: &mut Vec<String>,
    warnings: &mut Vec<String>,
) -> Units {
    let units = config
        .systemd
        .as_ref()
        .and_then(|systemd| systemd.units.as_deref());
    let units = units.unwrap_or_default();
    let storage = config
        .storage
        .as_ref()
        .and_then(|storage| storage.files.as_deref());
    let config_files = storage.unwrap_or_default().iter().zip(files);
    // What does not fit into memory is no unit, but its path is taken.
    let config_files = config_files.filter_map(|(file, contents)| {
        let contents = contents.contents.as_ref()?;
        Some((file.path.as_str(), contents.in_memory().unwrap_or_default()))
    });
    let mut planner = UnitPlanner {
        tree,
        config_files: config_files.collect(),
        out: Units::default(),
        wrong,
        warnings,
    };
    for (i, unit) in units.iter().enumerate() {
        planner.contents(&format!("$.systemd.units.{i}"), unit);
    }
    for (i, unit) in units.iter().enumerate() {
        planner.state(&format!("$.systemd.units.{i}"), unit);
    }
    planner.out.preset = preset(units);
    planner.out
}

struct UnitPlanner<'a> {
    tree: &'a Tree,
    /// Path → content of the config's own files.
    config_files: BTreeMap<&'a str, &'a [u8]>,
    out: Units,
    wrong: &'a mut Vec<String>,
    warnings: &'a mut Vec<String>,
}

impl UnitPlanner<'_> {
    fn contents(&mut self, at: &str, unit: &Unit) {
        if unit.name.contains('/') {
            return self
                .wrong
                .push(format!("{at}.name: the name of a unit holds no slash"));
        }
        let path = join(SYSTEM, &unit.name);
        for (i, dropin) in unit.dropins.iter().flatten().enumerate() {
            if dropin.name.contains('/') {
                let at = format!("{at}.dropins.{i}.name");
                self.wrong
                    .push(format!("{at}: the name of a drop-in holds no slash"));
            } else if let Some(contents) = &dropin.contents {
                // An empty one is written, since it hides one of the same name.
                let path = join(&format!("{path}.d"), &dropin.name);
                self.out.files.insert(path, contents.clone().into_bytes());
            }
        }
        let contents = unit.contents.as_ref();
        let contents = contents.filter(|contents| !contents.is_empty());
        let is_mask = |target: Option<String>| target.as_deref() == Some("/dev/null");
        match unit.mask {
            Some(true) => {
                // Both have the same path: Ignition writes the contents, and then the link over them.
                if contents.is_some() {
                    let name = &unit.name;
                    self.warnings.push(format!(
                        "{at}: {name} is masked; its contents are not written"
                    ));
                }
                self.out.links.insert(path, "/dev/null".to_owned());
                return;
            }
            Some(false) if is_mask(self.tree.find(&path).and_then(|p| p.link_target())) => {
                self.out.removed.insert(path.clone());
            }
            _ => {}
        }
        if let Some(contents) = contents {
            self.out.files.insert(path, contents.clone().into_bytes());
        }
    }

    fn state(&mut self, at: &str, unit: &Unit) {
        match unit.enabled {
            Some(true) if unit.mask == Some(true) => {
                self.warnings
                    .push(format!("{at}: {} is masked and not enabled", unit.name));
            }
            Some(true) => self.enable(at, &unit.name, &mut BTreeSet::new()),
            Some(false) => self.disable(&unit.name),
            None => {}
        }
    }

    /// The path of a unit file: the config's, else the root's. A masked unit has none.
    fn file_of(&self, name: &str) -> Option<String> {
        FOLDERS.iter().find_map(|folder| {
            let path = join(folder, name);
            if self.out.files.contains_key(&path) || self.config_files.contains_key(path.as_str()) {
                return Some(path);
            }
            if self.out.removed.contains(&path) || self.out.links.contains_key(&path) {
                return None;
            }
            let entry = self.tree.find(&path)?;
            let masked = entry.link_target().as_deref() == Some("/dev/null");
            (entry.stat().is_some() && !masked).then_some(path)
        })
    }

    fn text_of(&self, path: &str) -> String {
        let planned = self.out.files.get(path).map(Vec::as_slice);
        let text = match planned.or_else(|| self.config_files.get(path).copied()) {
            Some(text) => Some(text.to_vec()),
            None => self.read(path, 8),
        };
        String::from_utf8_lossy(&text.unwrap_or_default()).into_owned()
    }

    /// Reads a unit file of the root, through links (an alias of another unit).
    fn read(&self, path: &str, depth: u32) -> Option<Vec<u8>> {
        let entry = self.tree.find(path)?;
        match entry.link_target() {
            Some(target) if target.starts_with('/') => self.read(&target, depth.checked_sub(1)?),
            Some(target) => self.read(&join(split(path).0, &target), depth.checked_sub(1)?),
            None => entry.read().ok(),
        }
    }

    /// The `[Install]` section of a unit with its drop-ins.
    fn install_of(&self, path: &str) -> Install {
        let mut install = Install::default();
        let mut read = |text: &str| {
            if let Ok(settings) = parse(text) {
                install.read(&settings);
            }
        };
        read(&self.text_of(path));
        let name = split(path).1;
        let mut dropins = BTreeMap::new();
        for folder in FOLDERS
            .iter()
            .rev()
            .map(|folder| join(folder, &format!("{name}.d")))
        {
            let names = self
                .tree
                .find(&folder)
                .map(|entry| entry.names())
                .unwrap_or_default();
            let own = self
                .out
                .files
                .keys()
                .map(String::as_str)
                .chain(self.config_files.keys().copied());
            let own = own
                .filter(|path| split(path).0 == folder)
                .map(|path| split(path).1.to_owned());
            for name in names
                .into_iter()
                .chain(own)
                .filter(|name| name.ends_with(".conf"))
            {
                dropins.insert(name.clone(), join(&folder, &name));
            }
        }
        for path in dropins.values() {
            read(&self.text_of(path));
        }
        install
    }
}

/// The preset lines: one for each unit, the instances of a template in one line, sorted.
fn preset(units: &[Unit]) -> String {
    let mut lines = BTreeSet::new();
    let mut instances: BTreeMap<(bool, String), Vec<&str>> = BTreeMap::new();
    for unit in units {
        let Some(enabled) = unit.enabled else {
            continue;
        };
        let word = if enabled { "enable" } else { "disable" };
        match enable::instance(&unit.name) {
            Some((template, instance)) => {
                instances
                    .entry((enabled, template))
                    .or_default()
                    .push(instance);
            }
            None => {
                lines.insert(format!("{word} {}", unit.name));
            }
        }
    }
    for ((enabled, template), mut names) in instances {
        let word = if enabled { "enable" } else { "disable" };
        names.sort_unstable();
        lines.insert(format!("{word} {template} {}", names.join(" ")));
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

impl Units {
    /// All paths that are written, for the check of paths.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &String> {
        self.files.keys().chain(self.links.keys())
    }

    /// Records the paths that [`Units::apply`] will write to.
    pub(crate) fn intend(&self, tree: &Tree, intent: &mut Intent) -> Result<()> {
        for path in &self.removed {
            intent.link(tree, path, None)?;
        }
        for (path, content) in &self.files {
            intent.file(tree, path, Some(content))?;
        }
        for (path, target) in &self.links {
            intent.link(tree, path, Some(target))?;
        }
        match self.preset.is_empty() {
            true => Ok(()),
            false => intent.file(tree, PRESET, Some(self.preset.as_bytes())),
        }
    }

    /// Carries out the changes.
    pub(crate) fn apply(&self, tree: &Tree) -> Result<()> {
        for path in &self.removed {
            if let Some(entry) = tree.find(path) {
                entry.remove()?;
            }
        }
        for (path, content) in &self.files {
            write(tree, path, content)?;
        }
        for (path, target) in &self.links {
            let entry = tree.entry(path)?;
            if entry.link_target().as_deref() != Some(target) {
                entry.remove()?;
                tree.link(&entry, target, (0, 0))?;
            }
        }
        match self.preset.is_empty() {
            true => Ok(()),
            false => write(tree, PRESET, self.preset.as_bytes()),
        }
    }
}

/// Writes a file of root's; an existing one with the same content is not changed.
fn write(tree: &Tree, path: &str, content: &[u8]) -> Result<()> {
    let entry = tree.entry(path)?;
    match entry.stat() {
        Some(meta) if meta.is_file() && entry.read()? == content => Ok(()),
        Some(meta) if meta.is_file() => tree.write(&entry, content, 0o644, (0, 0)),
        _ => {
            entry.remove()?;
            tree.write(&entry, content, 0o644, (0, 0))
        }
    }
}
