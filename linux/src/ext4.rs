//! ext4, made, checked, repaired and grown: the options of mkfs.ext4, the exit codes of e2fsck, and the kernel's own growth.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use image::fault::Fault;

use crate::filesystem::ext::backup::{self, Backup};
use crate::filesystem::ext::{self, Superblock, descriptors};
use crate::ioctl;
use crate::kernel_call;
use crate::programs::{self, Programs};
use crate::tools::Tool;
use crate::world::World;

/// Options by which the node's own ext4 file systems differ.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// The label, at most 16 bytes.
    pub label: &'a str,
    /// The UUID in the usual text form; a random one if none.
    pub uuid: Option<&'a str>,
    /// Whether it gets an orphan file, for many processes that remove or truncate open files at the same time.
    pub orphan_file: bool,
    /// Whether existing content is overwritten. Without this mke2fs is the second opinion: it refuses where libblkid
    /// finds anything.
    pub overwrite: bool,
}

impl Options<'_> {
    /// The arguments of mkfs.ext4 before the device.
    fn arguments(&self) -> Vec<String> {
        // mke2fs makes an orphan file with up to 512 blocks, which every mount reads whole, one block after another (the
        // kernel's `fs/ext4/orphan.c`). Eight blocks are enough for the processors to share.
        let (orphan_file, its_size) = match self.orphan_file {
            true => ("orphan_file", ",orphan_file_size=32K"),
            false => ("^orphan_file", ""),
        };
        // Nothing is discarded and no inode table zeroed here: the kernel zeroes the tables later, in the background.
        let extended = format!("lazy_itable_init=1,lazy_journal_init=1,nodiscard{its_size}");
        // With fast commits bbolt, and so etcd, loses data after a power cut: https://github.com/etcd-io/bbolt/issues/562
        let features = format!("^fast_commit,{orphan_file}");
        let mut out = vec!["-q", "-m", "1", "-L", self.label, "-O", &features];
        out.extend(["-E", &extended]);
        if let Some(uuid) = self.uuid {
            out.extend(["-U", uuid]);
        }
        if self.overwrite {
            out.push("-F");
        }
        out.into_iter().map(str::to_owned).collect()
    }
}

/// Makes an ext4 file system on a device.
///
/// # Errors
/// If mkfs.ext4 is not in the root or fails.
pub fn make(root: &Programs, device: &Path, options: Options<'_>) -> Result<()> {
    let mkfs = Tool::MkfsExt4.find(root)?;
    let mut arguments = options.arguments();
    arguments.push(device.to_string_lossy().into_owned());
    let what = format!("mkfs.ext4 of {}", device.display());
    programs::succeed_on_disk(root, &mkfs, &arguments, &what)?;
    Ok(())
}

/// Checks the file system on an unmounted device: the journal is replayed and, if the superblock asks for it, the
/// complete file system is checked; safe corrections are made. Messages show `name` for the device and `fix` as the
/// remedy for damage.
///
/// # Errors
/// A [`Fault`] if errors are left; else if e2fsck is not in the root or does not start.
pub fn check(root: &Programs, device: &Path, name: &str, fix: &str) -> Result<()> {
    tracing::info!("checking {name}, which was not unmounted cleanly");
    let failure = match descriptors::are_sound(device, PRIMARY)? {
        true => e2fsck(root, device, name, &["-p"])?.map_err(|failure| failure.text),
        false => Err(BAD_DESCRIPTORS.to_owned()),
    };
    failure.map_err(|found| damaged(name, found, fix).into())
}

/// As [`check`]; where the superblock or the group descriptors behind it cannot be read, the check begins with a backup of
/// both, of which only those count that say `label`. `size` is the device's, in bytes. Gives the block of the backup that
/// the file system was repaired from. `forced` is for one that does not mount although it says that it is clean.
///
/// # Errors
/// As of [`check`].
pub fn repair(
    root: &Programs,
    device: &Path,
    size: u64,
    label: &str,
    forced: bool,
    (name, fix): (&str, &str),
) -> Result<Option<u64>> {
    tracing::info!("checking {name}");
    let mut found = if ext::read(device)?.is_none() {
        "no superblock".to_owned()
    } else if !descriptors::are_sound(device, PRIMARY)? {
        BAD_DESCRIPTORS.to_owned()
    } else {
        let options: &[&str] = if forced { &["-p", "-f"] } else { &["-p"] };
        match e2fsck(root, device, name, options)? {
            Ok(()) => return Ok(None),
            Err(failure) if failure.is_verdict() => {
                return Err(damaged(name, failure.text, fix).into());
            }
            Err(failure) => failure.text,
        }
    };
    let backups = backups(device, size, label)?;
    if backups.is_empty() {
        found.push_str(", and no backup superblock");
    }
    for Backup { at, superblock, .. } in backups.iter().take(MOST_BACKUPS) {
        tracing::warn!("{name}: {found}; trying the backup superblock in block {at}");
        let (at_text, block) = (at.to_string(), superblock.block.to_string());
        // -p alone, here too: it answers only what is safe without a person and ends with 4 at anything else. -y would
        // clear inodes and cut folders off until the rest is formally sound, and nobody would know what is missing. A
        // backup describes the whole device, and the journal is replayed after it, so a lost superblock needs no more.
        let options = ["-p", "-f", "-b", &at_text, "-B", &block];
        match e2fsck(root, device, name, &options)? {
            Ok(()) => return Ok(Some(*at)),
            Err(failure) => {
                let is_verdict = failure.is_verdict();
                found = failure.text;
                if is_verdict {
                    break;
                }
            }
        }
    }
    Err(damaged(name, found, fix).into())
}

