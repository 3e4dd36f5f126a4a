//! The verified root.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use image::cmdline::ROOTHASH;
use image::layout::{LABEL_ESP, LABEL_ROOT_A, LABEL_VERITY_A, root_guid, verity_guid};
use image::report::{HANDOFF_LINE, LINE, Report};
use image::verity::{BLOCK, RootHash, SUPERBLOCK, Superblock};
use qemu_tests::disk_content::flip;
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::running::{HEALTH, Running};
use qemu_tests::timeouts;
use slipway::format::gpt::Table;
use slipway::format::{fat, verity};
use slipway::vm::channel::Waited;
use slipway::vm::disks::{Node, partition};
use slipway::vm::machine::{OnReset, Start};

use crate::ignition::probes;

/// A program that systemd starts in every boot.
const READ_BY_SYSTEMD: &str = "/usr/lib/systemd/systemd-journald";
/// A byte in the block of EROFS's superblock that neither the superblock nor its checksum covers: a mount without verity
/// does not notice that it changed.
const GUARDED_BY_VERITY: u64 = 128;

/// `/` is EROFS on a dm-verity device with the root hash of the command line, and nothing can write to it.
pub(crate) fn the_root_is_protected_on_a_running_node(lab: &mut Lab) -> Result<()> {
    let node = lab.healthy(&probes())?;
    let health = node.run(HEALTH)?;
    ensure!(health.contains("erofs"), "{health}");
    let target = node.run("cat /sys/dev/block/$(mountpoint -d /)/dm/uuid")?;
    ensure!(
        target.starts_with("CRYPT-VERITY-") || target.to_lowercase().contains("verity"),
        "the root's device-mapper UUID is {target:?}"
    );
    for folder in ["/", "/usr", "/usr/bin"] {
        let write = node.ask(&format!("touch {folder}/slipway-test"))?;
        ensure!(
            write.code != 0 && write.output.contains("Read-only file system"),
            "writing to {folder}: {write:?}"
        );
    }
    Ok(())
}

/// One flipped byte in the block of the root's superblock, which only verity guards: the init refuses the root, with a
/// message and a report line on the console, in which the kernel says that the block is corrupted.
pub(crate) fn a_flipped_byte_of_the_superblock_ends_in_the_report(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let (start, _) = partition(&node.system(), LABEL_ROOT_A)?;
    flip(&node.system(), start + GUARDED_BY_VERITY)?;
    let root = refused(lab, &node, None)?;
    ensure!(
        root.contains("verity") && root.contains("corrupted"),
        "the report does not say that verity found it: {root:?}"
    );
    Ok(())
}

/// A root that was changed and hashed anew, so that it agrees with its tree, and the right root with that tree, are refused, because
/// the command line has the hash of another one; a hash that no partition is named by is refused too. The changed root boots
/// once the command line and the partitions' names are its own: the hash is what was refused.
pub(crate) fn another_root_than_the_command_lines_is_refused(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let mut disk = File::options().read(true).write(true).open(node.system())?;
    let (root, _) = partition(&node.system(), LABEL_ROOT_A)?;
    let (tree, _) = partition(&node.system(), LABEL_VERITY_A)?;
    let made = rehashed(&disk, root, tree, node.folder())?;
    disk.write_all_at(&made.tree, tree)
        .context("writing the tree")?;
    let corrupted = |found: &str| found.contains("verity") && found.contains("corrupted");
    let found = refused(lab, &node, None).context("another tree")?;
    ensure!(corrupted(&found), "another tree: {found:?}");
    flip(&node.system(), root + GUARDED_BY_VERITY)?;
    let found = refused(lab, &node, None).context("a root that was hashed anew")?;
    ensure!(corrupted(&found), "a root that was hashed anew: {found:?}");
    let found = refused(lab, &node, Some(made.hash)).context("a hash of no partition")?;
    ensure!(
        !corrupted(&found) && found.contains("root-a"),
        "a hash of no partition: {found:?}"
    );
    let mut table = Table::read(&mut disk)?;
    for part in &mut table.partitions {
        match part.label.as_str() {
            LABEL_ROOT_A => part.guid = root_guid(&made.hash),
            LABEL_VERITY_A => part.guid = verity_guid(&made.hash),
            _ => {}
        }
    }
    table.write(&mut disk)?;
    let running = started(lab, &node, Some(made.hash))?;
    running
        .wait_handoff(timeouts::HANDOFF)
        .context("the changed root with its own hash")?;
    running.vm.pull_plug();
    Ok(())
}

/// A hash tree that does not belong to the image.
struct Rehashed {
    hash: RootHash,
    tree: Vec<u8>,
}

/// The tree of the root with one byte changed; the disk is read only.
fn rehashed(disk: &File, root: u64, tree: u64, folder: &Path) -> Result<Rehashed> {
    let mut bytes = [0; SUPERBLOCK];
    disk.read_exact_at(&mut bytes, tree)?;
    let superblock = Superblock::from_bytes(&bytes).map_err(anyhow::Error::msg)?;
    let (copy, to) = (folder.join("changed.erofs"), folder.join("changed.tree"));
    let mut data = vec![0; usize::try_from(superblock.data_blocks * BLOCK)?];
    disk.read_exact_at(&mut data, root)?;
    let byte = &mut data[usize::try_from(GUARDED_BY_VERITY)?];
    *byte = !*byte;
    fs::write(&copy, data).context("copying the root")?;
    let hash = verity::write(&copy, &to, &superblock.salt, superblock.uuid)?;
    let tree = fs::read(&to)?;
    fs::remove_file(copy)?;
    fs::remove_file(to)?;
    Ok(Rehashed { hash, tree })
}

