//! The page of a run, `docs/conformance.md`, and the same for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use crate::report::{Outcome, Verdict};

/// What ran where.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct About {
    /// Release of Kubernetes and of its tests.
    pub release: String,
    /// The tested cluster.
    pub cluster: String,
    /// The machine.
    pub machine: String,
    /// The day, as `2026-11-24`.
    pub date: String,
    /// How many specs of the programme the release has.
    pub known: usize,
    /// How many ran at once.
    pub processes: usize,
    /// How long all took.
    #[serde(skip)]
    pub took: Duration,
}

/// Counts of verdicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
    not_run: usize,
}

impl Counts {
    /// The verdicts of these outcomes.
    pub fn of<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> Self {
        let mut counts = Self::default();
        for outcome in outcomes {
            match outcome.verdict {
                Verdict::Passed => counts.passed += 1,
                Verdict::Failed => counts.failed += 1,
                Verdict::Skipped => counts.skipped += 1,
                Verdict::NotRun => counts.not_run += 1,
            }
        }
        counts
    }

    /// Whether nothing failed and everything ran. A spec that skips itself says why on the page.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.failed == 0 && self.not_run == 0
    }

    /// In one line.
    #[must_use]
    pub fn line(self) -> String {
        let Self {
            passed,
            failed,
            skipped,
            not_run,
        } = self;
        format!("{passed} passed, {failed} failed, {skipped} skipped, {not_run} not run")
    }
}

/// The page.
///
/// # Errors
/// None that a string gives.
pub fn markdown(about: &About, outcomes: &[Outcome]) -> Result<String> {
    let mut page = String::new();
    write(&mut page, about, outcomes)?;
    Ok(page)
}

fn write(page: &mut String, about: &About, outcomes: &[Outcome]) -> Result<()> {
    let counts = Counts::of(outcomes);
    let About {
        release,
        cluster,
        machine,
        date,
        known,
        processes,
        took,
    } = about;
    writeln!(page, "# Kubernetes' conformance tests\n")?;
    writeln!(
        page,
        "`just conformance` compiles the tests of the release from its Go modules, makes their container images of Debian packages\n\
         and Go programs, runs the specs of the conformance programme against nodes of [`cluster.toml`](../recipes/cluster.toml) \
         without\nthe internet, and writes this page. `just conformance --only conformance/fifty.txt` runs CI's.\n"
    )?;
    writeln!(page, "| | |\n|---|---|")?;
    writeln!(
        page,
        "| Specs | {} of {known}: {} |",
        outcomes.len(),
        counts.line()
    )?;
    writeln!(page, "| Kubernetes | {release} |")?;
    writeln!(page, "| Cluster | {cluster} |")?;
    writeln!(page, "| Machine | {machine} |")?;
    writeln!(page, "| Date | {date} |")?;
    writeln!(
        page,
        "| Time | {} min, {processes} at once |",
        took.as_secs().div_ceil(60)
    )?;
    groups(page, outcomes)?;
    section(page, "Failed", outcomes, Verdict::Failed)?;
    section(page, "Skipped", outcomes, Verdict::Skipped)?;
    section(page, "Not run", outcomes, Verdict::NotRun)
}

/// The table by the special interest group that owns a spec.
fn groups(page: &mut String, outcomes: &[Outcome]) -> Result<()> {
    let mut groups: BTreeMap<&str, Vec<&Outcome>> = BTreeMap::new();
    for outcome in outcomes {
        groups
            .entry(group(&outcome.name))
            .or_default()
            .push(outcome);
    }
    writeln!(
        page,
        "\n| Group | Passed | Failed | Skipped | Not run |\n|---|---|---|---|---|"
    )?;
    for (group, outcomes) in groups {
        let Counts {
            passed,
            failed,
            skipped,
            not_run,
        } = Counts::of(outcomes);
        writeln!(
            page,
            "| {group} | {passed} | {failed} | {skipped} | {not_run} |"
        )?;
    }
    Ok(())
}

/// The owner of a spec: `sig-node` of `[sig-node] Pods …`.
fn group(name: &str) -> &str {
    let owner = name.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    owner.map_or(name, |(owner, _)| owner)
}

fn section(page: &mut String, title: &str, outcomes: &[Outcome], verdict: Verdict) -> Result<()> {
    let mut found = outcomes
        .iter()
        .filter(|outcome| outcome.verdict == verdict)
        .peekable();
    if found.peek().is_none() {
        return Ok(());
    }
    writeln!(page, "\n## {title}")?;
    for outcome in found {
        writeln!(page, "\n{}", outcome.name)?;
        if !outcome.text.is_empty() {
            writeln!(page, "\n```\n{}\n```", outcome.text.replace("```", "'''"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(name: &str, verdict: Verdict, text: &str) -> Outcome {
        Outcome {
            name: name.to_owned(),
            verdict,
            seconds: 1.0,
            text: text.to_owned(),
        }
    }

    #[test]
    fn the_page_names_what_did_not_pass() {
        let about = About {
            release: "v1.36.3".to_owned(),
            cluster: "one".to_owned(),
            machine: "two cores".to_owned(),
            date: "2026-11-24".to_owned(),
            known: 446,
            processes: 4,
            took: Duration::from_secs(61),
        };
        let outcomes = [
            outcome("[sig-node] Pods a", Verdict::Passed, ""),
            outcome("[sig-node] Pods b", Verdict::Failed, "timed out\n```"),
            outcome("[sig-apps] c", Verdict::Skipped, "needs two nodes"),
        ];
        let page = markdown(&about, &outcomes).unwrap();
        for part in [
            "| Specs | 3 of 446: 1 passed, 1 failed, 1 skipped, 0 not run |",
            "| Time | 2 min, 4 at once |",
            "| sig-node | 1 | 1 | 0 | 0 |",
            "## Failed\n\n[sig-node] Pods b\n\n```\ntimed out\n'''\n```",
            "## Skipped\n\n[sig-apps] c\n\n```\nneeds two nodes\n```",
        ] {
            assert!(page.contains(part), "{part}\n{page}");
        }
        assert!(!page.contains("## Not run"));
        assert!(!Counts::of(&outcomes).is_success());
        assert!(Counts::of(&outcomes[..1]).is_success());
        assert!(!Counts::of(&[outcome("d", Verdict::NotRun, "")]).is_success());
    }
}
