//! The files of one node: system disk, etcd disk, firmware variables, identity.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write as _};
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use image::guid::Guid;
use image::layout::{GIB, LABEL_STATE, SectorSize};
use image::paths::STATE_TIMELINES;
use nix::unistd::{AccessFlags, Whence, access, lseek};

use super::machine::OVMF_VARS;
use super::machine::disk::{Bus, Disk, Format};
use super::system_size;
use crate::format::gpt::{Table, sector_size};
use crate::host::atomic_file;
use crate::host::cache;
use crate::install::tools::Tools;
use crate::publish::sums::SUMS;

/// Size of a node's etcd disk: twice the default minimum size for formatting.
pub const ETCD_SIZE: u64 = 2 * GIB;
/// Serial number of the system disk.
pub const SYSTEM_SERIAL: &str = "system";
/// Serial number of the etcd disk.
pub const ETCD_SERIAL: &str = "etcd";

/// A folder with the files of one node, which may be booted several times, by one machine at a time.
#[derive(Clone, Debug)]
pub struct Node {
    folder: PathBuf,
    /// The locked file: it keeps the folder from others as long as a clone of this lives.
    _held: Arc<Held>,
}

/// A locked file, unlocked with it: a program that another thread has just started has a copy open until it runs.
#[derive(Debug)]
struct Held(File);

impl Drop for Held {
    fn drop(&mut self) {
        // Closed right behind it.
        self.0.unlock().ok();
    }
}

impl Node {
    /// The node in this folder; missing files are created: the system disk from an image, enlarged to 16 GiB or what the image wants, and
    /// the identity.
    ///
    /// # Errors
    /// If the image cannot be read, the folder cannot be written, or another run has it.
    pub fn prepare(folder: &Path, image: &Path, tools: &Tools) -> Result<Self> {
        let node = Self::hold(folder)?;
        node.fill(image, tools)?;
        Ok(node)
    }

    /// The node of a run in this folder. One of another image is refused, unless `fresh` makes it anew: the files of before are
    /// removed, and others in the folder stay.
    ///
    /// # Errors
    /// The same as [`Self::prepare`]; or if the node is of another image, or a file cannot be removed.
    pub fn of_run(folder: &Path, image: &Path, tools: &Tools, fresh: bool) -> Result<Self> {
        let node = Self::hold(folder)?;
        if fresh {
            node.clear()?;
        }
        node.require(image)?;
        node.fill(image, tools)?;
        Ok(node)
    }

    /// Looks whether a run can have this folder, and makes no folder: no other run has it, it can be made, and what it keeps is of
    /// the image, if that is there already and the node is not made anew.
    ///
    /// # Errors
    /// If it cannot.
    pub fn check(folder: &Path, image: Option<&Path>, fresh: bool) -> Result<()> {
        if folder.exists() {
            let node = Self::hold(folder)?;
            return match image.filter(|_| !fresh) {
                Some(image) => node.require(image),
                None => Ok(()),
            };
        }
        let about = || format!("making {}", folder.display());
        let whole = std::path::absolute(folder).with_context(about)?;
        let above = whole.ancestors().find(|path| path.exists());
        // With the dot, a file is no folder.
        let above = above.unwrap_or(&whole).join(".");
        access(&above, AccessFlags::W_OK | AccessFlags::X_OK).with_context(about)
    }

    /// Makes the files that are missing.
    fn fill(&self, image: &Path, tools: &Tools) -> Result<()> {
        if !self.system().exists() {
            match digest(image) {
                Some(digest) => atomic_file::write(&self.image(), 0o644, |file| {
                    Ok(writeln!(file, "{digest}")?)
                })?,
                None => cache::remove(&self.image())?,
            }
            // Renamed when complete, so that a partial copy is never booted.
            let half = self.folder.join("system.raw.part");
            copy_sparse(image, &half)?;
            grow(&half, system_size::of_image(image))?;
            fs::rename(&half, self.system()).context("naming the system disk")?;
        }
        if !self.vars().exists() {
            let vars = tools.root.join(OVMF_VARS);
            // Whole or not at all, as all of these: QEMU refuses a part at each later boot.
            atomic_file::write(&self.vars(), 0o644, |file| {
                io::copy(&mut File::open(&vars)?, file)?;
                Ok(())
            })
            .with_context(|| format!("copying the firmware's variables {}", vars.display()))?;
        }
        if !self.identity().exists() {
            let mut bytes = [0; 16];
            File::open("/dev/urandom")
                .and_then(|mut random| random.read_exact(&mut bytes))
                .context("reading random bytes for the node's identity")?;
            let identity = Guid::from_random(bytes).to_string();
            atomic_file::write(&self.identity(), 0o644, |file| {
                Ok(file.write_all(identity.as_bytes())?)
            })?;
        }
        Ok(())
    }

