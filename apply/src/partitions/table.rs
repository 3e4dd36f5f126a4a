//! What one disk's partition table becomes: decided in memory, by Ignition's matrix of what is there and what is wanted.
//!
//! Start and size 0 mean what `sgdisk` makes of them: the begin of the largest free stretch, and its end. Partitions
//! begin on multiples of 1 MiB.

use std::collections::BTreeSet;

use image::guid::Guid;
use image::layout::{ALIGNMENT, MIB, TYPE_LINUX};

use linux::gpt::{Entry, Table};

/// A partition as a config wants it. Starts and sizes are in MiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Where it stands in the config.
    pub(crate) at: String,
    /// Number in the table; 0 for the next one that is free.
    pub(crate) number: u32,
    /// Label.
    pub(crate) label: Option<String>,
    /// Start; 0 for the largest free stretch, none for whatever is there.
    pub(crate) start: Option<u64>,
    /// Size; 0 for all that is free there, none for whatever is there.
    pub(crate) size: Option<u64>,
    /// Type.
    pub(crate) type_guid: Option<Guid>,
    /// Its own GUID.
    pub(crate) guid: Option<Guid>,
    /// Whether it is to be there.
    pub(crate) exists: bool,
    /// Whether one that does not match may be deleted.
    pub(crate) wipe: bool,
    /// Whether one that differs only in size may be resized.
    pub(crate) resize: bool,
}

/// What is done to one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// It is as it should be.
    Keep,
    /// It is made.
    Create,
    /// It is deleted and made anew.
    Recreate,
    /// Its end moves.
    Resize,
    /// It is deleted.
    Delete,
    /// It is not there, and is not to be.
    Absent,
}

/// A table, and what led to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The table as it will be.
    pub(crate) table: Table,
    /// What is done to each wanted partition, by its number, in the order in which it is decided.
    pub(crate) actions: Vec<(u32, Action)>,
    /// The number of each partition that is to be there, by its place in the config.
    pub(crate) numbers: Vec<(String, u32)>,
}

/// Decides. `busy` are the numbers of partitions that are mounted or otherwise in use; `random` gives GUIDs.
///
/// # Errors
/// Everything that is wrong, each with its place in the config.
pub(crate) fn plan(
    before: &Table,
    wanted: &[Wanted],
    busy: &BTreeSet<u32>,
    random: &mut dyn FnMut() -> Guid,
) -> Result<Outcome, Vec<String>> {
    let claimed = claim(before, wanted);
    let mut wanted: Vec<Wanted> = wanted.to_vec();
    for (want, number) in wanted.iter_mut().zip(claimed) {
        want.number = number;
    }
    // What goes makes room; and a number that is chosen must not be one that another entry names.
    wanted.sort_by_key(|want| (want.number == 0, want.exists));
    let mut wrong = Vec::new();
    let spans = spans(before, &wanted, &mut wrong);
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let mut planner = Planner {
        table: before.clone(),
        before,
        busy,
        actions: Vec::new(),
        numbers: Vec::new(),
        wrong,
    };
    let creations: Vec<_> = wanted
        .iter()
        .zip(spans)
        .filter_map(|(want, span)| planner.decide(want, span))
        .collect();
    // All that goes is gone before anything is made.
    for (want, span, action) in creations {
        planner.create(want, span, action, random);
    }
    match planner.wrong.is_empty() {
        true => Ok(Outcome {
            table: planner.table,
            actions: planner.actions,
            numbers: planner.numbers,
        }),
        false => Err(planner.wrong),
    }
}

/// Sectors, as wanted: none for "whatever", 0 for "choose".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Span {
    start: Option<u64>,
    size: Option<u64>,
}

/// Numbers of the wanted partitions. One without a number whose label, type and GUID one partition has already is that
/// one: an earlier run made it, and a second one of the same label would be nobody's wish.
fn claim(before: &Table, wanted: &[Wanted]) -> Vec<u32> {
    let mut taken: BTreeSet<u32> = wanted.iter().map(|want| want.number).collect();
    let mut numbers = Vec::new();
    for want in wanted {
        let matches = |(_, entry): &(&u32, &Entry)| {
            want.label.as_ref() == Some(&entry.label)
                && want.type_guid.is_none_or(|guid| guid == entry.type_guid)
                && want.guid.is_none_or(|guid| guid == entry.guid)
                && want
                    .start
                    .is_none_or(|start| start == 0 || start * MIB == entry.first * before.sector)
                && want.size.is_none_or(|size| {
                    size == 0 || size * MIB == (entry.last + 1 - entry.first) * before.sector
                })
        };
        let mut candidates = before
            .entries
            .iter()
            .filter(matches)
            .map(|(number, _)| *number);
        let number = match (want.number, candidates.next(), candidates.next()) {
            (0, Some(number), None) if want.exists && taken.insert(number) => number,
            (number, ..) => number,
        };
        numbers.push(number);
    }
    numbers
}

