//! The planned partition table of one disk, decided in memory by Ignition's matrix of existing and wanted partitions
//! (<https://coreos.github.io/ignition/operator-notes/#partition-reuse-semantics>).
//!
//! Start and size 0 have the meaning that `sgdisk` gives them: the start of the largest free extent, and its end.
//! Partitions begin on multiples of 1 MiB. On a disk that has grown, an existing partition may end where the disk ended when
//! its table was made; what is made or resized has all of the disk.

use std::collections::BTreeSet;

use image::guid::Guid;
use image::layout::{ALIGNMENT, MIB, TYPE_LINUX};

use linux::gpt::{Entry, Table};

/// A partition of a config. Starts and sizes are in MiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartitionSpec {
    /// Its JSON path in the config.
    pub(crate) at: String,
    /// Number in the table; 0 for the next one that is free.
    pub(crate) number: u32,
    /// The number that an earlier run of the config gave it.
    pub(crate) earlier: Option<u32>,
    /// Label.
    pub(crate) label: Option<String>,
    /// Start; 0 for that of the largest free extent, none for the existing one.
    pub(crate) start: Option<u64>,
    /// Size; 0 for all of that extent, none for the existing one.
    pub(crate) size: Option<u64>,
    /// Type.
    pub(crate) type_guid: Option<Guid>,
    /// Its own GUID.
    pub(crate) guid: Option<Guid>,
    /// Whether it is to exist.
    pub(crate) exists: bool,
    /// Whether a partition that does not match may be deleted.
    pub(crate) wipe: bool,
    /// Whether a partition that differs only in size may be resized.
    pub(crate) resize: bool,
}

/// The action on one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartitionAction {
    /// The partition matches.
    Keep,
    /// The partition is made.
    Create,
    /// The partition is deleted and made again.
    Recreate,
    /// The end of the partition moves.
    Resize,
    /// The partition is deleted.
    Delete,
    /// The partition does not exist, as required.
    Absent,
}

/// A table, and the actions that lead to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedTable {
    /// The planned table.
    pub(crate) table: Table,
    /// The action on each partition of the config, by its number, in the order of the decisions.
    pub(crate) actions: Vec<(u32, PartitionAction)>,
    /// The number of each partition that is to exist, by its path in the config.
    pub(crate) numbers: Vec<(String, u32)>,
}

/// Plans the table, from the one that the disk has. `busy` are the numbers of partitions that are mounted or otherwise in
/// use; `random` returns GUIDs.
///
/// # Errors
/// All problems, each with its path in the config.
pub(crate) fn plan(
    before: &Table,
    specs: &[PartitionSpec],
    busy: &BTreeSet<u32>,
    random: &mut dyn FnMut() -> Guid,
) -> Result<PlannedTable, Vec<String>> {
    let usable = before.last_usable;
    let mut grown = before.clone();
    grown.grow();
    let before = &grown;
    let specs = in_order(before, specs);
    let mut wrong = Vec::new();
    let (spans, keeps_end) = spans(before, usable, &specs, &mut wrong);
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let mut planner = TablePlanner {
        table: before.clone(),
        before,
        busy,
        actions: Vec::new(),
        numbers: Vec::new(),
        wrong,
    };
    let creations: Vec<_> = specs
        .iter()
        .zip(spans)
        .filter_map(|(spec, span)| planner.decide(spec, span))
        .collect();
    // All deletions come before the first creation.
    for (spec, span, action) in creations {
        planner.create(spec, span, action, random);
    }
    let fits = |entry: &Entry| entry.last <= usable;
    // The next run finds the former end of the disk too.
    if keeps_end && planner.table.entries.values().all(fits) {
        planner.table.last_usable = usable;
    }
    match planner.wrong.is_empty() {
        true => Ok(PlannedTable {
            table: planner.table,
            actions: planner.actions,
            numbers: planner.numbers,
        }),
        false => Err(planner.wrong),
    }
}

/// Start and size in sectors: none for the existing value, 0 for a chosen one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Span {
    start: Option<u64>,
    size: Option<u64>,
}

