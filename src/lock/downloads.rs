//! Files of servers that a recipe names by URL and SHA-256: fetched into the cache before anything is built.

use std::fs;

use anyhow::{Context as _, Result, bail};
use fetch::{Digest, Failure};

use super::LockedRecipe;
use super::objects::{LIMIT, bring, of_download};
use crate::debian::files::{self, Files};
use crate::host::progress::Step;
use crate::host::session::Session;
use crate::recipe::{Download, Mistake};

impl LockedRecipe {
    /// Fetches the files that are not in the cache.
    ///
    /// # Errors
    /// Files that their server does not have, or has with another hash, are mistakes of the recipe; all other failures are in one error.
    /// Both name the place in the recipe, and all files are tried.
    pub fn fetch_files(&self, session: &Session) -> Result<()> {
        let recipe = &self.recipe;
        let all: Vec<_> = recipe.downloads().collect();
        if all.is_empty() {
            return Ok(());
        }
        let step = session.progress.step("fetch files");
        let (mut size, mut hit) = (0, true);
        let mut mistakes = recipe.places.mistakes();
        let mut failures = Vec::new();
        for (download, origin) in all {
            let object = session.cache.object(&download.sha256);
            // A file gets this name only after its digest was verified.
            if !object.is_file() {
                hit = false;
                match fetch_one(session, self, download, &step)? {
                    Ok(()) => {}
                    Err(failure) if is_wrong(&failure) => {
                        let place = recipe.download_place(&download.sha256);
                        let found = failure.to_string();
                        let expected = "expected the file that this URL and its `sha256` say";
                        mistakes.add(Mistake::of(place, found, expected));
                        continue;
                    }
                    Err(failure) => {
                        failures.push(format!("{origin}: {failure}"));
                        continue;
                    }
                }
            }
            session.cache.use_object(&download.sha256);
            size += fs::metadata(&object)?.len();
        }
        mistakes.none()?;
        if !failures.is_empty() {
            bail!("fetching files of the recipe:\n  {}", failures.join("\n  "));
        }
        step.done(hit, Some(size));
        Ok(())
    }
}

/// Whether the recipe is wrong, rather than the server or the network.
fn is_wrong(failure: &Failure) -> bool {
    files::is_gone(failure) || matches!(failure, Failure::Digest { .. } | Failure::Address { .. })
}

/// From the lock's own folder, else from its server.
fn fetch_one(
    session: &Session,
    locked: &LockedRecipe,
    download: &Download,
    step: &Step,
) -> Result<Result<(), Failure>> {
    let on_bytes = |bytes| step.advance(bytes);
    step.note(&fetch::shown(&download.url));
    if bring(session, locked, &of_download(download), &on_bytes)? {
        return Ok(Ok(()));
    }
    let object = session.cache.object(&download.sha256);
    if let Some(folder) = object.parent() {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    let digest = Digest::sha256(&download.sha256).context("no usable SHA-256")?;
    let files = Files::new(&session.fetch_options())?;
    let wanted = (download.url.as_str(), LIMIT, digest);
    Ok(files.file(wanted, &object, &on_bytes))
}

#[cfg(test)]
mod tests;
