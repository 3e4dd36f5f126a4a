//! The ledger in `state`: failed boots, and those that came to their handoff after one. Best effort: it only counts failures,
//! so a line that does not parse, as one that a power cut tore, is passed over.

use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use image::paths::{STATE_LEDGER, STATE_MARK};
use image::report::{LedgerEntry, Report};

/// How many boots in a row, up to now, ended with the same failure as `report`. By its code: the same disk has another name
/// at the next boot.
fn in_a_row(ledger: &str, report: &Report) -> usize {
    let code = report.code();
    LedgerEntry::newest_first(ledger)
        .take_while(|entry| entry.report.as_ref().is_some_and(|old| old.code() == code))
        .count()
}

/// Writes a failure to the ledger in `state`; returns how many in a row it makes, none if there is no ledger yet.
pub(super) fn note(state: &Path, report: &Report) -> Option<usize> {
    let path = state.join(STATE_LEDGER);
    // The folder also exists in the read-only root; only a mounted `state` has this mark.
    if !state.join(STATE_MARK).exists() {
        return None;
    }
    let entry = LedgerEntry {
        time: now(),
        report: Some(report.clone()),
    };
    append(&path, &entry).ok()?;
    Some(in_a_row(&read(&path).ok()?, report))
}

fn read(path: &Path) -> std::io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

/// Notes that this boot reaches its handoff, if the ledger has failures; an empty ledger stays unwritten.
pub(crate) fn note_success(state: &Path) {
    let path = state.join(STATE_LEDGER);
    let Ok(ledger) = read(&path) else {
        return;
    };
    let failed = LedgerEntry::newest_first(&ledger)
        .next()
        .is_some_and(|entry| entry.report.is_some());
    let good = LedgerEntry {
        time: now(),
        report: None,
    };
    if failed && let Err(error) = append(&path, &good) {
        tracing::warn!("writing the ledger: {error}");
    }
}

fn append(path: &Path, entry: &LedgerEntry) -> std::io::Result<()> {
    let mut line = serde_json::to_string(entry)?;
    line.push('\n');
    let mut options = OpenOptions::new();
    let mut file = options.read(true).append(true).create(true).open(path)?;
    // A torn last line has no end: this one must not become a part of it.
    if file.metadata()?.len() > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            line.insert(0, '\n');
        }
    }
    file.write_all(line.as_bytes())?;
    file.sync_all()
}

fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}
