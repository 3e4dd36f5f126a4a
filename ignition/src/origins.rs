//! Maps paths of the translated config back to paths of the text that it was translated from, for findings.

use std::collections::BTreeMap;

use crate::report::Report;
use crate::schema::snake;

/// The origins of the translated config's parts, by their paths. A part without an entry has the same path in the YAML,
/// in Butane's spelling.
#[derive(Debug, Default)]
pub(crate) struct Origins {
    places: BTreeMap<String, Origin>,
    spelling: Spelling,
}

/// How the keys of the text are spelled.
#[derive(Clone, Copy, Debug, Default)]
enum Spelling {
    /// As Butane's.
    #[default]
    Snake,
    /// As those of the translated config.
    Same,
}

#[derive(Debug)]
enum Origin {
    /// The part has another path in the YAML, with everything below it in the same order.
    Moved(String),
    /// The part was generated, with everything below it, for the section at this path.
    Made(String),
}

impl Origins {
    /// For a text whose keys are spelled as those of the translated config.
    pub(crate) fn same_spelling() -> Self {
        Self {
            places: BTreeMap::new(),
            spelling: Spelling::Same,
        }
    }

    fn spelled(&self, path: &str) -> String {
        match self.spelling {
            Spelling::Snake => snake(path),
            Spelling::Same => path.to_owned(),
        }
    }

    /// The part at `to` in the config is at `from` in the YAML.
    pub(crate) fn rename(&mut self, to: impl Into<String>, from: impl Into<String>) {
        self.places.insert(to.into(), Origin::Moved(from.into()));
    }

    /// The part at `to` in the config was generated for `from` in the YAML.
    pub(crate) fn made(&mut self, to: impl Into<String>, from: impl Into<String>) {
        self.places.insert(to.into(), Origin::Made(from.into()));
    }

    /// Records that a list was reordered: `from` has the former index of each entry, none for a new one.
    pub(crate) fn reorder(&mut self, list: &str, from: &[Option<usize>]) {
        let inside = |path: &String| {
            path.strip_prefix(list)
                .is_some_and(|rest| rest.starts_with('.'))
        };
        let all = std::mem::take(&mut self.places);
        let (moved, kept): (Vec<_>, Vec<_>) = all.into_iter().partition(|(path, _)| inside(path));
        self.places.extend(kept);
        for (path, origin) in moved {
            let rest = &path[list.len() + 1..];
            let (index, rest) = rest.split_once('.').unwrap_or((rest, ""));
            let new = from
                .iter()
                .position(|old| old.is_some_and(|old| old.to_string() == index));
            if let Some(new) = new {
                self.places.insert(format!("{list}.{new}.{rest}"), origin);
            }
        }
        for (new, old) in from.iter().enumerate() {
            if let Some(old) = old {
                self.rename(format!("{list}.{new}"), format!("{list}.{old}"));
            }
        }
    }

    /// Maps the paths of a report about the config to those of the YAML.
    pub(crate) fn apply(&self, report: &mut Report) {
        for entry in &mut report.entries {
            entry.path = self.place(&entry.path);
        }
    }

    fn place(&self, path: &str) -> String {
        let mut head = path;
        loop {
            match self.places.get(head) {
                Some(Origin::Made(from)) => return from.clone(),
                Some(Origin::Moved(from)) => {
                    return format!("{from}{}", self.spelled(&path[head.len()..]));
                }
                None => {}
            }
            match head.rfind('.') {
                Some(end) => head = &head[..end],
                None => return self.spelled(path),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_place_counts() {
        let mut origins = Origins::default();
        origins.made(
            "$.systemd.units.0",
            "$.storage.filesystems.3.with_mount_unit",
        );
        origins.rename("$.systemd.units.1", "$.systemd.units.0");
        origins.rename(
            "$.storage.files.0.contents.source",
            "$.storage.files.0.contents.inline",
        );
        for (path, wanted) in [
            (
                "$.systemd.units.0.contents",
                "$.storage.filesystems.3.with_mount_unit",
            ),
            (
                "$.systemd.units.1.dropins.0.name",
                "$.systemd.units.0.dropins.0.name",
            ),
            (
                "$.storage.files.0.contents.source",
                "$.storage.files.0.contents.inline",
            ),
            (
                "$.storage.disks.0.partitions.1.sizeMiB",
                "$.storage.disks.0.partitions.1.size_mib",
            ),
            ("$", "$"),
        ] {
            assert_eq!(origins.place(path), wanted);
        }
    }

    #[test]
    fn entries_keep_their_origins_when_they_move() {
        let mut origins = Origins::default();
        origins.rename(
            "$.systemd.units.0.contents",
            "$.systemd.units.0.contents_local",
        );
        origins.reorder("$.systemd.units", &[None, Some(1), Some(0)]);
        origins.made(
            "$.systemd.units.0",
            "$.storage.filesystems.0.with_mount_unit",
        );
        for (path, wanted) in [
            (
                "$.systemd.units.0.contents",
                "$.storage.filesystems.0.with_mount_unit",
            ),
            ("$.systemd.units.1.contents", "$.systemd.units.1.contents"),
            (
                "$.systemd.units.2.contents",
                "$.systemd.units.0.contents_local",
            ),
            ("$.systemd.units.2.name", "$.systemd.units.0.name"),
        ] {
            assert_eq!(origins.place(path), wanted);
        }
    }
}
