//! Shorter ways through maintainer scripts that come to the same. Half of the time of an installation is the start of programs, most of
//! which find nothing to do on a root that has had no package before.
//!
//! What is not known word for word runs as it is.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::database::FOLDER;
use crate::format::digest;

/// Debian's helper by which scripts enable units: a Perl for each of its calls, three for each unit.
const HELPER: &str = "usr/bin/deb-systemd-helper";
/// Where it waits.
const HELPER_AWAY: &str = "usr/bin/.deb-systemd-helper.slipway";
/// SHA-256 of those whose answers are known: that of Debian 13.
const KNOWN: &[&str] = &["a895d5f077651960b6ca4ed9c53f8b36eae422ae170f61c972d0c6579e9f8732"];
/// What answers in its place.
const ANSWERS: &str = include_str!("shortcuts/deb-systemd-helper.sh");
/// The questions of ca-certificates, in [`FOLDER`], and where they wait.
const QUESTIONS: &str = "info/ca-certificates.config";
const QUESTIONS_AWAY: &str = "run/slipway-ca-certificates.config";
/// For each authority it starts two greps that look for its name in these lists, which are empty at a first installation.
const LISTS: [&str; 2] = ["CERTS_DISABLED", "CERTS_TRUST"];

/// A file with another content for a while.
#[derive(Debug)]
struct Replaced {
    place: PathBuf,
    away: PathBuf,
}

impl Replaced {
    fn put(root: &Path, place: &str, away: &str, content: &str) -> Result<Self> {
        let (place, away) = (root.join(place), root.join(away));
        let about = || format!("replacing {} for a while", place.display());
        fs::rename(&place, &away).with_context(about)?;
        fs::write(&place, content).with_context(about)?;
        fs::set_permissions(&place, Permissions::from_mode(0o755)).with_context(about)?;
        Ok(Self { place, away })
    }

    fn put_back(&self) -> Result<()> {
        fs::rename(&self.away, &self.place)
            .with_context(|| format!("putting {} back", self.place.display()))
    }
}

/// Runs `configure`, in which scripts go the shorter ways.
///
/// # Errors
/// That of `configure`, or if a file cannot be replaced.
pub(super) fn during(root: &Path, configure: impl FnOnce() -> Result<()>) -> Result<()> {
    let replaced = [helper(root)?, questions(root)?];
    // After a failure the tree is removed with all that is in it.
    configure()?;
    replaced.iter().flatten().try_for_each(Replaced::put_back)
}

/// Replaces the helper, if it is a known one.
fn helper(root: &Path) -> Result<Option<Replaced>> {
    let place = root.join(HELPER);
    let is_file = fs::symlink_metadata(&place).is_ok_and(|meta| meta.is_file());
    if !is_file || !KNOWN.contains(&digest::sha256(&place)?.as_str()) {
        return Ok(None);
    }
    Replaced::put(root, HELPER, HELPER_AWAY, ANSWERS).map(Some)
}

/// Lets the questions of ca-certificates start no grep over an empty list.
fn questions(root: &Path) -> Result<Option<Replaced>> {
    let place = format!("{FOLDER}/{QUESTIONS}");
    let Ok(text) = fs::read_to_string(root.join(&place)) else {
        return Ok(None);
    };
    match without_greps(&text) {
        Some(text) => Replaced::put(root, &place, QUESTIONS_AWAY, &text).map(Some),
        None => Ok(None),
    }
}

/// The script with a look at each list before the greps; none of a script that is another one.
fn without_greps(text: &str) -> Option<String> {
    let mut text = text.to_owned();
    for list in LISTS {
        let grep = format!("if (echo \"${list}\" | grep -F -q -x \"$crt\")");
        let (before, after) = text.split_once(&grep)?;
        let shorter = grep.replacen("if ", &format!("if [ -n \"${list}\" ] && "), 1);
        text = format!("{before}{shorter}{after}");
    }
    Some(text)
}

#[cfg(test)]
mod tests;