    /// The folder, made if it is missing, and held.
    fn hold(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        let path = folder.join("lock");
        let held = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("opening {}", path.display()))?;
        match held.try_lock() {
            Ok(()) => Ok(Self {
                folder: folder.to_owned(),
                _held: Arc::new(Held(held)),
            }),
            Err(TryLockError::WouldBlock) => bail!(
                "{} is the node of another run, which has not ended yet",
                folder.display()
            ),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("locking {}", path.display()))
            }
        }
    }

    /// Removes the node's files. Other files in the folder stay.
    fn clear(&self) -> Result<()> {
        for path in [
            self.system(),
            self.etcd(),
            self.vars(),
            self.tpm(),
            self.identity(),
            self.image(),
        ] {
            cache::remove(&path)?;
        }
        Ok(())
    }

    /// Refuses the disk of another image than this one. A disk that is not there yet is made from this one.
    fn require(&self, image: &Path) -> Result<()> {
        if !self.system().exists() || self.is_of(image)? {
            return Ok(());
        }
        bail!(
            "{} is a node of another image than {}: its disk would be booted, not this image's; --fresh makes it anew and \
             loses its data, another folder keeps it",
            self.folder.display(),
            image.parent().unwrap_or(image).display()
        )
    }

    /// Whether the node was made from this image's disk; also if that is not known.
    ///
    /// # Errors
    /// If the record in the folder cannot be read.
    pub fn is_of(&self, image: &Path) -> Result<bool> {
        let path = self.image();
        let recorded = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        Ok(digest(image).is_none_or(|digest| digest == recorded.trim()))
    }

    /// The file with the SHA-256 of the disk that the system disk was made from.
    fn image(&self) -> PathBuf {
        self.folder.join("image")
    }

    /// The system disk's file.
    #[must_use]
    pub fn system(&self) -> PathBuf {
        self.folder.join("system.raw")
    }

    /// The etcd disk's file.
    #[must_use]
    pub fn etcd(&self) -> PathBuf {
        self.folder.join("etcd.raw")
    }

    /// The firmware's variable store.
    #[must_use]
    pub fn vars(&self) -> PathBuf {
        self.folder.join("vars.fd")
    }

    /// The folder of the TPM's state.
    #[must_use]
    pub fn tpm(&self) -> PathBuf {
        self.folder.join("tpm")
    }

    fn identity(&self) -> PathBuf {
        self.folder.join("uuid")
    }

    /// The node's folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The SMBIOS UUID.
    ///
    /// # Errors
    /// If the file in the folder has no valid UUID.
    pub fn uuid(&self) -> Result<Guid> {
        fs::read_to_string(self.identity())
            .context("reading the node's identity")?
            .trim()
            .parse()
            .map_err(anyhow::Error::msg)
    }

    /// The system disk on this controller, with the sectors that its partition table counts in.
    ///
    /// # Errors
    /// If its file cannot be read.
    pub fn system_disk(&self, bus: Bus) -> Result<Disk> {
        let path = self.system();
        let sector = File::open(&path).and_then(|mut file| sector_size(&mut file));
        let sector = sector.with_context(|| format!("reading {}", path.display()))?;
        Ok(Disk {
            path,
            format: Format::Raw,
            bus,
            serial: SYSTEM_SERIAL.into(),
            sector: sector.unwrap_or_default(),
            read_only: false,
        })
    }

    /// The etcd disk on this controller, created blank if missing.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn etcd_disk(&self, bus: Bus) -> Result<Disk> {
        if !self.etcd().exists() {
            blank(&self.etcd(), ETCD_SIZE)?;
        }
        Ok(Disk {
            path: self.etcd(),
            format: Format::Raw,
            bus,
            serial: ETCD_SERIAL.into(),
            sector: SectorSize::default(),
            read_only: false,
        })
    }
}

