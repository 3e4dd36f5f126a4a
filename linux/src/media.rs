//! Media: config drives and provisioning discs, found by the label in their first sectors and mounted read-only for as long
//! as the config is read.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result};
use image::modules::{MEDIA, UDF};

use crate::block;
use crate::filesystem::fat;
use crate::modules::Modules;
use crate::mount::{self, Flags};
use crate::world::World;

/// The parent of the mount points, which are named after the devices.
const FOLDER: &str = "/run/slipway/media";

/// How a medium is recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium<'a> {
    /// A file system with one of these labels.
    Labels(&'a [&'a str]),
    /// A disc in an optical drive, with any label.
    Disc,
}

impl fmt::Display for Medium<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Labels(labels) => write!(f, "the medium labelled {}", labels.join(" or ")),
            Self::Disc => f.write_str("the disc in the drive"),
        }
    }
}

/// The media that were mounted; they are unmounted when this is dropped.
#[derive(Debug)]
pub struct Media<'a> {
    world: &'a World,
    modules: &'a Modules,
    mounted: Mutex<Vec<(String, PathBuf)>>,
}

impl<'a> Media<'a> {
    /// Mounts nothing yet.
    #[must_use]
    pub fn new(world: &'a World, modules: &'a Modules) -> Self {
        Self {
            world,
            modules,
            mounted: Mutex::default(),
        }
    }

    /// Mounts a medium, unless it is mounted; none if no device holds such a medium now.
    ///
    /// # Errors
    /// If a device holds the medium and none of its file systems mounts.
    pub fn mount(&self, wanted: Medium<'_>) -> Result<Option<PathBuf>> {
        let there = |name: &&str| self.modules.index().module(name).is_some();
        let names: Vec<&str> = [MEDIA, &[UDF]].concat().into_iter().filter(there).collect();
        if let Err(error) = self.modules.load(&names) {
            tracing::warn!("{error:#}");
        }
        self.modules.load_for_disks();
        let Some((name, kinds)) = find(self.world, &wanted) else {
            return Ok(None);
        };
        let mut mounted = self
            .mounted
            .lock()
            .unwrap_or_else(|broken| broken.into_inner());
        if let Some((_, folder)) = mounted.iter().find(|(known, _)| *known == name) {
            return Ok(Some(folder.clone()));
        }
        let folder = self.world.in_run(FOLDER).join(&name);
        mount::folder(&folder, 0o700)?;
        let device = self.world.dev.join(&name);
        mount_one_of(&device, &folder, kinds)?;
        tracing::info!("config: {wanted}: {name}");
        mounted.push((name, folder.clone()));
        Ok(Some(folder))
    }
}

fn mount_one_of(device: &Path, folder: &Path, kinds: &[&str]) -> Result<()> {
    let flags = Flags::MS_RDONLY | Flags::MS_NOSUID | Flags::MS_NODEV | Flags::MS_NOEXEC;
    let mut result = Ok(());
    for kind in kinds {
        result = mount::mount(device, folder, kind, flags, "");
        if result.is_ok() {
            break;
        }
    }
    result
}

/// No medium may stay mounted at the handoff.
impl Drop for Media<'_> {
    fn drop(&mut self) {
        let mounted = self
            .mounted
            .get_mut()
            .unwrap_or_else(|broken| broken.into_inner());
        for (name, folder) in mounted.drain(..) {
            let removed = mount::unmount(&folder)
                .and_then(|()| fs::remove_dir(&folder).context("removing its folder"));
            if let Err(error) = removed {
                tracing::warn!("config: {name} stays mounted: {error:#}");
            }
        }
    }
}

