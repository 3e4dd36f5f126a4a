//! Space: what a build needs at least of its cache and of its output folder, by its lock, before the first package is fetched.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;

use crate::host::full_disk::Place;
use crate::host::preflight::{self, Need};
use crate::host::progress::bytes;
use crate::host::session::Session;
use crate::lock::LockedRecipe;
use crate::lock::objects::Wanted;
use crate::recipe::{Composed, SET_KERNEL, SET_KUBELET, SET_ROOT, SET_TOOLS_BUILD};

/// What a build makes of the packages of each set in its cache, as a multiple of their size. Measured with a root of 75 MiB of packages:
/// 3.1 times as a tree and 1.9 times as a file system with LZ4, 1.1 times for a kernel, 3.3 times for the tools. Rounded down, since the
/// recipe may leave out much, or compress more.
const MADE: [(&str, u64); 4] = [
    (SET_ROOT, 4),
    (SET_KUBELET, 3),
    (SET_TOOLS_BUILD, 3),
    (SET_KERNEL, 1),
];
/// The same for a container image of packages, which is installed as the kubelet's.
const COMPOSED: u64 = 3;
/// The artifact without a copy of the disk.
const REQUEST: &str = "aws";

/// Refuses a build of which the cache or the output folder has no space: what is fetched, and what is made of the sets that are. What
/// is made of packages that are here already may be here too, and what other machines share may save all of it.
///
/// # Errors
/// [`preflight::NoSpace`]; or if a file of the lock's own folder is damaged.
pub(super) fn require(session: &Session, locked: &LockedRecipe, output: &Path) -> Result<()> {
    if session.cache.shared().is_some() {
        return Ok(());
    }
    let missing = locked.missing(session, Wanted::Build)?;
    let fetched: u64 = missing.iter().filter_map(|object| object.size).sum();
    let missing: BTreeSet<&str> = missing
        .iter()
        .map(|object| object.sha256.as_str())
        .collect();
    let (mut made, mut image) = (0, 0);
    let composed: Vec<String> = locked.recipe.composed.iter().map(Composed::set).collect();
    let composed = composed.iter().map(|set| (set.as_str(), COMPOSED));
    for (set, times) in MADE.into_iter().chain(composed) {
        let packages = locked.lock.sets.get(set).into_iter().flatten();
        let packages: Vec<_> = packages.collect();
        let size: u64 = packages.iter().map(|package| package.size).sum();
        if packages
            .iter()
            .any(|package| missing.contains(package.sha256.as_str()))
        {
            made += size * times;
            let is_of_image = ![SET_TOOLS_BUILD, SET_KERNEL].contains(&set);
            image += if is_of_image { size } else { 0 };
        }
    }
    let kinds = locked.recipe.artifacts.iter();
    let copies = kinds.filter(|kind| kind.name() != REQUEST).count();
    let image = image * (1 + u64::try_from(copies)?);
    let needs = [
        Need {
            place: Place::cache(session.cache.root()),
            bytes: fetched + made,
            what: format!("{} of downloads and what is made of them", bytes(fetched)),
        },
        Need {
            place: Place::output(output),
            bytes: image,
            what: "the image at least".to_owned(),
        },
    ];
    Ok(preflight::require_space(&needs)?)
}
