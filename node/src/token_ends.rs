//! `clock-set`: moves the ends of bootstrap tokens, and of the upload of the shared keys, that are of a clock which was not set yet. A unit
//! runs it when the clock is set; the bring-up does the same, for what is of an earlier boot.

use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result};
use cluster::objects::upload::LIFE;
use cluster::shared_keys::CertificateKey;
use data_encoding::BASE64;
use linux::waiter::Waiter;
use linux::world::World;
use serde_json::{Value, json};

use crate::administrator;
use crate::control_plane::sha256;
use crate::journal::SHARED;
use crate::key_upload;
use crate::object::{self, Bootstrap};
use crate::unset_clock::{self, Entry, Reading, Verdict};
use api::{Api, is_temporary, path};

/// How long one run waits for the API server. systemd starts the unit anew afterwards, without limit.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often it is asked.
const AGAIN: Duration = Duration::from_secs(2);

/// Moves what is to be moved, on a control plane.
///
/// # Errors
/// What the API server refuses for good, or for longer than the limit.
pub(crate) fn run(world: &World) -> Result<()> {
    let bootstrap = object::read(world, Duration::ZERO)?;
    let bootstrap = bootstrap.filter(|bootstrap| bootstrap.object.join.is_none());
    let Some(bootstrap) = bootstrap else {
        return Ok(());
    };
    let mut waiter = Waiter::until(world, PATIENCE);
    loop {
        let moved = administrator::api(world, &bootstrap)
            .and_then(|api| follow_clock(world, &api, &bootstrap));
        match moved {
            // The API server may start at this moment, and whoever waits for it says so.
            Err(error) if is_temporary(&error) && !waiter.is_over() => {
                tracing::debug!("{error:#}");
                waiter.attempted();
                waiter.sleep(AGAIN);
            }
            moved => return moved,
        }
    }
}

/// Moves what the clock, as it is now, has given another end.
///
/// # Errors
/// If the API server does not answer, or refuses. What is not moved is kept for the next call.
pub(crate) fn follow_clock(world: &World, api: &Api, bootstrap: &Bootstrap) -> Result<()> {
    let _alone = unset_clock::alone(world)?;
    move_all(world, api, bootstrap, &Reading::now(world))
}

fn move_all(world: &World, api: &Api, bootstrap: &Bootstrap, now: &Reading) -> Result<()> {
    let mut entries = unset_clock::read(world)?;
    for (path, entry) in entries.clone() {
        match entry.verdict(now) {
            Verdict::Wait => continue,
            Verdict::Forget => {}
            Verdict::Move(end) => {
                let moved = match path == SHARED {
                    true => move_upload(world, api, bootstrap, &entry, now, end),
                    false => move_token(api, &entry, now, end),
                };
                moved.with_context(|| format!("moving the end of {path}"))?;
            }
        }
        entries.remove(&path);
        unset_clock::write(world, &entries)?;
    }
    Ok(())
}

/// What became of the Secret whose end is to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// It is there, and its end has moved.
    Moved,
    /// It is another one by now, or somebody deleted it before its end.
    Others,
    /// It is gone since it ended: the cluster's token cleaner removed it.
    Cleaned,
}

/// Moves the end of a Secret that is there as it was sent.
fn move_end(api: &Api, entry: &Entry, now: &Reading, end: i64) -> Result<Found> {
    let own = path(&entry.secret);
    let Some(there) = api.get(&own)? else {
        if entry.has_ended(now) {
            return Ok(Found::Cleaned);
        }
        tracing::info!("left {own}: somebody deleted it before it ended");
        return Ok(Found::Others);
    };
    let is_as_sent = |field: &str| there["data"][field] == entry.secret["data"][field];
    if !is_as_sent("token-secret") || !is_as_sent("expiration") {
        tracing::info!("left {own}: somebody changed it");
        return Ok(Found::Others);
    }
    let change = json!({
        "metadata": {"resourceVersion": there["metadata"]["resourceVersion"]},
        "data": {"expiration": encoded(end)},
    });
    api.merge(&own, &change)?;
    let end = unset_clock::shown(end);
    tracing::info!("{own} ends at {end}: the clock was set after it was made");
    Ok(Found::Moved)
}

fn move_token(api: &Api, entry: &Entry, now: &Reading, end: i64) -> Result<()> {
    if move_end(api, entry, now, end)? == Found::Cleaned {
        let mut secret = entry.secret.clone();
        secret["data"]["expiration"] = encoded(end);
        let own = path(&secret);
        api.apply(&own, &secret)?;
        let end = unset_clock::shown(end);
        tracing::info!("{own} is made again until {end}: the clock was set after it was made");
    }
    Ok(())
}

/// The same of the token that owns the upload: the upload is removed with it.
fn move_upload(
    world: &World,
    api: &Api,
    bootstrap: &Bootstrap,
    entry: &Entry,
    now: &Reading,
    end: i64,
) -> Result<()> {
    if move_end(api, entry, now, end)? != Found::Cleaned {
        return Ok(());
    }
    let own = &entry.secret["metadata"]["name"];
    let there = api.get(SHARED)?;
    // That of the token may be there for a moment longer than the token.
    if there.is_some_and(|there| there["metadata"]["ownerReferences"][0]["name"] != *own) {
        tracing::info!("left {SHARED}: a later upload has taken its place");
        return Ok(());
    }
    let key = CertificateKey::parse(&bootstrap.object.config.init.certificate_key);
    let key = key.filter(|key| entry.key == Some(sha256(key.text().as_bytes())));
    let Some(key) = key else {
        tracing::warn!(
            "the upload of the shared keys has ended, since the clock was set after it; slipway-node certs upload makes another one"
        );
        return Ok(());
    };
    let texts = key_upload::shared(world, &bootstrap.object)?;
    let begin = u64::try_from(end - LIFE.seconds()).context("the clock is before 1970")?;
    let begin = UNIX_EPOCH + Duration::from_secs(begin);
    let end = key_upload::upload(api, &texts, &key, begin)?;
    tracing::info!("the shared keys are in the cluster again, until {end}");
    Ok(())
}

/// An end as a Secret has it.
fn encoded(end: i64) -> Value {
    BASE64.encode(unset_clock::shown(end).as_bytes()).into()
}

#[cfg(test)]
mod tests;
