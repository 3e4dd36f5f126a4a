//! Installs packages into a tree as apt and dpkg would, with all packages of a wave unpacked at once.
//!
//! For each wave: the `preinst` scripts run in the tree as it is then, the packages are unpacked in parallel at the places
//! that diversions give them, and dpkg's database is brought to its state after unpacking. The essential packages, which
//! bring the interpreter of the scripts, are unpacked before theirs run, as by debootstrap. dpkg configures what the
//! next wave pre-depends on, and in the end everything.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;

use super::claims::Overlap;
use super::configure::Scripts;
use super::options::Options;
use super::order::Order;
use super::package::Unpacked;
use super::surroundings::{FIRST, Machine};
use super::target::real_name;
use super::unpack::Tree;
use super::{clean, database, dkms};
use crate::debian::pinned::Deb;
use crate::host::cache;
use crate::host::progress::Step;
use crate::host::session::Session;

/// Installs packages into `root`, which must be empty or absent, without the files that the options leave out. Scripts see
/// `machine`.
pub(super) fn install(
    debs: &[Deb],
    root: &Path,
    options: &Options,
    machine: &Machine,
    step: &Step,
) -> Result<Vec<Unpacked>> {
    let wanted: &(dyn Fn(&str) -> bool + Sync) = &|path| clean::is_kept(options, path);
    let mut packages = Unpacked::read(debs)?;
    dkms::refuse(&packages)?;
    let order = Order::of(&packages);
    let mut tree = Tree::new(root, Overlap::Conflict, order.ranks())?;
    database::create(root)?;
    let scripts = Scripts::prepare(root, options.epoch, machine)?;
    let mut configured = BTreeSet::new();
    for (at, wave) in order.waves.iter().enumerate() {
        let first = at == 0;
        if !first {
            step.note("configuring the packages");
            let mut before = match at {
                1 => order.waves[0].clone(),
                _ => order.configured_before(at),
            };
            before.retain(|at| configured.insert(*at));
            scripts.configure(of(&packages, &before))?;
            tree.overrides.read_stats(root)?;
            step.note("running the scripts before installation");
            scripts.before(of(&packages, wave))?;
            tree.overrides.read_diversions(root)?;
        }
        step.note("unpacking the packages");
        for lost in tree.unpack(debs, &mut packages, wave, wanted, &|bytes| {
            step.advance(bytes)
        })? {
            database::lost(root, &packages[lost])?;
        }
        if first {
            step.note("running the scripts before installation");
            scripts.before(of(&packages, wave))?;
        }
        database::add(root, of(&packages, wave))?;
    }
    step.note("configuring the packages");
    scripts.finish()?;
    remove_unwanted(root, &packages, wanted)?;
    if !options.docs {
        clean::only_copyright(root)?;
    }
    Ok(packages)
}

/// Installs packages into `root`, which must be empty or absent, and leaves the tree as their scripts have left it.
///
/// # Errors
/// If a package cannot be read, two packages have one path, or a maintainer script fails; the error names them.
pub fn install_only(session: &Session, debs: &[Deb], root: &Path, options: &Options) -> Result<()> {
    let step = session.progress.step("install");
    step.total(debs.iter().map(|deb| deb.package.size).sum());
    install(debs, root, options, &FIRST, &step)?;
    step.made(None);
    Ok(())
}

fn of<'a>(
    packages: &'a [Unpacked],
    which: &'a [usize],
) -> impl Iterator<Item = &'a Unpacked> + Clone {
    which.iter().map(|at| &packages[*at])
}

/// Removes the folders that were there for scripts alone, with the links that scripts have put into them.
fn remove_unwanted(
    root: &Path,
    packages: &[Unpacked],
    wanted: &(dyn Fn(&str) -> bool + Sync),
) -> Result<()> {
    let paths = packages.iter().flat_map(|package| &package.paths);
    let unwanted = paths
        .map(|path| &path[1..])
        // Below a kept link, which may lead out of the tree: [`clean::only_copyright`] removes these.
        .filter(|path| clean::in_docs(path).is_none())
        .filter(|path| !wanted(path));
    for path in unwanted.collect::<BTreeSet<_>>() {
        // A script may have made a link that leads to the host's files.
        if let Some(path) = real_name(root, path.as_ref())? {
            cache::remove(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn folders_that_were_for_scripts_alone_go_with_the_links_in_them() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let options = Options::default();
        for path in [
            "usr/share/man/man1",
            "usr/share/locale/de",
            "usr/share/doc-base",
        ] {
            fs::create_dir_all(root.join(path)).unwrap();
        }
        std::os::unix::fs::symlink("/x", root.join("usr/share/man/man1/java.1.gz")).unwrap();
        let mut package = Unpacked::of("Package: a\n");
        let outside = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.join("usr/share/doc")).unwrap();
        std::os::unix::fs::symlink(outside.path(), root.join("usr/share/doc/a")).unwrap();
        fs::write(outside.path().join("README"), "").unwrap();
        std::os::unix::fs::symlink(outside.path(), root.join("usr/share/info")).unwrap();
        package.paths = [
            "/.",
            "/usr/share/doc/a",
            "/usr/share/doc/a/README",
            "/usr/share/man",
            "/usr/share/man/man1",
            "/usr/share/man/man1/a.1.gz",
            "/usr/share/locale/de",
            "/usr/share/doc-base",
            "/usr/share/info",
            "/usr/share/info/README",
        ]
        .map(str::to_owned)
        .to_vec();
        let wanted = |path: &str| clean::is_kept(&options, path);
        remove_unwanted(root, &[package], &wanted).unwrap();
        for (path, kept) in [
            ("usr/share/man", true),
            ("usr/share/man/man1", false),
            ("usr/share/locale/de", false),
            ("usr/share/doc-base", true),
        ] {
            assert_eq!(root.join(path).is_dir(), kept, "{path}");
        }
        assert!(outside.path().join("README").exists());
    }
}