/// Start and size of each in sectors, 0 resolved for those with a number to what it would be if all that is listed were
/// made anew.
fn spans(before: &Table, wanted: &[Wanted], wrong: &mut Vec<String>) -> Vec<Span> {
    let sectors = |mib: Option<u64>| mib.map(|mib| mib * (MIB / before.sector));
    let mut pretended = before.clone();
    for want in wanted {
        pretended.entries.remove(&want.number);
    }
    let mut spans = Vec::new();
    for want in wanted {
        let mut span = Span {
            start: sectors(want.start),
            size: sectors(want.size),
        };
        if want.number != 0 && want.exists {
            let old = before.entries.get(&want.number).filter(|_| !want.wipe);
            let start = span.start.or(old.map(|old| old.first)).unwrap_or(0);
            let size = span
                .size
                .or(old.map(|old| old.last + 1 - old.first))
                .unwrap_or(0);
            match place(&pretended, start, size) {
                Ok((first, last)) => {
                    pretended.entries.insert(want.number, blank(first, last));
                    span.start = span.start.map(|_| first);
                    span.size = span.size.map(|_| last + 1 - first);
                }
                // One that is there and stays need not find a place among those that are wanted.
                Err(_) if span == Span::default() && old.is_some() => {}
                Err(why) => wrong.push(format!("{}: {why}", want.at)),
            }
        }
        spans.push(span);
    }
    spans
}

fn blank(first: u64, last: u64) -> Entry {
    Entry {
        type_guid: TYPE_LINUX,
        guid: Guid([0; 16]),
        first,
        last,
        attributes: 0,
        label: String::new(),
    }
}

