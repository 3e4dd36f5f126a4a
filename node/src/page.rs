//! The page of a console: a status as lines of a screen, or as lines of a log.

use std::fmt::Write as _;

use crate::node_status::{State, Status};
use crate::status_rows::{Row, rows, sum};

/// Lines of a screen below the page: the messages of the kernel and of services go on there.
const MESSAGES: usize = 4;
/// Rows and columns of the smallest screen that has room for a page and for messages.
const SMALLEST: (u16, u16) = (12, 40);
/// Columns of a label with the space behind it.
const LABEL: usize = 13;
/// Lines of one row at most.
const MOST: usize = 3;

/// The page of one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) state: State,
    name: String,
    sum: String,
    /// RFC 3339, in UTC.
    time: String,
    rows: Vec<Row>,
}

impl Page {
    /// The page of a status. Control characters in it are spaces: a server's message or a recorded report must not move the
    /// cursor of a terminal.
    pub(crate) fn of(status: &Status) -> Self {
        let plain = |text: &str| text.replace(char::is_control, " ");
        Self {
            state: status.state,
            name: plain(&status.name),
            sum: sum(status),
            time: status.clock.time.clone(),
            rows: rows(status)
                .into_iter()
                .map(|row| Row {
                    text: plain(&row.text),
                    ..row
                })
                .collect(),
        }
    }

    /// Whether both say the same of the node, whatever the time.
    pub(crate) fn same(&self, other: &Self) -> bool {
        let lasting = |row: &&Row| !row.of_time;
        let (mine, theirs) = (self.rows.iter(), other.rows.iter());
        mine.filter(lasting).eq(theirs.filter(lasting))
    }

    /// The page for a console that is read as a log: the sum as one line that `grep` finds, and the other rows below it.
    pub(crate) fn log(&self) -> String {
        let mut text = format!(
            "slipway: status of {}: {} ({})\n",
            self.name, self.sum, self.time
        );
        for Row {
            label, text: row, ..
        } in &self.rows
        {
            // The first line has these two.
            if !["name", "state"].contains(label) {
                // Writing to a String cannot fail.
                writeln!(text, "  {label:12} {row}").unwrap_or_default();
            }
        }
        text
    }

    /// The lines of the page on a screen of so many rows and columns, the last of them a rule; none if it is too small.
    pub(crate) fn screen(&self, (height, width): (u16, u16)) -> Option<Vec<String>> {
        if height < SMALLEST.0 || width < SMALLEST.1 {
            return None;
        }
        let (height, width) = (usize::from(height), usize::from(width));
        let room = height - MESSAGES - 1;
        // Long texts give way before rows do: failures are the last ones.
        let mut lines = (1..=MOST)
            .rev()
            .map(|most| self.lines(width, most))
            .find(|lines| lines.len() <= room)
            .unwrap_or_else(|| self.lines(width, 1));
        lines.truncate(room);
        let rule = format!("---- {} ", self.time);
        lines.push(format!("{rule:-<width$}"));
        Some(lines)
    }

    fn lines(&self, width: usize, most: usize) -> Vec<String> {
        let mut lines = Vec::new();
        for row in &self.rows {
            let mut label = row.label;
            for part in wrapped(&row.text, width - LABEL, most) {
                lines.push(format!("{label:LABEL$}{part}"));
                label = "";
            }
        }
        lines
    }
}

