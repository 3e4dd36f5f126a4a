//! The recipe's layer: its files, and the links that enable, disable and mask units.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

use crate::host::cache::Cache;
use crate::install::Rootfs;
use crate::layer::{Entry, Kind, Layer, Source};
use crate::recipe::{FileEntry, FileKind, Recipe};

/// Path of the recipe's presets: it sorts before every package's (systemd.preset(5)).
const PRESET: &str = "/usr/lib/systemd/system-preset/00-slipway.preset";
/// Folder of the links that enable units.
const ENABLED: &str = "/etc/systemd/system";
/// Folders of unit files; the first one that has a unit is used.
const UNITS: &[&str] = &["/etc/systemd/system", "/usr/lib/systemd/system"];

/// Files, and links that enable, disable and mask units. Names of users and groups are those of the root file
/// system; unit files may also come from `lower`, the layers below this one.
///
/// # Errors
/// Names every missing user, group, unit and file.
pub(super) fn layer(
    cache: &Cache,
    recipe: &Recipe,
    rootfs: &Rootfs,
    lower: &[Layer],
) -> Result<Layer> {
    let mut wrong = Vec::new();
    let mut entries = files(&recipe.files, rootfs, &mut wrong)?;
    let found = Found {
        rootfs,
        lower,
        files: &entries,
    };
    let mut links = Vec::new();
    for unit in &recipe.units.enable {
        match found.unit(unit) {
            Some(text) => links.extend(enable(unit, &String::from_utf8_lossy(&text))),
            None => wrong.push(format!(
                "units.enable: there is no unit {unit} in the root file system"
            )),
        }
    }
    for unit in &recipe.units.disable {
        links.extend(found.links_to(unit).into_iter().map(Entry::remove));
    }
    for unit in &recipe.units.mask {
        links.push(Entry::symlink(format!("{ENABLED}/{unit}"), "/dev/null"));
    }
    if !wrong.is_empty() {
        bail!("{}:\n  {}", recipe.path.display(), wrong.join("\n  "));
    }
    let preset = preset(recipe);
    if !preset.is_empty() {
        links.push(Entry::file(PRESET, 0o644, preset));
    }
    entries.extend(links);
    Layer::new(cache, entries)
}

fn files(files: &[FileEntry], rootfs: &Rootfs, wrong: &mut Vec<String>) -> Result<Vec<Entry>> {
    let read = |path: &str| match rootfs.read(path) {
        Ok(bytes) => ids(&String::from_utf8_lossy(&bytes)),
        Err(_) => BTreeMap::new(),
    };
    let (users, groups) = (read("/etc/passwd"), read("/etc/group"));
    let mut entries = Vec::new();
    for file in files {
        let mut id = |names: &BTreeMap<String, u32>, name: &str, what: &str| {
            name.parse()
                .ok()
                .or_else(|| names.get(name).copied())
                .unwrap_or_else(|| {
                    wrong.push(format!(
                        "files.{:?}: the root file system has no {what} {name:?}",
                        file.path
                    ));
                    0
                })
        };
        let (uid, gid) = (
            id(&users, &file.user, "user"),
            id(&groups, &file.group, "group"),
        );
        entries.push(Entry {
            path: file.path.clone(),
            mode: file.mode,
            uid,
            gid,
            kind: match &file.kind {
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
                FileKind::Content(bytes) => Kind::File(Source::Bytes(bytes.clone())),
                FileKind::Link(target) => Kind::Symlink(target.clone()),
                FileKind::Directory => Kind::Directory,
                FileKind::Remove => Kind::Remove,
            },
            xattrs: Vec::new(),
        });
    }
    Ok(entries)
}

/// Names and numbers of passwd(5) or group(5).
fn ids(text: &str) -> BTreeMap<String, u32> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split(':');
            Some((fields.next()?.to_owned(), fields.nth(1)?.parse().ok()?))
        })
        .collect()
}

/// The files that exist before the recipe's links.
struct Found<'a> {
    rootfs: &'a Rootfs,
    lower: &'a [Layer],
    files: &'a [Entry],
}

impl Found<'_> {
    /// The text of a unit file; for an instance, that of its template.
    fn unit(&self, unit: &str) -> Option<Vec<u8>> {
        let template = template(unit);
        [Some(unit), template.as_deref()]
            .into_iter()
            .flatten()
            .find_map(|name| {
                UNITS
                    .iter()
                    .find_map(|folder| self.read(&format!("{folder}/{name}")))
            })
    }

    fn read(&self, path: &str) -> Option<Vec<u8>> {
        let layers = self
            .lower
            .iter()
            .rev()
            .map(|layer| layer.entries.as_slice());
        for entries in std::iter::once(self.files).chain(layers) {
            match entries
                .iter()
                .find(|entry| entry.path == path)
                .map(|entry| &entry.kind)
            {
                Some(Kind::File(Source::Bytes(bytes))) => return Some(bytes.clone()),
                Some(Kind::File(Source::Path(file))) => return std::fs::read(file).ok(),
                Some(Kind::Remove) => return None,
                _ => {}
            }
        }
        self.rootfs.read(path).ok()
    }

    /// The links that enable a unit: links to it, and links with its name in a target's folder.
    fn links_to(&self, unit: &str) -> Vec<String> {
        let layers = self.lower.iter().flat_map(|layer| &layer.entries);
        self.rootfs
            .entries()
            .iter()
            .chain(layers)
            .filter(|entry| entry.path.starts_with(ENABLED))
            .filter(|entry| match &entry.kind {
                Kind::Symlink(target) => {
                    let name = |path: &str| path.rsplit('/').next().map(str::to_owned);
                    target != "/dev/null"
                        && (name(&entry.path).as_deref() == Some(unit)
                            || name(target).as_deref() == Some(unit))
                }
                _ => false,
            })
            .map(|entry| entry.path.clone())
            .collect()
    }
}

/// The template of an instance: `getty@.service` for `getty@tty1.service`.
fn template(unit: &str) -> Option<String> {
    let (name, rest) = unit.split_once('@')?;
    let (_, suffix) = rest.rsplit_once('.')?;
    Some(format!("{name}@.{suffix}"))
}

/// The links that `systemctl enable` would create from the unit's section `[Install]`.
fn enable(unit: &str, text: &str) -> Vec<Entry> {
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

    #[test]
    fn names_have_numbers() {
        let found =
            ids("root:x:0:0:root:/root:/bin/sh\nsshd:*:104:65534::/run/sshd:/bin/false\nbroken\n");
        assert_eq!(
            found,
            BTreeMap::from([("root".to_owned(), 0), ("sshd".to_owned(), 104)])
        );
    }
}
