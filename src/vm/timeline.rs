//! Timelines of boots as a table and as a picture.

use std::fmt::Write;

use anyhow::{Error, Result, ensure};
use image::timeline::{CLUSTER, PODS, SYSTEMD, Span, parse};

/// Width of the picture in its own units.
const WIDTH: f64 = 980.0;
/// Left edge of the bars; the names are to the left of it.
const LEFT: f64 = 210.0;
/// Space on the right for the last bar's duration.
const RIGHT: f64 = 90.0;
/// Height of the title's band.
const TOP: f64 = 84.0;
/// Height of one row.
const ROW: f64 = 22.0;
/// Height of a bar within its row.
const BAR: f64 = 12.0;

/// The latest time of a boot, µs, and before zero the earliest one: 285 years, up to which [`float`] is exact.
const LATEST: i64 = 1 << 53;

/// Reads the JSON lines of `image::timeline`. Empty lines are skipped.
///
/// # Errors
/// Names the first line that does not parse, or the first step whose times are not of a boot.
pub fn read(text: &str) -> Result<Vec<Span>> {
    let spans = parse(text).map_err(Error::msg)?;
    for span in &spans {
        let (start, end) = (span.start, span.end.unwrap_or(span.start));
        let of_a_boot = -LATEST..=LATEST;
        ensure!(
            of_a_boot.contains(&start) && of_a_boot.contains(&end),
            "the timeline's step {:?} is from {start} to {end} µs; expected less than 285 years",
            span.name
        );
    }
    Ok(spans)
}

/// The spans in the order of their start; of two with the same start, the longer one first, since it encloses the
/// other.
fn sorted(spans: &[Span]) -> Vec<&Span> {
    let mut sorted: Vec<&Span> = spans.iter().collect();
    sorted.sort_by_key(|span| (span.start, -span.end.unwrap_or(span.start), &span.name));
    sorted
}

/// Rows of source, step, start, duration, and note. Times are seconds of the kernel's clock; times before the
/// kernel are negative.
#[must_use]
pub fn table(spans: &[Span]) -> String {
    let spans = sorted(spans);
    let name = |span: &Span| {
        format!(
            "{}{}",
            "  ".repeat(span.name.matches('.').count()),
            span.name
        )
    };
    let widest = spans.iter().map(|s| name(s).chars().count()).max();
    let wide = widest.unwrap_or(0).max(4);
    let mut out = format!(
        "{:<8}  {:<wide$}  {:>8}  {:>9}  note\n",
        "source", "step", "at", "took"
    );
    for span in spans {
        let took = span
            .end
            .map_or_else(String::new, |end| duration(end - span.start));
        let line = format!(
            "{:<8}  {:<wide$}  {:>8}  {took:>9}  {}",
            span.source,
            name(span),
            seconds(span.start),
            span.note.as_deref().unwrap_or(""),
        );
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Microseconds as `12.345`.
fn seconds(micros: i64) -> String {
    let sign = if micros < 0 { "-" } else { "" };
    let micros = micros.unsigned_abs();
    format!("{sign}{}.{:03}", micros / 1_000_000, micros / 1000 % 1000)
}

/// Microseconds in a suitable unit.
fn duration(micros: i64) -> String {
    match micros {
        0..=999 => format!("{micros} µs"),
        1_000..=99_999 => format!(
            "{:.1} ms",
            f64::from(u32::try_from(micros).unwrap_or(0)) / 1e3
        ),
        _ => format!("{} s", seconds(micros)),
    }
}

/// The fill of each source's bars: colours that colour-blind readers can distinguish (Okabe and Ito), on white and
/// black.
fn colour(source: &str) -> &'static str {
    match source {
        "firmware" => "#999999",
        "loader" => "#cc79a7",
        "kernel" => "#56b4e9",
        "init" => "#e69f00",
        SYSTEMD => "#009e73",
        CLUSTER => "#d55e00",
        PODS => "#0072b2",
        _ => "#999999",
    }
}

/// Colours are attributes, not a style sheet: viewers without CSS variables show the same picture, on a page of either
/// theme and in print.
const PAPER: &str = "#ffffff";
const INK: &str = "#1f2328";
const DIM: &str = "#656d76";
const FAINT: &str = "#d0d7de";
const BAND: &str = "#f6f8fa";

/// A picture: one row a step, time from left to right, a legend of the sources, tooltips with the notes.
#[must_use]
pub fn svg(spans: &[Span], title: &str) -> String {
    let spans = sorted(spans);
    let first = spans.iter().map(|s| s.start).min().unwrap_or(0).min(0);
    let last = spans.iter().map(|s| s.end.unwrap_or(s.start)).max();
    let last = last.unwrap_or(0).max(first + 1);
    let scale = (WIDTH - LEFT - RIGHT) / float(last - first);
    let x = |micros: i64| LEFT + float(micros - first) * scale;
    let height = TOP + ROW * float(i64::try_from(spans.len()).unwrap_or(0)) + 30.0;
    let mut out = String::new();
    // Writing to a String cannot fail.
    let mut put = |text: std::fmt::Arguments<'_>| out.write_fmt(text).unwrap_or_default();
    put(format_args!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\" role=\"img\">\n\
         <title>{}</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" rx=\"8\" fill=\"{PAPER}\"/>\n\
         <text x=\"16\" y=\"28\" fill=\"{INK}\" font-size=\"17\" font-weight=\"600\">{}</text>\n",
        escape(title),
        escape(title),
    ));
    put(format_args!("{}", legend(&spans)));
    put(format_args!("{}", axis(first, last, scale, height)));
    for (row, span) in (0_i32..).zip(&spans) {
        let top = TOP + ROW * f64::from(row);
        put(format_args!("{}", bar(span, row, top, &x)));
    }
    put(format_args!("</svg>\n"));
    out
}

