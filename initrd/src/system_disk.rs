//! The system disk: the partitions that the first boot makes and every boot grows, and the ext4 on them.
//!
//! A file system is made only where the table says that it is not complete yet ([`layout::ATTRIBUTE_UNFORMATTED`]), which
//! is written before the first byte of it and taken back after the last:
//!
//! 1. the partition's edges are wiped, then the table with the partition and the note is written and synced;
//! 2. mkfs runs and the device is synced;
//! 3. the table without the note is written and synced; only then is the file system mounted.
//!
//! Power lost before 1 leaves no partition, between 1 and 3 a partition that is formatted again and holds nothing, after 3
//! a file system that no boot formats. A superblock that is unreadable then is damage.

pub(crate) mod table;

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use image::cmdline::Reset;
use image::fault::Fault;
use image::layout;
use linux::block::{self, Disk, Partition};
use linux::filesystem::ext::{self, Superblock};
use linux::log::announce;
use linux::mount::{self, Flags};
use linux::world::World;
use linux::{ext4, kernel_call, probe};

use self::table::{Plan, Scope};
use crate::context::Boot;
use crate::root::Root;

/// Growing ext4 by less than a block group is not worth a mount's time.
const WORTH_GROWING: u64 = 128 * layout::MIB;

/// Makes the missing partitions of a scope, and grows `var`.
pub(crate) fn complete(boot: &Boot, disk: &Disk, scope: Scope) -> Result<()> {
    let plan = table::plan(&boot.world, disk, &boot.manifest, scope)?;
    write(boot, disk, &plan)
}

/// Writes a planned table.
pub(crate) fn write(boot: &Boot, disk: &Disk, plan: &Plan) -> Result<()> {
    let step = &boot.timeline;
    let changes = step.step("disk.partitions", || table::complete(disk, plan))?;
    if !changes.made.is_empty() {
        tracing::info!(
            "made the partitions {} on {}",
            changes.made.join(", "),
            disk.name
        );
    }
    if changes.grown {
        tracing::info!("grew {} to the end of {}", layout::LABEL_VAR, disk.name);
    }
    Ok(())
}

/// The system disk as it is now.
///
/// # Errors
/// If it is not there.
pub(crate) fn again(boot: &Boot, disk: &Disk) -> Result<Disk> {
    let now = block::disk(&boot.world, &disk.name);
    now.with_context(|| format!("{} is no longer there", disk.name))
}

/// A partition of the system disk as it is now.
pub(crate) fn labelled(boot: &Boot, disk: &Disk, label: &str) -> Result<Partition> {
    table::labelled(&again(boot, disk)?, label).cloned()
}

/// Makes the partitions with these labels anew, without their content: under new GUIDs, their edges wiped, to be formatted.
///
/// # Errors
/// If the disk cannot be written.
pub(crate) fn anew(boot: &Boot, disk: &Disk, labels: &[&str]) -> Result<()> {
    let plan = table::anew(&boot.world, disk, labels)?;
    table::complete(disk, &plan).map(drop)
}

/// Whether the file system of a partition is still to be made.
///
/// # Errors
/// If the device cannot be read.
pub(crate) fn is_unformatted(part: &Partition) -> Result<bool> {
    if part.attributes & layout::ATTRIBUTE_UNFORMATTED == 0 {
        return Ok(false);
    }
    // We never mount before the note is gone: one that was mounted was completed by an init that does not know the note.
    Ok(!ext::read(&part.path)?.is_some_and(|found| found.ever_mounted))
}

/// Notes that a partition is to be formatted which the config made, if it is provably blank: no table of ours says so then.
///
/// # Errors
/// If the disk cannot be read or written.
pub(crate) fn note_if_blank(boot: &Boot, disk: &Disk, part: Partition) -> Result<Partition> {
    if part.attributes & layout::ATTRIBUTE_UNFORMATTED != 0 || ext::read(&part.path)?.is_some() {
        return Ok(part);
    }
    let device = File::open(&part.path);
    let device = device.with_context(|| format!("opening {}", part.path.display()))?;
    if probe::probe(probe::Stretch::whole(&device, part.size))? != probe::Content::Blank {
        return Ok(part);
    }
    table::note_unformatted(disk, part.number, true)?;
    labelled(boot, disk, &part.label)
}

