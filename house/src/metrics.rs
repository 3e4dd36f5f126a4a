//! Numbers of a crate: its circles, its rooms' sizes, its functions' lengths.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{Crate, Room};

/// Files that use each other in a circle, as numbers of [`Crate::files`]. Uses of a parent's items by its child
/// (`super::Item`) do not count: [`child_uses`] counts those.
#[must_use]
pub fn circles(krate: &Crate) -> Vec<Vec<usize>> {
    let uses = uses(krate, |from, to| !krate.is_ancestor(to, from));
    groups(&uses)
}

/// Uses of an ancestor's items by a file that the ancestor itself uses, each as (child, ancestor).
#[must_use]
pub fn child_uses(krate: &Crate) -> Vec<(usize, usize)> {
    let uses = uses(krate, |_, _| true);
    let groups = groups(&uses);
    let mut found = Vec::new();
    for (from, used) in uses.iter().enumerate() {
        for to in used {
            let together = |group: &Vec<usize>| group.contains(&from) && group.contains(to);
            if krate.is_ancestor(*to, from) && groups.iter().any(together) {
                found.push((from, *to));
            }
        }
    }
    found
}

/// For each file, the files that it uses.
fn uses(krate: &Crate, counts: impl Fn(usize, usize) -> bool) -> Vec<BTreeSet<usize>> {
    let mut uses = vec![BTreeSet::new(); krate.files().count()];
    for arrow in &krate.arrows {
        if !uses[arrow.from].contains(&arrow.to) && counts(arrow.from, arrow.to) {
            uses[arrow.from].insert(arrow.to);
        }
    }
    uses
}

/// Groups of two or more members in which each reaches every other (strongly connected components).
fn groups(uses: &[BTreeSet<usize>]) -> Vec<Vec<usize>> {
    let reached: Vec<BTreeSet<usize>> = (0..uses.len()).map(|from| reach(uses, from)).collect();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for file in 0..uses.len() {
        if groups.iter().any(|group| group.contains(&file)) {
            continue;
        }
        let circle =
            |other: &usize| reached[file].contains(other) && reached[*other].contains(&file);
        let group: Vec<usize> = (0..uses.len()).filter(circle).collect();
        if group.len() > 1 {
            groups.push(group);
        }
    }
    groups
}

fn reach(uses: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut next = vec![from];
    while let Some(file) = next.pop() {
        next.extend(uses[file].iter().filter(|to| reached.insert(**to)));
    }
    reached
}

/// Lines of a crate without test files.
#[must_use]
pub fn lines(krate: &Crate) -> usize {
    krate.files().map(|(_, file)| file.lines).sum()
}

/// Each room's lines, the largest first.
#[must_use]
pub fn rooms(krate: &Crate) -> Vec<(Room, usize)> {
    let mut rooms: BTreeMap<Room, usize> = BTreeMap::new();
    for (target, file) in krate.files() {
        if let Some(room) = krate.room(target, file) {
            *rooms.entry(room).or_default() += file.lines;
        }
    }
    let mut rooms: Vec<_> = rooms.into_iter().collect();
    rooms.sort_by_key(|(room, lines)| (std::cmp::Reverse(*lines), room.clone()));
    rooms
}

/// Modules that are folders of many equal parts (one provider each), by package. The parts do not use each other, so
/// each counts as a separate room.
pub const ROWS: &[(&str, &str)] = &[("platform", "providers")];

/// The rooms in the form that the size rule applies to, the largest first: a row's children in place of the row.
#[must_use]
pub fn judged(krate: &Crate) -> Vec<(Room, String, usize)> {
    let mut rooms: BTreeMap<(Room, String), usize> = BTreeMap::new();
    for (target, file) in krate.files() {
        let path = krate.trees[target].path_of(file.module);
        if let Some(room) = krate.room(target, file) {
            let name = match path.get(1) {
                Some(child) if is_row(krate, &room) => format!("{}::{child}", room.name),
                _ => room.name.clone(),
            };
            *rooms.entry((room, name)).or_default() += file.lines;
        }
    }
    let rooms = rooms.into_iter();
    let mut rooms: Vec<_> = rooms
        .map(|((room, name), lines)| (room, name, lines))
        .collect();
    rooms.sort_by_key(|(_, name, lines)| (std::cmp::Reverse(*lines), name.clone()));
    rooms
}

/// Whether a room is one of [`ROWS`].
#[must_use]
pub fn is_row(krate: &Crate, room: &Room) -> bool {
    ROWS.contains(&(krate.package.name.as_str(), room.name.as_str()))
}

/// A room's part of its crate's lines, in tenths of a per cent.
#[must_use]
pub fn share(lines: usize, of: usize) -> usize {
    (lines * 1000 + of / 2) / of.max(1)
}

/// Median and 90th percentile of the functions' lines.
#[must_use]
pub fn functions<'a>(crates: impl IntoIterator<Item = &'a Crate>) -> (usize, usize) {
    let mut lines: Vec<usize> = crates
        .into_iter()
        .flat_map(Crate::files)
        .flat_map(|(_, file)| file.functions.iter().map(|function| function.lines))
        .collect();
    lines.sort_unstable();
    let at = |percent: usize| {
        let last = lines.len().saturating_sub(1);
        lines.get(last * percent / 100).copied().unwrap_or_default()
    };
    (at(50), at(90))
}
