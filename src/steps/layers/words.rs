//! The words of a recipe that only the installed packages and the kernel can judge: paths to remove, users and groups, units,
//! set-uid files, modules. All that name what is not there are mistakes, reported together.

use anyhow::Result;

use super::found::Found;
use super::{accounts, credential_providers, enable, locales, modules, overlay};
use crate::host::cache::Cache;
use crate::install::Rootfs;
use crate::layer::merge;
use crate::layer::{Entry, Kind};
use crate::recipe::{FileEntry, FileKind, Mistake, Mistakes, Recipe, nearest};
use crate::steps::kernel::Kernel;
use crate::steps::kernel::catalogue::Catalogue;

/// Kinds of units that systemd or its generators make at boot: an image has no files of them.
const MADE_AT_BOOT: [&str; 6] = ["automount", "device", "mount", "scope", "slice", "swap"];

/// Checks the words against what is below the recipe's files, and gives the tree with these files.
///
/// # Errors
/// All mistakes, as [`Mistakes`]; or a file cannot be read.
pub(super) fn check(
    cache: &Cache,
    recipe: &Recipe,
    rootfs: &Rootfs,
    kernel: &Kernel,
    below: &Found,
) -> Result<Found> {
    let catalogue = Catalogue::read(&kernel.modules, &kernel.release)?;
    let mut mistakes = recipe.places.mistakes();
    let with_files = lay_files(cache, recipe, below, &mut mistakes)?;
    owners(recipe, below, &mut mistakes);
    set_uid(recipe, rootfs.entries(), &mut mistakes);
    units(recipe, below, &with_files, &mut mistakes);
    modules::check(recipe, &catalogue, &with_files, &mut mistakes);
    credential_providers::check(recipe, &with_files, &mut mistakes);
    accounts::check(recipe, &with_files, &mut mistakes);
    locales::zone(recipe, &with_files, &mut mistakes);
    mistakes.none()?;
    Ok(with_files)
}

/// Lays the recipe's files over the tree.
fn lay_files(
    cache: &Cache,
    recipe: &Recipe,
    below: &Found,
    mistakes: &mut Mistakes,
) -> Result<Found> {
    let mut with_files = Found {
        tree: below.tree.clone(),
        users: below.users.clone(),
        groups: below.groups.clone(),
    };
    let mut seed = String::new();
    let entries = overlay::files(cache, &recipe.files, below)?;
    for (file, entry) in recipe.files.iter().zip(&entries) {
        if entry.kind == Kind::Remove && !below.has(&entry.path) {
            mistakes.add(nothing_to_remove(recipe, file, below));
        } else if let Err(error) = merge::lay(&mut with_files.tree, entry, &mut seed) {
            let places = &recipe.places;
            let own = places.written_key(&["files", &file.path]);
            mistakes.add(Mistake::of(
                own.or_else(|| places.value(&["overlay", "trees"])),
                format!("{} cannot be put there: {error:#}", file.path),
                "expected a path that the packages leave free, or a file in place of a file",
            ));
        }
    }
    // What a first boot makes in /var is there for what names it.
    let before = with_files.text(merge::SEED).unwrap_or_default();
    let text = [before, seed.into_bytes()].concat();
    with_files.tree.insert(
        merge::SEED.to_owned(),
        Entry::file(merge::SEED, 0o644, text),
    );
    Ok(with_files)
}

fn nothing_to_remove(recipe: &Recipe, file: &FileEntry, below: &Found) -> Mistake {
    let path = &file.path;
    let place = recipe.places.value(&["files", path, "remove"]);
    let inherited = place.as_ref().is_some_and(|place| place.file > 0);
    let mistake = Mistake::of(
        place,
        format!("there is nothing at {path} to remove"),
        "expected a path at which a package or Slipway puts something",
    );
    let (folder, name) = path.rsplit_once('/').unwrap_or_default();
    let beside = below.below_folder(folder);
    let beside = nearest(name, beside.filter(|name| !name.contains('/')));
    let moved = below.tree.keys().find(|found| {
        let before = found.strip_suffix(name);
        before.is_some_and(|before| before.ends_with('/'))
    });
    let near = moved
        .cloned()
        .or_else(|| Some(format!("{folder}/{}", beside?)));
    let mistake = match near {
        _ if below.is_of_var(path) => {
            mistake.help("it is on the partition of /var: what is made there on a node is not the image's to remove")
        }
        Some(near) => mistake.help(format!("did you mean `{near}`?")),
        None => mistake,
    };
    match inherited {
        true => mistake.or_help(format!(
            "`remove = false` in [files.{path:?}] takes back what is inherited"
        )),
        false => mistake,
    }
}

