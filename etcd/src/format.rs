//! Formatting a blank volume, in steps that a power cut may separate: the note in `state`, the file system, its identity
//! file, the record of the node's volume, the note's removal.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use image::fault::Fault;
use image::layout::{LABEL_ETCD, MIB};
use image::node::{EtcdFormat, EtcdIdentity, EtcdSettings, EtcdVolume};
use image::paths::{NODE_SETTINGS, RUN_ETCD_LOOK};
use linux::ext4;
use linux::mount;

use crate::context::{Context, FLAGS, OPTIONS};
use crate::find::Volume;
use crate::identity;
use crate::note::Note;
use crate::own;

/// Checks that the settings allow formatting and that the volume is large enough.
pub(crate) fn may_format(volume: &Volume, settings: &EtcdSettings) -> Result<()> {
    let blank = format!("{volume} is blank");
    if settings.format != EtcdFormat::IfBlank {
        return Err(Fault::new(
            "the etcd volume is blank and [etcd] format does not allow formatting",
        )
        .expected("the etcd volume, or format = \"if-blank\" in [etcd]")
        .found(blank)
        .fix(format!(
            "attach the right disk, or set format = \"if-blank\" in {NODE_SETTINGS}"
        ))
        .into());
    }
    if volume.size < settings.minimum_size {
        return Err(Fault::new("the etcd volume is too small")
            .expected(format!("at least {} MiB", settings.minimum_size / MIB))
            .found(format!("{blank} and has {} MiB", volume.size / MIB))
            .fix("attach a larger disk, or set minimum-size in [etcd]")
            .into());
    }
    Ok(())
}

/// Makes the file system and writes its identity. With `again` it overwrites what this node's interrupted attempt left.
pub(crate) fn format(context: Context<'_>, volume: &Volume, again: bool) -> Result<()> {
    let uuid = context.world.random_guid()?.to_string();
    Note::of(context.world, volume, &uuid).write(context.state)?;
    match again {
        true => tracing::warn!("formatting {volume} was interrupted; formatting it again"),
        false => tracing::info!("formatting the blank etcd volume {volume}"),
    }
    let options = ext4::Options {
        label: LABEL_ETCD,
        uuid: Some(&uuid),
        orphan_file: false,
        overwrite: again,
    };
    ext4::make(context.root, &volume.path, options).context("formatting the etcd volume")?;
    write_identity(context, volume, &uuid)
}

/// Writes the identity file to a fresh file system, and unmounts it: what stands in the journal only, a mount that does not
/// replay it would not see.
pub(crate) fn write_identity(context: Context<'_>, volume: &Volume, uuid: &str) -> Result<()> {
    let created = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs());
    let identity = EtcdIdentity {
        version: identity::VERSION,
        cluster: context.cluster.to_owned(),
        member: context.settings.member.clone(),
        filesystem: uuid.to_owned(),
        created,
        machine_id: context.machine_id.to_owned(),
    };
    let folder = context.world.in_run(RUN_ETCD_LOOK);
    mount::folder(&folder, 0o700)?;
    mount::mount(&volume.path, &folder, "ext4", FLAGS, OPTIONS)?;
    let written = fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))
        .context("closing the etcd volume to others")
        .and_then(|()| identity::write(&folder, &identity));
    mount::unmount(&folder)?;
    written?;
    record(context, &identity)
}

/// Records that the volume with this identity is the node's; then the note has nothing left to say.
pub(crate) fn record(context: Context<'_>, identity: &EtcdIdentity) -> Result<()> {
    let before = own::read(context.state)?;
    let now = EtcdVolume {
        version: own::VERSION,
        filesystem: identity.filesystem.clone(),
        cluster: identity.cluster.clone(),
        member: identity.member.clone(),
        adopted: None,
    };
    own::write(context.state, before.as_ref(), context.adopt, now)?;
    Note::remove(context.state)
}