/// Takes the note of a partition `var` back on a node whose config has a file system for `/var`: nothing of ours formats it,
/// and noted it would make every boot a first boot.
///
/// # Errors
/// If the disk cannot be read or written.
pub(crate) fn complete_var(boot: &Boot, disk: &Disk) -> Result<()> {
    let disk = again(boot, disk)?;
    match table::find(&disk, layout::LABEL_VAR) {
        Some(var) if var.attributes & layout::ATTRIBUTE_UNFORMATTED != 0 => {
            table::note_unformatted(&disk, var.number, false)
        }
        _ => Ok(()),
    }
}

/// Makes the ext4 of a partition whose note says so, checks one that was not unmounted in order, repairs one whose superblock
/// is damaged, and mounts it; gives its superblock. With a `uuid` no other file system is mounted.
///
/// # Errors
/// If it cannot be made, checked or mounted, with the command or device; a [`Fault`] for damage that cannot be repaired.
pub(crate) fn mount_ext4(
    root: &Root,
    part: &Partition,
    (target, flags): (&Path, Flags),
    uuid: Option<&str>,
) -> Result<Superblock> {
    if part.attributes & layout::ATTRIBUTE_UNFORMATTED != 0 {
        finish(root, part)?;
    }
    // The path is the one inside the root too, so that mountinfo shows the same there.
    let mount = || mount::mount(&part.path, target, "ext4", flags, "");
    let clean = ext::read(&part.path)?.filter(|found| found.clean);
    let forced = clean.is_some();
    if let Some(found) = clean {
        is_expected(part, &found, uuid)?;
        match mount() {
            Ok(()) => return Ok(found),
            // Damage shows in more than the superblock's first fields.
            Err(error) => tracing::warn!("mounting {} ({}): {error:#}", part.name, part.label),
        }
    }
    let found = repair(root, part, forced)?;
    is_expected(part, &found, uuid)?;
    mount().context(
        Fault::new(format!(
            "the file system on {} ({}) does not mount",
            part.name, part.label
        ))
        .expected("an ext4 file system of this node")
        .fix(reset_hint(part)),
    )?;
    Ok(found)
}

/// What a person can do about damage on a partition of ours: `state::reset` reads the word.
pub(crate) fn reset_hint(part: &Partition) -> String {
    let repair = "repair it from a rescue system";
    let made = match part.label == layout::LABEL_STATE {
        true => format!("{} and {} are", layout::LABEL_STATE, layout::LABEL_VAR),
        false => format!("{} is", part.label),
    };
    match &part.guid {
        Some(guid) => format!(
            "{repair}; or, to lose what is on it, boot once with {} on the kernel command line: {made} made anew and the node's config applied as on a first boot",
            Reset::of(guid)
        ),
        None => repair.to_owned(),
    }
}

/// Ends what the note began.
fn finish(root: &Root, part: &Partition) -> Result<()> {
    let disk = root.disk.as_ref().context("the root is on no disk")?;
    if is_unformatted(part)? {
        format(root, part)?;
        // mke2fs syncs by itself; that the note goes only after it does not depend on that.
        let what = format!("{} to be written", part.name);
        kernel_call::on_disks(&root.programs.world, &what, || {
            File::open(&part.path)?.sync_all()
        })
        .with_context(|| format!("waiting for {}", part.name))?;
    }
    table::note_unformatted(disk, part.number, false)
}

fn format(root: &Root, part: &Partition) -> Result<()> {
    tracing::info!("formatting {} as {}", part.name, part.label);
    let options = ext4::Options {
        label: &part.label,
        uuid: None,
        // On `var` many processes work at the same time; `state` is small and quiet.
        orphan_file: part.label == layout::LABEL_VAR,
        // What is not ext4 there is nothing, or a half-made one: the note says so.
        overwrite: true,
    };
    ext4::make(&root.programs, &part.path, options)
}

