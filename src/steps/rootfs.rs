//! Rootfs: the packages of the root, installed, with the recipe's accounts. What their scripts generate is refused, unless the node makes it itself, the
//! recipe replaces it, or the recipe takes it as it is. The same of the trees of containers, where nothing else makes it and nothing replaces it.

use std::collections::BTreeMap;

use anyhow::Result;

use super::accounts;
use crate::debian::pinned::Deb;
use crate::host::session::Session;
use crate::install::{self, Generated, Made, Options, Purpose, Report, Rootfs};
use crate::lock::LockedRecipe;
use crate::recipe::{Mistake, Mistakes, Place, Recipe, SET_KUBELET, SET_ROOT, nearest};

/// Paths in one message; more are counted.
const SHOWN: usize = 5;
/// Caches that programs make again, and that are left out if they differ: the start of a path, and its end.
const CACHES: [(&str, &str); 2] = [("/var/cache/", ""), ("/usr/", ".pyc")];

/// Installs the root's packages.
///
/// # Errors
/// If a package cannot be fetched or read, or a maintainer script fails; the error names it. What scripts generate and the
/// recipe says nothing of, and accounts that do not fit theirs, as [`crate::recipe::Mistakes`].
pub fn install(session: &Session, locked: &LockedRecipe) -> Result<Rootfs> {
    let debs = locked.packages(session, SET_ROOT)?;
    let packages = locked.recipe.debian.packages.clone();
    let options = options(locked, Purpose::Node, packages);
    let rootfs = install::install(session, "rootfs", &debs, &options)?;
    if locked.recipe.kubernetes.is_none() {
        // It has no container, so that this is known before the second installation.
        refuse_unused(&locked.recipe, &rootfs.report, &BTreeMap::new())?;
    }
    let rootfs = without_generated(session, locked, SET_ROOT, (&debs, &options), rootfs)?;
    accounts::of_root(&locked.recipe, rootfs, locked.lock.epoch)
}

/// The recipe's options for installed packages, of which it names these.
pub(super) fn options(locked: &LockedRecipe, purpose: Purpose, mut named: Vec<String>) -> Options {
    let debian = &locked.recipe.debian;
    named.sort_unstable();
    named.dedup();
    Options {
        purpose,
        epoch: locked.lock.epoch,
        docs: debian.docs,
        locales: debian.locales.clone(),
        package_manager: debian.package_manager,
        named,
    }
}

/// A tree without caches that differ from build to build; `set` is that of its packages. A container's lacks what a node makes on its first
/// boot, of which this warns.
///
/// # Errors
/// The same as [`install()`].
pub(super) fn without_generated(
    session: &Session,
    locked: &LockedRecipe,
    set: &str,
    (debs, options): (&[Deb], &Options),
    mut rootfs: Rootfs,
) -> Result<Rootfs> {
    let recipe = &locked.recipe;
    if let Some(warning) = left_out(set, &rootfs.report) {
        session.progress.warn(&warning);
    }
    if suspects(recipe, set, &rootfs.report).next().is_none() {
        return Ok(rootfs);
    }
    let name = match set {
        SET_ROOT => "generated".to_owned(),
        set => format!("{set} generated"),
    };
    let found = install::generated(session, &name, debs, options, &rootfs)?;
    let (mut caches, mut refused) = (Vec::new(), Vec::new());
    for generated in found {
        let path = generated.path.as_str();
        let is_cache = |(start, end): &(&str, &str)| path.starts_with(start) && path.ends_with(end);
        let is_accepted = |taken: &String| is_below(path, taken);
        if is_replaced(recipe, set, path) || is_replaced(recipe, set, &generated.entry) {
        } else if generated.host_name {
            rootfs.report.host_name.push(generated.path);
        } else if CACHES.iter().any(is_cache) {
            caches.push(generated.entry);
        } else if !recipe.root.same_on_every_node.iter().any(is_accepted) {
            refused.push(generated);
        }
    }
    refused_of(recipe, set, &rootfs.report, &refused).none()?;
    Ok(rootfs.without(&caches))
}

