//! The fixed fifty.

use std::time::Duration;

use anyhow::{Result, ensure};
use conformance::page::Counts;
use conformance::prepared::{Beside, Limits, Prepared, Tested};
use conformance::report::Verdict;
use conformance::selection;
use namespace_tests::lab::Lab;
use slipway::host::progress::Kind;

/// The names, one a line.
const LIST: &str = include_str!("../../fifty.txt");
/// Under two minutes on two cores with other work beside it.
const LIMITS: Limits = Limits {
    processes: 8,
    time: Duration::from_secs(600),
};

/// Every one passes: a skip would be a spec that this cluster cannot run.
pub(crate) fn conformance_specs_of_all_kinds_pass(lab: &mut Lab) -> Result<()> {
    // Much of the tests is Kubernetes' own code, which the image's build may just have compiled.
    let session = lab.session().beside(Kind::Plain)?;
    let prepared = Prepared::new(&session)?;
    let specs = prepared.specs(Some(&selection::read(LIST)))?;
    let Tested { outcomes, .. } = prepared.test_nodes(lab, Beside::Nothing, &specs, LIMITS)?;
    let failed = outcomes
        .iter()
        .filter(|outcome| outcome.verdict != Verdict::Passed);
    let failed: Vec<String> = failed
        .map(|outcome| format!("{}\n{}", outcome.name, outcome.text))
        .collect();
    ensure!(
        failed.is_empty() && outcomes.len() == specs.chosen.len(),
        "{}; the log is in {}\n{}",
        Counts::of(&outcomes).line(),
        prepared.reports().display(),
        failed.join("\n")
    );
    Ok(())
}