/// The device that holds the medium, and the types that its file system may have.
fn find(world: &World, wanted: &Medium<'_>) -> Option<(String, &'static [&'static str])> {
    let mut names: Vec<String> = block::entries(&world.sys.join("class/block"))
        .into_iter()
        .filter(|name| {
            !["loop", "ram", "zram", "dm-", "fd", "md", "nbd"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
        })
        .collect();
    names.sort();
    names.into_iter().find_map(|name| {
        let path = world.dev.join(&name);
        match wanted {
            Medium::Disc => (name.starts_with("sr") && File::open(&path).is_ok())
                .then_some((name, ["udf", "iso9660"].as_slice())),
            Medium::Labels(labels) => {
                let (label, kind) = label(&path)?;
                labels.contains(&label.as_str()).then_some((name, kind))
            }
        }
    })
}

/// Label and type of the file system on a device, if it is ISO 9660 or VFAT. A drive without a disc does not open.
fn label(path: &Path) -> Option<(String, &'static [&'static str])> {
    let file = File::open(path).ok()?;
    let read = |offset: u64| {
        let mut sector = [0; 512];
        file.read_exact_at(&mut sector, offset)
            .ok()
            .map(|()| sector)
    };
    if let Some(label) = read(ISO_DESCRIPTOR).as_ref().and_then(iso_label) {
        return Some((label, &["iso9660"]));
    }
    let sector = read(0).filter(|sector| sector[510..] == [0x55, 0xaa])?;
    Some((fat::parse(&sector)?.label, &["vfat"]))
}

/// The primary volume descriptor stands in sector 16 of 2,048 bytes (ECMA-119, 8.4).
const ISO_DESCRIPTOR: u64 = 16 * 2048;

fn iso_label(sector: &[u8; 512]) -> Option<String> {
    let is_primary = sector[0] == 1 && sector[1..6] == *b"CD001";
    is_primary.then(|| {
        String::from_utf8_lossy(&sector[40..72])
            .trim_end_matches([' ', '\0'])
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::Clock;

    fn iso(label: &str) -> Vec<u8> {
        let mut out = vec![0; 40 * 1024];
        out[0x8000..0x8006].copy_from_slice(b"\x01CD001");
        out[0x8028..0x8048].fill(b' ');
        out[0x8028..0x8028 + label.len()].copy_from_slice(label.as_bytes());
        out
    }

    fn fat(label: &str, at: usize, kind: (usize, &[u8])) -> Vec<u8> {
        let mut out = vec![0; 4096];
        out[at..at + 11].fill(b' ');
        out[at..at + label.len()].copy_from_slice(label.as_bytes());
        out[kind.0..kind.0 + kind.1.len()].copy_from_slice(kind.1);
        out[510..512].copy_from_slice(&[0x55, 0xaa]);
        out
    }

    #[test]
    fn media_are_found_by_their_labels() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        fs::create_dir_all(&world.dev).unwrap();
        let add = |name: &str, content: &[u8]| {
            fs::create_dir_all(world.sys.join("class/block").join(name)).unwrap();
            fs::write(world.dev.join(name), content).unwrap();
        };
        let labels = ["config-2", "CONFIG-2"];
        let wanted = Medium::Labels(&labels);
        assert_eq!(find(&world, &wanted), None);
        add("vda", &[0; 8192]);
        add("vda1", &fat("ESP", 71, (82, b"FAT32   ")));
        add("loop0", &iso("config-2"));
        assert_eq!(find(&world, &wanted), None);
        add("vdb", &fat("CONFIG-2", 43, (54, b"FAT12   ")));
        let found = find(&world, &wanted).unwrap();
        assert_eq!((found.0.as_str(), found.1), ("vdb", ["vfat"].as_slice()));
        add("sr0", &iso("config-2"));
        let found = find(&world, &wanted).unwrap();
        assert_eq!((found.0.as_str(), found.1), ("sr0", ["iso9660"].as_slice()));
        let found = find(&world, &Medium::Disc).unwrap();
        assert_eq!(found.0, "sr0");
        let cidata = ["cidata"];
        assert_eq!(find(&world, &Medium::Labels(&cidata)), None);
        add("vdc", &fat("cidata", 71, (82, b"FAT32   ")));
        assert_eq!(find(&world, &Medium::Labels(&cidata)).unwrap().0, "vdc");
    }
}