/// First and last sector of a new partition.
///
/// # Errors
/// If it does not fit; says what is free.
fn place(table: &Table, start: u64, size: u64) -> Result<(u64, u64), String> {
    let align = ALIGNMENT / table.sector;
    let mib = |sectors: u64| sectors * table.sector / MIB;
    let free = free(table);
    let first = match start {
        0 => {
            // Of two that are equally large sgdisk takes the first.
            let largest = free.iter().rev().max_by_key(|(first, last)| last - first);
            let (first, last) = largest.ok_or("nothing is free on the disk")?;
            let first = first.next_multiple_of(align);
            if first > *last {
                return Err("nothing is free on the disk".to_owned());
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
            Some((number, entry)) => format!("partition {number} ({:?}) is there", entry.label),
            None => "that is outside of the disk".to_owned(),
        };
        return Err(format!("it cannot begin at {} MiB: {why}", mib(first)));
    };
    let last = match size {
        0 => *end,
        size => first + size - 1,
    };
    if last > *end {
        return Err(format!(
            "it does not fit: {} MiB from {} MiB; there {} MiB are free",
            mib(size),
            mib(first),
            mib(end + 1 - first)
        ));
    }
    Ok((first, last))
}

/// Free stretches, in order: first and last sector.
fn free(table: &Table) -> Vec<(u64, u64)> {
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

struct Planner<'a> {
    table: Table,
    before: &'a Table,
    busy: &'a BTreeSet<u32>,
    actions: Vec<(u32, Action)>,
    numbers: Vec<(String, u32)>,
    wrong: Vec<String>,
}

impl Planner<'_> {
    /// The matrix. Gives what is to be made once all deletions are done.
    fn decide<'w>(&mut self, want: &'w Wanted, span: Span) -> Option<(&'w Wanted, Span, Action)> {
        let number = want.number;
        let old = self.before.entries.get(&number).cloned();
        let action = match (old, want.exists, want.wipe) {
            (None, false, _) => Action::Absent,
            (None, true, _) => Action::Create,
            (Some(_), false, true) => Action::Delete,
            (Some(old), false, false) => {
                return self.refuse(
                    want,
                    &format!(
                        "partition {number} ({:?}) exists and is not to; wipePartitionEntry is not set",
                        old.label
                    ),
                );
            }
            (Some(old), true, wipe) => match self.differs(&old, want, span) {
                None => Action::Keep,
                Some(Difference::Size(_)) if !wipe && want.resize => {
                    return self.resize(want, &old, span);
                }
                Some(_) if wipe => Action::Recreate,
                Some(difference) => return self.refuse(want, &difference.describe(number)),
            },
        };
        let changes = matches!(action, Action::Delete | Action::Recreate);
        if changes && self.is_busy(want) {
            return None;
        }
        if changes {
            self.table.entries.remove(&number);
        }
        if matches!(action, Action::Create | Action::Recreate) {
            return Some((want, span, action));
        }
        self.note(want, number, action);
        None
    }

    fn note(&mut self, want: &Wanted, number: u32, action: Action) {
        self.actions.push((number, action));
        if want.exists {
            self.numbers.push((want.at.clone(), number));
        }
    }

    fn refuse<T>(&mut self, want: &Wanted, why: &str) -> Option<T> {
        self.wrong.push(format!("{}: {why}", want.at));
        None
    }

    fn is_busy(&mut self, want: &Wanted) -> bool {
        let busy = self.busy.contains(&want.number);
        if busy {
            let why = format!("partition {} is in use and cannot be changed", want.number);
            self.wrong.push(format!("{}: {why}", want.at));
        }
        busy
    }

    fn differs(&self, old: &Entry, want: &Wanted, span: Span) -> Option<Difference> {
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
        if let Some(guid) = want.guid.filter(|guid| *guid != old.guid) {
            return other("GUID", guid.to_string(), old.guid.to_string());
        }
        if let Some(guid) = want.type_guid.filter(|guid| *guid != old.type_guid) {
            return other("type", guid.to_string(), old.type_guid.to_string());
        }
        if let Some(label) = want.label.as_ref().filter(|label| **label != old.label) {
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

    fn resize<T>(&mut self, want: &Wanted, old: &Entry, span: Span) -> Option<T> {
        if self.is_busy(want) {
            return None;
        }
        let mut others = self.before.clone();
        others.entries.remove(&want.number);
        // Those that go first make room.
        others
            .entries
            .retain(|number, _| self.table.entries.contains_key(number));
        match place(&others, old.first, span.size.unwrap_or(0)) {
            Ok((_, last)) => {
                if let Some(entry) = self.table.entries.get_mut(&want.number) {
                    entry.last = last;
                }
                self.note(want, want.number, Action::Resize);
            }
            Err(why) => self.wrong.push(format!("{}: {why}", want.at)),
        }
        None
    }

    fn create(
        &mut self,
        want: &Wanted,
        span: Span,
        action: Action,
        random: &mut dyn FnMut() -> Guid,
    ) {
        let number = match want.number {
            0 => self.table.free_number(),
            number => Some(number),
        };
        let Some(number) = number.filter(|number| *number <= self.table.room) else {
            self.wrong
                .push(format!("{}: the partition table is full", want.at));
            return;
        };
        match place(&self.table, span.start.unwrap_or(0), span.size.unwrap_or(0)) {
            Ok((first, last)) => {
                let entry = Entry {
                    type_guid: want.type_guid.unwrap_or(TYPE_LINUX),
                    guid: want.guid.unwrap_or_else(random),
                    label: want.label.clone().unwrap_or_default(),
                    ..blank(first, last)
                };
                self.table.entries.insert(number, entry);
                self.note(want, number, action);
            }
            Err(why) => self.wrong.push(format!("{}: {why}", want.at)),
        }
    }
}

/// How a partition differs from what is wanted.
enum Difference {
    /// In its size only.
    Size(String),
    /// In this, with what was wanted and what was found.
    Other(&'static str, String, String),
}

impl Difference {
    fn describe(&self, number: u32) -> String {
        match self {
            Self::Size(text) => format!("partition {number} does not match: {text}"),
            Self::Other(what, wanted, found) => format!(
                "partition {number} does not match: expected {what} {wanted}; found {found}"
            ),
        }
    }
}

#[cfg(test)]
mod tests;