/// Exact below 2^53 µs, which is 285 years.
#[allow(clippy::cast_precision_loss, reason = "boots do not last centuries")]
fn float(value: i64) -> f64 {
    value as f64
}

fn legend(spans: &[&Span]) -> String {
    let mut sources: Vec<&str> = Vec::new();
    for span in spans {
        if !sources.contains(&span.source.as_str()) {
            sources.push(&span.source);
        }
    }
    let mut out = String::new();
    let mut at = 16.0;
    for source in sources {
        let spent = outermost(spans, source);
        let text = format!("{source} {}", duration(spent));
        out += &format!(
            "<rect x=\"{at:.1}\" y=\"42\" width=\"11\" height=\"11\" rx=\"2\" fill=\"{}\"/><text x=\"{:.1}\" y=\"52\" fill=\"{INK}\">{}</text>\n",
            colour(source),
            at + 16.0,
            escape(&text)
        );
        at += 16.0 + 7.0 * float(i64::try_from(text.chars().count()).unwrap_or(0)) + 18.0;
    }
    out
}

/// From a source's first start to its last end, µs.
fn outermost(spans: &[&Span], source: &str) -> i64 {
    let own = || spans.iter().filter(|span| span.source == source);
    let first = own().map(|s| s.start).min().unwrap_or(0);
    own().map(|s| s.end.unwrap_or(s.start)).max().unwrap_or(0) - first
}

fn axis(first: i64, last: i64, scale: f64, height: f64) -> String {
    // The smallest of 1, 2, 5 × 10^n microseconds that gives at most ten lines.
    let step = (0..13)
        .flat_map(|power| [1, 2, 5].map(|digit| digit * 10_i64.pow(power)))
        .find(|step| (last - first) / step <= 10)
        .unwrap_or(i64::MAX);
    let mut out = String::new();
    let mut tick = first.div_euclid(step) * step;
    if tick < first {
        tick += step;
    }
    while tick <= last {
        let x = LEFT + float(tick - first) * scale;
        let label = if step >= 100_000 {
            format!("{:.1} s", float(tick) / 1e6)
        } else {
            format!("{} ms", tick / 1000)
        };
        out += &format!(
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"{FAINT}\"/><text fill=\"{DIM}\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"11\">{label}</text>\n",
            height - 26.0,
            height - 10.0
        );
        tick += step;
    }
    out
}

