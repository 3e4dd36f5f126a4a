//! Progress of long work: bars on a terminal, plain lines in a pipe, JSON for programs, and the closing table.
//!
//! All output of this module goes to stderr; stdout is for results.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Deserialize, Serialize};

/// Minimum interval between plain lines about a running step.
const PLAIN_EVERY: Duration = Duration::from_secs(5);
/// Redraw interval of a bar without progress.
const TICK: Duration = Duration::from_millis(120);

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bars when stderr is a terminal, else plain lines.
    Auto,
    /// One line when a step begins and one when it ends.
    Plain,
    /// Nothing.
    Quiet,
    /// One JSON object a line.
    Json,
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Its product was in the cache.
    Hit,
    /// Its product was made.
    Made,
    /// It ended without a product.
    Failed,
}

/// The record of a finished step, for the closing table and the build report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepRecord {
    /// The step's name.
    pub name: String,
    /// Its start, seconds since the work began.
    pub start: f64,
    /// Its duration, seconds.
    pub seconds: f64,
    /// Size of its product in bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes: Option<u64>,
    /// Its outcome.
    pub outcome: Outcome,
}

/// Shows and records the steps of one piece of work. Clones share display and record.
#[derive(Clone, Debug)]
pub struct Progress(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    show: Show,
    began: Instant,
    records: Mutex<Vec<StepRecord>>,
    /// The products of which [`Progress::step_once`] has begun the step.
    once: Mutex<BTreeSet<String>>,
    /// How many records are of images before the one that is built now.
    before: AtomicUsize,
}

#[derive(Debug)]
enum Show {
    Bars(MultiProgress),
    Plain,
    Json,
    Nothing,
}

impl Progress {
    /// Begins a piece of work; the closing table's total time starts here.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        let show = match kind {
            Kind::Auto if std::io::stderr().is_terminal() => {
                Show::Bars(MultiProgress::with_draw_target(ProgressDrawTarget::stderr()))
            }
            Kind::Auto | Kind::Plain => Show::Plain,
            Kind::Json => Show::Json,
            Kind::Quiet => Show::Nothing,
        };
        Self(Arc::new(Inner {
            show,
            began: Instant::now(),
            records: Mutex::default(),
            once: Mutex::default(),
            before: AtomicUsize::new(0),
        }))
    }

    /// Begins a step. It ends by [`Step::hit`] or [`Step::made`]; dropped without either, it failed. No two steps of an image have the
    /// same name: the table and the report would not tell which is which.
    #[must_use]
    pub fn step(&self, name: &str) -> Step {
        self.begin(name, true)
    }

    /// The same for a product that several others of an image ask for. `product` tells it from others; later steps of the same one are
    /// neither shown nor recorded.
    #[must_use]
    pub fn step_once(&self, name: &str, product: &str) -> Step {
        let mut once = self.0.once.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = once.insert(format!("{name} {product}"));
        drop(once);
        self.begin(name, is_first)
    }

    fn begin(&self, name: &str, is_shown: bool) -> Step {
        let bar = match &self.0.show {
            _ if !is_shown => None,
            Show::Bars(bars) => {
                let bar = bars.add(ProgressBar::new_spinner());
                bar.set_style(style("{spinner} {prefix:24} {elapsed:>4}  {msg}"));
                bar.set_prefix(name.to_owned());
                bar.enable_steady_tick(TICK);
                Some(bar)
            }
            Show::Plain => {
                self.line(&format!("{name} …"));
                None
            }
            Show::Json => {
                self.event(&serde_json::json!({"event": "begin", "step": name}));
                None
            }
            Show::Nothing => None,
        };
        Step {
            progress: self.clone(),
            name: name.to_owned(),
            began: Instant::now(),
            bar,
            total: AtomicU64::new(0),
            done: AtomicU64::new(0),
            said: Mutex::new(Instant::now()),
            is_shown,
            ended: false,
        }
    }

    /// Prints one line that is neither a result nor an error.
    pub fn say(&self, text: &str) {
        match &self.0.show {
            Show::Bars(bars) => {
                bars.println(text).ok();
            }
            Show::Plain => self.line(text),
            Show::Json => self.event(&serde_json::json!({"event": "say", "text": text})),
            Show::Nothing => {}
        }
    }

    /// Prints a warning, which `--quiet` does not hide.
    pub fn warn(&self, text: &str) {
        match &self.0.show {
            Show::Json => self.event(&serde_json::json!({"event": "warning", "text": text})),
            Show::Nothing => eprintln!("warning: {text}"),
            Show::Bars(_) | Show::Plain => self.say(&format!("warning: {text}")),
        }
    }

    /// Begins another image of the same run, as one of a recipe's variants: its steps have the names that the last one's had.
    pub fn begin_image(&self) {
        let mut once = self.0.once.lock().unwrap_or_else(PoisonError::into_inner);
        once.clear();
        self.0.before.store(self.records().len(), Ordering::Relaxed);
    }

    /// The ended steps of the image that is built now.
    #[must_use]
    pub fn of_image(&self) -> Vec<StepRecord> {
        self.records()
            .split_off(self.0.before.load(Ordering::Relaxed))
    }

    /// The ended steps, in the order in which they ended.
    #[must_use]
    pub fn records(&self) -> Vec<StepRecord> {
        self.0
            .records
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The closing table: each step with time, size and the origin of its product, then the total.
    #[must_use]
    pub fn table(&self) -> String {
        table(&self.records(), self.0.began.elapsed())
    }

    fn line(&self, text: &str) {
        writeln!(std::io::stderr().lock(), "{text}").ok();
    }

    fn event(&self, value: &serde_json::Value) {
        self.line(&value.to_string());
    }
}

