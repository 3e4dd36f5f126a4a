//! Enabling and disabling, as `systemctl --root=` does it (systemd.unit(5), section on the options of Install).

use std::collections::BTreeSet;

use ignition::unit::Install;

use super::{SYSTEM, UnitPlanner};
use crate::tree::{join, split};

/// The template and the instance of `foo@bar.service`: `("foo@.service", "bar")`.
pub(super) fn instance(name: &str) -> Option<(String, &str)> {
    let (stem, rest) = name.split_once('@')?;
    let (instance, extension) = rest.rsplit_once('.')?;
    (!instance.is_empty()).then(|| (format!("{stem}@.{extension}"), instance))
}

fn is_template(name: &str) -> bool {
    name.split_once('@')
        .is_some_and(|(_, rest)| rest.starts_with('.'))
}

impl UnitPlanner<'_> {
    /// Makes the links of a unit and of those that its `Also=` names.
    pub(super) fn enable(&mut self, at: &str, name: &str, seen: &mut BTreeSet<String>) {
        if !seen.insert(name.to_owned()) {
            return;
        }
        let of_template = instance(name).map(|(template, _)| template);
        let Some(path) = self
            .file_of(name)
            .or_else(|| of_template.and_then(|template| self.file_of(&template)))
        else {
            let what = format!("{at}: the unit {name} does not exist");
            // Ignition leaves it to the presets, and units of another system may come from elsewhere.
            return match self.tree.rules.has_all_units {
                true => self.wrong.push(what),
                false => self.warnings.push(what),
            };
        };
        let install = self.install_of(&path);
        if !install.present {
            let what = "has no [Install] section, so nothing enables it";
            return self.warnings.push(format!("{at}: {name} {what}"));
        }
        let linked = match (is_template(name), &install.default_instance) {
            (false, _) => Some(name.to_owned()),
            (true, Some(default)) => Some(name.replacen("@.", &format!("@{default}."), 1)),
            (true, None) => None,
        };
        if !self.link_into_targets(at, (name, &path), linked.as_deref(), &install) {
            return;
        }
        for alias in &install.alias {
            let alias = specifiers(alias, linked.as_deref().unwrap_or(name));
            if alias != split(&path).1 {
                self.out.links.insert(join(SYSTEM, &alias), path.clone());
            }
        }
        for also in &install.also {
            self.enable(
                at,
                &specifiers(also, linked.as_deref().unwrap_or(name)),
                seen,
            );
        }
    }

    /// Adds the links in the folders of the targets that want, require or uphold a unit; `linked` is the linked
    /// instance. False if the unit cannot be enabled.
    fn link_into_targets(
        &mut self,
        at: &str,
        (name, path): (&str, &str),
        linked: Option<&str>,
        install: &Install,
    ) -> bool {
        for (targets, folder) in [
            (&install.wanted_by, "wants"),
            (&install.required_by, "requires"),
            (&install.upheld_by, "upholds"),
        ] {
            for target in targets {
                let Some(linked) = linked else {
                    let what =
                        "is a template without DefaultInstance=, so it cannot be enabled itself";
                    self.wrong.push(format!("{at}: {name} {what}"));
                    return false;
                };
                let target = specifiers(target, linked);
                let link = join(&format!("{SYSTEM}/{target}.{folder}"), linked);
                self.out.links.insert(link, path.to_owned());
            }
        }
        true
    }

    /// Removes the links to a unit, including those that the config itself requested.
    pub(super) fn disable(&mut self, name: &str) {
        let Some(system) = self.tree.find(SYSTEM) else {
            return;
        };
        let leads_here = |path: &str, entry: &str| {
            let target = self.tree.find(path).and_then(|entry| entry.link_target());
            target.is_some_and(|target| entry == name || split(&target).1 == name)
        };
        let mut gone = BTreeSet::new();
        for entry in system.names() {
            let path = join(SYSTEM, &entry);
            let folder = [".wants", ".requires", ".upholds"]
                .iter()
                .any(|end| entry.ends_with(end));
            if folder {
                let names = self
                    .tree
                    .find(&path)
                    .map(|entry| entry.names())
                    .unwrap_or_default();
                let below = names.into_iter().map(|below| (join(&path, &below), below));
                gone.extend(
                    below
                        .filter(|(path, below)| leads_here(path, below))
                        .map(|(path, _)| path),
                );
            } else if entry != name && leads_here(&path, &entry) {
                gone.insert(path);
            }
        }
        self.out.removed.extend(gone);
    }
}

/// Expands the specifiers that are valid in `[Install]`: `%i` `%I` `%j` `%n` `%N` `%p` `%%`.
fn specifiers(text: &str, unit: &str) -> String {
    let (stem, extension) = unit.rsplit_once('.').unwrap_or((unit, ""));
    let (prefix, instance) = stem.split_once('@').unwrap_or((stem, ""));
    let last = prefix.rsplit('-').next().unwrap_or(prefix);
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('i') => out.push_str(instance),
            Some('I') => out.push_str(&instance.replace('-', "/")),
            Some('j') => out.push_str(last),
            Some('n') => out.push_str(&format!("{stem}.{extension}")),
            Some('N') => out.push_str(stem),
            Some('p') => out.push_str(prefix),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}
