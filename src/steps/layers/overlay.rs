//! The recipe's layers: its files, and the links that enable, disable and mask units.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

use super::enable;
use super::found::{ENABLED, Found};
use crate::host::cache::Cache;
use crate::layer::{Entry, Kind, Layer, Source, Writer};
use crate::node_files::PRESET;
use crate::recipe::{FileEntry, FileKind, Recipe};

/// The layer of the files, and that of the links that enable, disable and mask units. `below` is without the recipe's files, `with_files`
/// with them; [`super::words`] has checked all names.
///
/// # Errors
/// If a file cannot be read.
pub(super) fn layers(
    cache: &Cache,
    recipe: &Recipe,
    below: &Found,
    with_files: &Found,
) -> Result<[Layer; 2]> {
    let entries = files(cache, &recipe.files, below)?;
    let mut links = Vec::new();
    let units = &recipe.units;
    // An alias stands for its unit, by whose name `Also=` and presets know it.
    let meant = |list: &[String]| -> Vec<String> {
        let names = list.iter().map(|unit| with_files.unit_name(unit));
        names.collect()
    };
    let (enable, disable) = (meant(&units.enable), meant(&units.disable));
    // What the recipe says of a unit counts, not what another unit would have with it.
    let off: Vec<&str> = names(&disable).chain(names(&units.mask)).collect();
    let on: Vec<&str> = names(&enable).collect();
    for unit in &enable {
        let made = enable::links(with_files, unit, &off).map_err(anyhow::Error::msg)?;
        let made = made.into_iter();
        links.extend(made.map(|(link, target)| Entry::symlink(link, target)));
    }
    for unit in &disable {
        let gone = enable::disabled(with_files, below, unit, &on).into_iter();
        links.extend(gone.map(Entry::remove));
    }
    for unit in &units.mask {
        links.push(Entry::symlink(format!("{ENABLED}/{unit}"), "/dev/null"));
    }
    let preset = preset(&enable, &disable);
    if !preset.is_empty() {
        links.push(Entry::file(PRESET, 0o644, preset));
    }
    Ok([
        Layer::new(cache, entries)?.of(Writer::Recipe),
        Layer::new(cache, links)?,
    ])
}

fn names(list: &[String]) -> impl Iterator<Item = &str> {
    list.iter().map(String::as_str)
}

/// The recipe's files. A user or group that is not there has number 0.
pub(super) fn files(cache: &Cache, files: &[FileEntry], below: &Found) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for file in files {
        entries.push(Entry {
            path: file.path.clone(),
            mode: file.mode,
            uid: number(&file.user, &below.users).unwrap_or_default(),
            gid: number(&file.group, &below.groups).unwrap_or_default(),
            kind: kind(cache, file)?,
            xattrs: Vec::new(),
        });
    }
    Ok(entries)
}

/// The number of a user or group, which may be given itself.
pub(super) fn number(name: &str, names: &BTreeMap<String, u32>) -> Option<u32> {
    name.parse().ok().or_else(|| names.get(name).copied())
}

fn kind(cache: &Cache, file: &FileEntry) -> Result<Kind> {
    Ok(match &file.kind {
        FileKind::Source(path) => {
            let path = std::path::absolute(path)?;
            let meta = std::fs::metadata(&path)
                .with_context(|| format!("reading {} for {}", path.display(), file.path))?;
            if meta.is_dir() {
                bail!(
                    "{} for {}: expected a file, found a folder",
                    path.display(),
                    file.path
                );
            }
            Kind::File(Source::Path(path))
        }
        FileKind::Download(of) => Kind::File(Source::Path(cache.object(&of.sha256))),
        FileKind::Content(bytes) => Kind::File(Source::Bytes(bytes.clone())),
        FileKind::Link(target) => Kind::Symlink(target.clone()),
        FileKind::Directory => Kind::Directory,
        FileKind::Remove => Kind::Remove,
    })
}

fn preset(enable: &[String], disable: &[String]) -> String {
    let line = |word: &str, units: &[String]| {
        units
            .iter()
            .map(|unit| format!("{word} {unit}\n"))
            .collect::<String>()
    };
    line("enable", enable) + &line("disable", disable)
}
