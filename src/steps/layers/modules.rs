//! The kernel modules that a recipe wants: in the initramfs, by name or for a platform, and at boot, by modules-load.d(5).

use std::fs;

use image::modules::matches;

use super::found::Found;
use crate::recipe::{FileKind, LOAD, Mistake, Mistakes, Place, Recipe};
use crate::steps::initramfs::drivers;
use crate::steps::kernel::catalogue::Catalogue;

/// Folders of files that name modules to load.
const LOADED: [&str; 3] = [
    "/etc/modules-load.d/",
    "/usr/lib/modules-load.d/",
    "/lib/modules-load.d/",
];
/// Folders of files with further names of modules.
const NAMED: [&str; 2] = ["/etc/modprobe.d", "/usr/lib/modprobe.d"];
/// Folders of modules, and depmod's list in them.
const MODULES: [&str; 2] = ["/usr/lib/modules/", "/lib/modules/"];
const LIST: &str = "/modules.dep.bin";
/// In the names of Debian's kernels for virtual machines alone.
const CLOUD: &str = "-cloud";

/// Adds a mistake for each module that the kernel does not have.
pub(super) fn check(
    recipe: &Recipe,
    catalogue: &Catalogue,
    with_files: &Found,
    mistakes: &mut Mistakes,
) {
    let places = &recipe.places;
    let place = || places.value(&["kernel", "package"]);
    needed(
        recipe,
        catalogue,
        drivers::REQUIRED,
        ("every image", &place),
        mistakes,
    );
    for platform in &recipe.kernel.platforms {
        let by = format!("the platform {}", platform.name());
        let place = || places.word(&["kernel", "platforms"], platform.name());
        let drivers = platform.provider().drivers;
        needed(recipe, catalogue, drivers, (&by, &place), mistakes);
    }
    for name in &recipe.kernel.modules {
        if !catalogue.knows(name) {
            let place = places.word(&["kernel", "modules"], name);
            mistakes.add(absent(recipe, catalogue, place, name, ""));
        }
    }
    if !brings_list(recipe) {
        named(recipe, catalogue, with_files, mistakes);
        loaded_at_boot(recipe, catalogue, with_files, mistakes);
    }
}

/// Drivers that Slipway knows to be needed, as one mistake.
fn needed(
    recipe: &Recipe,
    catalogue: &Catalogue,
    names: &[&str],
    (by, place): (&str, &dyn Fn() -> Option<Place>),
    mistakes: &mut Mistakes,
) {
    let names = names.iter().filter(|name| !catalogue.knows(name));
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    if names.is_empty() {
        return;
    }
    let mistake = Mistake::of(
        place(),
        format!(
            "the kernel {} lacks modules that {by} needs: {}",
            catalogue.release(),
            names.join(", ")
        ),
        "expected what the kernel's package has drivers for",
    );
    let package = &recipe.kernel.package;
    mistakes.add(match package.contains(CLOUD) {
        true => mistake.help(format!(
            "{package} is for virtual machines; {} has drivers of all machines",
            package.replace(CLOUD, "")
        )),
        false => mistake,
    });
}

/// A module that the kernel does not have.
fn absent(
    recipe: &Recipe,
    catalogue: &Catalogue,
    place: Option<Place>,
    name: &str,
    what_for: &str,
) -> Mistake {
    let release = catalogue.release();
    let mistake = Mistake::of(
        place,
        format!("the kernel {release} has no module `{name}`{what_for}"),
        format!(
            "expected one of {}, loadable or built in",
            recipe.kernel.package
        ),
    );
    mistake.nearest(name, catalogue.names())
}

/// Modules of `[kernel]` that the running node loads, does not load, or loads with options. The latter have to be loadable: the kernel
/// reads the options of what is built in from its command line alone.
fn named(recipe: &Recipe, catalogue: &Catalogue, with_files: &Found, mistakes: &mut Mistakes) {
    let (kernel, places) = (&recipe.kernel, &recipe.places);
    let aliases = aliases(with_files);
    for name in &kernel.load {
        let known = catalogue.answers(name) || aliases.iter().any(|one| matches(one, name));
        if !known {
            let place = places.word(&["kernel", "load"], name);
            mistakes.add(absent(recipe, catalogue, place, name, " to load at boot"));
        }
    }
    for name in &kernel.blacklist {
        if !catalogue.knows(name) {
            let place = places.word(&["kernel", "blacklist"], name);
            mistakes.add(absent(recipe, catalogue, place, name, " to blacklist"));
        }
    }
    for name in kernel.options.keys() {
        let place = places.key(&["kernel", "options", name]);
        if !catalogue.knows(name) {
            mistakes.add(absent(recipe, catalogue, place, name, " to give options"));
        } else if catalogue.is_builtin(name) {
            let found = format!("`{name}` is built into the kernel {}", catalogue.release());
            let expected = "expected a module that is loaded";
            mistakes.add(Mistake::of(place, found, expected).help(format!(
                "its options are words of the command line: cmdline = [\"{}.NAME=VALUE\"]",
                name.replace('-', "_")
            )));
        }
    }
}

