//! Brings what an image has for `/var` to the node, by its lists: each path once, with owner, mode and a file's time.
//!
//! A path that is there stays as it is, unless it follows the image ([`super::follow`]). One that was brought before and is not there
//! any more was deleted on the node, and stays away, also from a later image.
//!
//! A boot may be cut off between any two changes, and any root may boot next: this one, the earlier one, a third one. So the changes
//! have an order ([`first_boot`]), and this holds after each of them:
//!
//! * The marker names a root only while all is as that root's first boot left it. It is removed before anything else is changed, and
//!   written when all else is on the disk. Before it goes the records with what is announced are on the disk under temporary names:
//!   without room for them all stays as it is, and the earlier root has nothing to bring.
//! * An entry that an image has put there, in the record of what follows, has its hash there: the hash is added before the entry is
//!   made, and those of other roots are dropped after it is on the disk.
//! * A path in the record of what was brought that is not there was deleted on the node: a path is taken out before the init removes its
//!   entry, and added after its entry is on the disk.
//!
//! What is to be removed is removed before anything is made: a file may come where a folder was, and the other way round.
//!
//! A full disk ends the work between any two changes as a power cut does, but the node runs then. As the marker does not name this
//! root, its next boot begins anew. What came and was deleted on the node meanwhile may come once more, as no record has it yet.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use image::paths::{VAR_LINKS, VAR_SEEDED};
use image::var_list::{LISTS, parse};
use linux::{atomic_file, mount};

use super::brought::Brought;
use super::cut::{failpoint, synced};
use super::follow::{self, Follows, Lists};
use super::make::{self, Making};
use super::plan::Plan;
use super::staged::Staged;

#[cfg(test)]
mod tests;

/// Reads the lists of a root. An image without one has nothing for `/var`.
fn lists(sysroot: &Path) -> Result<Lists> {
    let mut found = Lists::new();
    for list in LISTS {
        let path = sysroot.join(list.trim_start_matches('/'));
        let about = || format!("reading {list}");
        let text = atomic_file::read(&path).with_context(about)?;
        let text = String::from_utf8(text.unwrap_or_default()).with_context(about)?;
        for line in text.lines() {
            let line = parse(line).map_err(|error| anyhow!("{error}"));
            found.extend(line.with_context(about)?);
        }
    }
    Ok(found)
}

/// What the first boot of a root did below `/var`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Done {
    /// How many entries were made or replaced.
    pub(super) made: usize,
    /// How many files and links of an earlier root were removed.
    pub(super) gone: usize,
    /// The files and links that do not follow the image, since the node has its own or has deleted them. Those of which this root has
    /// nothing new are not among them.
    pub(super) own: Vec<String>,
}

/// Brings what a root with this hash has, and records that; none if that was done before.
pub(super) fn first_boot(sysroot: &Path, hash: &str) -> Result<Option<Done>> {
    let marker = sysroot.join(VAR_SEEDED);
    if fs::read_to_string(&marker).is_ok_and(|text| text.trim() == hash) {
        return Ok(None);
    }
    let (mut brought, mut follows) = (Brought::read(sysroot)?, Follows::read(sysroot)?);
    let lists = lists(sysroot)?;
    mount::folder(marker.parent().unwrap_or(&marker), 0o755)?;
    let announce = |brought: &Brought, follows: &Follows| {
        let records = [brought.stage(sysroot)?, follows.stage(sysroot)?];
        failpoint()?;
        atomic_file::remove(&marker).context("removing the marker of an earlier root")?;
        records.into_iter().try_for_each(Staged::place)
    };
    let done = bring(sysroot, &lists, &mut brought, &mut follows, announce)?;
    for (_, target) in VAR_LINKS {
        let folder = sysroot.join(target.trim_start_matches("../"));
        // A link of the node leads elsewhere here than on the running node.
        if folder.symlink_metadata().is_err() {
            failpoint()?;
            mount::folder(&folder, 0o755)?;
        }
    }
    // On btrfs the sync of a record makes no rename and no removal elsewhere durable.
    sync(&sysroot.join("var"))?;
    brought.write(sysroot)?;
    follows.write(sysroot)?;
    failpoint()?;
    atomic_file::write_line(&marker, hash)?;
    Ok(Some(done))
}

/// Makes the entries of `lists` that were not brought before and that are not there, and adds all to `brought` that are there then. What
/// is there is changed only where it follows the image. `announce` is called with the records before any entry is changed.
fn bring(
    sysroot: &Path,
    lists: &Lists,
    brought: &mut Brought,
    follows: &mut Follows,
    announce: impl FnOnce(&Brought, &Follows) -> Result<()>,
) -> Result<Done> {
    remove_temporary(sysroot, lists, follows)?;
    let plan = Plan::new(sysroot, lists, brought, follows)?;
    plan.announce(brought, follows);
    announce(brought, follows)?;
    let gone = plan.remove()?;
    let mut making = Making::new(sysroot, lists);
    let there = match make(&mut making, &plan, sysroot) {
        Ok(there) => there,
        Err(error) => {
            making.discard();
            return Err(error);
        }
    };
    let own = plan.settle(there, lists, brought, follows)?;
    Ok(Done {
        made: making.count,
        gone,
        own,
    })
}

/// Makes all of a plan; gives the paths where something is then.
fn make<'a>(making: &mut Making<'_>, plan: &Plan<'a>, sysroot: &Path) -> Result<Vec<&'a str>> {
    let mut there = Vec::new();
    for path in &plan.new {
        let made = making.one(path);
        if made.with_context(|| format!("bringing {path}"))? {
            there.push(*path);
        }
    }
    for path in &plan.replaced {
        let made = making.replace(path);
        made.with_context(|| format!("replacing {path}"))?;
    }
    making.rename(|| sync(&sysroot.join("var")))?;
    Ok(there)
}

/// Removes the temporary entries of a boot that was cut off, or that failed: another root may have booted then, and would leave them.
fn remove_temporary(sysroot: &Path, lists: &Lists, follows: &Follows) -> Result<()> {
    for path in lists.keys().chain(follows.paths()) {
        if let Some(place) = follow::place(sysroot, path) {
            make::remove_beside(&place)?;
        }
    }
    Ok(())
}

/// Waits until the file system of a folder is on its disk.
fn sync(folder: &Path) -> Result<()> {
    failpoint()?;
    if synced() {
        return Ok(());
    }
    let open = File::open(folder).with_context(|| format!("opening {}", folder.display()))?;
    nix::unistd::syncfs(open).context("waiting for the disk")
}
