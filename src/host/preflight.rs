//! Preflight: what a build asks of this host, tried before anything is fetched. `doctor` shows the same findings.

mod distribution;
mod facts;
mod finding;
mod namespaces;
pub mod network;
mod storage;

use std::fmt;
use std::path::Path;

use anyhow::Result;

use super::cache::Cache;

pub use finding::{Finding, State};
pub use storage::Need;

/// The error of a host that cannot build: all required resources that are missing.
#[derive(Clone, Debug)]
pub struct Refusal(Vec<Finding>);

impl Refusal {
    /// What is missing.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.0
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this host cannot build yet; `slipway doctor` shows all that it lacks")?;
        write_lines(f, &self.0)
    }
}

fn write_lines(f: &mut fmt::Formatter<'_>, findings: &[Finding]) -> fmt::Result {
    for finding in findings {
        write!(f, "\n  {}: {}", finding.name, finding.found)?;
        if let Some(remedy) = &finding.remedy {
            write!(f, "\n    → {remedy}")?;
        }
    }
    Ok(())
}

/// The error of work that needs more space than there is: the folders that have too little.
#[derive(Clone, Debug)]
pub struct NoSpace(Vec<Finding>);

impl fmt::Display for NoSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is not enough space for this build")?;
        write_lines(f, &self.0)
    }
}

impl std::error::Error for NoSpace {}

/// Refuses work for which folders have too little space.
///
/// # Errors
/// Names each of them with what is free, what is needed and what to do.
pub fn require_space(needs: &[Need<'_>]) -> Result<(), NoSpace> {
    let found = storage::space(needs);
    match found.is_empty() {
        true => Ok(()),
        false => Err(NoSpace(found)),
    }
}

impl std::error::Error for Refusal {}

/// Makes an ordinary user root of a user namespace. Has no effect for root. Call it before any thread is started.
///
/// # Errors
/// If the host forbids it: the reasons, with their remedies.
pub fn enter() -> Result<(), Refusal> {
    namespaces::enter().map_err(Refusal)
}

/// All findings: namespaces, unless entering them was refused, the cache, the output folder of a build, and the variables of
/// the network.
#[must_use]
pub fn examine(
    entered: Result<(), Refusal>,
    cache: &Result<Cache>,
    output: Option<&Path>,
) -> Vec<Finding> {
    let mut all = match entered {
        Ok(()) => namespaces::probe(),
        Err(refusal) => refusal.0,
    };
    // Without namespaces the cache is another user's: its files would be tried as nobody.
    if all.iter().all(|finding| !finding.is_fatal()) {
        all.push(match cache {
            Ok(cache) => storage::cache(cache),
            Err(error) => storage::no_cache(error),
        });
    }
    all.extend(output.and_then(storage::output));
    all.extend(network::variables());
    all
}

/// Refuses a host that cannot build.
///
/// # Errors
/// All required resources that are missing, each with its remedy.
pub fn require(cache: &Result<Cache>, output: Option<&Path>) -> Result<(), Refusal> {
    let mut all = examine(Ok(()), cache, output);
    all.retain(Finding::is_fatal);
    match all.is_empty() {
        true => Ok(()),
        false => Err(Refusal(all)),
    }
}
