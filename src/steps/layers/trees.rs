//! The recipe's trees that somebody else packed: archives and the files of container images, as layers below the recipe's own files.

use std::collections::BTreeMap;

use anyhow::{Context, Error, Result, ensure};

use super::found::Found;
use crate::code;
use crate::host::cache::{Cache, Key};
use crate::host::progress::Step;
use crate::host::session::Session;
use crate::layer::{Entry, Kind, Layer, Source, archive, merge};
use crate::lock::{LockedRecipe, objects};
use crate::oci::{self, Merged, Reference};
use crate::recipe::{ArchiveFile, FileTree, Mistake, TreeFrom, covered};

/// A layer for each tree, over what is `below`.
///
/// # Errors
/// Trees that cannot be read, as mistakes of the recipe that are reported together; a registry that does not answer.
pub(super) fn layers(
    session: &Session,
    locked: &LockedRecipe,
    below: &Found,
) -> Result<Vec<Layer>> {
    let recipe = &locked.recipe;
    let mut mistakes = recipe.places.mistakes();
    let mut layers = Vec::new();
    for tree in &recipe.trees {
        let step = session.progress.step(&format!("files of {}", name(tree)));
        let made = match &tree.from {
            TreeFrom::Archive { file, strip } => {
                unpacked(&session.cache, file, *strip, tree.keep_owners)
            }
            TreeFrom::Image { reference, path } => pulled(session, locked, reference, &step)
                .and_then(|(entries, key, hit)| Ok((below_path(entries, path)?, key, hit))),
        };
        let made =
            made.and_then(|(entries, key, hit)| Ok((placed(entries, tree, below)?, key, hit)));
        let (entries, key) = match made {
            Ok((entries, key, hit)) => {
                step.done(hit, None);
                (entries, key)
            }
            Err(error) if is_unreachable(&error) => return Err(error.context(tree.origin.clone())),
            Err(error) => {
                let place = recipe.places.item(&tree.list(), tree.number);
                let found = format!("{} cannot be taken: {error:#}", name(tree));
                let expected = "expected a tree of plain files, folders and links";
                mistakes.add(Mistake::of(place, found, expected));
                continue;
            }
        };
        let key = Key::of("tree layer", code::CONTENT)
            .key("content", &key)
            .value("tree", tree)?
            .key("below", &below_key(&entries)?);
        layers.push(Layer::with_key(entries, key.finish())?.of_recipe(&tree.origin));
    }
    mistakes.none()?;
    Ok(layers)
}

/// Whether the network failed, and the recipe may be right.
fn is_unreachable(error: &Error) -> bool {
    error.chain().any(|cause| {
        matches!(
            cause.downcast_ref::<fetch::Failure>(),
            Some(fetch::Failure::Unreachable { .. })
        )
    })
}

/// The tree's name for people.
fn name(tree: &FileTree) -> String {
    match &tree.from {
        TreeFrom::Archive { file, .. } => match file {
            ArchiveFile::Host(path) => path.display().to_string(),
            ArchiveFile::Download(download) => fetch::shown(&download.url),
        },
        TreeFrom::Image { reference, .. } => reference.clone(),
    }
}

/// The entries of an archive, and the key of their content.
fn unpacked(
    cache: &Cache,
    file: &ArchiveFile,
    strip: usize,
    keep_owners: bool,
) -> Result<(Vec<Entry>, Key, bool)> {
    let file = match file {
        ArchiveFile::Host(path) => path.clone(),
        ArchiveFile::Download(download) => cache.object(&download.sha256),
    };
    let file = cache.hashed(&file)?;
    let key = Key::of("archive", code::CONTENT)
        .text("file", &file.text())
        .bytes("strip", &strip.to_le_bytes())
        .bytes("keep owners", &[u8::from(keep_owners)])
        .finish();
    let options = archive::Options { strip, keep_owners };
    let made = cache.step("archive", &key, |folder| {
        archive::unpack(&file, folder, options)
    })?;
    Ok((archive::open(&made.path)?, key, made.hit))
}

/// The entries of a container image, and the key of their content.
fn pulled(
    session: &Session,
    locked: &LockedRecipe,
    reference: &str,
    step: &Step,
) -> Result<(Vec<Entry>, Key, bool)> {
    let architecture = locked.recipe.image.architecture.debian();
    objects::bring_image(session, locked, reference, &|bytes| step.advance(bytes))?;
    let reference: Reference = reference.parse().map_err(Error::msg)?;
    let image = oci::pull(session, &reference, architecture, step)?;
    let (merged, key, hit) = Merged::cached(&session.cache, &image, architecture, step)?;
    Ok((merged.entries, key, hit))
}

/// The content of one folder of an image, with paths from that folder.
fn below_path(entries: Vec<Entry>, path: &str) -> Result<Vec<Entry>> {
    // A link's target may be outside of the folder.
    let files: BTreeMap<String, Kind> = entries
        .iter()
        .filter(|entry| matches!(entry.kind, Kind::File(_)))
        .map(|entry| (entry.path.clone(), entry.kind.clone()))
        .collect();
    let prefix = format!("{}/", path.trim_end_matches('/'));
    let mut found = Vec::new();
    for mut entry in entries {
        let Some(rest) = entry.path.strip_prefix(&prefix) else {
            continue;
        };
        entry.path = format!("/{rest}");
        if let Kind::HardLink(target) = &entry.kind {
            let file = files.get(target);
            entry.kind = file.context("a link to no file")?.clone();
        }
        found.push(entry);
    }
    ensure!(!found.is_empty(), "it has no files in {path}");
    Ok(found)
}

/// The entries below the tree's folder. A folder that is there already keeps its owner and mode, as with `overlay.trees`.
fn placed(entries: Vec<Entry>, tree: &FileTree, below: &Found) -> Result<Vec<Entry>> {
    let to = tree.to.trim_end_matches('/');
    let mut placed = Vec::new();
    for mut entry in entries {
        entry.path.insert_str(0, to);
        if !tree.keep_owners {
            (entry.uid, entry.gid) = (0, 0);
        }
        let is_folder = |entry: &Entry| entry.kind == Kind::Directory;
        if let Some((found, _)) = covered(&entry.path) {
            // Images have empty folders as mount points.
            ensure!(is_folder(&entry), found);
            continue;
        }
        let place = merge::resolve(&below.tree, &entry.path, true)?;
        let is_there = below.tree.get(&place).is_some_and(is_folder);
        if !(is_folder(&entry) && is_there) {
            placed.push(entry);
        }
    }
    Ok(placed)
}

/// A key of what was left of a tree, without its contents.
fn below_key(entries: &[Entry]) -> Result<Key> {
    let outline: Vec<(&str, u32, u64)> = entries
        .iter()
        .map(|entry| {
            let size = match &entry.kind {
                Kind::File(Source::Range { size, .. }) => *size,
                _ => 0,
            };
            (entry.path.as_str(), entry.mode, size)
        })
        .collect();
    Ok(Key::of_data("outline", 1)
        .value("entries", &outline)?
        .finish())
}

#[cfg(test)]
mod tests;