/// The entries in the order of the decisions, with their numbers: deletions first, since they free space; and numbers in the
/// config before chosen ones. The config's own numbers count, so that a second run has the order of the first one.
fn in_order(before: &Table, specs: &[PartitionSpec]) -> Vec<PartitionSpec> {
    let claimed = match_existing(before, specs);
    let mut ordered: Vec<(&PartitionSpec, u32)> = specs.iter().zip(claimed).collect();
    ordered.sort_by_key(|(spec, _)| (spec.number == 0, spec.exists));
    let numbered = ordered.into_iter().map(|(spec, number)| PartitionSpec {
        number,
        ..spec.clone()
    });
    numbered.collect()
}

/// Numbers of the config's partitions. An entry without a number takes that of a partition with its label, type and
/// GUID: an earlier run made it, and the config does not ask for a second one of the same label.
fn match_existing(before: &Table, specs: &[PartitionSpec]) -> Vec<u32> {
    let known = |spec: &PartitionSpec| match spec.number {
        0 => spec.earlier.unwrap_or(0),
        number => number,
    };
    let mut taken: BTreeSet<u32> = specs.iter().map(known).collect();
    let mut numbers = Vec::new();
    for spec in specs {
        let matches = |(_, entry): &(&u32, &Entry)| {
            spec.label.as_ref() == Some(&entry.label)
                && spec.type_guid.is_none_or(|guid| guid == entry.type_guid)
                && spec.guid.is_none_or(|guid| guid == entry.guid)
                && spec
                    .start
                    .is_none_or(|start| start == 0 || start * MIB == entry.first * before.sector)
                && spec.size.is_none_or(|size| {
                    size == 0 || size * MIB == (entry.last + 1 - entry.first) * before.sector
                })
        };
        let mut candidates = before
            .entries
            .iter()
            .filter(matches)
            .map(|(number, _)| *number);
        let number = match (known(spec), candidates.next(), candidates.next()) {
            (0, Some(number), None) if spec.exists && taken.insert(number) => number,
            (number, ..) => number,
        };
        numbers.push(number);
    }
    numbers
}

/// Start and size of each entry in sectors. For entries with a number, 0 is resolved as if all entries were made again.
/// `usable` is the last usable sector before the disk grew; gives whether a partition is there only by that one.
fn spans(
    before: &Table,
    usable: u64,
    specs: &[PartitionSpec],
    wrong: &mut Vec<String>,
) -> (Vec<Span>, bool) {
    let sectors = |mib: Option<u64>| mib.map(|mib| mib * (MIB / before.sector));
    let mut pretended = before.clone();
    for spec in specs {
        pretended.entries.remove(&spec.number);
    }
    let (mut spans, mut keeps_end) = (Vec::new(), false);
    for spec in specs {
        let mut span = Span {
            start: sectors(spec.start),
            size: sectors(spec.size),
        };
        if spec.number != 0 && spec.exists {
            let old = before.entries.get(&spec.number).filter(|_| !spec.wipe);
            let start = span.start.or(old.map(|old| old.first)).unwrap_or(0);
            let size = span
                .size
                .or(old.map(|old| old.last + 1 - old.first))
                .unwrap_or(0);
            let fitted = fit(&pretended, start, size);
            let kept = old
                .filter(|_| !spec.resize)
                .map(|old| (old.first, old.last))
                .filter(|old| fit_below(&pretended, usable, start, size).as_ref() == Ok(old));
            keeps_end |= kept.is_some_and(|kept| fitted.as_ref() != Ok(&kept));
            match kept.map_or(fitted, Ok) {
                Ok((first, last)) => {
                    pretended
                        .entries
                        .insert(spec.number, new_entry(first, last));
                    span.start = span.start.map(|_| first);
                    span.size = span.size.map(|_| last + 1 - first);
                }
                // An existing partition that is not changed need not fit.
                Err(_) if span == Span::default() && old.is_some() => {}
                Err(why) => wrong.push(format!("{}: {why}", spec.at)),
            }
        }
        spans.push(span);
    }
    (spans, keeps_end)
}

fn new_entry(first: u64, last: u64) -> Entry {
    Entry {
        type_guid: TYPE_LINUX,
        guid: Guid([0; 16]),
        first,
        last,
        attributes: 0,
        label: String::new(),
    }
}

