//! The verified root.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use image::layout::{LABEL_ESP, LABEL_ROOT_A};
use image::report::LINE;
use qemu_tests::disk_content::flip;
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::running::HEALTH;
use qemu_tests::timeouts;
use slipway::format::fat;
use slipway::vm::channel::Waited;
use slipway::vm::disks::partition;
use slipway::vm::machine::OnReset;

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
    let plan = BootOptions {
        on_reset: OnReset::Stop,
        ..BootOptions::default()
    };
    let running = lab.boot(&node, &plan)?;
    // Wait for the complete line: it arrives byte by byte.
    let found = running.vm.console().wait(timeouts::INIT, |text| {
        let (line, _) = text.split_once(LINE)?.1.split_once('\n')?;
        Some((line.trim().to_owned(), text.to_owned()))
    });
    let Waited::Found((line, text)) = found else {
        anyhow::bail!("no report on the console: {found:?}");
    };
    let report: image::report::Report =
        serde_json::from_str(&line).context("reading the report's line")?;
    ensure!(
        report.step == "root",
        "the report is of step {:?}",
        report.step
    );
    let found = report.found.unwrap_or_default();
    ensure!(
        found.contains("verity") && found.contains("corrupted"),
        "the report does not say that verity found it: {found:?}"
    );
    ensure!(
        !text.contains(image::report::HANDOFF_LINE),
        "handoff to a damaged root"
    );
    Ok(())
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