/// Users and groups that files belong to.
fn owners(recipe: &Recipe, below: &Found, mistakes: &mut Mistakes) {
    for file in &recipe.files {
        if file.kind == FileKind::Remove {
            continue;
        }
        for (key, name, names, list) in [
            ("user", &file.user, &below.users, "/etc/passwd"),
            ("group", &file.group, &below.groups, "/etc/group"),
        ] {
            if overlay::number(name, names).is_none() {
                let mistake = Mistake::of(
                    recipe.places.value(&["files", &file.path, key]),
                    format!("the image has no {key} `{name}`"),
                    format!("expected a name of its {list}, or a number"),
                );
                mistakes.add(mistake.nearest(name, names.keys().map(String::as_str)));
            }
        }
    }
}

/// Files of the packages that are to keep their bits.
fn set_uid(recipe: &Recipe, packages: &[Entry], mistakes: &mut Mistakes) {
    let giving = || packages.iter().filter(|entry| entry.gives_rights());
    for path in &recipe.root.set_uid {
        if !giving().any(|entry| entry.path == *path) {
            let mistake = Mistake::of(
                recipe.places.word(&["root", "set-uid"], path),
                format!("no package has a set-uid or set-gid file {path}"),
                "expected the path of one",
            );
            mistakes.add(mistake.nearest(path, giving().map(|entry| entry.path.as_str())));
        }
    }
}

fn units(recipe: &Recipe, below: &Found, with_files: &Found, mistakes: &mut Mistakes) {
    let units = &recipe.units;
    let place = |list: &str, unit: &str| recipe.places.word(&["units", list], unit);
    let absent = |list: &str, unit: &str| {
        let mistake = Mistake::of(
            place(list, unit),
            format!("the image has no unit `{unit}` to {list}"),
            "expected one of its packages, of Slipway or of [files]",
        );
        mistake.nearest(unit, with_files.units())
    };
    for unit in &units.enable {
        if with_files.unit_file(unit).is_none() {
            mistakes.add(absent("enable", unit));
            continue;
        }
        let found = match enable::links(with_files, unit, &[]) {
            Ok(links) if !links.is_empty() => continue,
            Ok(_) => format!(
                "`{unit}` cannot be enabled: its section [Install] names no unit that would start it"
            ),
            Err(why) => format!("`{unit}` cannot be enabled: {why}"),
        };
        let expected = "expected a unit with WantedBy=, RequiredBy=, UpheldBy=, Alias= or Also=";
        mistakes.add(Mistake::of(place("enable", unit), found, expected).help(
            "a link in [files.\"/etc/systemd/system/multi-user.target.wants/…\"] starts it without one",
        ));
    }
    for unit in &units.disable {
        if !with_files.has_unit(unit) && below.links_to(unit).is_empty() {
            let mistake = absent("disable", unit);
            mistakes.add(match with_files.has_script(unit) {
                true => mistake.help("mask it: it is a script of /etc/init.d"),
                false => mistake,
            });
        }
    }
    apart(recipe, with_files, mistakes);
    // systemd masks any name, but a mask of a name that nothing has is a slip of the pen: the unit that was meant starts.
    for unit in &units.mask {
        let kind = unit.rsplit_once('.').map_or("", |(_, kind)| kind);
        let may_come = MADE_AT_BOOT.contains(&kind) || with_files.has_script(unit);
        if !may_come && !with_files.has_unit(unit) {
            mistakes.add(absent("mask", unit));
        }
        let meant = with_files.unit_name(unit);
        let is_off = units.mask.contains(&meant)
            || units
                .disable
                .iter()
                .any(|name| with_files.unit_name(name) == meant);
        // systemctl refuses it too, as the alias is in the mask's place. That of a package, in another folder, may be masked alone
        // (ctrl-alt-del.target).
        if meant != *unit && with_files.is_link(unit) && !is_off {
            let mistake = Mistake::of(
                place("mask", unit),
                format!("`{unit}` is an alias of `{meant}`, which starts without it"),
                "expected the name of the unit itself",
            );
            mistakes.add(mistake.help(format!("mask `{meant}`")));
        }
    }
}

