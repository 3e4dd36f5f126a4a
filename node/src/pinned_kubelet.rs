//! The kubelet's container that the cluster object pins by digest, in place of the image's own.
//!
//! It is fetched once, verified blob by blob, unpacked beside its place and renamed there when all of it is on the disk: a power
//! cut leaves nothing or everything. Where it cannot be had, is wrong, or does not get READY, the node runs the image's own
//! kubelet, and says why. It is tried again at the next start of the kubelet, a kubelet that failed at the next boot.

mod obtain;
#[cfg(test)]
mod tests;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use cluster::object::{KubeletImage, Object};
use cluster::release::Version;
use image::kubelet::{PINNED, PINNED_CURRENT};
use image::paths::{KUBELET_ROOTFS, RUN_PINNED_KUBELET};
use linux::atomic_file;
use linux::mount;
use linux::world::World;
use serde::{Deserialize, Serialize};

use crate::{console, this_boot};
use obtain::obtain;

/// How long the image may take to come: the kubelet's start has five minutes in all, of which a worker may wait three for its
/// control plane.
pub(crate) const PATIENCE: Duration = Duration::from_secs(100);
/// After so many starts without READY on one boot the image's own kubelet is taken.
const STARTS: u32 = 3;

/// What became of the pinned container on this boot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The image, as the object names it.
    pub(crate) image: String,
    /// Starts since it was READY last.
    starts: u32,
    /// Why the image's own kubelet runs in its place; none if the pinned one does.
    pub(crate) refused: Option<String>,
}

/// The root file system of the kubelet that is to be started: the pinned one's, or the image's own.
///
/// # Errors
/// If the record of the starts cannot be written: it would be started without end.
pub(crate) fn choose(world: &World, object: Option<&Object>, patience: Duration) -> Result<String> {
    let Some((object, image)) =
        object.and_then(|object| Some((object, object.kubelet_image.as_ref()?)))
    else {
        atomic_file::remove(&world.in_run(RUN_PINNED_KUBELET))
            .context("removing the record of a pinned kubelet")?;
        settle(world, None);
        return Ok(KUBELET_ROOTFS.to_owned());
    };
    let name = image.to_string();
    let mut record = record(world)
        .filter(|record| record.image == name)
        .unwrap_or_default();
    record.image = name;
    let found = attempt(world, object, image, &mut record, patience);
    record.refused = found.as_ref().err().map(|error| format!("{error:#}"));
    write(world, &record)?;
    Ok(match found {
        Ok(root) => {
            settle(world, Some(&image.digest));
            root
        }
        Err(error) => {
            let line = format!("the image's own kubelet is started in place of {image}: {error:#}");
            console::warn(world, &line);
            // What was unpacked is kept: the next attempt needs no network.
            unlink(world);
            KUBELET_ROOTFS.to_owned()
        }
    })
}

/// The version of the kubelet that was chosen last: the pinned one's, or the image's own.
pub(crate) fn version(world: &World) -> Option<Version> {
    let refused = record(world).is_some_and(|record| record.refused.is_some());
    let current = fs::read_link(world.in_initrd(PINNED).join(PINNED_CURRENT));
    let text = match current.ok().filter(|_| !refused) {
        Some(digest) => {
            let file = format!("{PINNED}/{}.version", digest.display());
            fs::read_to_string(world.in_initrd(&file)).ok()
        }
        None => this_boot::manifest(world)
            .ok()
            .and_then(|manifest| Some(manifest.kubernetes?.version)),
    };
    Version::parse(text?.trim())
}

/// Shows the chosen root at the place of the image's own, from where every kubelet's container is started. Started from its folder, the
/// container would have its root once more below its own `/var`, in the same peer group: what is mounted in the one appears in the
/// other too, and `/var/lib/kubelet` would not be the host's, so that no volume reached a pod.
///
/// # Errors
/// If the image's own root cannot be shown again.
pub(crate) fn show(world: &World, root: &str) -> Result<()> {
    let own = || uncover(world).context("showing the image's own kubelet");
    own()?;
    if root == KUBELET_ROOTFS {
        return Ok(());
    }
    let Err(error) = cover(world, root) else {
        return Ok(());
    };
    let mut record = record(world).unwrap_or_default();
    let line = format!(
        "the image's own kubelet is started in place of {}: {error:#}",
        record.image
    );
    console::warn(world, &line);
    record.refused = Some(format!("{error:#}"));
    write(world, &record)?;
    own()
}

