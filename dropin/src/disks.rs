//! The disks of the system that is provisioned. Unlike in a Slipway image, no disk is the image's own, there is no
//! `state` partition for journals, and the programs are the initrd's.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ignition::model::{Filesystem, Luks, Storage, Tang};
use ignition::validate::clean;
use image::layout::BOOT_DISK;

use apply::device_name::Name;
use apply::fetched::VolumeKeys;
use apply::journal::disks::DiskJournal;
use apply::mounts::{MountSpec, Mounted};
use apply::target::{Rules, Target};
use apply::volumes::{self, Opened};
use apply::{arrays, device, filesystems, mounts};
use linux::filesystem::Kind;
use linux::mount;
use linux::uevent;
use linux::world::World;

/// Symbolic links that are followed at most, as by the kernel (`MAXSYMLINKS`).
const MAX_LINKS: u32 = 40;

/// The storage with every device that the config names by a link outside `/dev` (as `/run/disk`) renamed to its name
/// below `/dev`.
pub(crate) fn resolve_links(mut storage: Storage) -> Storage {
    let disks = storage.disks.iter_mut().flatten();
    let arrays = storage.raid.iter_mut().flatten();
    let volumes = storage.luks.iter_mut().flatten();
    let filesystems = storage.filesystems.iter_mut().flatten();
    let names = disks
        .map(|disk| &mut disk.device)
        .chain(arrays.flat_map(|array| array.devices.iter_mut().flatten()))
        .chain(volumes.filter_map(|volume| volume.device.as_mut()))
        .chain(filesystems.map(|filesystem| &mut filesystem.device));
    for name in names {
        *name = resolve(name);
    }
    storage
}

/// The first name below `/dev` in a chain of links. Not the last one: that may be a device that the stage has yet to
/// make.
fn resolve(path: &str) -> String {
    let mut here = boot_disk(path, "/dev/disk/by-id").unwrap_or_else(|| path.to_owned());
    for _ in 0..MAX_LINKS {
        if Name::parse(&here).is_ok() {
            return here;
        }
        let Ok(target) = fs::read_link(&here) else {
            break;
        };
        let folder = Path::new(&here).parent().map(fs::canonicalize);
        let Some(Ok(folder)) = folder else {
            break;
        };
        match folder.join(target).to_str() {
            Some(target) => here = clean(target),
            None => break,
        }
    }
    // A link may also be in the middle of a path.
    let real = fs::canonicalize(path).ok();
    let real = real.and_then(|real| real.to_str().map(str::to_owned));
    real.filter(|real| real.starts_with("/dev/"))
        .unwrap_or_else(|| path.to_owned())
}

/// The boot disk, or a partition of it, by the kernel's name: Fedora CoreOS makes the link in `folder` before Ignition runs.
fn boot_disk(path: &str, folder: &str) -> Option<String> {
    let below = path.strip_prefix("/dev/disk/by-id/")?;
    let rest = below.strip_prefix(BOOT_DISK)?;
    let number = match rest.strip_prefix("-part") {
        Some(number) => Some(number.parse::<u32>().ok()?),
        None if rest.is_empty() => None,
        None => return None,
    };
    let disk = fs::read_link(Path::new(folder).join(BOOT_DISK)).ok()?;
    let disk = disk.file_name()?.to_str()?;
    let between = match disk.ends_with(|c: char| c.is_ascii_digit()) {
        true => "p",
        false => "",
    };
    Some(match number {
        Some(number) => format!("/dev/{disk}{between}{number}"),
        None => format!("/dev/{disk}"),
    })
}

/// The arrays and volumes of a config that are unsupported whatever the devices hold: one line each.
pub(crate) fn unsupported(storage: &Storage) -> Vec<String> {
    let arrays = storage.raid.iter().flatten().enumerate();
    let arrays = arrays.filter_map(|(i, array)| {
        let at = format!("$.storage.raid.{i}");
        let why = arrays::ArraySpec::of(&at, array).err()?;
        Some(format!("{at}: {why}"))
    });
    let volumes = storage.luks.iter().flatten().enumerate();
    let volumes = volumes.filter_map(|(i, volume)| {
        let at = format!("$.storage.luks.{i}");
        let why = volumes::VolumeSpec::of(&at, volume, &placeholder_keys(volume)).err()?;
        Some(format!("{at}: {why}"))
    });
    arrays.chain(volumes).collect()
}

