//! The recipe's layers: its files, and the links that enable, disable and mask units.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

use super::found::{ENABLED, Found, template};
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
    for unit in &recipe.units.enable {
        let text = with_files.unit(unit);
        let text = text.with_context(|| format!("there is no unit {unit}"))?;
        links.extend(enable(unit, &String::from_utf8_lossy(&text)));
    }
    for unit in &recipe.units.disable {
        links.extend(below.links_to(unit).into_iter().map(Entry::remove));
    }
    for unit in &recipe.units.mask {
        links.push(Entry::symlink(format!("{ENABLED}/{unit}"), "/dev/null"));
    }
    let preset = preset(recipe);
    if !preset.is_empty() {
        links.push(Entry::file(PRESET, 0o644, preset));
    }
    Ok([
        Layer::new(cache, entries)?.of(Writer::Recipe),
        Layer::new(cache, links)?,
    ])
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

/// The links that `systemctl enable` would create from the unit's section `[Install]`.
pub(super) fn enable(unit: &str, text: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut install = false;
    let target = format!(
        "/usr/lib/systemd/system/{}",
        template(unit).unwrap_or_else(|| unit.to_owned())
    );
    let instance = unit
        .split_once('@')
        .and_then(|(_, rest)| rest.rsplit_once('.'))
        .map_or("", |(name, _)| name);
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            install = line == "[Install]";
        }
        let Some((key, value)) = line.split_once('=').filter(|_| install) else {
            continue;
        };
        for word in value.split_whitespace() {
            let word = word.replace("%i", instance).replace("%I", instance);
            let link = match key.trim() {
                "WantedBy" => format!("{ENABLED}/{word}.wants/{unit}"),
                "RequiredBy" => format!("{ENABLED}/{word}.requires/{unit}"),
                "UpheldBy" => format!("{ENABLED}/{word}.upholds/{unit}"),
                "Alias" => format!("{ENABLED}/{word}"),
                _ => continue,
            };
            entries.push(Entry::symlink(link, target.clone()));
        }
    }
    entries
}

fn preset(recipe: &Recipe) -> String {
    let line = |word: &str, units: &[String]| {
        units
            .iter()
            .map(|unit| format!("{word} {unit}\n"))
            .collect::<String>()
    };
    line("enable", &recipe.units.enable) + &line("disable", &recipe.units.disable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn install_sections_become_links() {
        let text = "[Unit]\nWantedBy=not.me\n[Install]\nWantedBy=multi-user.target a.target\nAlias=dbus-x.service\n";
        let made: Vec<(String, Kind)> = enable("x.service", text)
            .into_iter()
            .map(|e| (e.path, e.kind))
            .collect();
        let target = Kind::Symlink("/usr/lib/systemd/system/x.service".into());
        assert_eq!(
            made,
            [
                (
                    "/etc/systemd/system/multi-user.target.wants/x.service".to_owned(),
                    target.clone()
                ),
                (
                    "/etc/systemd/system/a.target.wants/x.service".to_owned(),
                    target.clone()
                ),
                ("/etc/systemd/system/dbus-x.service".to_owned(), target),
            ]
        );
        let made = enable("getty@tty1.service", "[Install]\nWantedBy=getty.target\n");
        assert_eq!(
            made[0].path,
            "/etc/systemd/system/getty.target.wants/getty@tty1.service"
        );
        assert_eq!(
            made[0].kind,
            Kind::Symlink("/usr/lib/systemd/system/getty@.service".into())
        );
    }
}