/// First and last sector of a new partition. An error lists the free extents.
fn fit(table: &Table, start: u64, size: u64) -> Result<(u64, u64), String> {
    let align = ALIGNMENT / table.sector;
    let mib = |sectors: u64| sectors * table.sector / MIB;
    let free = free_extents(table);
    let first = match start {
        0 => {
            // Of two that are equally large sgdisk takes the first.
            let largest = free.iter().rev().max_by_key(|(first, last)| last - first);
            let (first, last) = largest.ok_or("no space is free on the disk")?;
            let first = first.next_multiple_of(align);
            if first > *last {
                return Err("no space is free on the disk".to_owned());
            }
            first
        }
        start => start,
    };
    let stretch = free
        .iter()
        .find(|(from, to)| (*from..=*to).contains(&first));
    let Some((_, end)) = stretch else {
        let why = match table
            .entries
            .iter()
            .find(|(_, e)| (e.first..=e.last).contains(&first))
        {
            Some((number, entry)) => format!("partition {number} ({:?}) occupies it", entry.label),
            None => "it is outside of the disk".to_owned(),
        };
        return Err(format!("it cannot start at {} MiB: {why}", mib(first)));
    };
    let last = match size {
        0 => *end,
        size => first + size - 1,
    };
    if last > *end {
        return Err(format!(
            "it does not fit: {} MiB at {} MiB, where {} MiB are free",
            mib(size),
            mib(first),
            mib(end + 1 - first)
        ));
    }
    Ok((first, last))
}

/// As [`fit`], with this last usable sector.
fn fit_below(table: &Table, usable: u64, start: u64, size: u64) -> Result<(u64, u64), String> {
    let mut table = table.clone();
    table.last_usable = usable;
    fit(&table, start, size)
}

/// Free extents, in order: first and last sector.
fn free_extents(table: &Table) -> Vec<(u64, u64)> {
    let mut used: Vec<(u64, u64)> = table.entries.values().map(|e| (e.first, e.last)).collect();
    used.sort_unstable();
    let mut out = Vec::new();
    let mut next = table.first_usable;
    for (first, last) in used {
        if next < first {
            out.push((next, first - 1));
        }
        next = next.max(last + 1);
    }
    if next <= table.last_usable {
        out.push((next, table.last_usable));
    }
    out
}

struct TablePlanner<'a> {
    table: Table,
    before: &'a Table,
    busy: &'a BTreeSet<u32>,
    actions: Vec<(u32, PartitionAction)>,
    numbers: Vec<(String, u32)>,
    wrong: Vec<String>,
}