/// The backups of a file system with this label whose group descriptors can be relied on.
fn backups(device: &Path, size: u64, label: &str) -> Result<Vec<Backup>> {
    let mut found = Vec::new();
    for backup in backup::find(device, size)? {
        let at = backup.at * backup.superblock.block;
        if backup.superblock.label == label && descriptors::are_sound(device, at)? {
            found.push(backup);
        }
    }
    Ok(found)
}

/// Where the first superblock is, in bytes.
const PRIMARY: u64 = ext::AT as u64;
const BAD_DESCRIPTORS: &str = "group descriptors that lead out of the file system";
/// How many backup superblocks are tried.
const MOST_BACKUPS: usize = 4;
/// Bit of e2fsck's exit code: it could not begin, as with a superblock that is damaged itself.
const OPERATIONAL: i32 = 8;

/// An e2fsck that left errors.
struct Failure {
    code: Option<i32>,
    /// Its arguments, exit code and output.
    text: String,
}

impl Failure {
    /// Whether it has looked at the file system: with another superblock it would find the same.
    fn is_verdict(&self) -> bool {
        self.code.is_some_and(|code| code & OPERATIONAL == 0)
    }
}

/// The error that counts is that of starting it; the inner one says that the file system is not sound.
fn e2fsck(
    root: &Programs,
    device: &Path,
    name: &str,
    options: &[&str],
) -> Result<Result<(), Failure>> {
    let program = Tool::E2fsck.find(root)?;
    let device = device.to_string_lossy();
    let arguments = [options, &[device.as_ref()]].concat();
    let what = format!("e2fsck of {name}");
    let output = programs::run_on_disk(root, &program, &arguments, &what)?;
    // e2fsck(8): 1 and 2 say that errors were corrected; the reboot that 2 asks for is for mounted file systems only.
    Ok(match output.status.code() {
        Some(0..=2) => Ok(()),
        code => Err(Failure {
            code,
            text: format!(
                "e2fsck {} ended with {}: {}",
                options.join(" "),
                code.map_or("a signal".to_owned(), |code| code.to_string()),
                [output.stdout.trim(), output.stderr.trim()]
                    .join(" ")
                    .trim()
                    .replace('\n', " | ")
            ),
        }),
    })
}

fn damaged(name: &str, found: String, fix: &str) -> Fault {
    Fault::new(format!("the file system on {name} is damaged"))
        .expected("an ext4 that e2fsck -p can repair")
        .found(found)
        .fix(fix)
}

