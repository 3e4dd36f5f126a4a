//! `addon.toml`: when an addon is applied, and how long it is waited for.

use std::time::Duration;

use super::range::Range;
use crate::duration;
use crate::report::{Position, Report};
use crate::source;
use crate::wording::nearest;
use crate::yaml::{Content, Node};

/// How long an addon is waited for where its settings say nothing.
const DEADLINE: Duration = Duration::from_secs(600);
/// The fields.
const FIELDS: [&str; 4] = ["kubernetes", "wait", "deadline", "depends"];

/// The settings of an addon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The versions of Kubernetes that it is for; all of them without this.
    pub kubernetes: Option<Range>,
    /// Whether it is waited for until it is ready.
    pub wait: bool,
    /// How long it is waited for.
    pub deadline: Duration,
    /// The addons that are applied, and ready, before it.
    pub depends: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            kubernetes: None,
            wait: true,
            deadline: DEADLINE,
            depends: Vec::new(),
        }
    }
}

/// Reads the settings, and the positions of the names in `depends`; every mistake is in the report.
pub(super) fn read(text: &str, report: &mut Report) -> (Settings, Vec<Position>) {
    let mut settings = Settings::default();
    let mut places = Vec::new();
    let Some(root) = source::read(text, report) else {
        return (settings, places);
    };
    let Content::Map(entries) = &root.content else {
        report.refuse_at("", root.at, "expected fields");
        return (settings, places);
    };
    for (name, node) in entries {
        match name.as_str() {
            "kubernetes" => settings.kubernetes = range(node, report),
            "wait" => match node.content {
                Content::Bool(wait) => settings.wait = wait,
                _ => report.refuse_at(name, node.at, "expected true or false"),
            },
            "deadline" => settings.deadline = deadline(node, report),
            "depends" => (settings.depends, places) = depends(node, report).into_iter().unzip(),
            _ => unknown(name, node, report),
        }
    }
    (settings, places)
}

fn unknown(name: &str, node: &Node, report: &mut Report) {
    let mut message = format!("unknown field; expected one of {}", FIELDS.join(", "));
    if let Some(near) = nearest(name, FIELDS.into_iter()) {
        message = format!("unknown field; did you mean {near}?");
    }
    report.refuse_at(name, node.at, message);
}

fn range(node: &Node, report: &mut Report) -> Option<Range> {
    let range = node.text().and_then(Range::parse);
    if range.is_none() {
        let message = format!("expected a range of versions: {}", Range::FORM);
        report.refuse_at("kubernetes", node.at, message);
    }
    range
}

fn deadline(node: &Node, report: &mut Report) -> Duration {
    let duration = node.text().and_then(duration::Duration::parse);
    let seconds = duration.map_or(0, duration::Duration::seconds);
    match u64::try_from(seconds) {
        Ok(seconds @ 1..) => Duration::from_secs(seconds),
        _ => {
            let message = "expected a duration of at least a second, as in \"10m\" or \"1m30s\"";
            report.refuse_at("deadline", node.at, message);
            DEADLINE
        }
    }
}

fn depends(node: &Node, report: &mut Report) -> Vec<(String, Position)> {
    let items = match &node.content {
        Content::List(items) => items.as_slice(),
        _ => {
            report.refuse_at("depends", node.at, "expected a list of names of addons");
            &[]
        }
    };
    let mut names = Vec::new();
    for item in items {
        match item.text() {
            Some(name) => names.push((name.to_owned(), item.at)),
            None => report.refuse_at("depends", item.at, "expected the name of an addon"),
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_read_and_the_defaults_are_to_wait_for_ten_minutes() {
        let mut report = Report::default();
        let text =
            "kubernetes = \">=1.34\"\nwait = false\ndeadline = \"1m30s\"\ndepends = [\"cni\"]\n";
        let (settings, places) = read(text, &mut report);
        assert!(report.mistakes.is_empty(), "{report:?}");
        assert_eq!(settings.kubernetes, Range::parse(">=1.34"));
        assert!(!settings.wait);
        assert_eq!(settings.deadline, Duration::from_secs(90));
        assert_eq!(settings.depends, ["cni"]);
        assert_eq!((places[0].line, places[0].column), (4, 12));
        let (default, _) = read("", &mut report);
        assert_eq!((default.wait, default.deadline.as_secs()), (true, 600));
    }

    #[test]
    fn all_mistakes_are_reported_at_once_with_their_positions() {
        let mut report = Report::default();
        let text = "kubernets = \">=1.34\"\nkubernetes = \"1.34\"\nwait = 1\ndeadline = \"0s\"\ndepends = \"cni\"\n";
        read(text, &mut report);
        let shown: Vec<String> = report.mistakes.iter().map(ToString::to_string).collect();
        assert_eq!(shown.len(), 5, "{shown:#?}");
        assert_eq!(
            shown[0],
            "kubernets: unknown field; did you mean kubernetes? (line 1, column 13)"
        );
        assert!(shown[1].ends_with("(line 2, column 14)"), "{}", shown[1]);
        assert!(shown[4].contains("expected a list"), "{}", shown[4]);
    }
}