/// Refuses the paths of `same-on-every-node` that no script of any tree makes: `containers` has the reports of all but the root, by the sets
/// of their packages.
///
/// # Errors
/// A mistake for each such path.
pub(crate) fn refuse_unused(
    recipe: &Recipe,
    root: &Report,
    containers: &BTreeMap<String, Report>,
) -> Result<(), Mistakes> {
    let containers = containers.iter();
    let containers = containers.flat_map(|(set, report)| suspects(recipe, set, report));
    let made: Vec<&Made> = suspects(recipe, SET_ROOT, root).chain(containers).collect();
    let mut mistakes = recipe.places.mistakes();
    for path in &recipe.root.same_on_every_node {
        if !made.iter().any(|made| is_below(&made.path, path)) {
            let mistake = Mistake::of(
                recipe.places.word(&["root", "same-on-every-node"], path),
                format!("no package's script generates {path}"),
                "expected what one makes and the node does not, or a folder of such files",
            );
            mistakes.add(mistake.nearest(path, made.iter().map(|made| made.path.as_str())));
        }
    }
    mistakes.none()
}

/// A container by the set of its packages.
pub(crate) fn container(set: &str) -> String {
    match set {
        SET_KUBELET => "the kubelet's container".to_owned(),
        set => format!("the container {set}"),
    }
}

/// What a build says of a container that lacks files of its packages' scripts, which on a node units make on the first boot.
fn left_out(set: &str, report: &Report) -> Option<String> {
    if set == SET_ROOT || report.first_boot.is_empty() {
        return None;
    }
    let made = report.first_boot.iter().map(|made| made.path.as_str());
    Some(format!(
        "{} lacks what scripts of its packages made, since it would be the same on every node; nothing makes it there at its start: {}",
        container(set),
        shown(&made.collect::<Vec<_>>())
    ))
}

/// The first of some paths, and the number of the others.
fn shown(paths: &[&str]) -> String {
    let mut shown = paths[..paths.len().min(SHOWN)].join(", ");
    if paths.len() > SHOWN {
        shown += &format!(" and {} more", paths.len() - SHOWN);
    }
    shown
}

/// What scripts have made in the tree of this set and may be different each time, unless the recipe replaces it.
fn suspects<'a>(
    recipe: &'a Recipe,
    set: &'a str,
    report: &'a Report,
) -> impl Iterator<Item = &'a Made> {
    let suspects = report.suspects.iter();
    suspects.filter(move |made| !is_replaced(recipe, set, &made.path))
}

/// Whether a path is a folder or in it.
fn is_below(path: &str, folder: &str) -> bool {
    std::path::Path::new(path).starts_with(folder)
}

/// Whether the recipe puts something else in the place of a path, or nothing: it does so over the packages of the root alone.
fn is_replaced(recipe: &Recipe, set: &str, path: &str) -> bool {
    let mut files = recipe.files.iter();
    set == SET_ROOT && files.any(|file| is_below(path, &file.path))
}

/// A mistake for each package of a tree whose script generates what differs.
fn refused_of(recipe: &Recipe, set: &str, report: &Report, generated: &[Generated]) -> Mistakes {
    let maker = |path: &str| {
        let mut suspects = report.suspects.iter();
        let made = suspects.find(|made| made.path == path);
        made.and_then(|made| made.package.as_deref())
    };
    let mut by_package: BTreeMap<Option<&str>, Vec<&Generated>> = BTreeMap::new();
    for generated in generated {
        let package = maker(&generated.path);
        by_package.entry(package).or_default().push(generated);
    }
    let place_in = match set {
        SET_ROOT => String::new(),
        set => format!(" in {}", container(set)),
    };
    let mut mistakes = recipe.places.mistakes();
    for (package, generated) in by_package {
        let paths: Vec<&str> = generated.iter().map(|g| g.path.as_str()).collect();
        let whose = match package {
            Some(package) => format!("a script of `{package}` generates"),
            None => "scripts of the packages generate".to_owned(),
        };
        let found = format!(
            "{whose}{place_in} what is different in each build and would be the same on every node: {}",
            shown(&paths)
        );
        let expected = "expected an image without secrets and identities, and the same bytes from the same lock";
        let mistake = Mistake::of(place(recipe, set, package), found, expected);
        let mistake = match misspelt(recipe, set, report, &paths) {
            Some((place, path)) => mistake.also(&place, format!("did you mean `{path}`?")),
            None => mistake,
        };
        mistakes.add(mistake.help(remedies(set, &generated)));
    }
    mistakes
}