/// Boots, with another hash of the root on the command line if one is given.
fn started(lab: &mut Lab, node: &Node, hash: Option<RootHash>) -> Result<Running> {
    let plan = BootOptions {
        on_reset: OnReset::Stop,
        ..BootOptions::default()
    };
    let mut machine = lab.machine(node, &plan)?;
    if let (Start::Direct { cmdline, .. }, Some(hash)) = (&mut machine.start, hash) {
        let words = cmdline.split(' ').map(|word| match word.split_once('=') {
            Some((ROOTHASH, _)) => format!("{ROOTHASH}={hash}"),
            _ => word.to_owned(),
        });
        *cmdline = words.collect::<Vec<_>>().join(" ");
    }
    lab.start(node, machine, None)
}

/// Boots as [`started`], and expects a report of the step `root`; gives what was found.
fn refused(lab: &mut Lab, node: &Node, hash: Option<RootHash>) -> Result<String> {
    let running = started(lab, node, hash)?;
    // The complete line, which arrives byte by byte. Partitions that are not there are waited for.
    let found = running.vm.console().wait(timeouts::HANDOFF, |text| {
        let (line, _) = text.split_once(LINE)?.1.split_once('\n')?;
        Some((line.trim().to_owned(), text.to_owned()))
    });
    let Waited::Found((line, text)) = found else {
        bail!("no report on the console: {found:?}");
    };
    running.vm.pull_plug();
    let report: Report = serde_json::from_str(&line).context("reading the report's line")?;
    ensure!(
        report.step == "root",
        "the report is of step {:?}",
        report.step
    );
    ensure!(
        !text.contains(HANDOFF_LINE),
        "handoff to a root that is not the command line's"
    );
    Ok(report.found.unwrap_or_default())
}

/// One flipped byte of a file that systemd reads: the kernel panics, the machine resets, and the loader's entry has one
/// try fewer.
pub(crate) fn a_flipped_byte_that_systemd_reads_panics_and_uses_up_a_try(
    lab: &mut Lab,
) -> Result<()> {
    let node = lab.node()?;
    let before = tries(&node.system())?;
    let (start, _) = partition(&node.system(), LABEL_ROOT_A)?;
    let at = extent(lab, &node.system(), start)?;
    flip(&node.system(), start + at)?;
    let plan = BootOptions {
        direct: false,
        on_reset: OnReset::Stop,
        ..BootOptions::default()
    };
    let mut running = lab.boot(&node, &plan)?;
    let text = running.wait_console(&["Kernel panic"], timeouts::PANIC)?;
    ensure!(
        text.contains("dm-verity") || text.contains("verity"),
        "the panic does not mention verity"
    );
    running
        .vm
        .wait_end(timeouts::PANIC)
        .context("waiting for the reset after the panic")?;
    let events = running.vm.events();
    ensure!(
        events
            .iter()
            .any(|event| event.reason.as_deref() == Some("guest-reset")),
        "the machine did not reset itself: {events:?}"
    );
    let after = tries(&node.system())?;
    ensure!(
        after + 1 == before,
        "the loader's entry had {before} tries before and has {after}"
    );
    Ok(())
}

/// Offset of the file's first bytes in the root file system.
fn extent(lab: &Lab, disk: &Path, start: u64) -> Result<u64> {
    let folder = disk.parent().context("finding the disk's folder")?;
    let output = lab
        .build_tools
        .sandbox()
        .bind_read_only(folder, "/run/disk")
        .command("/usr/bin/dump.erofs")
        .arg(format!("--offset={start}"))
        .arg(format!("--path={READ_BY_SYSTEMD}"))
        .args(["-e", "/run/disk/system.raw"])
        .run()?;
    let text = String::from_utf8_lossy(&output).into_owned();
    // `   0:        0..   65536 |   65536 :    123456..    150000 |   26544`
    text.lines()
        .find_map(|line| {
            let physical = line.trim().strip_prefix("0:")?.split_once(" : ")?.1;
            physical.split("..").next()?.trim().parse().ok()
        })
        .with_context(|| format!("finding the first extent in {text}"))
}

/// The remaining tries of the loader's entry: `name+LEFT[-DONE].efi` on the EFI system partition.
fn tries(disk: &Path) -> Result<u32> {
    let (start, _) = partition(disk, LABEL_ESP)?;
    let files = fat::files(&mut File::open(disk)?, start)?;
    files
        .keys()
        .find_map(|path| {
            let counter = path.strip_suffix(".efi")?.rsplit_once('+')?.1;
            counter.split('-').next()?.parse().ok()
        })
        .with_context(|| format!("finding the entry's counter in {:?}", files.keys()))
}
