//! Files of a recipe at paths of Slipway's, as far as they are known without a build.

use image::paths::VAR_LINKS;

use super::{Check, FileEntry, FileKind, containerd};
use crate::host::cache::Key;
use crate::layer::merge::merge;
use crate::layer::{Entry, Kind, Layer, Source, Writer};
use crate::node_files::{self, Contents};
use crate::recipe::Recipe;
use crate::recipe::mistakes::{Mistake, Place};

/// The links that every root of Debian has, and where they lead.
const MERGED: [(&str, &str); 6] = [
    ("/bin", "usr/bin"),
    ("/lib", "usr/lib"),
    ("/lib64", "usr/lib64"),
    ("/sbin", "usr/sbin"),
    ("/etc/os-release", "../usr/lib/os-release"),
    ("/etc/mtab", "../proc/self/mounts"),
];

fn entry(file: &FileEntry) -> Entry {
    let kind = match &file.kind {
        FileKind::Source(path) => Kind::File(Source::Path(path.clone())),
        FileKind::Content(bytes) => Kind::File(Source::Bytes(bytes.clone())),
        FileKind::Download(_) => Kind::File(Source::Bytes(Vec::new())),
        FileKind::Link(target) => Kind::Symlink(target.clone()),
        FileKind::Directory => Kind::Directory,
        FileKind::Remove => Kind::Remove,
    };
    Entry {
        kind,
        ..Entry::directory(file.path.as_str(), file.mode)
    }
}

/// Lays the recipe's files over Slipway's, as the build does, and adds a mistake for each that is refused. `places` are those
/// of the recipe's files.
pub(super) fn check(check: &mut Check<'_>, recipe: &Recipe, places: &[Place]) {
    let files = recipe.files.iter().map(entry).collect();
    let node = node_files::entries(recipe.features(), Contents::default());
    // Nothing is cached by these keys.
    let layers = [(node, Writer::Slipway), (files, Writer::Recipe)].map(|(entries, writer)| {
        let layer = Layer::with_key(entries, Key::of_data("check", 1).finish())?;
        anyhow::Ok(layer.of(writer))
    });
    let links = MERGED.iter().chain(VAR_LINKS);
    let base: Vec<Entry> = links
        .map(|(link, target)| Entry::symlink(*link, *target))
        .collect();
    let fixed = node_files::fixed(recipe.features());
    let [Ok(node), Ok(files)] = layers else {
        // A path that is not plain is a mistake already.
        return;
    };
    let Ok(merged) = merge(&base, &[node, files], &fixed) else {
        return;
    };
    let place = |path: &str| {
        let number = recipe.files.iter().position(|file| file.path == path)?;
        places.get(number)
    };
    for refused in &merged.refused {
        let Some(place) = place(&refused.path) else {
            continue;
        };
        let found = node_files::refusal(refused);
        let mistake = Mistake::at(place, found, "expected no file, link or removal there");
        check.add(mistake.help(node_files::instead(&refused.reserved)));
    }
    // Conflicts with files of packages are found by the build.
    for (path, text) in &merged.conflicts {
        if let Some(place) = place(path) {
            check.add(Mistake::at(place, text, "expected a path that is free"));
        }
    }
    containerd::check(check, recipe, places, &merged.tree);
}
