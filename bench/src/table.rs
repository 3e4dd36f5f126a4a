//! Results as rows: ours beside a peer's, the goal, and whether it is reached.

use serde_json::{Value, json};

/// Unit of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Seconds of wall-clock time.
    Seconds,
    /// Seconds of the guest's virtual clock.
    VirtualSeconds,
    /// 2^20 bytes.
    Mebibytes,
}

/// The goal of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    /// Ours is at most this.
    AtMost(f64),
    /// The peer's is at least this many times ours.
    Times(f64),
}

/// One measurement.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// `builds`, `boots`, `clusters`, `cluster-boots`, `sizes` or `ignition`.
    pub(crate) group: &'static str,
    /// The measured quantity.
    pub(crate) what: String,
    /// The unit of the numbers.
    pub(crate) unit: Unit,
    /// Ours, each run.
    pub(crate) ours: Vec<f64>,
    /// The peer's name and runs.
    pub(crate) peer: Option<(&'static str, Vec<f64>)>,
    /// The goals; none for a row that only informs.
    pub(crate) goals: Vec<Goal>,
}

/// A measurement that is not possible on this host.
#[derive(Clone, Debug)]
pub(crate) struct Unmeasured {
    /// The measured quantity.
    pub(crate) what: String,
    /// The reason.
    pub(crate) why: String,
    /// The peer's figure from an earlier measurement.
    pub(crate) peer: String,
}

/// All rows, with notes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    /// The rows.
    pub(crate) rows: Vec<Row>,
    /// Missing measurements, shown below the rows.
    pub(crate) unmeasured: Vec<Unmeasured>,
    /// Differences between ours and the peers, and other remarks.
    pub(crate) notes: Vec<String>,
}

/// The median; of an even number of values the mean of the two in the middle. Zero if there are none.
#[must_use]
pub(crate) fn median(runs: &[f64]) -> f64 {
    let mut sorted = runs.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.get(middle), sorted.len() % 2) {
        (Some(upper), 0) => f64::midpoint(sorted[middle - 1], *upper),
        (Some(only), _) => *only,
        (None, _) => 0.0,
    }
}

/// The smallest and the largest; none for fewer than two runs.
fn spread(runs: &[f64]) -> Option<(f64, f64)> {
    let least = runs.iter().copied().min_by(f64::total_cmp)?;
    let most = runs.iter().copied().max_by(f64::total_cmp)?;
    (runs.len() > 1).then_some((least, most))
}

impl Unmeasured {
    fn cells(&self) -> [String; 6] {
        let why = format!("not measured: {}", self.why);
        [&self.what, &why, &self.peer, "", "", ""].map(str::to_owned)
    }
}

impl Unit {
    /// The middle run, and in brackets the smallest and the largest.
    fn runs(self, runs: &[f64]) -> String {
        let middle = self.shown(median(runs));
        match spread(runs) {
            None => middle,
            Some((least, most)) => {
                format!("{middle} [{} to {}]", self.shown(least), self.shown(most))
            }
        }
    }

    fn shown(self, value: f64) -> String {
        match self {
            Self::Seconds | Self::VirtualSeconds if value < 1.0 => format!("{value:.3} s"),
            Self::Seconds | Self::VirtualSeconds => format!("{value:.2} s"),
            Self::Mebibytes => format!("{value:.2} MiB"),
        }
    }
}

impl Row {
    /// The peer's figure divided by ours.
    #[must_use]
    pub(crate) fn ratio(&self) -> Option<f64> {
        let (_, peer) = self.peer.as_ref()?;
        let ours = median(&self.ours);
        (ours > 0.0 && !peer.is_empty()).then(|| median(peer) / ours)
    }

    /// Whether all goals are reached; none if there is no goal.
    #[must_use]
    pub(crate) fn reached(&self) -> Option<bool> {
        let kept = |goal: &Goal| match goal {
            Goal::AtMost(most) => !self.ours.is_empty() && median(&self.ours) <= *most,
            Goal::Times(times) => self.ratio().is_some_and(|ratio| ratio >= *times),
        };
        (!self.goals.is_empty()).then(|| self.goals.iter().all(kept))
    }

    fn cells(&self) -> [String; 6] {
        let goals: Vec<String> = self
            .goals
            .iter()
            .map(|goal| match goal {
                Goal::AtMost(most) => format!("≤ {}", self.unit.shown(*most)),
                Goal::Times(times) => format!("≥ {times}×"),
            })
            .collect();
        [
            self.what.clone(),
            self.unit.runs(&self.ours),
            self.peer.as_ref().map_or_else(String::new, |(name, runs)| {
                format!("{} ({name})", self.unit.runs(runs))
            }),
            self.ratio()
                .map_or_else(String::new, |ratio| format!("{ratio:.1}×")),
            goals.join(", "),
            match self.reached() {
                Some(true) => "yes".to_owned(),
                Some(false) => "NO".to_owned(),
                None => String::new(),
            },
        ]
    }

