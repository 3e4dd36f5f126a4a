//! Media: config drives and provisioning discs, found by the label in their first sectors and mounted read-only for as long
//! as the config is read.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result, bail};
use image::modules::{MEDIA, UDF};

use crate::block;
use crate::disk_answers::{self, Heard, Silent};
use crate::disk_reader::Reads;
use crate::filesystem::{self, HEAD, Kind};
use crate::modules::{Modules, Network};
use crate::mount::{self, Flags};
use crate::probe::Stretch;
use crate::world::World;

/// The parent of the mount points, which are named after the devices.
const FOLDER: &str = "/run/slipway/media";

/// How a medium is recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium<'a> {
    /// A file system with one of these labels.
    Labels(&'a [&'a str]),
    /// A disc in an optical drive, with any label, that has this file.
    Disc(&'a str),
}

impl fmt::Display for Medium<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Labels(labels) => write!(f, "the medium labelled {}", labels.join(" or ")),
            Self::Disc(file) => write!(f, "the disc with {file}"),
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
    /// If a device may hold the medium and none of its file systems mounts, or does not answer, and no other device holds it.
    pub fn mount(&self, wanted: Medium<'_>) -> Result<Option<PathBuf>> {
        self.load_drivers();
        let mut failed = Ok(None);
        for (name, kinds) in find(self.world, &wanted) {
            match self.mount_device(&name, kinds, &wanted) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                // A disc of another kind in the first drive, and the medium in the second.
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        if failed.is_ok() {
            self.is_sure(&wanted)?;
        }
        failed
    }

    /// Refuses to say that there is no such medium while a device that may hold it does not answer: the boot would go on
    /// without the config on it.
    fn is_sure(&self, wanted: &Medium<'_>) -> Result<()> {
        let mut silent = disk_answers::silent(self.world);
        silent.retain(|one| may_hold(wanted, one));
        match silent.is_empty() {
            true => Ok(()),
            false => bail!("{wanted} may be on {}", disk_answers::list(&silent)),
        }
    }

    /// Whether a device holds a medium now, as far as its first sectors show; nothing is mounted.
    #[must_use]
    pub fn is_there(&self, wanted: Medium<'_>) -> bool {
        self.load_drivers();
        !find(self.world, &wanted).is_empty()
    }

    fn load_drivers(&self) {
        let there = |name: &&str| self.modules.index().module(name).is_some();
        let names: Vec<&str> = [MEDIA, &[UDF]].concat().into_iter().filter(there).collect();
        if let Err(error) = self.modules.load(&names) {
            tracing::warn!("{error:#}");
        }
        // Beside a disk on virtio, the drive is on a controller that nothing else of the boot needs.
        self.modules.load_for_devices(Network::Without);
    }

    /// Mounts one device, unless it is mounted; none if its file system is not the medium.
    fn mount_device(
        &self,
        name: &str,
        kinds: Kinds,
        wanted: &Medium<'_>,
    ) -> Result<Option<PathBuf>> {
        for (kind, _) in kinds {
            let module = module_of(kind);
            if self.modules.index().module(module).is_some() {
                self.modules.load(&[module])?;
            }
        }
        let mut mounted = self
            .mounted
            .lock()
            .unwrap_or_else(|broken| broken.into_inner());
        if let Some((_, folder)) = mounted.iter().find(|(known, _)| known == name) {
            return Ok(Some(folder.clone()));
        }
        let folder = self.world.in_run(FOLDER).join(name);
        mount::folder(&folder, 0o700)?;
        mount_one_of(&self.world.dev.join(name), &folder, kinds)
            .map_err(|error| self.with_missing_module(error, name, kinds))?;
        if let Medium::Disc(file) = wanted
            && !folder.join(file).exists()
        {
            // It may be replaced by the one that is meant.
            mount::unmount(&folder)?;
            return Ok(None);
        }
        tracing::info!("config: {wanted}: {name}");
        mounted.push((name.to_owned(), folder.clone()));
        Ok(Some(folder))
    }

    /// Names the module of a file system that the kernel does not know. In an initramfs of another system, whose own programs
    /// load modules, there is nothing to add to a recipe.
    fn with_missing_module(&self, error: anyhow::Error, name: &str, kinds: Kinds) -> anyhow::Error {
        let is_unknown = error
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.raw_os_error() == Some(nix::libc::ENODEV));
        if !is_unknown || self.modules.index().release.is_empty() {
            return error;
        }
        let named: Vec<&str> = kinds.iter().map(|(kind, _)| *kind).collect();
        let modules: Vec<String> = named
            .iter()
            .map(|kind| format!("\"{}\"", module_of(kind)))
            .collect();
        error.context(format!(
            "{name} has {}, for which neither the initramfs nor the kernel has a module: use ext4, which every image has, or \
             build the image with `modules = [{}]` in [kernel] of the recipe",
            named.join(" or "),
            modules.join(", ")
        ))
    }
}

