//! Reserved paths: those that Slipway's layers have, and the refusal of a recipe's files that would replace one, remove one, or
//! have systemd read something else in its place.

use std::collections::BTreeSet;

use image::paths::{ADDONS, SLIPWAY};

use super::{Entry, Kind};

/// Folders whose units and generators systemd reads before those below `/usr` (systemd.unit(5), systemd.generator(7)).
const READ_BEFORE: [&str; 2] = ["/etc/systemd", "/var/usrlocal/lib/systemd"];
/// The folder below `/usr`.
const READ_LAST: &str = "/usr/lib/systemd";
/// Folders in these in which a name hides the same name of a later folder. A drop-in's name does so too, which a recipe may
/// want.
const HIDING: [&str; 2] = ["system", "system-generators"];

/// Paths of Slipway's in a tree, with all links in them followed.
#[derive(Debug, Default)]
pub(super) struct Reserved(BTreeSet<String>);

/// An entry of the recipe that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// Its path as the recipe has it.
    pub(crate) path: String,
    /// The reserved path.
    pub(crate) reserved: String,
    /// What it would do to it.
    pub(crate) harm: Harm,
}

/// What an entry would do to a reserved path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Harm {
    /// Replace or remove it.
    Replace,
    /// Replace or remove a folder that it is in.
    ReplaceFolder,
    /// Add to a folder that is Slipway's alone.
    Add,
    /// Have systemd read another file in its place.
    Hide,
}

impl Reserved {
    /// Reserves a path of the tree.
    pub(super) fn add_path(&mut self, path: String) {
        self.0.insert(path);
    }

    /// Reserves the place of an entry of Slipway's, unless it is a folder, which a recipe may lay another over.
    pub(super) fn add(&mut self, place: String, kind: &Kind) {
        if !matches!(kind, Kind::Directory | Kind::Remove) {
            self.add_path(place);
        }
    }

    /// Whether an entry of the recipe is refused, which would be laid at `place`.
    pub(super) fn refuse(&self, entry: &Entry, place: &str) -> Option<Refused> {
        let harm = self.harm(place, entry.kind == Kind::Directory);
        let harm = harm.or_else(|| self.hidden(place, &entry.kind));
        harm.map(|(harm, reserved)| Refused {
            path: entry.path.clone(),
            reserved,
            harm,
        })
    }

    fn harm(&self, place: &str, is_folder: bool) -> Option<(Harm, String)> {
        if self.0.contains(place) {
            return Some((Harm::Replace, place.to_owned()));
        }
        if below(place, SLIPWAY) && place != ADDONS && !below(place, ADDONS) {
            return Some((Harm::Add, SLIPWAY.to_owned()));
        }
        // A folder over a folder keeps the content.
        if is_folder {
            return None;
        }
        let inside = format!("{}/", place.trim_end_matches('/'));
        let first = self.0.range(inside.clone()..).next();
        let first = first.filter(|path| path.starts_with(&inside))?;
        Some((Harm::ReplaceFolder, first.clone()))
    }

    /// The unit or generator of Slipway's that is not read any more with this entry. A link to `/dev/null` masks it, which
    /// is the recipe's to decide.
    fn hidden(&self, place: &str, kind: &Kind) -> Option<(Harm, String)> {
        let masks = *kind == Kind::Symlink("/dev/null".to_owned());
        if masks || matches!(kind, Kind::Directory | Kind::Remove) {
            return None;
        }
        let rest = READ_BEFORE
            .iter()
            .find_map(|folder| place.strip_prefix(folder)?.strip_prefix('/'))?;
        let (folder, _) = rest.split_once('/')?;
        let hidden = format!("{READ_LAST}/{rest}");
        (HIDING.contains(&folder) && self.0.contains(&hidden)).then_some((Harm::Hide, hidden))
    }
}

fn below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.starts_with('/'))
}
