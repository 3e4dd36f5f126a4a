//! Accepting an existing file system: only with the right identity, and nothing is written to it before that.

use anyhow::{Context as _, Result};
use image::fault::Fault;
use image::node::EtcdIdentity;
use image::paths::RUN_ETCD_LOOK;
use linux::ext4;
use linux::filesystem::ext::{self, Superblock};
use linux::mount::{self, Flags};
use linux::programs::Programs;

use crate::context::{Context, FLAGS};
use crate::find::Volume;
use crate::format::{record, write_identity};
use crate::identity;
use crate::note::Note;
use crate::own::{self, Consent};

/// The superblock of a volume that has one.
pub(crate) fn superblock(volume: &Volume) -> Result<Superblock> {
    ext::read(&volume.path)?
        .with_context(|| format!("the superblock of {} has disappeared", volume.name))
}

/// Accepts the file system, or refuses it unchanged. `note` says that this node began to make it.
pub(crate) fn accept(
    context: Context<'_>,
    volume: &Volume,
    consent: Consent,
    note: Option<&Note>,
) -> Result<()> {
    let found = superblock(volume)?;
    let half_made = note.is_some_and(|note| note.filesystem == found.uuid);
    if let (Consent::Blank, false, Some(own)) = (consent, half_made, own::read(context.state)?) {
        return Err(own::refused(std::slice::from_ref(volume), &own).into());
    }
    if half_made && !found.clean {
        // It is this node's own, so its journal may be replayed before its identity is read.
        e2fsck(context.root, volume)?;
    }
    match look(context, volume)? {
        Some(identity) => {
            check(context, &identity, &found)?;
            record(context, &identity)?;
        }
        None if half_made => {
            tracing::warn!("formatting {volume} was interrupted; writing its identity file");
            write_identity(context, volume, &found.uuid)?;
        }
        None => return Err(without_identity(context, volume, &found).into()),
    }
    prepare(context, volume, &found)
}

/// Checks the identity of a file system with this superblock.
pub(crate) fn check(
    context: Context<'_>,
    identity: &EtcdIdentity,
    found: &Superblock,
) -> Result<(), Fault> {
    let member = context.settings.member.as_deref();
    identity::check(identity, &found.uuid, context.cluster, member)?;
    if identity.machine_id != context.machine_id {
        tracing::warn!(
            "the etcd volume was formatted by another machine, {}",
            identity.machine_id
        );
    }
    Ok(())
}

/// Refuses a file system that loses data, and has errors of one that was not unmounted cleanly repaired.
pub(crate) fn prepare(context: Context<'_>, volume: &Volume, found: &Superblock) -> Result<()> {
    if found.fast_commit {
        return Err(Fault::new(
            "the etcd volume has the ext4 feature fast_commit, with which etcd loses data",
        )
        .expected("an ext4 file system without fast_commit")
        .found(format!("{volume} has it"))
        .fix("from a rescue system: tune2fs -O ^fast_commit on the volume")
        .into());
    }
    if !found.clean {
        let check = || e2fsck(context.root, volume);
        context.timeline.step("etcd.check", check)?;
    }
    Ok(())
}

/// Reads the identity file without a write to the volume.
fn look(context: Context<'_>, volume: &Volume) -> Result<Option<EtcdIdentity>> {
    let folder = context.world.in_run(RUN_ETCD_LOOK);
    mount::folder(&folder, 0o700)?;
    let flags = FLAGS | Flags::MS_RDONLY;
    // `noload` leaves the journal alone, which even a read-only mount would replay.
    mount::mount(&volume.path, &folder, "ext4", flags, "noload").context(
        Fault::new("the file system on the etcd volume does not mount")
            .expected("the ext4 of this cluster's etcd")
            .fix("attach the right disk, or repair this one from a rescue system"),
    )?;
    let identity = identity::read(&folder);
    mount::unmount(&folder)?;
    identity
}

/// The refusal of an ext file system that says nothing about its cluster.
pub(crate) fn without_identity(context: Context<'_>, volume: &Volume, found: &Superblock) -> Fault {
    Fault::new("the etcd volume holds an unknown file system")
        .expected(format!("the etcd volume of cluster {:?}", context.cluster))
        .found(format!(
            "{volume} holds an ext file system, label {:?}, UUID {}, without an identity file",
            found.label, found.uuid
        ))
        .fix("attach the right disk; if nothing on this one is needed, wipe it (`wipefs --all`, then its first and last MiB)")
}

fn e2fsck(root: &Programs, volume: &Volume) -> Result<()> {
    let fix = "repair it from a rescue system, or replace this member of etcd";
    ext4::check(root, &volume.path, "the etcd volume", fix)
}