/// What the recipe can do about generated files. `[files]` is laid over the packages of the root alone.
fn remedies(set: &str, generated: &[&Generated]) -> String {
    let (first, path) = generated.first().map_or(("", ""), |first| {
        (first.entry.as_str(), first.path.as_str())
    });
    let taken = format!("`same-on-every-node = [{path:?}]` in [root] takes it as it is");
    match set {
        SET_ROOT => format!(
            "[files.{first:?}] with `remove = true` leaves it out, with `content` puts something else there; {taken}"
        ),
        _ => taken,
    }
}

/// Where the recipe asks for a package of a set; of one that a container image has as a dependency, the table of the image.
fn place(recipe: &Recipe, set: &str, package: Option<&str>) -> Option<Place> {
    const IMAGES: [&str; 2] = ["containers", "composed"];
    let places = &recipe.places;
    match set {
        SET_ROOT => places.word(&["debian", "packages"], package?),
        SET_KUBELET => places.word(&["kubernetes", "container-packages"], package?),
        set => {
            let number = recipe.composed.iter().position(|one| one.set() == set)?;
            let word = |name| places.word_of_item(&IMAGES, (number, "packages"), name);
            let item = || places.item(&IMAGES, number);
            package.and_then(word).or_else(item)
        }
    }
}

