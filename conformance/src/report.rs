//! Ginkgo's JSON report: which specs there are, and how each one ended.
//!
//! Format: <https://pkg.go.dev/github.com/onsi/ginkgo/v2/types#Report>.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// Lines of a failure that are kept: the rest are the spec's log.
const FIRST_LINES: usize = 12;
/// Characters of each of them; some print whole objects.
const LINE: usize = 300;

/// How a spec ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It passed.
    Passed,
    /// It failed, panicked, took too long or was interrupted.
    Failed,
    /// It skipped itself, with a reason.
    Skipped,
    /// The run ended before it.
    NotRun,
}

/// A spec after the run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Its full name.
    pub name: String,
    /// How it ended.
    pub verdict: Verdict,
    /// How long it took.
    pub seconds: f64,
    /// The first lines of the failure, or the reason of the skip.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    #[serde(default)]
    spec_reports: Option<Vec<Spec>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Spec {
    #[serde(default)]
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    /// Nanoseconds.
    #[serde(default)]
    run_time: i64,
    #[serde(default)]
    failure: Option<Failure>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    #[serde(default)]
    message: String,
    #[serde(default)]
    location: Location,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Location {
    #[serde(default)]
    file_name: String,
    #[serde(default)]
    line_number: u32,
}

impl Spec {
    fn name(&self) -> String {
        let texts = self.container_hierarchy_texts.iter().flatten();
        let texts: Vec<&str> = texts
            .chain([&self.leaf_node_text])
            .map(String::as_str)
            .collect();
        texts.join(" ")
    }

    fn verdict(&self) -> Verdict {
        match (self.state.as_str(), &self.failure) {
            ("passed", _) => Verdict::Passed,
            ("skipped", Some(failure)) if !failure.message.is_empty() => Verdict::Skipped,
            ("skipped" | "pending", _) => Verdict::NotRun,
            _ => Verdict::Failed,
        }
    }

    fn text(&self) -> String {
        let Some(failure) = &self.failure else {
            return String::new();
        };
        let mut text = shorten(&failure.message);
        if self.verdict() == Verdict::Failed && !failure.location.file_name.is_empty() {
            let Location {
                file_name,
                line_number,
            } = &failure.location;
            text.push_str(&format!("\n({file_name}:{line_number})"));
        }
        text
    }
}

/// The first lines of a message, without colours.
fn shorten(message: &str) -> String {
    let lines = message.lines().filter(|line| !line.trim().is_empty());
    let lines = lines
        .take(FIRST_LINES)
        .map(|line| match line.char_indices().nth(LINE) {
            Some((end, _)) => format!("{}…", &line[..end]),
            None => line.to_owned(),
        });
    lines.collect::<Vec<_>>().join("\n")
}

fn parse(json: &[u8]) -> Result<Vec<Spec>> {
    let suites: Vec<Suite> = serde_json::from_slice(json).context("reading Ginkgo's report")?;
    Ok(suites
        .into_iter()
        .flat_map(|suite| suite.spec_reports.unwrap_or_default())
        .collect())
}

/// The names of the specs that a dry run has selected, sorted.
///
/// # Errors
/// If this is not Ginkgo's report, or it selects nothing.
pub fn selected(json: &[u8]) -> Result<Vec<String>> {
    let specs = parse(json)?.into_iter();
    let its = specs.filter(|spec| spec.leaf_node_type == "It" && spec.state == "passed");
    let mut names: Vec<String> = its.map(|spec| spec.name()).collect();
    names.sort();
    ensure!(!names.is_empty(), "the dry run has selected no specs");
    Ok(names)
}

/// How each of these specs ended, in their order, and the failures of the suite itself: what runs before and after all specs.
///
/// # Errors
/// If this is not Ginkgo's report.
pub fn outcomes(json: &[u8], names: &[String]) -> Result<Vec<Outcome>> {
    let specs = parse(json)?;
    let (its, others): (Vec<_>, Vec<_>) =
        specs.iter().partition(|spec| spec.leaf_node_type == "It");
    let by_name: BTreeMap<String, &Spec> = its.iter().map(|spec| (spec.name(), *spec)).collect();
    let mut outcomes: Vec<Outcome> = names
        .iter()
        .map(|name| match by_name.get(name) {
            Some(spec) => outcome(name.clone(), spec),
            None => not_run(name),
        })
        .collect();
    let broken = others
        .iter()
        .filter(|spec| spec.verdict() == Verdict::Failed);
    outcomes.extend(broken.map(|spec| outcome(spec.leaf_node_type.clone(), spec)));
    Ok(outcomes)
}

fn outcome(name: String, spec: &Spec) -> Outcome {
    let nanoseconds = std::time::Duration::from_nanos(spec.run_time.unsigned_abs());
    Outcome {
        name,
        verdict: spec.verdict(),
        seconds: nanoseconds.as_secs_f64(),
        text: spec.text(),
    }
}

/// A spec that no report has.
#[must_use]
pub fn not_run(name: &str) -> Outcome {
    Outcome {
        name: name.to_owned(),
        verdict: Verdict::NotRun,
        seconds: 0.0,
        text: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"[{"SuitePath": "/e2e", "SpecReports": [
        {"ContainerHierarchyTexts": null, "LeafNodeType": "SynchronizedBeforeSuite", "LeafNodeText": "",
         "State": "failed", "RunTime": 1, "Failure": {"Message": "no nodes", "Location": {"FileName": "e2e.go", "LineNumber": 7}}},
        {"ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeType": "It", "LeafNodeText": "a [Conformance]",
         "State": "passed", "RunTime": 1500000000},
        {"ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeType": "It", "LeafNodeText": "b [Conformance]",
         "State": "timedout", "RunTime": 0, "Failure": {"Message": "\nA spec timeout occurred\n\n", "Location": {}}},
        {"ContainerHierarchyTexts": [], "LeafNodeType": "It", "LeafNodeText": "c", "State": "skipped",
         "Failure": {"Message": "needs 2 nodes"}},
        {"ContainerHierarchyTexts": [], "LeafNodeType": "It", "LeafNodeText": "d", "State": "skipped"}]}]"#;

    #[test]
    fn every_wanted_spec_has_a_verdict() {
        let names = [
            "[sig-node] Pods a [Conformance]",
            "[sig-node] Pods b [Conformance]",
            "c",
            "d",
            "e",
        ];
        let outcomes = outcomes(REPORT.as_bytes(), &names.map(str::to_owned)).unwrap();
        let seen: Vec<_> = outcomes
            .iter()
            .map(|o| (o.name.as_str(), o.verdict, o.text.as_str()))
            .collect();
        assert_eq!(
            seen,
            [
                (names[0], Verdict::Passed, ""),
                (names[1], Verdict::Failed, "A spec timeout occurred"),
                ("c", Verdict::Skipped, "needs 2 nodes"),
                ("d", Verdict::NotRun, ""),
                ("e", Verdict::NotRun, ""),
                (
                    "SynchronizedBeforeSuite",
                    Verdict::Failed,
                    "no nodes\n(e2e.go:7)"
                ),
            ]
        );
        assert!((outcomes[0].seconds - 1.5).abs() < 1e-9);
    }

    #[test]
    fn a_dry_run_names_what_it_selects() {
        assert_eq!(
            selected(REPORT.as_bytes()).unwrap(),
            ["[sig-node] Pods a [Conformance]"]
        );
        assert!(selected(b"[]").is_err());
        assert!(selected(b"{").is_err());
    }

    #[test]
    fn long_failures_are_cut() {
        let message = format!("{}\n\n{}", "x".repeat(400), "y\n".repeat(20));
        let text = shorten(&message);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), FIRST_LINES);
        assert_eq!(lines[0].chars().count(), LINE + 1);
    }
}