/// A unit that is to be enabled by one of its names, and disabled or masked by another: the check of the recipe alone compares names.
fn apart(recipe: &Recipe, with_files: &Found, mistakes: &mut Mistakes) {
    let units = &recipe.units;
    let place = |list: &str, unit: &str| recipe.places.word(&["units", list], unit);
    for one in &units.enable {
        let meant = with_files.unit_name(one);
        let disabled = |name: &&String| *name != one && with_files.unit_name(name) == meant;
        // A mask is of its name alone.
        let masked = |name: &&String| *name != one && **name == meant;
        for (list, other) in [
            ("disable", units.disable.iter().find(disabled)),
            ("mask", units.mask.iter().find(masked)),
        ] {
            let Some(other) = other else { continue };
            let mistake = Mistake::of(
                place("enable", one),
                format!(
                    "`{one}` in `units.enable` and `{other}` in `units.{list}` are the unit `{meant}`"
                ),
                "expected it in one of them",
            );
            mistakes.add(match place(list, other) {
                Some(place) => mistake.also(&place, "the other one"),
                None => mistake,
            });
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::recipe;
    use crate::steps::layers::found::tests::found;

    /// A recipe of this text below a table `[image]` of four lines, with these files beside it.
    pub(in crate::steps::layers) fn recipe(
        text: &str,
        files: &[(&str, &str)],
    ) -> (tempfile::TempDir, Recipe) {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(folder.path().join(name), content).unwrap();
        }
        let path = folder.path().join("a.toml");
        let text = format!("[image]\nname = 'a'\nversion = '1'\n{text}");
        std::fs::write(&path, text).unwrap();
        let recipe = recipe::load(&path).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        (folder, recipe)
    }

    pub(in crate::steps::layers) const KERNEL: &str =
        "[kernel]\npackage = 'linux-image-amd64'\nplatforms = ['qemu']\n";

    fn below() -> Found {
        found(vec![
            Entry::symlink("/lib", "usr/lib"),
            Entry::file(
                "/etc/passwd",
                0o644,
                "root:x:0:0::/:\nsshd:x:104:65534::/:\n",
            ),
            Entry::file("/etc/group", 0o644, "root:x:0:\n"),
            Entry::file("/etc/init.d/old", 0o755, ""),
            Entry::file("/usr/bin/tool", 0o755, ""),
            Entry::file("/usr/share/moved.d/thing", 0o644, ""),
            Entry::file(
                "/usr/lib/systemd/system/a.service",
                0o644,
                "[Install]\nWantedBy=b.target\n",
            ),
            Entry::file(
                "/usr/lib/systemd/system/static.service",
                0o644,
                "[Service]\n",
            ),
            Entry::file(
                "/usr/lib/systemd/system/getty@.service",
                0o644,
                "[Install]\nWantedBy=b.target\n",
            ),
            Entry::symlink(
                "/etc/systemd/system/x.wants/gone.timer",
                "/usr/lib/systemd/system/gone.timer",
            ),
        ])
    }

    /// The mistakes of a recipe's words, without the folder's name, and their number.
    fn judged(text: &str) -> (String, usize) {
        let (folder, recipe) = recipe(&format!("{KERNEL}{text}"), &[]);
        let below = below();
        let packages = [Entry::file("/usr/bin/su", 0o4755, "")];
        let mut mistakes = recipe.places.mistakes();
        let cache = Cache::at(folder.path().join("cache")).unwrap();
        let with_files = lay_files(&cache, &recipe, &below, &mut mistakes).unwrap();
        owners(&recipe, &below, &mut mistakes);
        set_uid(&recipe, &packages, &mut mistakes);
        units(&recipe, &below, &with_files, &mut mistakes);
        let report = mistakes.render(false);
        let report = report.replace(folder.path().to_str().unwrap(), "");
        (report, mistakes.len())
    }

    #[test]
    fn names_of_what_is_there_are_no_mistakes() {
        let (report, count) = judged(
            "[root]\nset-uid = ['/usr/bin/su']\n\
             [units]\nenable = ['a.service', 'getty@tty1.service', 'own.service']\n\
             disable = ['gone.timer', 'static.service']\n\
             mask = ['old.service', 'boot.mount', 'getty@.service']\n\
             [files.'/lib/systemd/system/own.service']\ncontent = \"[Install]\\nWantedBy=b.target\\n\"\n\
             [files.'/usr/bin/tool']\nremove = true\n\
             [files.'/etc/x']\ncontent = ''\nuser = 'sshd'\ngroup = 7\n",
        );
        assert_eq!(count, 0, "{report}");
    }

    #[test]
    fn a_folder_of_var_is_a_home() {
        let text = |path: &str| {
            format!(
                "{KERNEL}[users.a]\nhome = '/var/lib/a'\nshell = '/usr/bin/tool'\n\
                 [files.{path:?}]\ndirectory = true\n"
            )
        };
        let homes = |path: &str| {
            let (folder, recipe) = recipe(&text(path), &[]);
            let cache = Cache::at(folder.path().join("cache")).unwrap();
            let mut mistakes = recipe.places.mistakes();
            let with_files = lay_files(&cache, &recipe, &below(), &mut mistakes).unwrap();
            accounts::check(&recipe, &with_files, &mut mistakes);
            mistakes.len()
        };
        assert_eq!([homes("/var/lib/a"), homes("/var/lib/b")], [0, 1]);
    }

    #[test]
    fn names_of_what_is_not_there_are_all_reported_with_their_places() {
        let (report, count) = judged(
            "[root]\nset-uid = ['/usr/bin/sudo']\n\
             [units]\nenable = ['b.service', 'static.service']\n\
             disable = ['gon.timer', 'old.service']\n\
             mask = ['statik.service']\n\
             [files.'/usr/bin/tol']\nremove = true\n\
             [files.'/usr/lib/gone/thing']\nremove = true\n\
             [files.'/var/lib/x']\nremove = true\n\
             [files.'/usr/share/moved.d']\ncontent = ''\n\
             [files.'/etc/x']\ncontent = ''\nuser = 'sshdd'\ngroup = 'wheel'\n",
        );
        for expected in [
            "no package has a set-uid or set-gid file /usr/bin/sudo\n --> /a.toml:8:12\n",
            "did you mean `/usr/bin/su`?",
            "the image has no unit `b.service` to enable\n  --> /a.toml:10:11\n",
            "did you mean `a.service`?",
            "`static.service` cannot be enabled",
            "the image has no unit `gon.timer` to disable\n  --> /a.toml:11:12\n",
            "mask it: it is a script of /etc/init.d",
            "the image has no unit `statik.service` to mask\n  --> /a.toml:12:9\n",
            "did you mean `static.service`?",
            "there is nothing at /usr/bin/tol to remove\n  --> /a.toml:14:10\n",
            "did you mean `/usr/bin/tool`?",
            "did you mean `/usr/share/moved.d/thing`?",
            "it is on the partition of /var",
            "/usr/share/moved.d cannot be put there",
            "the image has no user `sshdd`\n  --> /a.toml:23:8\n",
            "did you mean `sshd`?",
            "the image has no group `wheel`",
        ] {
            assert!(report.contains(expected), "{expected}\n{report}");
        }
        assert_eq!(count, 12, "{report}");
    }

    #[test]
    fn an_alias_is_no_way_around_its_unit() {
        let alias = "[files.'/etc/systemd/system/other.service']\nlink = '/usr/lib/systemd/system/a.service'\n\
                     [files.'/usr/lib/systemd/system/third.service']\nlink = 'a.service'\n";
        for (units, expected) in [
            ("disable = ['other.service']", &[][..]),
            (
                "enable = ['a.service']\ndisable = ['other.service']",
                &[
                    "`a.service` in `units.enable` and `other.service` in `units.disable` are the unit `a.service`",
                ],
            ),
            (
                "enable = ['other.service']\nmask = ['a.service']",
                &[
                    "`other.service` in `units.enable` and `a.service` in `units.mask` are the unit `a.service`",
                ],
            ),
            (
                "mask = ['other.service']",
                &[
                    "`other.service` is an alias of `a.service`",
                    "mask `a.service`",
                ],
            ),
            ("mask = ['other.service', 'a.service']", &[]),
            // As systemctl does it: the alias alone.
            ("enable = ['a.service']\nmask = ['third.service']", &[]),
        ] {
            let (report, count) = judged(&format!("[units]\n{units}\n{alias}"));
            assert_eq!(
                count,
                usize::from(!expected.is_empty()),
                "{units}: {report}"
            );
            for words in expected {
                assert!(report.contains(words), "{units}: {words}\n{report}");
            }
        }
    }
}
