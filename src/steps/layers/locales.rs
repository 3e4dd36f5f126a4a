//! Locales: those of the recipe made by the root's own localedef from Debian's sources, which do not come into the image; and the
//! recipe's time zone, held against those that the image has.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::found::Found;
use crate::code;
use crate::host::cache::Key;
use crate::host::sandbox::Sandbox;
use crate::host::session::Session;
use crate::host::tree;
use crate::install::{self, Rootfs};
use crate::layer::changes::Written;
use crate::layer::{Entry, Layer, Writer, merge};
use crate::lock::LockedRecipe;
use crate::recipe::{Mistake, Mistakes, Recipe, SET_LOCALES, ZONES};

/// Folder of the sources in the package, and their list: a locale and its character set on each line.
const SOURCES: &str = "usr/share/i18n";
const LIST: &str = "SUPPORTED";
/// Where the sources and the result are while localedef runs.
const INSIDE: &str = "/run/i18n";
const OUT: &str = "/run/locales";
/// Folder of compiled locales in a root.
const COMPILED: &str = "usr/lib/locale";
/// The package of localedef, whose version has to be that of the C library.
const COMPILER: &str = "libc-bin";
/// The package that most old names of zones are in.
const OLD_ZONES: &str = "tzdata-legacy";

/// The layer of the recipe's locales, if it has any.
///
/// # Errors
/// If localedef fails; locales that Debian has no sources of, as [`Mistakes`].
pub(super) fn layer(
    session: &Session,
    locked: &LockedRecipe,
    rootfs: &Rootfs,
) -> Result<Option<Layer>> {
    let recipe = &locked.recipe;
    let wanted = &recipe.locale.generate;
    if wanted.is_empty() {
        return Ok(None);
    }
    let sources = sources(session, locked)?;
    let list = fs::read_to_string(sources.join(LIST)).context("reading the list of locales")?;
    let charsets = charsets(&list);
    let mut mistakes = recipe.places.mistakes();
    for name in wanted
        .iter()
        .filter(|name| !charsets.contains_key(name.as_str()))
    {
        let mistake = Mistake::of(
            recipe.places.word(&["locale", "generate"], name),
            format!("Debian has no sources of the locale `{name}`"),
            "expected a name of its list, as \"de_DE.UTF-8\"",
        );
        mistakes.add(mistake.nearest(name, charsets.keys().copied()));
    }
    mistakes.none()?;
    let compilers = rootfs.packages.iter().filter(|one| one.name == COMPILER);
    let mut key = Key::of("locales", code::CONTENT);
    for package in compilers {
        key = key.text("compiler", &package.sha256);
    }
    for package in locked.lock.sets.get(SET_LOCALES).into_iter().flatten() {
        key = key.text("sources", &package.sha256);
    }
    for name in wanted {
        key = key.text("locale", name);
    }
    let key = key.finish();
    let step = session.progress.step("locales");
    let made = session.cache.step("locales", &key, |folder| {
        step.note("writing the root as files");
        let root = folder.join("root");
        fs::create_dir(&root)?;
        let tree = merge::merge(rootfs.entries(), &[], &[])?.tree;
        Written::write(&tree, &root, locked.lock.epoch)?;
        let out = folder.join("out");
        fs::create_dir_all(out.join(COMPILED))?;
        for name in wanted {
            step.note(name);
            let charset = charsets.get(name.as_str()).copied().unwrap_or("UTF-8");
            compile(&root, (&sources, &out), name, charset)
                .with_context(|| format!("making the locale {name}"))?;
        }
        crate::host::cache::remove(&root)
    })?;
    let mut entries = Vec::new();
    for item in tree::walk(&made.path.join("out"))? {
        entries.push(match item.meta.is_dir() {
            true => Entry::directory(item.inside, 0o755),
            false => Entry::copy(item.inside, 0o644, item.path),
        });
    }
    step.done(made.hit, None);
    Ok(Some(Layer::with_key(entries, key)?.of(Writer::Package)))
}