/// Modules in the recipe's files of modules-load.d(5).
fn loaded_at_boot(
    recipe: &Recipe,
    catalogue: &Catalogue,
    with_files: &Found,
    mistakes: &mut Mistakes,
) {
    const WHAT_FOR: &str = " to load at boot";
    let aliases = aliases(with_files);
    let unknown = |(_, name): &(usize, &str)| {
        !catalogue.answers(name) && !aliases.iter().any(|pattern| matches(pattern, name))
    };
    for file in &recipe.files {
        let is_one = LOADED.iter().any(|folder| file.path.starts_with(folder));
        // That of `load` has been judged by its words.
        if !is_one || !file.path.ends_with(".conf") || file.path == LOAD {
            continue;
        }
        match &file.kind {
            FileKind::Content(content) => {
                let text = String::from_utf8_lossy(content);
                for (at, name) in wanted(&text).filter(unknown) {
                    let keys = ["files", &file.path, "content"];
                    let part = at..at + name.len();
                    let place = recipe.places.inside(&keys, &text, &part);
                    mistakes.add(absent(recipe, catalogue, place, name, WHAT_FOR));
                }
            }
            FileKind::Source(source) => {
                // One that cannot be read is an error where it is laid.
                let text = fs::read_to_string(source).unwrap_or_default();
                let mut names = wanted(&text).filter(unknown).peekable();
                if names.peek().is_none() {
                    continue;
                }
                let number = mistakes.file(source.clone(), text.clone());
                for (at, name) in names {
                    let place = Place::new(number, &(at..at + name.len()));
                    mistakes.add(absent(recipe, catalogue, Some(place), name, WHAT_FOR));
                }
            }
            FileKind::Download(_) | FileKind::Link(_) | FileKind::Directory | FileKind::Remove => {}
        }
    }
}

/// Whether the recipe has a list of its own in place of the kernel's, so that the node may have other modules.
fn brings_list(recipe: &Recipe) -> bool {
    let mut paths = recipe.files.iter().map(|file| &file.path);
    paths.any(|path| path.ends_with(LIST) && MODULES.iter().any(|folder| path.starts_with(folder)))
}

/// The patterns of `alias PATTERN MODULE` in modprobe.d(5).
fn aliases(found: &Found) -> Vec<String> {
    let mut out = Vec::new();
    for folder in NAMED {
        for name in found.below_folder(folder) {
            let text = found.text(&format!("{folder}/{name}")).unwrap_or_default();
            for line in String::from_utf8_lossy(&text).lines() {
                let mut words = line.split_whitespace();
                if words.next() == Some("alias") {
                    out.extend(words.next().map(str::to_owned));
                }
            }
        }
    }
    out
}

/// The modules that a file of modules-load.d(5) names, each with its first byte.
fn wanted(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut next = 0;
    text.split_inclusive('\n').filter_map(move |line| {
        let at = next;
        next += line.len();
        let name = line.trim();
        let is_name = !name.is_empty() && !name.starts_with(['#', ';']);
        is_name.then_some((at + line.find(name)?, name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::layers::found::tests::found;
    use crate::steps::layers::words::tests::recipe;

    fn catalogue() -> Catalogue {
        let folder = tempfile::tempdir().unwrap();
        let dep = "kernel/net/bridge/br_netfilter.ko.xz:\nkernel/fs/xfs/xfs.ko.xz:\n";
        for (list, text) in [
            ("dep", dep),
            ("softdep", ""),
            ("alias", "alias fs-xfs xfs\n"),
            ("builtin", "kernel/fs/ext4/ext4.ko\n"),
            ("builtin.modinfo", ""),
        ] {
            fs::write(folder.path().join(format!("modules.{list}")), text).unwrap();
        }
        Catalogue::read(folder.path(), "6.12").unwrap()
    }

    #[test]
    fn modules_that_the_kernel_lacks_are_mistakes_with_their_lines() {
        let (folder, recipe) = recipe(
            "[kernel]\npackage = 'linux-image-cloud-amd64'\nplatforms = ['qemu']\nmodules = ['xfss', 'ext4']\n\
             load = ['fs-xfs', 'own-name', 'xfsx']\nblacklist = ['xfs', 'br_netfiler']\n\
             options = { 'xfs' = 'a=1', 'ext4' = 'b=1', 'xsf' = 'c=1' }\n\
             [files.'/etc/modules-load.d/a.conf']\ncontent = \"\"\"\n# x\nbr_netfilter\nfs-xfs\nown-name\nbr_netfiltr\n\"\"\"\n\
             [files.'/etc/modules-load.d/b.conf']\nsource = 'b.conf'\n",
            &[("b.conf", "ext4\n  ext44\n")],
        );
        let mut mistakes = recipe.places.mistakes();
        let named =
            crate::layer::Entry::file("/etc/modprobe.d/a.conf", 0o644, "alias own-name xfs\n");
        check(&recipe, &catalogue(), &found(vec![named]), &mut mistakes);
        let report = mistakes
            .render(false)
            .replace(folder.path().to_str().unwrap(), "");
        for expected in [
            // Of the whole kernel and of one platform: one mistake each.
            "the kernel 6.12 lacks modules that every image needs: `",
            "/a.toml:5:11\n",
            "that the platform qemu needs: `",
            "/a.toml:6:14\n",
            "linux-image-amd64 has drivers of all machines",
            "has no module `xfss`\n --> /a.toml:7:12\n",
            "did you mean `xfs`?",
            "has no module `br_netfiltr` to load at boot\n  --> /a.toml:17:1\n",
            "did you mean `br_netfilter`?",
            "has no module `xfsx` to load at boot\n --> /a.toml:8:31\n",
            "has no module `br_netfiler` to blacklist\n --> /a.toml:9:21\n",
            "has no module `xsf` to give options\n  --> /a.toml:10:44\n",
            "`ext4` is built into the kernel 6.12\n  --> /a.toml:10:28\n",
            "cmdline = [\"ext4.NAME=VALUE\"]",
            "has no module `ext44` to load at boot\n --> /b.conf:2:3\n",
        ] {
            assert!(report.contains(expected), "{expected}\n{report}");
        }
        assert_eq!(mistakes.len(), 9, "{report}");
    }
}