fn bar(span: &Span, row: i32, top: f64, x: &dyn Fn(i64) -> f64) -> String {
    let (begin, middle) = (x(span.start), top + ROW / 2.0);
    let mut out = String::new();
    if row % 2 == 0 {
        out += &format!(
            "<rect x=\"8\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{ROW}\" fill=\"{BAND}\"/>\n",
            WIDTH - 16.0
        );
    }
    let depth = span.name.matches('.').count();
    let short = span.name.rsplit('.').next().unwrap_or(&span.name);
    let indent = 16.0 + 12.0 * float(i64::try_from(depth).unwrap_or(0));
    out += &format!(
        "<text x=\"{indent:.1}\" y=\"{:.1}\" fill=\"{}\">{}</text>\n",
        middle + 4.0,
        if depth > 0 { DIM } else { INK },
        escape(short)
    );
    let tip = match &span.note {
        Some(note) => format!("{}: {note}", span.name),
        None => span.name.clone(),
    };
    let fill = colour(&span.source);
    match span.end {
        Some(end) => {
            let width = (x(end) - begin).max(1.5);
            out += &format!(
                "<rect x=\"{begin:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{BAR}\" rx=\"2.5\" fill=\"{fill}\"{}><title>{}</title></rect>\
                 <text fill=\"{DIM}\" x=\"{:.1}\" y=\"{:.1}\" font-size=\"11\">{}</text>\n",
                middle - BAR / 2.0,
                if depth > 0 { " opacity=\".75\"" } else { "" },
                escape(&tip),
                begin + width + 5.0,
                middle + 4.0,
                duration(end - span.start)
            );
        }
        None => {
            out += &format!(
                "<path d=\"M{begin:.1} {:.1} l5 6 l-5 6 l-5 -6 z\" fill=\"{fill}\"><title>{}</title></path>\
                 <text fill=\"{DIM}\" x=\"{:.1}\" y=\"{:.1}\" font-size=\"11\">{} s</text>\n",
                middle - 6.0,
                escape(&tip),
                begin + 9.0,
                middle + 4.0,
                seconds(span.start)
            );
        }
    }
    out
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans() -> Vec<Span> {
        let lines = r#"
{"source":"init","name":"root","start":1700000,"end":1990000,"note":"vda2 <ro>"}
{"source":"init","name":"root.verity","start":1700000,"end":1760000}
{"source":"kernel","name":"kernel","start":0,"end":1500000}
{"source":"firmware","name":"firmware","start":-6000000,"end":0}
{"source":"init","name":"handoff","start":2600000}
"#;
        read(lines).unwrap()
    }

    #[test]
    fn the_table_is_in_order_of_time() {
        let table = table(&spans());
        let steps: Vec<&str> = table
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().nth(1).unwrap())
            .collect();
        assert_eq!(
            steps,
            ["firmware", "kernel", "root", "root.verity", "handoff"]
        );
        assert!(table.contains("  -6.000    6.000 s"), "{table}");
        assert!(table.contains("60.0 ms"), "{table}");
    }

    #[test]
    fn the_picture_has_a_mark_for_each_step() {
        let svg = svg(&spans(), "demo & more");
        assert!(svg.contains("demo &amp; more"));
        assert!(svg.contains("root: vda2 &lt;ro&gt;"));
        assert_eq!(svg.matches("rx=\"2.5\"").count(), 4);
        assert_eq!(svg.matches("<path").count(), 1);
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        // Every text has a colour attribute, which viewers without style sheets show.
        assert!(!svg.contains("<style") && !svg.contains("var("));
        assert!(svg.split("<text ").skip(1).all(|text| {
            text.split('>')
                .next()
                .is_some_and(|tag| tag.contains("fill="))
        }));
    }

    #[test]
    fn nothing_is_a_picture_too() {
        assert!(svg(&[], "empty").ends_with("</svg>\n"));
    }

    /// Sums of such times overflow, and a picture of them has lines without end.
    #[test]
    fn a_step_whose_times_are_not_of_a_boot_is_named() {
        let with = |start: i64, end: i64| {
            let span = format!(
                "{{\"source\":\"init\",\"name\":\"root\",\"start\":{start},\"end\":{end}}}"
            );
            read(&span)
        };
        for (start, end) in [(0, i64::MAX), (i64::MIN, 0)] {
            let error = with(start, end).unwrap_err().to_string();
            let expected = format!("the timeline's step \"root\" is from {start} to {end} µs");
            assert!(error.starts_with(&expected), "{error}");
        }
        let widest = with(-LATEST, LATEST).unwrap();
        assert!(svg(&widest, "wide").ends_with("</svg>\n"));
        assert!(table(&widest).contains("root"));
    }

    #[test]
    fn a_line_that_is_no_span_is_named() {
        let error = read("\n{}\n").unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
    }
}