/// The module of a file system, if it has another name.
fn module_of(kind: &str) -> &str {
    match kind {
        "iso9660" => "isofs",
        kind => kind,
    }
}

/// Types of a file system that a medium may have, each with the options that keep a journal from being replayed.
type Kinds = &'static [(&'static str, &'static str)];

fn mount_one_of(device: &Path, folder: &Path, kinds: Kinds) -> Result<()> {
    let flags = Flags::MS_RDONLY | Flags::MS_NOSUID | Flags::MS_NODEV | Flags::MS_NOEXEC;
    let mut result = Ok(());
    for (kind, options) in kinds {
        result = mount::mount(device, folder, kind, flags, options);
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

fn is_drive(name: &str) -> bool {
    name.starts_with("sr")
}

/// Whether a silent device may hold a medium: a disc is in a drive.
fn may_hold(wanted: &Medium<'_>, silent: &Silent) -> bool {
    matches!(wanted, Medium::Labels(_)) || is_drive(&silent.disk)
}

/// Asks the disks of these devices for the begins of the devices; only to be opened, if a disc with any content is wanted.
fn ask<'w>(world: &'w World, names: &[String], wanted: &Medium<'_>) -> Heard<'w> {
    let stretches = match wanted {
        Medium::Labels(_) => vec![(0, HEAD)],
        Medium::Disc(_) => Vec::new(),
    };
    let reads = names.iter().map(|name| {
        let reads = Reads {
            path: world.dev.join(name),
            stretches: stretches.clone(),
        };
        (block::disk_of(world, name), reads)
    });
    block::ask(world, reads)
}

/// The devices that may hold the medium, each with the types that its file system may have: the first with the label, every
/// drive with a disc. None of those that do not answer.
fn find(world: &World, wanted: &Medium<'_>) -> Vec<(String, Kinds)> {
    const DISC: Kinds = &[("udf", ""), ("iso9660", "")];
    // A floppy drive is slow to say that it is empty; a network device that is not connected waits.
    let slow = |name: &String| name.starts_with("fd") || name.starts_with("nbd");
    let folder = world.sys.join("class/block");
    let mut names = block::entries(&folder);
    names.retain(|name| !slow(name) && !block::is_hidden(&folder.join(name)));
    if let Medium::Disc(_) = wanted {
        names.retain(|name| is_drive(name));
    }
    names.sort();
    let heard = ask(world, &names, wanted);
    names.retain(|name| heard.has(&block::disk_of(world, name)));
    let has_disc = |name: &String| File::open(world.dev.join(name)).is_ok();
    let labelled = |labels: &[&str], name: String| {
        let (label, kinds) = label(&world.dev.join(&name))?;
        labels.contains(&label.as_str()).then_some((name, kinds))
    };
    let names = names.into_iter();
    match wanted {
        Medium::Disc(_) => names.filter(has_disc).map(|name| (name, DISC)).collect(),
        Medium::Labels(labels) => names
            .filter_map(|name| labelled(labels, name))
            .take(1)
            .collect(),
    }
}

/// Label and type of the file system on a device. A drive without a disc does not open.
fn label(path: &Path) -> Option<(String, Kinds)> {
    let mut file = File::open(path).ok()?;
    let size = file.seek(SeekFrom::End(0)).ok()?;
    let mut sector = [0; 512];
    if file.read_exact_at(&mut sector, ISO_DESCRIPTOR).is_ok()
        && let Some(label) = iso_label(&sector)
    {
        return Some((label, &[("iso9660", "")]));
    }
    let found = filesystem::read(Stretch::whole(&file, size)).ok()?;
    found.into_iter().find_map(|found| {
        let kinds: Kinds = match found.kind {
            Kind::Ext3 | Kind::Ext4 => &[("ext4", "noload")],
            Kind::Xfs => &[("xfs", "norecovery")],
            Kind::Btrfs => &[("btrfs", "")],
            Kind::Vfat => &[("vfat", "")],
            Kind::Swap | Kind::Luks1 | Kind::Luks2 => return None,
        };
        Some((found.label, kinds))
    })
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
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::disk_reader::Readers;
    use crate::samples::{hanging, iso};
    use crate::world::Clock;

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
        assert_eq!(find(&world, &wanted), []);
        add("vda", &[0; 8192]);
        add("vda1", &fat("ESP", 71, (82, b"FAT32   ")));
        add("fd0", &iso("config-2"));
        assert_eq!(find(&world, &wanted), []);
        add("vdb", &fat("CONFIG-2", 43, (54, b"FAT12   ")));
        let found = find(&world, &wanted).remove(0);
        assert_eq!((found.0.as_str(), found.1[0].0), ("vdb", "vfat"));
        add("sr0", &iso("config-2"));
        let found = find(&world, &wanted).remove(0);
        assert_eq!((found.0.as_str(), found.1[0].0), ("sr0", "iso9660"));
        add("sr1", &[]);
        let found = find(&world, &Medium::Disc("ovf-env.xml"));
        assert_eq!([&found[0].0, &found[1].0], ["sr0", "sr1"]);
        let cidata = ["cidata"];
        assert_eq!(find(&world, &Medium::Labels(&cidata)), []);
        add("vdc", &fat("cidata", 71, (82, b"FAT32   ")));
        assert_eq!(find(&world, &Medium::Labels(&cidata))[0].0, "vdc");
        // An array or a mapped device in Ignition's place; its journal is not replayed.
        let mut ext = vec![0; 128 * 1024];
        ext[1080..1082].copy_from_slice(b"\x53\xef");
        ext[1144..1148].copy_from_slice(b"data");
        add("md127", &ext);
        let data = find(&world, &Medium::Labels(&["data"])).remove(0);
        assert_eq!(data.0, "md127");
        assert_eq!(data.1, [("ext4", "noload")]);
    }

    #[test]
    fn a_medium_is_not_absent_as_long_as_a_device_does_not_answer() {
        let folder = tempfile::tempdir().unwrap();
        let mut world = World::below(folder.path(), Clock::Real);
        world.readers = Readers::with_patience(Duration::from_secs(1));
        let world = Arc::new(world);
        fs::create_dir_all(&world.dev).unwrap();
        for name in ["sr0", "vdb"] {
            fs::create_dir_all(world.sys.join("class/block").join(name)).unwrap();
        }
        hanging(&world.dev.join("vdb"));
        fs::write(world.dev.join("sr0"), iso("another")).unwrap();
        let modules = Modules::none(Arc::clone(&world));
        let media = Media::new(&world, &modules);
        let error = media.mount(Medium::Labels(&["config-2"])).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("the medium labelled config-2 may be on vdb, which has not answered"),
            "{text}"
        );
        assert!(!media.is_there(Medium::Labels(&["config-2"])));
        // A disc is in a drive.
        fs::remove_file(world.dev.join("sr0")).unwrap();
        assert_eq!(media.mount(Medium::Disc("ovf-env.xml")).unwrap(), None);
    }

    #[test]
    fn a_file_system_without_a_module_is_named_with_what_works() {
        let folder = tempfile::tempdir().unwrap();
        let world = Arc::new(World::below(folder.path(), Clock::Real));
        let index = world.in_initrd(image::paths::INITRD_MODULES).join("6.12");
        fs::create_dir_all(&index).unwrap();
        let index = index.join(image::paths::INITRD_MODULES_INDEX);
        fs::write(
            index,
            r#"{"release": "6.12", "modules": [], "builtin": []}"#,
        )
        .unwrap();
        let modules = Modules::open(Arc::clone(&world), "6.12").unwrap();
        let media = Media::new(&world, &modules);
        let failed = |number| Err::<(), _>(io::Error::from_raw_os_error(number));
        let said = |media: &Media<'_>, number, kinds| {
            let error = failed(number).context("mounting /dev/vdb").unwrap_err();
            format!("{:#}", media.with_missing_module(error, "vdb", kinds))
        };
        let xfs: Kinds = &[("xfs", "norecovery")];
        let error = said(&media, nix::libc::ENODEV, xfs);
        for words in [
            "vdb has xfs,",
            "use ext4",
            "`modules = [\"xfs\"]` in [kernel]",
        ] {
            assert!(error.contains(words), "{words}: {error}");
        }
        let disc = said(&media, nix::libc::ENODEV, &[("iso9660", "")]);
        assert!(disc.contains("[\"isofs\"]"), "{disc}");
        // A damaged one lacks no module; another system's initramfs has no recipe.
        let damaged = said(&media, nix::libc::EUCLEAN, xfs);
        assert!(!damaged.contains("module"), "{damaged}");
        let none = Modules::none(Arc::clone(&world));
        let media = Media::new(&world, &none);
        let foreign = said(&media, nix::libc::ENODEV, xfs);
        assert!(!foreign.contains("recipe"), "{foreign}");
    }

    #[test]
    fn a_disc_that_does_not_mount_hides_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let world = Arc::new(World::below(folder.path(), Clock::Real));
        let modules = Modules::none(Arc::clone(&world));
        let media = Media::new(&world, &modules);
        fs::create_dir_all(&world.dev).unwrap();
        let add = |name: &str| {
            fs::create_dir_all(world.sys.join("class/block").join(name)).unwrap();
            fs::write(world.dev.join(name), [0; 4096]).unwrap();
        };
        let wanted = Medium::Disc("ovf-env.xml");
        assert_eq!(media.mount(wanted).unwrap(), None);
        add("sr0");
        assert!(media.mount(wanted).is_err());
        add("sr1");
        let there = folder.path().join("there");
        let mounted = vec![("sr1".to_owned(), there.clone())];
        *media.mounted.lock().unwrap() = mounted;
        assert_eq!(media.mount(wanted).unwrap(), Some(there));
        media.mounted.lock().unwrap().clear();
    }
}