/// A text in lines of so many characters, cut after so many lines.
fn wrapped(text: &str, width: usize, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let letters: Vec<char> = word.chars().collect();
        for (at, part) in letters.chunks(width).enumerate() {
            let used = lines.last().map_or(0, |line| line.chars().count());
            let space = usize::from(used > 0 && at == 0);
            if used > 0 && (at > 0 || used + space + part.len() > width) {
                lines.push(part.iter().collect());
            } else if let Some(line) = lines.last_mut() {
                line.extend(std::iter::repeat_n(' ', space).chain(part.iter().copied()));
            }
        }
    }
    if lines.len() > most {
        lines.truncate(most);
        if let Some(line) = lines.last_mut() {
            *line = line.chars().take(width - 3).collect::<String>() + "...";
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_status::status;
    use crate::samples::machine;
    use crate::systemd::Unit;
    use crate::this_boot::FailedBoot;

    fn sample(change: impl FnOnce(&mut Status)) -> Page {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(
            folder.path(),
            "name = \"blue\"\nendpoint = \"10.0.0.7\"\n[node]\naddress = \"10.0.0.7\"\n",
        );
        let mut status = status(&world, None).unwrap();
        status.addresses = vec!["10.0.0.7".to_owned()];
        change(&mut status);
        Page::of(&status)
    }

    #[test]
    fn a_text_is_wrapped_at_words_and_cut_after_some_lines() {
        for (text, expected) in [
            ("", &[""][..]),
            ("one two three", &["one two", "three"]),
            ("12345678", &["12345678"]),
            ("a 123456789 b", &["a", "12345678", "9 b"]),
            ("  a\t b ", &["a b"]),
            (
                "one two three four five six",
                &["one two", "three", "four..."],
            ),
        ] {
            let found = wrapped(text, 8, 3);
            assert!(
                found.iter().all(|line| line.chars().count() <= 8),
                "{found:?}"
            );
            assert_eq!(found, expected, "{text:?}");
        }
    }

    #[test]
    fn the_page_is_the_status_for_a_log_and_for_a_screen() {
        let page =
            sample(|status| status.waits_for = Some("the API server:\n\x1b[2Jno".to_owned()));
        let log = page.log();
        assert!(
            log.starts_with("slipway: status of node1: failed ("),
            "{log}"
        );
        assert!(
            log.contains("\n  waits for    the API server:  [2Jno\n"),
            "{log}"
        );
        for part in [
            "addresses    10.0.0.7",
            "image        demo 1.2.3",
            "kubelet ",
            "etcd ",
            "API server ",
        ] {
            assert!(log.contains(&format!("\n  {part}")), "{part}: {log}");
        }
        let lines = page.screen((25, 80)).unwrap();
        assert_eq!(lines[0], "name         node1");
        assert!(
            lines[2].starts_with("waits for    the API server: [2Jno"),
            "{lines:?}"
        );
        assert!(lines.last().unwrap().starts_with("---- 2"), "{lines:?}");
        assert!(lines.iter().all(|line| line.chars().count() <= 80));
        assert_eq!(page.screen((11, 80)), None);
        assert_eq!(page.screen((25, 39)), None);
    }

    #[test]
    fn a_full_page_keeps_the_last_failure_and_leaves_room_for_messages() {
        let long = "of many words ".repeat(30);
        let page = sample(|status| {
            status.waits_for = Some(long.clone());
            status.remedy = Some(long.clone());
            status.failed_units = Some(["a.service", "b.service"].map(Unit::failed).to_vec());
            let report = serde_json::from_str(r#"{"step":"var","what":"mounting /var"}"#).unwrap();
            let time = "2026-11-23T15:00:00Z".to_owned();
            status.last_failure = Some(FailedBoot { time, report });
        });
        let lines = page.screen((25, 80)).unwrap();
        assert!(lines.len() <= 21, "{lines:#?}");
        let failure = &lines[lines.len() - 2];
        assert!(failure.starts_with("failed boot  2026-11-23"), "{lines:#?}");
        // On a smaller one something is left out, and the messages keep their room.
        assert_eq!(page.screen((12, 80)).unwrap().len(), 8);
    }

    #[test]
    fn time_alone_changes_nothing() {
        let early = sample(|status| status.uptime_seconds = 5);
        let late = sample(|status| status.uptime_seconds = 500);
        assert!(early.same(&late));
        assert_ne!(early, late);
        assert!(!early.same(&sample(|status| status.waits_for = None)));
    }
}
