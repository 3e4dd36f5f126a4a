//! The build's steps over time: a row each, a bar from its start to its end.

use std::time::Duration;

use super::escape;
use crate::host::progress::{Outcome, StepRecord, bytes, seconds};

/// The table of the steps.
pub(super) fn html(steps: &[StepRecord]) -> String {
    let end = steps.iter().map(|step| step.start + step.seconds);
    let all = end.fold(0.001, f64::max);
    let mut sorted: Vec<&StepRecord> = steps.iter().collect();
    sorted.sort_by(|a, b| a.start.total_cmp(&b.start));
    let mut out = format!(
        "<p>{} in all, until this page was written.</p>\n<div class=\"steps\">\n",
        seconds(Duration::from_secs_f64(all))
    );
    for step in sorted {
        let class = match step.outcome {
            Outcome::Hit => "hit",
            Outcome::Made => "made",
            Outcome::Failed => "failed",
        };
        let said = match step.outcome {
            Outcome::Hit => "unchanged".to_owned(),
            Outcome::Made => seconds(Duration::from_secs_f64(step.seconds)),
            Outcome::Failed => "failed".to_owned(),
        };
        let size = step.bytes.map_or_else(String::new, bytes);
        out += &format!(
            "<div class=\"step {class}\"><b>{}</b><span class=\"track\"><span style=\"left:{:.2}%;width:{:.2}%\"></span></span><span class=\"n\">{said}</span><span class=\"n\">{size}</span></div>\n",
            escape(&step.name),
            step.start * 100.0 / all,
            (step.seconds * 100.0 / all).max(0.15),
        );
    }
    out + "</div>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_stand_where_the_steps_were() {
        let step = |name: &str, start, seconds, outcome| StepRecord {
            name: name.into(),
            start,
            seconds,
            bytes: None,
            outcome,
        };
        let html = html(&[
            step("late", 6.0, 4.0, Outcome::Made),
            step("early", 0.0, 5.0, Outcome::Hit),
        ]);
        assert!(html.contains("left:60.00%;width:40.00%"), "{html}");
        assert!(html.find("early").unwrap() < html.find("late").unwrap());
        assert!(
            html.contains("unchanged") && html.contains("10.0 s in all"),
            "{html}"
        );
    }

    #[test]
    fn no_step_is_no_fault() {
        assert!(html(&[]).contains("class=\"steps\""));
    }
}
