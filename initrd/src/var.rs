//! Var: the rest of the system disk, or the config's file system for `/var`; seeded from the root's factory.

mod brought;
mod cut;
mod follow;
mod make;
mod plan;
mod seed;
mod staged;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result};
use apply::var::VarFilesystem;
use apply::var::layers;
use image::fault::Fault;
use image::{layout, paths};
use linux::atomic_file;
use linux::filesystem::ext;
use linux::kernel_call;
use linux::mount::{self, Flags};
use nix::errno::Errno;

use crate::context::Boot;
use crate::root::Root;
use crate::state::State;
use crate::system_disk::table::{self, Scope};
use crate::system_disk::{self, labelled, mount_ext4};

/// How many paths a log line has.
const LISTED: usize = 10;

/// `/var`, mounted.
#[derive(Debug)]
pub(crate) struct Var {
    /// UUID of its file system; none in memory.
    pub(crate) uuid: Option<String>,
}

/// Mounts `/var`, made if it is missing, grown if its disk is larger, and moves `state` below it. On a first boot
/// `made` is the config's file system for `/var` if it has one; later boots find it by the record in `state`.
pub(crate) fn mount(
    boot: &Boot,
    root: &Root,
    state: &mut State,
    made: Option<(VarFilesystem, PathBuf)>,
) -> Result<Var> {
    let own = find(boot, root, state, made)?;
    let target = root.programs.sysroot.join("var");
    let uuid = match (&root.disk, own) {
        (_, Some((own, device))) => {
            mount_own(boot, root, &own, &device, &target)?;
            if let (true, Some(disk)) = (state.first_boot, &root.disk) {
                system_disk::complete_var(boot, disk)?;
            }
            Some(own.uuid)
        }
        (Some(_), None) => mount_partition(boot, root, state, &target)?,
        (None, None) => {
            let options = "mode=0755,size=75%";
            mount::mount("var", &target, "tmpfs", Flags::empty(), options)?;
            None
        }
    };
    state.settle(root)?;
    boot.timeline
        .step("var.seed", || seed_factory(boot, root))?;
    Ok(Var { uuid })
}

/// The config's own file system for `/var` and its device, if it has one.
fn find(
    boot: &Boot,
    root: &Root,
    state: &State,
    made: Option<(VarFilesystem, PathBuf)>,
) -> Result<Option<(VarFilesystem, PathBuf)>> {
    let dir = state.dir()?;
    if state.first_boot {
        remember(dir, made.as_ref().map(|(var, _)| var))?;
        return Ok(made);
    }
    let remembered = remembered(dir).map_err(|error| state.with_reset(error))?;
    let Some(var) = remembered else {
        return Ok(None);
    };
    let find = || var.find(&boot.modules, &root.programs, dir);
    let device = boot.timeline.step("var.find", find)?;
    Ok(Some((var, device)))
}

fn mount_own(
    boot: &Boot,
    root: &Root,
    own: &VarFilesystem,
    device: &Path,
    target: &Path,
) -> Result<()> {
    if let Some(disk) = &root.disk {
        system_disk::complete(boot, disk, Scope::Own)?;
    }
    let unclean = ext::read(device)?.is_some_and(|found| !found.clean);
    if unclean {
        system_disk::check(root, device, layout::LABEL_VAR)?;
    }
    boot.timeline
        .step("var.mount", || own.mount(&root.programs, device, target))
}

