//! Rootfs: the packages of the root, installed, with the recipe's accounts. What their scripts generate is refused, unless the node makes it itself, the
//! recipe replaces it, or the recipe takes it as it is.

use anyhow::Result;

use super::accounts;
use crate::debian::pinned::Deb;
use crate::host::session::Session;
use crate::install::{self, Generated, Made, Options, Purpose, Rootfs};
use crate::lock::LockedRecipe;
use crate::recipe::{Mistake, Recipe, SET_ROOT};

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
    let rootfs = without_generated(session, locked, (&debs, &options), "generated", rootfs)?;
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

/// A root without caches that differ from build to build; `name` is that of the step which looks for them.
///
/// # Errors
/// The same as [`install()`].
pub(super) fn without_generated(
    session: &Session,
    locked: &LockedRecipe,
    (debs, options): (&[Deb], &Options),
    name: &str,
    mut rootfs: Rootfs,
) -> Result<Rootfs> {
    let recipe = &locked.recipe;
    let is_node = options.purpose == Purpose::Node;
    // What the recipe lays over a node's packages is not below a container's.
    let is_replaced = |path: &str| is_node && is_replaced(recipe, path);
    let suspects = rootfs.report.suspects.iter();
    let suspects: Vec<&Made> = suspects.filter(|made| !is_replaced(&made.path)).collect();
    let mut mistakes = recipe.places.mistakes();
    for path in recipe.root.same_on_every_node.iter().filter(|_| is_node) {
        if !suspects.iter().any(|made| is_below(&made.path, path)) {
            let mistake = Mistake::of(
                recipe.places.word(&["root", "same-on-every-node"], path),
                format!("no package's script generates {path}"),
                "expected what one makes and the node does not, or a folder of such files",
            );
            mistakes.add(mistake.nearest(path, suspects.iter().map(|made| made.path.as_str())));
        }
    }
    mistakes.none()?;
    if suspects.is_empty() {
        return Ok(rootfs);
    }
    let found = install::generated(session, name, debs, options, &rootfs)?;
    let (mut caches, mut refused) = (Vec::new(), Vec::new());
    for generated in found {
        let path = generated.path.as_str();
        let is_cache = |(start, end): &(&str, &str)| path.starts_with(start) && path.ends_with(end);
        let is_accepted = |taken: &String| is_below(path, taken);
        if is_replaced(path) || is_replaced(&generated.entry) {
        } else if generated.host_name {
            rootfs.report.host_name.push(generated.path);
        } else if CACHES.iter().any(is_cache) {
            caches.push(generated.entry);
        } else if !recipe.root.same_on_every_node.iter().any(is_accepted) {
            refused.push(generated);
        }
    }
    refuse(recipe, &rootfs, &refused)?;
    Ok(rootfs.without(&caches))
}

/// Whether a path is a folder or in it.
fn is_below(path: &str, folder: &str) -> bool {
    std::path::Path::new(path).starts_with(folder)
}

/// Whether the recipe puts something else in the place of a path, or nothing.
fn is_replaced(recipe: &Recipe, path: &str) -> bool {
    let mut files = recipe.files.iter();
    files.any(|file| is_below(path, &file.path))
}

/// Refuses what differs, with a mistake for each package.
fn refuse(recipe: &Recipe, rootfs: &Rootfs, generated: &[Generated]) -> Result<()> {
    let maker = |path: &str| {
        let mut suspects = rootfs.report.suspects.iter();
        let made = suspects.find(|made| made.path == path);
        made.and_then(|made| made.package.as_deref())
    };
    let mut by_package: std::collections::BTreeMap<Option<&str>, Vec<&Generated>> =
        std::collections::BTreeMap::new();
    for generated in generated {
        let package = maker(&generated.path);
        by_package.entry(package).or_default().push(generated);
    }
    let mut mistakes = recipe.places.mistakes();
    for (package, generated) in by_package {
        let paths: Vec<&str> = generated.iter().map(|g| g.path.as_str()).collect();
        let mut shown = paths[..paths.len().min(SHOWN)].join(", ");
        if paths.len() > SHOWN {
            shown += &format!(" and {} more", paths.len() - SHOWN);
        }
        let whose = match package {
            Some(package) => format!("a script of `{package}` generates"),
            None => "scripts of the packages generate".to_owned(),
        };
        let place = package.and_then(|name| recipe.places.word(&["debian", "packages"], name));
        let first = generated.first().map_or("", |first| first.entry.as_str());
        let mistake = Mistake::of(
            place,
            format!(
                "{whose} what is different in each build and would be the same on every node: {shown}"
            ),
            "expected an image without secrets and identities, and the same bytes from the same lock",
        );
        mistakes.add(mistake.help(format!(
            "[files.{first:?}] with `remove = true` leaves it out, with `content` puts something else there; `same-on-every-node = [{:?}]` in [root] takes it as it is",
            paths.first().unwrap_or(&"")
        )));
    }
    Ok(mistakes.none()?)
}
