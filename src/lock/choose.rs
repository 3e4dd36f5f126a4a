//! The choice of packages for the sets of a lock.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use super::keep::Earlier;
use super::refused;
use crate::debian::archive::Archive;
use crate::debian::packages::Pool;
use crate::debian::pinned::LockedPackage;
use crate::debian::solve::{self, Problem, Requirements};
use crate::recipe::{Recipe, SET_DKMS, SET_KERNEL, SetRequest};

/// What the sets are chosen from.
#[derive(Debug)]
pub(super) struct Pools<'a> {
    /// The packages of all archives.
    pub(super) all: Pool<'a>,
    /// Debian's alone, in any version, for Slipway's own tools; none if these are the same.
    debians: Option<Pool<'a>>,
}

impl<'a> Pools<'a> {
    pub(super) fn of(archive: &'a Archive) -> Result<Self> {
        let differ = !archive.is_debians_alone();
        let debians = differ.then(|| archive.debians_pool()).transpose()?;
        Ok(Self {
            all: archive.pool()?,
            debians,
        })
    }

    fn for_set(&self, set: &SetRequest) -> &Pool<'a> {
        let tools = self.debians.as_ref().filter(|_| set.is_tools());
        tools.unwrap_or(&self.all)
    }

    pub(super) fn each(&mut self) -> impl Iterator<Item = &mut Pool<'a>> {
        std::iter::once(&mut self.all).chain(&mut self.debians)
    }
}

/// Solves every set; the mistakes of all of them are reported at once. Earlier choices that do not fit are given up first.
pub(super) fn choose(
    recipe: &Recipe,
    archive: &Archive,
    pools: &mut Pools<'_>,
    sets: &[SetRequest],
    earlier: Option<Earlier<'_>>,
) -> Result<BTreeMap<String, Vec<LockedPackage>>> {
    let architecture = recipe.image.architecture.debian();
    loop {
        let mut chosen = BTreeMap::new();
        let mut problems: Vec<(String, Problem)> = Vec::new();
        let mut about = BTreeSet::new();
        for set in sets {
            let set = &with_headers(set, &chosen);
            let before = earlier.map_or_else(Vec::new, |earlier| earlier.names(&set.name));
            let requirements = Requirements {
                packages: &set.packages,
                backports: &set.backports,
                essential: set.essential,
                recommends: set.recommends,
                dependencies: set.dependencies,
                before: &before,
            };
            let pool = pools.for_set(set);
            match solve::solve(pool, architecture, &requirements) {
                Ok(ids) => {
                    let packages = ids.iter().map(|&id| locked(archive, pool, id)).collect();
                    chosen.insert(set.name.to_string(), packages);
                }
                Err(unsolved) => {
                    let name = set.name.to_string();
                    problems.extend(unsolved.problems.into_iter().map(|one| (name.clone(), one)));
                    about.extend(unsolved.names);
                }
            }
        }
        let mut given_up = false;
        for pool in pools.each() {
            for name in &about {
                given_up |= pool.let_go(name);
            }
        }
        if !given_up {
            let backports = refused::no_backports(&pools.all, sets);
            let held = archive.held(&about);
            let held = held.as_deref();
            refused::packages(recipe, &pools.all, &problems, &backports, held).none()?;
            return Ok(chosen);
        }
    }
}

/// The set that compiles a kernel's modules, with the headers of the kernel that is chosen: in its version, and from backports if that is.
fn with_headers(set: &SetRequest, chosen: &BTreeMap<String, Vec<LockedPackage>>) -> SetRequest {
    let mut set = set.clone();
    if set.name == SET_DKMS {
        let kernels = chosen.get(SET_KERNEL).into_iter().flatten();
        for headers in kernels.filter_map(|kernel| headers_of(&kernel.name)) {
            set.backports.push(headers.clone());
            set.packages.push(headers);
        }
    }
    set
}

/// The package of the headers of a kernel's package: Debian's and those of `make bindeb-pkg` have the same names.
pub(super) fn headers_of(kernel: &str) -> Option<String> {
    let name = kernel.strip_suffix("-unsigned").unwrap_or(kernel);
    let mut words = ["-image-", "-kernel-"].into_iter();
    let word = words.find(|word| name.contains(word))?;
    Some(name.replacen(word, "-headers-", 1))
}

fn locked(archive: &Archive, pool: &Pool<'_>, id: usize) -> LockedPackage {
    let package = &pool.packages[id];
    LockedPackage {
        name: package.name.to_owned(),
        version: package.version.to_owned(),
        architecture: package.architecture.to_owned(),
        archive: archive.suites[package.origin].suite.archive.clone(),
        path: package.path.to_owned(),
        size: package.size,
        sha256: package.sha256.to_owned(),
        source: Some(package.source_field.to_owned()).filter(|source| !source.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headers_are_those_of_the_kernel() {
        assert_eq!(headers_of("linux-modules-7.3.4+deb13-amd64"), None);
        for (kernel, headers) in [
            (
                "linux-image-6.12.9+deb13-cloud-amd64",
                "linux-headers-6.12.9+deb13-cloud-amd64",
            ),
            (
                "linux-image-6.12.9+deb13-amd64-unsigned",
                "linux-headers-6.12.9+deb13-amd64",
            ),
            ("linux-image-6.12.0-custom", "linux-headers-6.12.0-custom"),
            (
                "proxmox-kernel-6.8.12-4-pve",
                "proxmox-headers-6.8.12-4-pve",
            ),
        ] {
            assert_eq!(headers_of(kernel).as_deref(), Some(headers));
        }
    }
}