/// The SHA-256 of an image's disk, by the list of hashes beside it; none without such a list.
fn digest(disk: &Path) -> Option<String> {
    let list = fs::read_to_string(disk.parent()?.join(SUMS)).ok()?;
    let name = disk.file_name()?.to_str()?;
    list.lines().find_map(|line| {
        let (digest, path) = line.split_once("  ")?;
        (path == name).then(|| digest.to_owned())
    })
}

/// Creates a file of this many zero bytes, which takes no disk space.
///
/// # Errors
/// If it cannot be created.
pub fn blank(path: &Path, size: u64) -> Result<()> {
    File::create(path)
        .and_then(|file| file.set_len(size))
        .with_context(|| format!("making {}", path.display()))
}

fn grow(path: &Path, size: u64) -> Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .open(path)
        .with_context(|| format!("opening {}", path.display()))?;
    let now = file.metadata()?.len();
    if now < size {
        file.set_len(size)
            .with_context(|| format!("growing {}", path.display()))?;
    }
    Ok(())
}

/// Copies a file's data and keeps its holes. A file system with shared blocks copies no data.
///
/// # Errors
/// If one file cannot be read or the other cannot be written.
pub fn copy_sparse(from: &Path, to: &Path) -> Result<()> {
    let copy = || {
        let source = File::open(from)?;
        let copy = File::create(to)?;
        let size = source.metadata()?.len();
        copy.set_len(size)?;
        copy_data(&source, &copy, 0..size)
    };
    copy().with_context(|| format!("copying {} to {}", from.display(), to.display()))
}

/// Copies the data of a range of a file to the same range of another, without holes.
///
/// # Errors
/// If one file cannot be read or the other cannot be written.
pub fn copy_data(from: &File, to: &File, stretch: Range<u64>) -> Result<()> {
    let find = |at: u64, whence| -> Result<u64> {
        match lseek(from.as_fd(), i64::try_from(at)?, whence) {
            Ok(found) => Ok(u64::try_from(found)?.min(stretch.end)),
            // The rest of the file is a hole.
            Err(nix::errno::Errno::ENXIO) => Ok(stretch.end),
            Err(error) => Err(error.into()),
        }
    };
    let mut at = stretch.start;
    while at < stretch.end {
        let data = find(at, Whence::SeekData)?;
        if data == stretch.end {
            break;
        }
        let hole = find(data, Whence::SeekHole)?;
        let (mut source, mut copy) = (from, to);
        source.seek(SeekFrom::Start(data))?;
        copy.seek(SeekFrom::Start(data))?;
        std::io::copy(&mut source.take(hole - data), &mut copy)?;
        at = hole;
    }
    Ok(())
}

/// The partition of a GPT disk with this label: (first byte, bytes).
///
/// # Errors
/// If the disk has no readable GPT or no such partition.
pub fn partition(disk: &Path, label: &str) -> Result<(u64, u64)> {
    let about = || format!("reading the partition table of {}", disk.display());
    let mut file = File::open(disk).with_context(about)?;
    let table = Table::read(&mut file).with_context(about)?;
    let found = table.partitions.iter().find(|part| part.label == label);
    let Some(part) = found else {
        bail!("{} has no partition {label:?}", disk.display());
    };
    Ok((part.offset, part.size))
}