/// The place of a path of `same-on-every-node` that takes nothing in this tree and is near to one of these paths, with that. Whether
/// another tree has it is not known yet.
fn misspelt<'a>(
    recipe: &Recipe,
    set: &str,
    report: &Report,
    paths: &[&'a str],
) -> Option<(Place, &'a str)> {
    recipe.root.same_on_every_node.iter().find_map(|taken| {
        let is_used = suspects(recipe, set, report).any(|made| is_below(&made.path, taken));
        let path = nearest(taken, paths.iter().copied()).filter(|_| !is_used)?;
        let list = ["root", "same-on-every-node"];
        Some((recipe.places.word(&list, taken)?, path))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::FirstBoot;
    use crate::recipe;

    const IMAGE: &str = "image r.example/dir:1";

    /// A recipe with the package slapd in its root, its kubelet's container and an image of packages, and with more in `[root]`.
    fn recipe(root: &str) -> Recipe {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        let text = format!(
            "image = {{ name = 'a', version = '1' }}\nkernel = {{ package = 'linux-image-amd64', platforms = ['qemu'] }}\n\
             debian.packages = ['slapd']\n\
             [kubernetes]\nversion = '1.36'\nkubelet = [{{ go-module = true }}]\ncontainer-packages = ['mount', 'slapd']\n\
             [[containers.composed]]\nname = 'r.example/other:1'\npackages = ['slapd']\n\
             [[containers.composed]]\nname = 'r.example/dir:1'\npackages = ['jq', 'slapd']\n[root]\n{root}\n"
        );
        std::fs::write(&path, text).unwrap();
        recipe::load(&path).unwrap_or_else(|mistakes| panic!("{}", mistakes.render(false)))
    }

    fn made(paths: &[&str], package: &str) -> Report {
        let made = |path: &&str| Made {
            path: (*path).to_owned(),
            package: Some(package.to_owned()),
        };
        Report {
            suspects: paths.iter().map(made).collect(),
            ..Report::default()
        }
    }

    fn generated(path: &str) -> Generated {
        Generated {
            entry: path.to_owned(),
            path: path.to_owned(),
            host_name: false,
        }
    }

    #[test]
    fn what_a_tree_generates_is_refused_in_its_place_with_what_helps() {
        let recipe = recipe("");
        let files = "[files.\"/etc/ldap/key\"] with `remove = true`";
        let taken = "`same-on-every-node = [\"/etc/ldap/key\"]` in [root] takes it as it is";
        let whose = "a script of `slapd` generates";
        for (set, found, place) in [
            (
                SET_ROOT,
                format!("{whose} what is different"),
                "a.toml:3:20",
            ),
            (
                SET_KUBELET,
                format!("{whose} in the kubelet's container what is different"),
                "a.toml:7:32",
            ),
            (
                IMAGE,
                format!("{whose} in the container image r.example/dir:1 what is different"),
                "a.toml:13:19",
            ),
        ] {
            let report = made(&["/etc/ldap/key"], "slapd");
            let said = refused_of(&recipe, set, &report, &[generated("/etc/ldap/key")]);
            let said = said.render(false);
            for expected in [&*found, place, taken] {
                assert!(said.contains(expected), "{expected}: {said}");
            }
            assert_eq!(said.contains(files), set == SET_ROOT, "{said}");
        }
        // That of a dependency is the image's.
        let report = made(&["/etc/app/key"], "app");
        let said = refused_of(&recipe, IMAGE, &report, &[generated("/etc/app/key")]);
        let said = said.render(false);
        assert!(said.contains("a.toml:11:"), "{said}");
    }

    #[test]
    fn a_path_that_any_tree_generates_is_taken() {
        let taking = recipe("same-on-every-node = ['/etc/ldap', '/etc/app/id']");
        let root = made(&["/etc/app/id"], "app");
        let container = made(&["/etc/ldap/key"], "slapd");
        for set in [SET_KUBELET, IMAGE] {
            let containers = BTreeMap::from([(set.to_owned(), container.clone())]);
            refuse_unused(&taking, &root, &containers).unwrap();
            refuse_unused(
                &taking,
                &container,
                &BTreeMap::from([(set.to_owned(), root.clone())]),
            )
            .unwrap();
        }
        let unused = refuse_unused(&taking, &root, &BTreeMap::new()).unwrap_err();
        assert_eq!(unused.len(), 1);
        let said = unused.render(false);
        assert!(
            said.contains("no package's script generates /etc/ldap"),
            "{said}"
        );
        assert!(said.contains("a.toml:15:23"), "{said}");
        let misspelt = recipe("same-on-every-node = ['/etc/ldap/kye']");
        let containers = BTreeMap::from([(IMAGE.to_owned(), container.clone())]);
        let said = refuse_unused(&misspelt, &root, &containers).unwrap_err();
        let said = said.render(false);
        assert!(said.contains("did you mean `/etc/ldap/key`?"), "{said}");
        // It is named where what it means is refused, before all trees are known; one that takes another file of the tree is not.
        let refused = |recipe: &Recipe, report: &Report| {
            let generated = [generated("/etc/ldap/key")];
            refused_of(recipe, IMAGE, report, &generated).render(false)
        };
        let said = refused(&misspelt, &container);
        assert!(said.contains("did you mean `/etc/ldap/key`?"), "{said}");
        let both = made(&["/etc/ldap/key", "/etc/ldap/kye"], "slapd");
        let said = refused(&misspelt, &both);
        assert!(!said.contains("did you mean"), "{said}");
    }

    /// `[files]` lays something over the root's file, and nothing over that of a container.
    #[test]
    fn a_file_of_the_recipe_replaces_the_roots_alone() {
        let recipe = recipe(
            "same-on-every-node = ['/etc/ldap/key']\n[files.'/etc/ldap/key']\nremove = true",
        );
        let report = made(&["/etc/ldap/key"], "slapd");
        refuse_unused(&recipe, &report, &BTreeMap::new()).unwrap_err();
        let containers = BTreeMap::from([(IMAGE.to_owned(), report.clone())]);
        refuse_unused(&recipe, &report, &containers).unwrap();
    }

    #[test]
    fn what_a_node_makes_is_named_where_a_container_lacks_it() {
        let first_boot = |number| FirstBoot {
            path: format!("/var/lib/mysql/{number}"),
            unit: None,
        };
        let report = Report {
            first_boot: (1..=7).map(first_boot).collect(),
            ..Report::default()
        };
        let said = left_out(IMAGE, &report).unwrap();
        assert!(
            said.starts_with("the container image r.example/dir:1 lacks"),
            "{said}"
        );
        assert!(
            said.contains("/var/lib/mysql/1, /var/lib/mysql/2"),
            "{said}"
        );
        assert!(said.ends_with("/var/lib/mysql/5 and 2 more"), "{said}");
        let said = left_out(SET_KUBELET, &report).unwrap();
        assert!(said.starts_with("the kubelet's container lacks"), "{said}");
        assert_eq!(left_out(SET_ROOT, &report), None);
        assert_eq!(left_out(IMAGE, &Report::default()), None);
    }
}