/// Mounts the partition `var`; returns the UUID of its file system.
fn mount_partition(
    boot: &Boot,
    root: &Root,
    state: &mut State,
    target: &Path,
) -> Result<Option<String>> {
    let disk = root.disk.as_ref().context("the root is on no disk")?;
    if !state.first_boot && table::find(disk, layout::LABEL_VAR).is_none() {
        // Made anew it would be empty, and so would be the layer of `/etc` that the config's files are in.
        return Err(state.with_reset(lost(&disk.name).into()));
    }
    system_disk::complete(boot, disk, Scope::WithVar)?;
    if state.copied {
        system_disk::anew(boot, disk, &[layout::LABEL_VAR])?;
    }
    let mut part = labelled(boot, disk, layout::LABEL_VAR)?;
    if state.first_boot {
        part = system_disk::note_if_blank(boot, disk, part)?;
    }
    let found = boot.timeline.step("var.mount", || {
        let place = (target, Flags::empty());
        let found = mount_ext4(root, &part, place, state.var.as_deref())?;
        system_disk::grow(&boot.world, &part, &found, target);
        Ok::<_, anyhow::Error>(found)
    })?;
    // For the marker.
    state.var = Some(found.uuid.clone());
    Ok(Some(found.uuid))
}

fn lost(disk: &str) -> Fault {
    Fault::new(format!(
        "the partition {} is missing from the table of {disk}",
        layout::LABEL_VAR
    ))
    .expected("the partition that this node was provisioned with")
    .found("none of this label")
}

/// Records in `state` the file system at `/var`, so that later boots, which read no config, mount it.
fn remember(state: &Path, var: Option<&VarFilesystem>) -> Result<()> {
    let path = state.join(paths::STATE_VAR);
    match var {
        Some(var) => {
            var.store_keys(state)?;
            atomic_file::write_line(&path, &serde_json::to_string(var)?)?;
        }
        None => atomic_file::remove(&path).context("forgetting an earlier /var")?,
    }
    let layers = var.map(|var| var.layers.as_slice());
    layers::remove_keys_except(state, layers.unwrap_or_default())
}

fn remembered(state: &Path) -> Result<Option<VarFilesystem>> {
    let path = state.join(paths::STATE_VAR);
    let text = atomic_file::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let Some(text) = text else {
        return Ok(None);
    };
    // It is replaced atomically, so no power cut truncates it. Without it the node would make a `/var` of its own.
    let var = serde_json::from_slice(&text).map_err(|error| {
        Fault::new(format!(
            "the note of the file system at /var, {} in the partition state, is damaged",
            paths::STATE_VAR
        ))
        .expected("the JSON that the first boot wrote")
        .found(error.to_string())
    })?;
    Ok(Some(var))
}

/// Brings what the root's lists have for `/var` to the node, on the first boot of each root. A node whose `/var` is full boots
/// without that: only the running node can make room, and its next boot tries again.
fn seed_factory(boot: &Boot, root: &Root) -> Result<()> {
    let hash = boot.cmdline.roothash.map(|hash| hash.to_string());
    let bring = || seed::first_boot(&root.programs.sysroot, &hash.unwrap_or_default());
    let done = match kernel_call::on_disks(&boot.world, "/var to be seeded", bring) {
        Err(error) if is_full(&error) => {
            tracing::warn!(
                "/var is full: what this image has for it is brought at the next boot once there is room: {error:#}"
            );
            return Ok(());
        }
        done => done.context("seeding /var from the factory")?,
    };
    let Some(done) = done else {
        return Ok(());
    };
    let (made, gone) = (done.made, done.gone);
    tracing::info!("seeded /var with {made} files, {gone} of an earlier root removed");
    if !done.own.is_empty() {
        let own = listed(&done.own);
        tracing::info!(
            "not as in this image, since the node has its own or has deleted them: {own}"
        );
    }
    Ok(())
}

/// Whether a change failed since the file system, or the quota, has no room for it.
fn is_full(error: &Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let errno = cause.downcast_ref::<Errno>();
        matches!(
            io,
            Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        ) || matches!(errno, Some(Errno::ENOSPC | Errno::EDQUOT))
    })
}

/// The first [`LISTED`] paths, and how many more there are.
fn listed(paths: &[String]) -> String {
    let (first, more) = paths.split_at(paths.len().min(LISTED));
    let first = first.join(", ");
    match more.len() {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}
