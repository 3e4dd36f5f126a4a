//! Packages of no archive, which the recipe names by their files: read into the cache, and among those that are chosen from.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use fetch::Digest;

use super::keep;
use crate::debian::archive::Archive;
use crate::debian::files::Files;
use crate::debian::packages::{self, Standing};
use crate::host::progress::Step;
use crate::host::session::Session;
use crate::recipe::{DebFile, LockRequest};

/// Size limit of a package, bytes.
const LIMIT: u64 = 4 << 30;

/// Adds the packages to an archive that was read; gives their names.
///
/// # Errors
/// Names the file that cannot be had, or is not a package for the request's architecture.
pub(super) fn add(
    session: &Session,
    request: &LockRequest,
    archive: &mut Archive,
    step: &Step,
) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    if request.debs.is_empty() {
        return Ok(names);
    }
    let files = Files::new(&session.fetch_options())?;
    let wanted = request.architecture.debian();
    let mut text = String::new();
    for deb in &request.debs {
        let url = deb.url()?;
        let shown = fetch::shown(&url);
        let about = || format!("reading {shown} of `debs` in the recipe");
        let path = obtain(session, &files, deb, &url, step).with_context(about)?;
        let size = fs::metadata(&path).with_context(about)?.len();
        let entry = format!(
            "{}\nFilename: {}\nSize: {size}\nSHA256: {}\n\n",
            keep::control(&path).with_context(about)?.trim_end(),
            deb.name(),
            deb.sha256
        );
        for package in packages::read(&entry, 0, Standing::DEBIAN).with_context(about)? {
            let architecture = package.architecture;
            ensure!(
                ["all", wanted].contains(&architecture),
                "{shown} of `debs` in the recipe is a package for {architecture}, and the image is for {wanted}"
            );
            ensure!(
                names.insert(package.name.to_owned()),
                "two of `debs` in the recipe are the package {}",
                package.name
            );
        }
        text += &entry;
    }
    archive.add_debs(text);
    Ok(names)
}

/// The file in the cache.
fn obtain(
    session: &Session,
    files: &Files,
    deb: &DebFile,
    url: &str,
    step: &Step,
) -> Result<PathBuf> {
    let digest = Digest::sha256(&deb.sha256).context("it has no usable SHA-256")?;
    let object = session.cache.object(&deb.sha256);
    // A file gets this name only after its digest was verified.
    if !object.is_file() {
        if let Some(folder) = object.parent() {
            fs::create_dir_all(folder)?;
        }
        files.file((url, LIMIT, digest), &object, &|bytes| step.advance(bytes))?;
    }
    session.cache.use_object(&deb.sha256);
    Ok(object)
}