/// Checks and repairs an unmounted file system, by its backup superblocks if need be, and says on the consoles if that was
/// needed.
fn repair(root: &Root, part: &Partition, forced: bool) -> Result<Superblock> {
    let name = format!("{} ({})", part.name, part.label);
    let fix = reset_hint(part);
    let names = (name.as_str(), fix.as_str());
    let (path, label) = (&part.path, &part.label);
    let backup = ext4::repair(&root.programs, path, part.size, label, forced, names)?;
    if let Some(block) = backup {
        let line = format!(
            "slipway: the superblock of {name} was damaged; e2fsck repaired the file system from the backup in block {block}"
        );
        announce(&root.programs.world, &line);
    }
    ext::read(&part.path)?.with_context(|| format!("{name} has no superblock after its repair"))
}

/// A file system that another one took the place of would be taken for this node's, with nothing of it inside.
fn is_expected(part: &Partition, found: &Superblock, uuid: Option<&str>) -> Result<()> {
    match uuid {
        Some(uuid) if uuid != found.uuid => Err(Fault::new(format!(
            "the file system on {} ({}) is not the one that this node was provisioned with",
            part.name, part.label
        ))
        .expected(format!("UUID {uuid}"))
        .found(format!("UUID {}", found.uuid))
        .fix(reset_hint(part))
        .into()),
        _ => Ok(()),
    }
}

/// The journal is replayed and, where the superblock asks for it, all of the file system checked.
///
/// # Errors
/// A [`Fault`] if e2fsck leaves errors.
pub(crate) fn check(root: &Root, device: &Path, label: &str) -> Result<()> {
    let name = format!("{} ({label})", device.display());
    let fix = "repair it from a rescue system (e2fsck -f)";
    ext4::check(&root.programs, device, &name, fix)
}