/// The sources, unpacked.
fn sources(session: &Session, locked: &LockedRecipe) -> Result<PathBuf> {
    let debs = locked.fetch(session, SET_LOCALES)?;
    let mut key = Key::of("locale sources", code::CONTENT);
    for deb in &debs {
        key = key.text("package", &deb.package.sha256);
    }
    let made = session
        .cache
        .step("locale-sources", &key.finish(), |folder| {
            install::unpack_only(&debs, folder).context("unpacking the sources of locales")
        })?;
    Ok(made.path.join(SOURCES))
}

/// The character sets by the names of the locales.
fn charsets(list: &str) -> BTreeMap<&str, &str> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.trim().split_once(char::is_whitespace))
        .map(|(name, charset)| (name, charset.trim()))
        .collect()
}

/// The name of a locale's source: without its character set, with its modifier.
fn source_of(name: &str) -> String {
    let (before, modifier) = match name.split_once('@') {
        Some((before, modifier)) => (before, format!("@{modifier}")),
        None => (name, String::new()),
    };
    let language = before.split('.').next().unwrap_or_default();
    format!("{language}{modifier}")
}

fn compile(root: &Path, (sources, out): (&Path, &Path), name: &str, charset: &str) -> Result<()> {
    let sandbox = Sandbox::new(root)
        .env("I18NPATH", INSIDE)
        .bind_read_only(sources, INSIDE)
        .bind(out, OUT);
    // Links between files of several locales would depend on the order in which they are made.
    let said = sandbox
        .command("localedef")
        .args(["--no-archive", "--no-hard-links", "--quiet"])
        .arg(format!("--prefix={OUT}"))
        .args(["-i", &source_of(name), "-f", charset, name])
        .run()?;
    tracing::debug!("{name}: {}", String::from_utf8_lossy(&said));
    Ok(())
}

/// Adds a mistake if the image does not have the recipe's time zone.
pub(super) fn zone(recipe: &Recipe, with_files: &Found, mistakes: &mut Mistakes) {
    let Some(zone) = &recipe.locale.timezone else {
        return;
    };
    if with_files.text(&format!("{ZONES}/{zone}")).is_some() {
        return;
    }
    let zones: Vec<&str> = with_files.below_folder(ZONES).collect();
    let mistake = Mistake::of(
        recipe.places.value(&["locale", "timezone"]),
        format!("the image has no time zone `{zone}`"),
        format!("expected a file below {ZONES}"),
    );
    let mistake = match zones.is_empty() {
        true => mistake.help("\"tzdata\" in [debian] packages brings them"),
        false => mistake.nearest(zone, zones),
    };
    mistakes.add(mistake.or_help(format!("{OLD_ZONES:?} in [debian] packages has old names")));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::layers::found::tests::found;
    use crate::steps::layers::words::tests::recipe;

    #[test]
    fn locales_have_a_source_and_a_character_set() {
        let list = "# one\nde_DE.UTF-8 UTF-8\nde_DE ISO-8859-1\nca_ES@valencia UTF-8\n";
        let charsets = charsets(list);
        assert_eq!(charsets["de_DE"], "ISO-8859-1");
        assert_eq!(charsets.len(), 3);
        for (name, source) in [
            ("de_DE.UTF-8", "de_DE"),
            ("ca_ES.UTF-8@valencia", "ca_ES@valencia"),
            ("eo", "eo"),
        ] {
            assert_eq!(source_of(name), source);
        }
    }

    #[test]
    fn a_time_zone_is_one_of_the_images() {
        let text = "[kernel]\npackage = 'linux-image-cloud-amd64'\nplatforms = ['qemu']\n\
                    [locale]\ntimezone = 'Europe/Berlni'\n";
        let judged = |entries| {
            let (_folder, recipe) = recipe(text, &[]);
            let mut mistakes = recipe.places.mistakes();
            zone(&recipe, &found(entries), &mut mistakes);
            mistakes.render(false)
        };
        let entry = |name: &str| Entry::file(format!("{ZONES}/{name}"), 0o644, "TZif");
        let report = judged(vec![entry("Europe/Berlin"), entry("Etc/UTC")]);
        for expected in [
            "a.toml:8:12",
            "no time zone `Europe/Berlni`",
            "`Europe/Berlin`?",
        ] {
            assert!(report.contains(expected), "{report}");
        }
        assert!(judged(Vec::new()).contains("\"tzdata\" in [debian]"));
        assert!(!judged(vec![entry("Europe/Berlni")]).contains("no time zone"));
    }
}
