//! The three layers of a node's config, each merged over the one before: the image's, the machine's metadata, the user's.

use anyhow::Result;
use apply::config_source::ConfigSource;
use apply::fetched::{Fetched, Sources};
use apply::gather::{ConfigProblems, Gather};
use ignition::Config;
use platform::fragment;
use platform::metadata::Metadata;
use platform::problem::Problem;
use platform::provider::Provider;

use super::source::User;

/// Converts a platform's problem to a problem of the config.
pub(super) fn wrong(problem: Problem) -> ConfigProblems {
    ConfigProblems {
        lines: vec![problem.what],
        remote: problem.remote,
    }
}

/// Merges the three layers and fetches everything that they refer to.
pub(super) fn gather_all(
    gather: &mut Gather<'_>,
    base: Option<&ConfigSource>,
    platform: &Provider,
    user: &User,
) -> Result<Fetched, ConfigProblems> {
    let places = [base, user.place.as_ref()];
    let sources: Sources = places
        .into_iter()
        .flatten()
        .filter_map(ConfigSource::known)
        .collect();
    // Both are read before either is refused, so that the mistakes of both are reported.
    let base = gather.one(base);
    let config = gather.one(user.place.as_ref());
    let (base, config) = match (base, config) {
        (Ok(base), Ok(config)) => (base, config),
        (Err(mut base), Err(user)) => {
            base.lines.extend(user.lines);
            base.remote |= user.remote;
            return Err(base);
        }
        (Err(wrong), _) | (_, Err(wrong)) => return Err(wrong),
    };
    let user_config = config.is_some();
    let base = base.unwrap_or_else(Config::empty);
    let base = with_machine(gather, base, config.as_ref(), platform, &user.metadata)?;
    let config = match config {
        Some(config) => gather.merged(&base, &config)?,
        None => base,
    };
    let fetched = gather.with_contents(config, user_config, true)?;
    Ok(Fetched { sources, ..fetched })
}

/// The base config under the machine's host name and keys.
fn with_machine(
    gather: &mut Gather<'_>,
    base: Config,
    user: Option<&Config>,
    platform: &Provider,
    metadata: &Metadata,
) -> Result<Config, ConfigProblems> {
    let mut names = Vec::new();
    for config in [Some(&base), user].into_iter().flatten() {
        let model = config.model().map_err(|error| gather.wrong(vec![error]))?;
        let users = model.passwd.and_then(|passwd| passwd.users);
        names.extend(users.into_iter().flatten().map(|user| user.name));
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let made = fragment::config(platform, metadata, &names, &mut gather.warnings);
    let Some(text) = made else {
        return Ok(base);
    };
    let parsed = Config::parse(text.as_bytes(), "the platform's metadata");
    let fragment = gather.report(parsed)?;
    let merged = base.merge(&fragment);
    gather.report(merged)
}