fn cover(world: &World, root: &str) -> Result<()> {
    let place = world.in_initrd(KUBELET_ROOTFS);
    mount::bind(&world.in_initrd(root), &place)?;
    mount::make_private(&place)
}

/// Takes away what earlier starts mounted there.
fn uncover(world: &World) -> Result<()> {
    let mounts = mount::table(world)?;
    let mut covers = mounts
        .iter()
        .filter(|mount| mount.target == Path::new(KUBELET_ROOTFS));
    covers.try_for_each(|_| mount::detach(&world.in_initrd(KUBELET_ROOTFS)))
}

/// The root of the pinned container, if it may be started. The start is counted before the work that could be cut.
fn attempt(
    world: &World,
    object: &Object,
    image: &KubeletImage,
    record: &mut Record,
    patience: Duration,
) -> Result<String> {
    anyhow::ensure!(
        record.starts < STARTS,
        "it did not get READY in {STARTS} starts; the next boot tries it again"
    );
    record.starts += 1;
    write(world, record)?;
    let api_server = &object.config.cluster.kubernetes_version;
    let obtained = obtain(world, image, api_server, patience);
    if obtained.is_err() {
        // It was not started.
        record.starts -= 1;
    }
    obtained
}

/// The kubelet is READY: its starts are counted anew.
///
/// # Errors
/// If the record cannot be written.
pub(crate) fn ready(world: &World) -> Result<()> {
    match record(world) {
        Some(record) if record.starts > 0 => write(
            world,
            &Record {
                starts: 0,
                ..record
            },
        ),
        _ => Ok(()),
    }
}

/// What became of it on this boot; none if the object pins nothing.
pub(crate) fn record(world: &World) -> Option<Record> {
    let text = fs::read(world.in_run(RUN_PINNED_KUBELET)).ok()?;
    serde_json::from_slice(&text).ok()
}

fn write(world: &World, record: &Record) -> Result<()> {
    let file = world.in_run(RUN_PINNED_KUBELET);
    let text = serde_json::to_vec(record).context("writing the record of a pinned kubelet")?;
    // Readable for those that ask for the status.
    atomic_file::write(&file, &text, 0o644).with_context(|| format!("writing {}", file.display()))
}

/// Lets the link lead to the container in use, and removes the others. What fails here costs space, and no kubelet.
fn settle(world: &World, digest: Option<&str>) {
    let folder = world.in_initrd(PINNED);
    match digest {
        Some(digest) => {
            if let Err(error) = link(&folder, digest) {
                tracing::warn!("the link to the kubelet in use is not up to date: {error:#}");
            }
        }
        None => unlink(world),
    }
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_kept =
            name == PINNED_CURRENT || digest.is_some_and(|digest| name.starts_with(digest));
        if is_kept {
            continue;
        }
        let path = entry.path();
        let removed = match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
        match removed {
            Ok(()) => tracing::info!("removed {}, which no cluster object pins", path.display()),
            Err(error) => tracing::warn!("removing {}: {error}", path.display()),
        }
    }
}

fn link(folder: &Path, digest: &str) -> Result<()> {
    let link = folder.join(PINNED_CURRENT);
    if fs::read_link(&link).is_ok_and(|target| target == Path::new(digest)) {
        return Ok(());
    }
    let new = folder.join(format!("{PINNED_CURRENT}.new"));
    atomic_file::remove(&new)?;
    symlink(digest, &new)?;
    fs::rename(&new, &link)?;
    Ok(fs::File::open(folder)?.sync_all()?)
}

fn unlink(world: &World) {
    let link = world.in_initrd(PINNED).join(PINNED_CURRENT);
    if let Err(error) = atomic_file::remove(&link)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!("removing {}: {error}", link.display());
    }
}
