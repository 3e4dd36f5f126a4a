//! How each addon came out: for the console, for the list, and as JSON.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use cluster::manifests::record::Record;
use cluster::manifests::{Addon, Addons, Refused, Source};
use image::paths::RUN_ADDON_STATES;
use linux::world::World;
use serde::{Deserialize, Serialize};

/// How an addon came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    /// Its objects are applied, and ready if it is waited for.
    Applied,
    /// Its objects are applied, and not ready.
    Waiting,
    /// Its objects, or some of them, are not applied; they may be later.
    NotApplied,
    /// It is not for this version of Kubernetes.
    OutOfRange,
    /// Its files have mistakes, or the API server refuses an object for good.
    Refused,
    /// A newer image or another node's config has it.
    Kept,
    /// The API server cannot be asked.
    Unknown,
}

impl State {
    /// The word for it.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Waiting => "waiting",
            Self::NotApplied => "not applied",
            Self::OutOfRange => "out of range",
            Self::Refused => "refused",
            Self::Kept => "kept",
            Self::Unknown => "unknown",
        }
    }
}

/// An addon and how it came out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Outcome {
    pub(crate) name: String,
    pub(crate) source: Source,
    /// None of an addon with mistakes.
    pub(crate) hash: Option<String>,
    /// The versions of Kubernetes that it is for; all without it.
    pub(crate) kubernetes: Option<String>,
    pub(crate) state: State,
    pub(crate) reason: Option<String>,
}

/// A state with its reason.
pub(crate) type Found = (State, Option<String>);

impl Outcome {
    /// Of a valid addon.
    pub(crate) fn new(addon: &Addon, (state, reason): Found) -> Self {
        Self {
            name: addon.name.clone(),
            source: addon.source,
            hash: Some(addon.hash.clone()),
            kubernetes: addon.settings.kubernetes.as_ref().map(ToString::to_string),
            state,
            reason,
        }
    }

    /// Of one with mistakes.
    pub(crate) fn refused(refused: &Refused) -> Self {
        Self {
            name: refused.name.clone(),
            source: refused.source,
            hash: None,
            kubernetes: None,
            state: State::Refused,
            reason: Some(refused.to_string()),
        }
    }

    /// Of one that this node does not have.
    pub(crate) fn gone(record: &Record, state: State, reason: String) -> Self {
        Self {
            name: record.addon.clone(),
            source: record.source,
            hash: Some(record.hash.clone()),
            kubernetes: None,
            state,
            reason: Some(reason),
        }
    }

    /// The line on the console of one that is not applied.
    pub(crate) fn line(&self) -> String {
        let reason = self.reason.as_deref().unwrap_or_default();
        format!("addon {} is {}: {reason}", self.name, self.state.word())
    }
}

/// The valid addons with their states, and all others, by name.
pub(crate) fn outcomes(
    addons: &Addons,
    states: &BTreeMap<String, Found>,
    gone: Vec<Outcome>,
) -> Vec<Outcome> {
    let valid = addons.valid.iter().filter_map(|addon| {
        let found = states.get(&addon.name)?;
        Some(Outcome::new(addon, found.clone()))
    });
    let refused = addons.refused.iter().map(Outcome::refused);
    let mut all: Vec<Outcome> = valid.chain(refused).chain(gone).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// Keeps the outcomes for the list, until the next boot.
///
/// # Errors
/// If they cannot be written.
pub(crate) fn keep(world: &World, outcomes: &[Outcome]) -> Result<()> {
    let file = world.in_run(RUN_ADDON_STATES);
    let text = serde_json::to_vec_pretty(outcomes).context("writing the addons as JSON")?;
    fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
}

/// Why an addon was not applied when it was tried last, if this boot knows.
pub(crate) fn last_reason(world: &World, name: &str, hash: &str) -> Option<(State, String)> {
    let text = fs::read(world.in_run(RUN_ADDON_STATES)).ok()?;
    let outcomes: Vec<Outcome> = serde_json::from_slice(&text).ok()?;
    let same = |outcome: &Outcome| outcome.name == name && outcome.hash.as_deref() == Some(hash);
    let outcome = outcomes.into_iter().find(same)?;
    let failed = matches!(outcome.state, State::NotApplied | State::Refused);
    failed.then_some((outcome.state, outcome.reason?))
}