    fn json(&self) -> Value {
        json!({
            "group": self.group,
            "what": self.what,
            "unit": match self.unit {
                Unit::Seconds => "s",
                Unit::VirtualSeconds => "virtual s",
                Unit::Mebibytes => "MiB",
            },
            "ours": { "median": median(&self.ours), "runs": self.ours },
            "peer": self.peer.as_ref().map(|(name, runs)| json!({
                "name": name, "median": median(runs), "runs": runs,
            })),
            "ratio": self.ratio(),
            "goals": self.goals.iter().map(|goal| match goal {
                Goal::AtMost(most) => json!({ "atMost": most }),
                Goal::Times(times) => json!({ "times": times }),
            }).collect::<Vec<_>>(),
            "reached": self.reached(),
        })
    }
}

impl Table {
    /// A Markdown table, as in `docs/`, then the notes.
    #[must_use]
    pub(crate) fn text(&self) -> String {
        let head = ["what", "ours", "peer", "ratio", "goal", "reached"].map(str::to_owned);
        let rows: Vec<[String; 6]> = std::iter::once(head)
            .chain(self.rows.iter().map(Row::cells))
            .chain(self.unmeasured.iter().map(Unmeasured::cells))
            .collect();
        let wide: [usize; 6] = std::array::from_fn(|column| {
            rows.iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        });
        let line = |row: &[String; 6]| {
            let cells: Vec<String> = row
                .iter()
                .zip(wide)
                .map(|(cell, wide)| format!("{cell:wide$}"))
                .collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let mut out = String::new();
        for (number, row) in rows.iter().enumerate() {
            out += &line(row);
            if number == 0 {
                out += &line(&wide.map(|wide| "-".repeat(wide)));
            }
        }
        for note in &self.notes {
            out += &format!("* {note}\n");
        }
        out
    }

    /// All runs as JSON.
    #[must_use]
    pub(crate) fn json(&self) -> Value {
        json!({
            "rows": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
            "unmeasured": self.unmeasured.iter().map(|row| json!({
                "what": row.what, "why": row.why, "peer": row.peer,
            })).collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }
}

/// Bytes in units of 2^20.
#[allow(clippy::cast_precision_loss, reason = "no file here has 2^53 bytes")]
pub(crate) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ours: &[f64], peer: &[f64], goals: &[Goal]) -> Row {
        Row {
            group: "builds",
            what: "overlay".into(),
            unit: Unit::Seconds,
            ours: ours.to_vec(),
            peer: (!peer.is_empty()).then(|| ("mkosi", peer.to_vec())),
            goals: goals.to_vec(),
        }
    }

    #[test]
    fn the_median_is_the_middle() {
        for (runs, middle) in [
            (&[][..], 0.0),
            (&[3.0], 3.0),
            (&[5.0, 1.0], 3.0),
            (&[9.0, 1.0, 2.0], 2.0),
        ] {
            assert!((median(runs) - middle).abs() < 1e-9, "{runs:?}");
        }
    }

    #[test]
    fn all_goals_must_be_kept() {
        let both = [Goal::Times(10.0), Goal::AtMost(4.0)];
        for (ours, peer, reached) in [
            (&[3.0][..], &[40.0][..], true),
            (&[4.5], &[50.0], false),
            (&[3.0], &[29.0], false),
            (&[3.0], &[], false),
            (&[], &[40.0], false),
        ] {
            assert_eq!(
                row(ours, peer, &both).reached(),
                Some(reached),
                "{ours:?} {peer:?}"
            );
        }
        assert_eq!(row(&[3.0], &[40.0], &[]).reached(), None);
    }

    #[test]
    fn the_table_has_a_line_a_row_of_one_width() {
        let table = Table {
            rows: vec![row(
                &[0.5],
                &[40.0],
                &[Goal::Times(10.0), Goal::AtMost(4.0)],
            )],
            unmeasured: Vec::new(),
            notes: vec!["one".into()],
        };
        let text = table.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(
            lines[2].contains("| 0.500 s |") && lines[2].contains("80.0×"),
            "{text}"
        );
        assert!(lines[2].contains("≥ 10×, ≤ 4.00 s | yes"), "{text}");
        let wide = |line: &str| line.chars().count();
        assert_eq!(
            (wide(lines[0]), wide(lines[1])),
            (wide(lines[2]), wide(lines[2]))
        );
        assert_eq!(table.json()["rows"][0]["peer"]["name"], "mkosi");
    }

    #[test]
    fn runs_have_their_spread_and_what_was_not_measured_its_reason() {
        let table = Table {
            rows: vec![row(&[0.5, 0.25, 3.0], &[40.0], &[Goal::AtMost(0.4)])],
            unmeasured: vec![Unmeasured {
                what: "disks".into(),
                why: "no loop devices".into(),
                peer: "2.3 s".into(),
            }],
            notes: Vec::new(),
        };
        let text = table.text();
        assert!(text.contains("0.500 s [0.250 s to 3.00 s]"), "{text}");
        assert!(text.contains("| NO "), "{text}");
        let last = text.lines().last().unwrap();
        assert!(
            last.contains("| disks ") && last.contains("| not measured: no loop devices | 2.3 s "),
            "{text}"
        );
        assert_eq!(table.json()["unmeasured"][0]["what"], "disks");
    }
}