/// A running step. Shared by reference between its worker threads.
#[derive(Debug)]
pub struct Step {
    progress: Progress,
    name: String,
    began: Instant,
    bar: Option<ProgressBar>,
    total: AtomicU64,
    done: AtomicU64,
    said: Mutex<Instant>,
    /// Whether it is shown and recorded.
    is_shown: bool,
    ended: bool,
}

impl Step {
    /// Sets the total number of bytes.
    pub fn total(&self, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
        if let Some(bar) = &self.bar {
            bar.set_length(bytes);
            bar.set_style(style(
                "{spinner} {prefix:24} {elapsed:>4}  {bar:30} {bytes}/{total_bytes} {msg}",
            ));
        }
    }

    /// Adds bytes that are done.
    pub fn advance(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        } else if self.may_speak() {
            let total = self.total.load(Ordering::Relaxed);
            match &self.progress.0.show {
                Show::Plain if total > 0 => self.progress.line(&format!(
                    "{}: {} of {}",
                    self.name,
                    self::bytes(done),
                    self::bytes(total)
                )),
                Show::Plain => self
                    .progress
                    .line(&format!("{}: {}", self.name, self::bytes(done))),
                Show::Json => self.progress.event(&serde_json::json!({
                    "event": "advance", "step": self.name, "bytes": done, "total": total,
                })),
                Show::Bars(_) | Show::Nothing => {}
            }
        }
    }

    /// Sets the text for the step's current activity.
    pub fn note(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.to_owned());
        } else if self.may_speak() {
            self.print(text);
        }
    }

    /// Sets the text for what the step waits for, or why it goes another way: a note that is not left out for coming soon after the
    /// step's begin or another one. The caller gives each text once.
    pub fn reason(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.to_owned());
        } else if self.is_shown {
            self.print(text);
        }
    }

    fn print(&self, text: &str) {
        match &self.progress.0.show {
            Show::Plain => self.progress.line(&format!("{}: {text}", self.name)),
            Show::Json => self
                .progress
                .event(&serde_json::json!({"event": "note", "step": self.name, "text": text})),
            Show::Bars(_) | Show::Nothing => {}
        }
    }

    /// Ends the step: its product was in the cache.
    pub fn hit(mut self, bytes: Option<u64>) {
        self.end(Outcome::Hit, bytes);
    }

    /// Ends the step: its product was made.
    pub fn made(mut self, bytes: Option<u64>) {
        self.end(Outcome::Made, bytes);
    }

    /// Ends the step: its product was in the cache (`hit`) or was made.
    pub fn done(self, hit: bool, bytes: Option<u64>) {
        if hit {
            self.hit(bytes)
        } else {
            self.made(bytes)
        }
    }

    fn may_speak(&self) -> bool {
        if !self.is_shown {
            return false;
        }
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let due = said.elapsed() >= PLAIN_EVERY;
        if due {
            *said = Instant::now();
        }
        due
    }

    fn end(&mut self, outcome: Outcome, size: Option<u64>) {
        self.ended = true;
        if !self.is_shown {
            return;
        }
        let took = self.began.elapsed();
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let inner = &self.progress.0;
        let mut text = format!("{}: {} in {}", self.name, word(outcome), seconds(took));
        if let Some(size) = size {
            write!(text, ", {}", bytes(size)).ok();
        }
        match &inner.show {
            Show::Bars(bars) => {
                bars.println(&text).ok();
            }
            Show::Plain => self.progress.line(&text),
            Show::Json => self.progress.event(&serde_json::json!({
                "event": "end", "step": self.name, "outcome": outcome,
                "seconds": took.as_secs_f64(), "bytes": size,
            })),
            Show::Nothing => {}
        }
        inner
            .records
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(StepRecord {
                name: self.name.clone(),
                start: (self.began - inner.began).as_secs_f64(),
                seconds: took.as_secs_f64(),
                bytes: size,
                outcome,
            });
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if !self.ended {
            self.end(Outcome::Failed, None);
        }
    }
}

const fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Hit => "unchanged",
        Outcome::Made => "made",
        Outcome::Failed => "failed",
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

fn table(records: &[StepRecord], took: Duration) -> String {
    let width = records
        .iter()
        .map(|record| record.name.chars().count())
        .max()
        .unwrap_or(0)
        .max("step".len());
    let mut out = format!("{:width$}  {:>9}  {:>9}  product\n", "step", "time", "size");
    for record in records {
        let size = record.bytes.map(bytes).unwrap_or_default();
        let time = seconds(Duration::from_secs_f64(record.seconds));
        let outcome = word(record.outcome);
        writeln!(
            out,
            "{:width$}  {time:>9}  {size:>9}  {outcome}",
            record.name
        )
        .ok();
    }
    let hits = records
        .iter()
        .filter(|record| record.outcome == Outcome::Hit)
        .count();
    writeln!(
        out,
        "{} in all; {hits} of {} steps unchanged",
        seconds(took),
        records.len()
    )
    .ok();
    out
}