/// Placeholders for the advertisements of tang servers that have yet to be fetched.
fn placeholder_keys(volume: &Luks) -> VolumeKeys {
    let clevis = volume.clevis.as_ref();
    let servers = clevis.and_then(|clevis| clevis.tang.as_deref());
    let is_fetched = |server: &Tang| server.advertisement.as_ref().is_none_or(String::is_empty);
    let placeholder = |server| is_fetched(server).then(|| br#"{"payload": ""}"#.to_vec());
    VolumeKeys {
        file: None,
        advertisements: servers
            .unwrap_or_default()
            .iter()
            .map(placeholder)
            .collect(),
    }
}

/// Makes partitions, arrays, encrypted volumes and file systems. All of it is decided before the first write, except
/// for facts that only a running array or an open volume shows. `keys` was fetched for the volumes, which stay open:
/// later stages and the system that the initrd switches to use them.
///
/// # Errors
/// All mistakes at once, or the first write that failed.
pub(crate) fn make(target: &Target, storage: &Storage, keys: &[VolumeKeys]) -> Result<Vec<Opened>> {
    let mut journal = DiskJournal::default();
    let plan = apply::disks::plan(target, Some(storage), keys, None, &journal)?;
    let made = apply::disks::apply(target, &plan, &mut journal)?;
    Ok(made.volumes)
}

/// Mounts the file systems that have a path, below the target's root. They stay mounted for the files stage.
///
/// # Errors
/// If a device does not appear or a file system does not mount; then none of them is mounted.
pub(crate) fn mount(target: &Target, storage: &Storage) -> Result<Mounted> {
    let mut wanted = Vec::new();
    for (i, filesystem, path, kind) in mountable(storage) {
        let at = format!("$.storage.filesystems.{i}");
        let device =
            wait_for(&target.programs.world, &filesystem.device).with_context(|| at.clone())?;
        let options = filesystem.mount_options.clone().unwrap_or_default();
        wanted.push((
            MountSpec {
                at,
                kind,
                path: path.to_owned(),
                options,
            },
            device,
        ));
    }
    // The state file records the folders, so this journal is not kept.
    let mut journal = apply::journal::files::FileJournal::default();
    mounts::mount(&target.programs, &target.root, &wanted, &mut journal)
}

/// Unmounts the mounts of [`mount()`], deepest first; a file system that is not mounted is skipped.
pub(crate) fn unmount(target: &Target, storage: &Storage) -> Result<()> {
    let base = &target.root;
    let mut paths: Vec<&str> = mountable(storage).map(|(_, _, path, _)| path).collect();
    paths.sort_by_key(|path| std::cmp::Reverse(path.matches('/').count()));
    let base = fs::canonicalize(base).with_context(|| format!("{}", base.display()))?;
    for path in paths {
        let folder = base.join(path.trim_start_matches('/'));
        let table = mount::table(&target.programs.world)?;
        if table.iter().any(|mount| mount.target == folder) {
            mount::unmount(&folder)?;
        }
    }
    Ok(())
}

/// The file systems of a config that are mounted in the root: index, entry, path, type. Not swap.
fn mountable(storage: &Storage) -> impl Iterator<Item = (usize, &Filesystem, &str, Kind)> {
    let filesystems = storage.filesystems.iter().flatten().enumerate();
    filesystems.filter_map(|(i, filesystem)| {
        let path = filesystem.path.as_deref().filter(|path| !path.is_empty())?;
        let kind = filesystems::kind(filesystem.format.as_deref()?).ok()??;
        (kind != Kind::Swap).then_some((i, filesystem, path, kind))
    })
}

/// The device of this name, once it exists.
fn wait_for(world: &World, name: &str) -> Result<PathBuf> {
    let parsed = Name::parse(name).map_err(anyhow::Error::msg)?;
    let deadline = Some(Rules::ignition(true).device_deadline);
    let found = uevent::wait_for(world, name, deadline, || {
        let devices = device::all(world);
        let found = device::find(&devices, &parsed);
        // The members of a mirror have its label and UUID too. The mirror is their holder, and has no holder itself.
        let free = found.iter().find(|device| device.holders.is_empty());
        let best = free.or(found.first());
        Ok(best.map(|device| device.path.clone()))
    })?;
    found.with_context(|| format!("the device {name} did not appear"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_boot_disk_is_where_the_system_s_link_leads() {
        let folder = tempfile::tempdir().unwrap();
        let by_id = folder.path().to_str().unwrap();
        let disk = "/dev/disk/by-id/coreos-boot-disk";
        assert_eq!(boot_disk(disk, by_id), None);
        for (node, partition) in [("vda", "/dev/vda4"), ("nvme0n1", "/dev/nvme0n1p4")] {
            let link = folder.path().join(BOOT_DISK);
            drop(fs::remove_file(&link));
            symlink(format!("../../{node}"), &link).unwrap();
            assert_eq!(boot_disk(disk, by_id), Some(format!("/dev/{node}")));
            let part = boot_disk(&format!("{disk}-part4"), by_id);
            assert_eq!(part.as_deref(), Some(partition));
            for other in [
                format!("{disk}-x"),
                format!("{disk}-part"),
                "/dev/vda".to_owned(),
            ] {
                assert_eq!(boot_disk(&other, by_id), None, "{other}");
            }
        }
    }

    #[test]
    fn links_elsewhere_lead_to_names_of_things_that_are_not_there_yet() {
        let folder = tempfile::tempdir().unwrap();
        let link = |name: &str, target: &str| {
            let path = folder.path().join(name);
            symlink(target, &path).unwrap();
            path.display().to_string()
        };
        let array = link("array", "/dev/md/pair");
        let chain = link("chain", "array");
        let volume = link("volume", "/dev/disk/../mapper/vault");
        let nowhere = link("nowhere", "gone");
        let circle = link("circle", "circle");
        let text = format!(
            r#"{{"ignition": {{"version": "3.5.0"}}, "storage": {{
                "raid": [{{"name": "pair", "level": "raid1", "devices": ["{array}", "/dev/sdb"]}}],
                "luks": [{{"name": "vault", "device": "{chain}"}}],
                "filesystems": [{{"device": "{volume}"}}, {{"device": "{nowhere}"}}, {{"device": "{circle}"}}]}}}}"#
        );
        let (config, _) = ignition::Config::parse(text.as_bytes(), "t").unwrap();
        let storage = resolve_links(config.model().unwrap().storage.unwrap());
        let array = storage.raid.unwrap().remove(0);
        assert_eq!(array.devices.unwrap(), ["/dev/md/pair", "/dev/sdb"]);
        let volume = storage.luks.unwrap().remove(0);
        assert_eq!(volume.device.as_deref(), Some("/dev/md/pair"));
        let filesystems = storage.filesystems.unwrap();
        let devices: Vec<&str> = filesystems.iter().map(|f| f.device.as_str()).collect();
        assert_eq!(devices, ["/dev/mapper/vault", &nowhere, &circle]);
    }
}
