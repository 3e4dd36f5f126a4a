//! Addons that a recipe brings: mistakes in their manifests are those of the recipe.

use std::collections::BTreeMap;
use std::fs;

use cluster::manifests::{self, File, Folder, Source};
use image::paths::{ADDONS, CONFIG_ADDONS};

use super::Check;
use super::files::{FileEntry, FileKind};
use crate::recipe::mistakes::Mistake;

/// Reads the addons among the files of a recipe, as a control plane will read them.
pub(super) fn check(check: &mut Check<'_>, files: &[FileEntry]) {
    let mut folders = BTreeMap::new();
    for (root, source) in [(ADDONS, Source::Image), (CONFIG_ADDONS, Source::Config)] {
        for entry in files {
            let below = entry.path.strip_prefix(root);
            let Some(below) = below.and_then(|path| path.strip_prefix('/')) else {
                continue;
            };
            let (name, file) = match below.split_once('/') {
                Some((name, file)) => (name, Some(file)),
                None if matches!(entry.kind, FileKind::Directory) => (below, None),
                // A file beside the folders: no manifest has such a name.
                None => (below, Some("/")),
            };
            let path = format!("{root}/{name}");
            let folder = folders.entry(path.clone()).or_insert_with(|| Folder {
                name: name.to_owned(),
                source,
                path,
                files: Vec::new(),
            });
            // A folder inside is refused by the node as well.
            let file = file.map(|file| if file.contains('/') { "/" } else { file });
            if let Some(file) = file {
                folder.files.extend(read(check, entry, file));
            }
        }
    }
    // The config may bring what they depend on.
    for mistake in manifests::check(folders.into_values().collect()) {
        check.add(Mistake::nowhere(mistake.to_string()));
    }
}

/// A file of an addon; a link is followed on the node alone.
fn read(check: &mut Check<'_>, entry: &FileEntry, name: &str) -> Option<File> {
    let (path, content) = match &entry.kind {
        FileKind::Content(content) => (format!("files.{:?}", entry.path), content.clone()),
        FileKind::Source(source) => match fs::read(source) {
            Ok(content) => (source.display().to_string(), content),
            Err(error) => {
                let found = format!("reading {}: {error}", source.display());
                check.add(Mistake::nowhere(found));
                return None;
            }
        },
        // A file of a server is a mistake already.
        FileKind::Download(_) | FileKind::Link(_) | FileKind::Directory | FileKind::Remove => {
            return None;
        }
    };
    Some(File {
        name: name.to_owned(),
        path,
        content,
    })
}
