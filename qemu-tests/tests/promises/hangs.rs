//! Disks that hang: each request but the first waits for hours.

use std::fs::File;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use image::paths::NODE_SETTINGS;
use qemu_tests::disk_content::same;
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::running::Running;
use qemu_tests::timeouts;
use slipway::vm::channel::Waited;
use slipway::vm::disks::{Node, copy_sparse};
use slipway::vm::machine::disk::{Bus, Disk};

use crate::disks::disk;

/// Serial of the disk that hangs, which nothing names.
const HANGING: &str = "hanging";
const SILENT: &str = "(serial hanging) has not answered for ";
/// The first words of the machine's firmware.
const FIRMWARE: &str = "SeaBIOS (version ";
/// A role that no node has.
const UNKNOWN: &str = "kontroll-plane";

/// A disk that nothing names hangs from power-on. A first boot waits for it, and ends in a report that names it, with
/// nothing written; another one, in which it answers after a while, is handed off. From then on a boot leaves it out, and has
/// its own disks; one that fails reboots, and so does a running node when it is asked to. Not on NVMe: that driver is built into
/// this kernel, which waits for the disk before it starts the init.
pub(crate) fn a_disk_that_hangs_is_waited_for_once_and_left_out_later(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    waits_in_vain(lab, &node).context("a first boot with a disk that never answers")?;
    let running = starts(lab, &node, Bus::Scsi)?;
    running.wait_console(&["waiting for every disk to answer"], timeouts::INIT)?;
    running.vm.throttle(place(lab, &node)?, 0)?;
    running.wait_handoff(timeouts::INIT)?;
    running.wait_console(&["(serial hanging) has answered after "], timeouts::INIT)?;
    running.wait_services()?;
    running.power_off()?;
    // The serial number of a virtio disk comes from the disk itself.
    for (bus, silent) in [
        (Bus::Scsi, SILENT),
        (Bus::Virtio, "vdc has not answered for "),
    ] {
        let running = starts(lab, &node, bus)?;
        running
            .wait_handoff(timeouts::INIT)
            .with_context(|| format!("a later boot, {bus:?}"))?;
        running.wait_console(&[silent, "it is left out"], timeouts::INIT)?;
        running.wait_agent()?;
        running.run("findmnt /var/lib/etcd && findmnt /var")?;
        if bus == Bus::Virtio {
            // For the boots that fail.
            running.run(&format!(
                "mkdir -p /etc/slipway && echo 'role = \"{UNKNOWN}\"' > {NODE_SETTINGS} && sync {NODE_SETTINGS} /etc/slipway"
            ))?;
        }
        // In a moment: the services end, and with them who answers.
        running.run("systemd-run --quiet --on-active=2s systemctl reboot")?;
        starts_anew(&running, timeouts::HUNG_SHUTDOWN)
            .with_context(|| format!("`systemctl reboot`, {bus:?}"))?;
        running.vm.pull_plug();
    }
    for bus in [Bus::Scsi, Bus::Virtio] {
        reboots(lab, &node, bus).with_context(|| format!("a boot that fails, {bus:?}"))?;
    }
    Ok(())
}

/// A boot that fails beside such a disk reboots by itself. The kernel's orderly way may wait for the disk, the watchdog stopped.
fn reboots(lab: &mut Lab, node: &Node, bus: Bus) -> Result<()> {
    let running = starts(lab, node, bus)?;
    let report = running.wait_report(timeouts::INIT)?;
    ensure!(report.contains(UNKNOWN), "another report: {report}");
    starts_anew(&running, timeouts::HUNG_REBOOT)?;
    running.vm.pull_plug();
    Ok(())
}

/// The machine starts a second time, and it was not the watchdog that ended it.
fn starts_anew(running: &Running, limit: Duration) -> Result<()> {
    // The kernel itself is not started: before that it asks the firmware for the first sector of each disk.
    let starts = |text: &str| text.matches(FIRMWARE).count();
    let again = running
        .vm
        .console()
        .wait(limit, |text| (starts(text) > 1).then_some(()));
    let text = running.vm.console().text();
    ensure!(
        again == Waited::Found(()),
        "no second start: {again:?}; the console ends with {:?}",
        text.lines().rev().take(5).collect::<Vec<_>>()
    );
    let events = running.vm.events();
    ensure!(
        !events.iter().any(|event| event.name == "WATCHDOG"),
        "it was the watchdog that ended it"
    );
    Ok(())
}

/// A first boot with a disk that never answers: a report names it, and nothing was written.
fn waits_in_vain(lab: &mut Lab, node: &Node) -> Result<()> {
    let before = node.folder().join("before.raw");
    copy_sparse(&node.system(), &before)?;
    let running = starts(lab, node, Bus::Scsi)?;
    running.wait_console(&[SILENT, "it is left out"], timeouts::INIT)?;
    let report = running.wait_report(timeouts::HANDOFF)?;
    running.vm.pull_plug();
    for word in ["a disk does not answer", "(serial hanging)", "detach it"] {
        ensure!(report.contains(word), "{word} is not in {report}");
    }
    let files = [File::open(&before)?, File::open(node.system())?];
    let size = files[0].metadata()?.len();
    ensure!(
        same(&files[0], &files[1], 0..size)?,
        "the system disk was written to"
    );
    std::fs::remove_file(&before).context("removing the copy")
}

/// A boot of the node with the disk, which hangs before the kernel sees it.
fn starts(lab: &mut Lab, node: &Node, bus: Bus) -> Result<Running> {
    let plan = plan(node, bus)?;
    let running = lab.boot(node, &plan)?;
    running.vm.throttle(place(lab, node)?, 1)?;
    Ok(running)
}

fn plan(node: &Node, bus: Bus) -> Result<BootOptions> {
    let disk = disk(node, HANGING)?;
    Ok(BootOptions {
        more: vec![Disk { bus, ..disk }],
        ..BootOptions::default()
    })
}

/// The place of the disk among those of the machine.
fn place(lab: &Lab, node: &Node) -> Result<usize> {
    let machine = lab.machine(node, &plan(node, Bus::default())?)?;
    let mut disks = machine.disks.iter();
    disks
        .position(|disk| disk.serial == HANGING)
        .context("finding the disk that hangs")
}