/// Grows the mounted ext4 of a partition that became larger. Best effort: it is mounted and serves as it is.
pub(crate) fn grow(world: &World, part: &Partition, found: &Superblock, target: &Path) {
    let done = ext4::grow(world, &part.label, found, part.size, target, WORTH_GROWING);
    if let Err(error) = done {
        announce(world, &format!("slipway: {error:#}; it stays as it is"));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use image::guid::Guid;
    use linux::gpt::{Entry, Table};
    use linux::host;
    use linux::world::Clock;

    use super::*;
    use crate::root::Search;

    /// A system disk whose table and whose `var` are files; none where mkfs cannot run.
    struct Bench {
        _table: tempfile::NamedTempFile,
        var: tempfile::NamedTempFile,
        root: Root,
    }

    impl Bench {
        fn new() -> Option<Self> {
            let world = World::below(Path::new("/nowhere"), Clock::Real);
            let programs = host::programs(world, &["/usr/sbin/mkfs.ext4"])?;
            let (table, var) = (
                tempfile::NamedTempFile::new(),
                tempfile::NamedTempFile::new(),
            );
            let (table, var) = (table.unwrap(), var.unwrap());
            let size = 64 * layout::MIB;
            for file in [&table, &var] {
                file.as_file().set_len(size).unwrap();
            }
            let mut entries = Table::empty(512, size, Guid([1; 16])).unwrap();
            let entry = Entry {
                type_guid: layout::TYPE_VAR,
                guid: Guid([7; 16]),
                first: 2048,
                last: 65535,
                attributes: layout::ATTRIBUTE_NO_AUTO,
                label: layout::LABEL_VAR.to_owned(),
            };
            entries.entries.insert(7, entry);
            entries.write(table.as_file()).unwrap();
            let disk = Disk {
                name: "vda".to_owned(),
                path: table.path().to_owned(),
                size,
                sector: 512,
                ..Disk::default()
            };
            let root = Root {
                programs,
                disk: Some(disk),
                verity: None,
                search: Search::default(),
            };
            Some(Self {
                _table: table,
                var,
                root,
            })
        }

        fn disk(&self) -> &Disk {
            self.root.disk.as_ref().unwrap()
        }

        /// The partition, as the table has it now.
        fn part(&self) -> Partition {
            let disk = self.disk();
            let file = File::open(&disk.path).unwrap();
            let table = Table::read(&file, disk.sector, disk.size).unwrap();
            Partition {
                number: 7,
                name: "vda7".to_owned(),
                path: self.var.path().to_owned(),
                label: layout::LABEL_VAR.to_owned(),
                guid: Some(table.entries[&7].guid),
                attributes: table.entries[&7].attributes,
                size: disk.size,
                ..Partition::default()
            }
        }

        fn note(&self) {
            table::note_unformatted(self.disk(), 7, true).unwrap();
        }

        fn uuid(&self) -> Option<String> {
            Some(ext::read(self.var.path()).unwrap()?.uuid)
        }
    }

    #[test]
    fn a_file_system_is_made_where_the_note_says_so_however_far_a_cut_left_it() {
        let Some(bench) = Bench::new() else { return };
        let finish = || finish(&bench.root, &bench.part()).unwrap();
        // The table was written, and no more.
        bench.note();
        assert!(is_unformatted(&bench.part()).unwrap());
        finish();
        let first = bench.uuid().unwrap();
        assert!(!is_unformatted(&bench.part()).unwrap());
        assert_eq!(bench.part().attributes, layout::ATTRIBUTE_NO_AUTO);
        // mkfs had begun: a superblock, and little behind it. Or it had ended, and the note was still there.
        bench.note();
        bench.var.as_file().write_all_at(&[0; 4096], 4096).unwrap();
        assert!(is_unformatted(&bench.part()).unwrap());
        finish();
        let second = bench.uuid().unwrap();
        assert_ne!(first, second);
        // An init that does not know the note has mounted it since: s_mnt_count.
        bench.note();
        bench.var.as_file().write_all_at(&[1], 1024 + 52).unwrap();
        assert!(!is_unformatted(&bench.part()).unwrap());
        finish();
        assert_eq!(bench.uuid().unwrap(), second);
        assert_eq!(bench.part().attributes, layout::ATTRIBUTE_NO_AUTO);
    }

    #[test]
    fn without_the_note_nothing_is_formatted() {
        let Some(bench) = Bench::new() else { return };
        let mount = |uuid: Option<&str>| {
            let place = (Path::new("/nowhere"), Flags::empty());
            let error = mount_ext4(&bench.root, &bench.part(), place, uuid).unwrap_err();
            error.downcast::<Fault>().unwrap()
        };
        let fault = mount(None);
        assert_eq!(fault.what, "the file system on vda7 (var) is damaged");
        assert!(fault.fix.unwrap().contains("slipway.reset=07070707"));
        let mut begin = vec![1; 1 << 20];
        bench.var.as_file().read_exact_at(&mut begin, 0).unwrap();
        assert!(begin.iter().all(|byte| *byte == 0));
        // Another file system than the node was provisioned with is not mounted either.
        bench.note();
        finish(&bench.root, &bench.part()).unwrap();
        let uuid = bench.uuid().unwrap();
        let fault = mount(Some("another"));
        assert_eq!(fault.found.unwrap(), format!("UUID {uuid}"));
        assert_eq!(bench.uuid().unwrap(), uuid);
    }

    #[test]
    fn growth_that_fails_is_announced_and_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        std::fs::create_dir_all(&world.dev).unwrap();
        let console = world.dev.join("console");
        std::fs::write(&console, "").unwrap();
        let part = Partition {
            label: layout::LABEL_VAR.to_owned(),
            size: 1 << 30,
            ..Partition::default()
        };
        let found = Superblock {
            is_ext4: true,
            uuid: String::new(),
            label: String::new(),
            fast_commit: false,
            block: 4096,
            blocks: 1,
            clean: true,
            ever_mounted: true,
        };
        // Not an ext4: the kernel refuses.
        grow(&world, &part, &found, folder.path());
        let line = std::fs::read_to_string(console).unwrap();
        assert!(line.starts_with("slipway: growing var: "), "{line}");
        assert!(line.ends_with("; it stays as it is\n"), "{line}");
    }

    #[test]
    fn damage_names_the_word_that_resets_the_partition() {
        let mut part = Partition {
            label: layout::LABEL_STATE.to_owned(),
            guid: Some("1a2b3c4d-0001-4002-8003-000000000004".parse().unwrap()),
            ..Partition::default()
        };
        let hint = reset_hint(&part);
        assert!(hint.contains(" slipway.reset=1a2b3c4d "), "{hint}");
        assert!(hint.contains(": state and var are made anew"), "{hint}");
        part.label = layout::LABEL_VAR.to_owned();
        assert!(reset_hint(&part).contains(": var is made anew"));
    }
}