impl TablePlanner<'_> {
    /// Applies the matrix to an entry. Returns the partition to make after all deletions.
    fn decide<'w>(
        &mut self,
        spec: &'w PartitionSpec,
        span: Span,
    ) -> Option<(&'w PartitionSpec, Span, PartitionAction)> {
        let number = spec.number;
        let old = self.before.entries.get(&number).cloned();
        let action = match (old, spec.exists, spec.wipe) {
            (None, false, _) => PartitionAction::Absent,
            (None, true, _) => PartitionAction::Create,
            (Some(_), false, true) => PartitionAction::Delete,
            (Some(old), false, false) => {
                return self.refuse(
                    spec,
                    &format!(
                        "partition {number} ({:?}) exists; shouldExist is false and wipePartitionEntry is not set",
                        old.label
                    ),
                );
            }
            (Some(old), true, wipe) => match self.differs(&old, spec, span) {
                None => PartitionAction::Keep,
                Some(Difference::Size(_)) if !wipe && spec.resize => {
                    return self.resize(spec, &old, span);
                }
                Some(_) if wipe => PartitionAction::Recreate,
                Some(difference) => return self.refuse(spec, &difference.describe(number)),
            },
        };
        let changes = matches!(action, PartitionAction::Delete | PartitionAction::Recreate);
        if changes && self.is_busy(spec) {
            return None;
        }
        if changes {
            self.table.entries.remove(&number);
        }
        if matches!(action, PartitionAction::Create | PartitionAction::Recreate) {
            return Some((spec, span, action));
        }
        self.note(spec, number, action);
        None
    }

    fn note(&mut self, spec: &PartitionSpec, number: u32, action: PartitionAction) {
        self.actions.push((number, action));
        if spec.exists {
            self.numbers.push((spec.at.clone(), number));
        }
    }

    fn refuse<T>(&mut self, spec: &PartitionSpec, why: &str) -> Option<T> {
        self.wrong.push(format!("{}: {why}", spec.at));
        None
    }

    fn is_busy(&mut self, spec: &PartitionSpec) -> bool {
        let busy = self.busy.contains(&spec.number);
        if busy {
            let why = format!("partition {} is in use and cannot be changed", spec.number);
            self.wrong.push(format!("{}: {why}", spec.at));
        }
        busy
    }

    fn differs(&self, old: &Entry, spec: &PartitionSpec, span: Span) -> Option<Difference> {
        let mib = |sectors: u64| sectors * self.before.sector / MIB;
        let other = |what: &'static str, wanted: String, found: String| {
            Some(Difference::Other(what, wanted, found))
        };
        if let Some(start) = span.start.filter(|start| *start != old.first) {
            return other(
                "start",
                format!("{} MiB", mib(start)),
                format!("{} MiB", mib(old.first)),
            );
        }
        if let Some(guid) = spec.guid.filter(|guid| *guid != old.guid) {
            return other("GUID", guid.to_string(), old.guid.to_string());
        }
        if let Some(guid) = spec.type_guid.filter(|guid| *guid != old.type_guid) {
            return other("type", guid.to_string(), old.type_guid.to_string());
        }
        if let Some(label) = spec.label.as_ref().filter(|label| **label != old.label) {
            return other("label", format!("{label:?}"), format!("{:?}", old.label));
        }
        let size = old.last + 1 - old.first;
        let wanted = span.size.filter(|wanted| *wanted != size)?;
        Some(Difference::Size(format!(
            "expected size {} MiB ({wanted} sectors); found {} MiB ({size} sectors)",
            mib(wanted),
            mib(size)
        )))
    }

    fn resize<T>(&mut self, spec: &PartitionSpec, old: &Entry, span: Span) -> Option<T> {
        if self.is_busy(spec) {
            return None;
        }
        let mut others = self.before.clone();
        others.entries.remove(&spec.number);
        // Partitions that are deleted first free their space.
        others
            .entries
            .retain(|number, _| self.table.entries.contains_key(number));
        match fit(&others, old.first, span.size.unwrap_or(0)) {
            Ok((_, last)) => {
                if let Some(entry) = self.table.entries.get_mut(&spec.number) {
                    entry.last = last;
                }
                self.note(spec, spec.number, PartitionAction::Resize);
            }
            Err(why) => self.wrong.push(format!("{}: {why}", spec.at)),
        }
        None
    }

    fn create(
        &mut self,
        spec: &PartitionSpec,
        span: Span,
        action: PartitionAction,
        random: &mut dyn FnMut() -> Guid,
    ) {
        let number = match spec.number {
            0 => self.table.free_number(),
            number => Some(number),
        };
        let Some(number) = number.filter(|number| *number <= self.table.room) else {
            self.wrong
                .push(format!("{}: the partition table is full", spec.at));
            return;
        };
        match fit(&self.table, span.start.unwrap_or(0), span.size.unwrap_or(0)) {
            Ok((first, last)) => {
                let entry = Entry {
                    type_guid: spec.type_guid.unwrap_or(TYPE_LINUX),
                    guid: spec.guid.unwrap_or_else(random),
                    label: spec.label.clone().unwrap_or_default(),
                    ..new_entry(first, last)
                };
                self.table.entries.insert(number, entry);
                self.note(spec, number, action);
            }
            Err(why) => self.wrong.push(format!("{}: {why}", spec.at)),
        }
    }
}

/// The difference between a partition and its entry in the config.
enum Difference {
    /// Only the size.
    Size(String),
    /// This attribute: expected, found.
    Other(&'static str, String, String),
}

impl Difference {
    fn describe(&self, number: u32) -> String {
        match self {
            Self::Size(text) => format!("partition {number} does not match: {text}"),
            Self::Other(what, wanted, found) => {
                format!(
                    "partition {number} does not match: expected {what} {wanted}; found {found}"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests;