/// Grows the file system that is mounted at `mounted` to `size` bytes, unless it would gain less than `at_least`. `name`
/// is the device's for people.
///
/// # Errors
/// If the kernel refuses.
pub fn grow(
    world: &World,
    name: &str,
    superblock: &Superblock,
    size: u64,
    mounted: &Path,
    at_least: u64,
) -> Result<()> {
    let (block, blocks) = (superblock.block, size / superblock.block);
    if blocks.saturating_sub(superblock.blocks) * block < at_least {
        return Ok(());
    }
    tracing::info!(
        "growing {name} from {} to {blocks} blocks",
        superblock.blocks
    );
    let folder = File::open(mounted).with_context(|| format!("opening {}", mounted.display()))?;
    let what = format!("{name} to grow");
    kernel_call::on_disks(world, &what, || ioctl::grow_ext4(&folder, blocks))
        .with_context(|| format!("growing {name}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::world::{Clock, World};

    const MIB: u64 = 1 << 20;

    /// The programs of this system; none where a test cannot start them.
    fn host() -> Option<Programs> {
        let world = World::below(Path::new("/nowhere"), Clock::Real);
        crate::host::programs(world, &["/usr/sbin/mkfs.ext4"])
    }

    /// A file system of this size in a file, with a file `kept` in it.
    fn made(root: &Programs, size: u64) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(size).unwrap();
        let options = Options {
            label: "var",
            uuid: None,
            orphan_file: true,
            overwrite: true,
        };
        make(root, file.path(), options).unwrap();
        let kept = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(kept.path(), "kept").unwrap();
        debugfs(
            root,
            file.path(),
            &format!("write {} kept", kept.path().display()),
        );
        file
    }

    fn debugfs(root: &Programs, file: &Path, command: &str) -> String {
        let file = file.to_string_lossy();
        let arguments = ["-w", "-R", command, file.as_ref()];
        programs::succeed(root, "/usr/sbin/debugfs", &arguments)
            .unwrap()
            .stdout
    }

    fn zero(file: &File, at: u64) {
        file.write_all_at(&[0; 2048], at).unwrap();
    }

    #[test]
    fn a_lost_superblock_comes_back_from_a_backup_with_all_files() {
        let Some(root) = host() else { return };
        // mke2fs gives small file systems blocks of 1 KiB.
        for (size, first) in [(300 * MIB, 8193), (700 * MIB, 32768)] {
            let file = made(&root, size);
            let before = ext::read(file.path()).unwrap().unwrap();
            zero(file.as_file(), 1024);
            assert_eq!(ext::read(file.path()).unwrap(), None);
            let names = ("x (var)", "reset it");
            let repair = |forced| repair(&root, file.path(), size, "var", forced, names).unwrap();
            let sound = || {
                let after = ext::read(file.path()).unwrap().unwrap();
                assert_eq!((&after.uuid, &after.label), (&before.uuid, &before.label));
                assert_eq!(debugfs(&root, file.path(), "cat kept"), "kept");
            };
            assert_eq!(repair(false), Some(first));
            sound();
            // Its own superblock is good again.
            assert_eq!(repair(true), None);
            // The group descriptors behind it, under a superblock that says that all is well.
            zero(file.as_file(), before.block.max(2048));
            let content = || std::fs::read(file.path()).unwrap();
            let damaged = content();
            let error = check(&root, file.path(), names.0, names.1).unwrap_err();
            assert!(error.to_string().contains("group descriptors"), "{error}");
            assert!(damaged == content(), "e2fsck -p was given them");
            assert_eq!(repair(true), Some(first));
            sound();
        }
    }

    #[test]
    fn a_small_file_system_on_large_sectors_has_blocks_as_large() {
        let Some(root) = host() else { return };
        let Some(disk) = crate::host::LoopDisk::new(64 * MIB, 4096) else {
            return;
        };
        let options = Options {
            label: "state",
            uuid: None,
            orphan_file: false,
            overwrite: true,
        };
        make(&root, &disk.path(), options).unwrap();
        let made = ext::read(&disk.path()).unwrap().unwrap();
        assert_eq!((made.block, made.label.as_str()), (4096, "state"));
        check(&root, &disk.path(), "x (state)", "reset it").unwrap();
    }

    #[test]
    fn damage_without_a_backup_is_a_report_and_changes_nothing() {
        let Some(root) = host() else { return };
        let size = 300 * MIB;
        let file = made(&root, size);
        zero(file.as_file(), 1024);
        let repair = |label: &str| {
            let names = ("x (var)", "reset it");
            let error = repair(&root, file.path(), size, label, false, names);
            error.unwrap_err().downcast::<Fault>().unwrap()
        };
        // The backups of another file system do not count.
        let fault = repair("state");
        assert_eq!(
            fault.found.unwrap(),
            "no superblock, and no backup superblock"
        );
        loop {
            let backups = backup::find(file.path(), size).unwrap();
            if backups.is_empty() {
                break;
            }
            for backup in backups {
                zero(file.as_file(), backup.at * backup.superblock.block);
            }
        }
        let content = || std::fs::read(file.path()).unwrap();
        let before = content();
        let fault = repair("var");
        assert_eq!(fault.what, "the file system on x (var) is damaged");
        assert_eq!(fault.fix.as_deref(), Some("reset it"));
        assert!(before == content(), "it was written to");
    }

    #[test]
    fn the_options_of_a_small_and_of_a_busy_file_system() {
        let mut options = Options {
            label: "etcd",
            uuid: Some("u-u-i-d"),
            orphan_file: false,
            overwrite: false,
        };
        assert_eq!(
            options.arguments().join(" "),
            "-q -m 1 -L etcd -O ^fast_commit,^orphan_file \
             -E lazy_itable_init=1,lazy_journal_init=1,nodiscard -U u-u-i-d"
        );
        options = Options {
            label: "var",
            uuid: None,
            orphan_file: true,
            overwrite: true,
        };
        assert_eq!(
            options.arguments().join(" "),
            "-q -m 1 -L var -O ^fast_commit,orphan_file \
             -E lazy_itable_init=1,lazy_journal_init=1,nodiscard,orphan_file_size=32K -F"
        );
    }
}