/// The timelines that a node's disk stores in `state`, oldest first: (boot's file name, JSON lines). The disk is only
/// read: the journal is replayed on a copy of the partition.
///
/// # Errors
/// If the disk has no `state`, or it is not a readable ext4.
pub fn timelines(tools: &Tools, disk: &Path) -> Result<Vec<(String, String)>> {
    let (start, size) = partition(disk, LABEL_STATE)?;
    let folder = tempfile::tempdir().context("making a folder for the state partition")?;
    let copy = folder.path().join("state");
    let mut source = File::open(disk).with_context(|| format!("opening {}", disk.display()))?;
    source.seek(SeekFrom::Start(start))?;
    let mut target = File::create(&copy)?;
    std::io::copy(&mut source.take(size), &mut target).context("copying the state partition")?;
    drop(target);
    let sandbox = tools.sandbox().bind(folder.path(), "/run/state");
    // Exit code 1 means that the journal was replayed.
    drop(
        sandbox
            .command("/usr/sbin/e2fsck")
            .args(["-fy", "/run/state/state"])
            .run(),
    );
    sandbox
        .command("/usr/sbin/debugfs")
        .args(["-R", &format!("rdump /{STATE_TIMELINES} /run/state")])
        .arg("/run/state/state")
        .run()
        .context("reading the timelines from the state partition")?;
    let mut found = Vec::new();
    let dumped = folder.path().join(STATE_TIMELINES);
    for entry in fs::read_dir(&dumped).context("the state partition keeps no timelines")? {
        let entry = entry?;
        let text = fs::read_to_string(entry.path())?;
        found.push((entry.file_name().to_string_lossy().into_owned(), text));
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::cache::Key;
    use std::io::Write;
    use std::os::unix::fs::{FileExt, MetadataExt};

    #[test]
    fn of_a_stretch_the_data_is_copied_and_holes_are_passed_over() {
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        from.set_len(8 << 20).unwrap();
        for (at, text) in [(0, b"a"), (4 << 20, b"b"), (6 << 20, b"c")] {
            from.write_all_at(text, at).unwrap();
        }
        to.write_all_at(&vec![b'-'; 8 << 20], 0).unwrap();
        copy_data(&from, &to, (1 << 20)..(6 << 20)).unwrap();
        let at = |mib: u64| {
            let mut byte = [0];
            to.read_exact_at(&mut byte, mib << 20).unwrap();
            char::from(byte[0])
        };
        let read: String = (0..8).map(at).collect();
        assert_eq!(read, "----b---");
        assert_eq!(to.metadata().unwrap().len(), 8 << 20);
    }

    #[test]
    fn a_sparse_copy_has_the_data_and_the_holes() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("a"), folder.path().join("b"));
        blank(&from, 64 << 20).unwrap();
        let mut file = OpenOptions::new().write(true).open(&from).unwrap();
        for at in [0, 5 << 20, (64 << 20) - 3] {
            file.seek(SeekFrom::Start(at)).unwrap();
            file.write_all(b"abc").unwrap();
        }
        copy_sparse(&from, &to).unwrap();
        assert!(fs::read(&from).unwrap() == fs::read(&to).unwrap());
        assert!(fs::metadata(&to).unwrap().blocks() * 512 < 1 << 20);
    }

    #[test]
    fn a_nodes_folder_is_one_runs_and_knows_its_image() {
        let folder = tempfile::tempdir().unwrap();
        let (out, other) = (folder.path().join("out"), folder.path().join("other"));
        for (path, letter) in [(&out, "a"), (&other, "b")] {
            fs::create_dir(path).unwrap();
            fs::write(path.join("disk.raw"), letter).unwrap();
            let digest = letter.repeat(64);
            fs::write(path.join(SUMS), format!("{digest}  disk.raw\n")).unwrap();
        }
        let (disk, another) = (out.join("disk.raw"), other.join("disk.raw"));
        let tools = Tools {
            root: folder.path().join("tools"),
            key: Key::of_data("test", 1).finish(),
            packages: Key::of_data("test", 1).finish(),
        };
        let vars = tools.root.join(OVMF_VARS);
        fs::create_dir_all(vars.parent().unwrap()).unwrap();
        fs::write(vars, b"vars").unwrap();
        let place = folder.path().join("node");
        let run = |image: &Path, fresh| Node::of_run(&place, image, &tools, fresh);
        let first = || {
            let mut byte = [0];
            let system = File::open(place.join("system.raw")).unwrap();
            system.read_exact_at(&mut byte, 0).unwrap();
            char::from(byte[0])
        };
        Node::check(&place, Some(&disk), false).unwrap();
        assert!(!place.exists());
        let node = run(&disk, false).unwrap();
        assert!(node.is_of(&disk).unwrap() && !node.is_of(&another).unwrap());
        for refused in [
            Node::prepare(&place, &disk, &tools).map(drop),
            Node::check(&place, None, true),
            run(&disk, false).map(drop),
            run(&disk, true).map(drop),
        ] {
            let error = refused.unwrap_err().to_string();
            assert!(
                error.ends_with("is the node of another run, which has not ended yet"),
                "{error}"
            );
        }
        let uuid = node.uuid().unwrap();
        drop(node);
        // Its next boot, and not that of another image.
        assert_eq!(run(&disk, false).unwrap().uuid().unwrap(), uuid);
        for refused in [
            Node::check(&place, Some(&another), false),
            run(&another, false).map(drop),
        ] {
            let error = refused.unwrap_err().to_string();
            let start = format!(
                "{} is a node of another image than {}: ",
                place.display(),
                other.display()
            );
            assert!(
                error.starts_with(&start) && error.contains("; --fresh makes it anew"),
                "{error}"
            );
        }
        assert_eq!(first(), 'a');
        // What is not built yet may be the same image.
        Node::check(&place, None, false).unwrap();
        Node::check(&place, Some(&another), true).unwrap();
        fs::write(place.join("config.ign"), b"{}").unwrap();
        let node = run(&another, true).unwrap();
        assert!(node.is_of(&another).unwrap() && first() == 'b');
        assert_ne!(node.uuid().unwrap(), uuid);
        assert!(place.join("config.ign").exists());
        // An image without a list of hashes may be any.
        fs::remove_file(out.join(SUMS)).unwrap();
        assert!(node.is_of(&disk).unwrap());
    }

    /// As on a disk that is full, or with a program that is killed.
    #[test]
    fn a_copy_of_the_firmwares_variables_that_is_cut_off_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("disk.raw");
        fs::write(&image, "image").unwrap();
        let tools = Tools {
            root: folder.path().join("tools"),
            key: Key::of_data("test", 1).finish(),
            packages: Key::of_data("test", 1).finish(),
        };
        let vars = tools.root.join(OVMF_VARS);
        fs::create_dir_all(vars.parent().unwrap()).unwrap();
        // It opens, and no byte of it can be read.
        std::os::unix::fs::symlink("/proc/self/mem", &vars).unwrap();
        let place = folder.path().join("node");
        let error = Node::prepare(&place, &image, &tools).unwrap_err();
        let error = format!("{error:#}");
        assert!(
            error.starts_with("copying the firmware's variables "),
            "{error}"
        );
        fs::remove_file(&vars).unwrap();
        fs::write(&vars, "vars").unwrap();
        let node = Node::prepare(&place, &image, &tools).unwrap();
        assert_eq!(fs::read(node.vars()).unwrap(), b"vars");
        node.uuid().unwrap();
    }

    #[test]
    fn a_nodes_folder_that_cannot_be_made_is_refused_before_it_is_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        Node::check(&folder.path().join("some/node"), None, false).unwrap();
        assert!(!folder.path().join("some").exists());
        for place in [file.join("some/node"), file] {
            let error = Node::check(&place, None, false).unwrap_err().to_string();
            assert_eq!(error, format!("making {}", place.display()));
        }
    }

    #[test]
    fn a_missing_partition_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk");
        blank(&disk, 8 << 20).unwrap();
        assert!(partition(&disk, "state").is_err());
        let mut table = gpt::GptConfig::new().writable(true).create(&disk).unwrap();
        table
            .add_partition("root-a", 1 << 20, gpt::partition_types::LINUX_FS, 0, None)
            .unwrap();
        table.write().unwrap();
        let error = partition(&disk, "state").unwrap_err().to_string();
        assert!(error.contains("\"state\""), "{error}");
        assert_eq!(partition(&disk, "root-a").unwrap().1, 1 << 20);
    }
}