/// A size for people: three significant digits in binary units, as `12.3 MiB`.
#[must_use]
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    // Tenths of the next smaller unit, as integers, so that rounding happens once.
    let (mut tenths, mut unit) = (u128::from(count) * 10 / 1024, 0);
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    if tenths >= 1000 {
        format!("{} {}", tenths / 10, UNITS[unit])
    } else {
        format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
    }
}

/// A duration for people: `12 ms`, `3.4 s`, `2 min 05 s`.
#[must_use]
pub fn seconds(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    match milliseconds {
        0..1000 => format!("{milliseconds} ms"),
        1000..60_000 => format!("{:.1} s", duration.as_secs_f64()),
        _ => format!(
            "{} min {:02} s",
            duration.as_secs() / 60,
            duration.as_secs() % 60
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (102_400, "100 KiB"),
            (5 << 20, "5.0 MiB"),
            (2 << 30, "2.0 GiB"),
            (u64::MAX, "16777215 TiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn times_read_well() {
        for (milliseconds, text) in [(3, "3 ms"), (1234, "1.2 s"), (125_000, "2 min 05 s")] {
            assert_eq!(seconds(Duration::from_millis(milliseconds)), text);
        }
    }

    #[test]
    fn a_product_that_is_asked_for_again_has_one_step() {
        let progress = Progress::new(Kind::Quiet);
        for (product, bytes) in [("a", 1), ("a", 2), ("b", 3)] {
            progress.step_once("tools", product).made(Some(bytes));
        }
        let bytes = |records: Vec<StepRecord>| -> Vec<_> {
            records.into_iter().map(|record| record.bytes).collect()
        };
        assert_eq!(bytes(progress.records()), [Some(1), Some(3)]);
        assert_eq!(progress.of_image(), progress.records());
        progress.begin_image();
        progress.step_once("tools", "a").made(Some(4));
        assert_eq!(bytes(progress.of_image()), [Some(4)]);
        assert_eq!(progress.records().len(), 3);
    }

    /// Where a step has the name that a caller gives; each caller gives another one.
    const NAMED_BY_CALLERS: &[&str] = &[
        // Artifacts, by their kinds.
        "src/artifact.rs",
        "src/install/again.rs",
        "src/install/rootfs.rs",
        "src/install/tools.rs",
        // Programs, by their own names.
        "src/lock/kubelet.rs",
        "src/lock/kubelet/packages.rs",
        "src/vm/demo.rs",
    ];

    #[test]
    fn no_two_steps_have_the_same_name() {
        let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut found: Vec<(String, String)> = Vec::new();
        for item in crate::host::tree::walk(&source.join("src")).unwrap() {
            let name = format!("src{}", item.inside);
            if !name.ends_with(".rs") || name.contains("tests") {
                continue;
            }
            let text = std::fs::read_to_string(&item.path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let code: String = code.split_whitespace().collect::<Vec<_>>().join(" ");
            let code = code.replace("progress .", "progress.");
            for call in code.split("progress.step").skip(1) {
                let arguments = call.trim_start_matches("_once").trim_start();
                let Some(argument) = arguments.strip_prefix('(') else {
                    continue;
                };
                let argument = argument.split(';').next().unwrap_or_default();
                // Without what is done to the step at once.
                let argument = argument.split(").").next().unwrap_or_default();
                let argument = argument.trim_end_matches(')').to_owned();
                let is_fixed =
                    argument.contains('"') || argument.chars().all(|c| c == c.to_ascii_uppercase());
                if is_fixed || !NAMED_BY_CALLERS.contains(&name.as_str()) {
                    found.push((argument, name.clone()));
                }
            }
        }
        assert!(found.len() > 20, "{found:?}");
        found.sort();
        for two in found.windows(2) {
            assert_ne!(two[0].0, two[1].0, "{two:?}");
        }
        let bare =
            |(argument, _): &&(String, String)| !argument.contains('"') && argument != "PUBLISH";
        let bare: Vec<_> = found.iter().filter(bare).collect();
        assert!(bare.is_empty(), "names that callers give: {bare:?}");
    }

    #[test]
    fn a_step_that_is_dropped_has_failed() {
        let progress = Progress::new(Kind::Quiet);
        progress.step("one").made(Some(2048));
        progress.step("two").hit(None);
        drop(progress.step("three"));
        let outcomes: Vec<_> = progress.records().iter().map(|r| r.outcome).collect();
        assert_eq!(outcomes, [Outcome::Made, Outcome::Hit, Outcome::Failed]);
        let table = progress.table();
        assert!(table.contains("2.0 KiB  made"), "{table}");
        assert!(table.contains("1 of 3 steps unchanged"), "{table}");
    }
}
