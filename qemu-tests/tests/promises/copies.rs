//! Disks that the node sees twice: by two paths of a SAN, and as a copy.

use std::fs::File;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use image::report::HANDOFF_LINE;
use qemu_tests::disk_content::same;
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::timeouts;
use slipway::vm::disks::{ETCD_SERIAL, ETCD_SIZE, Node, SYSTEM_SERIAL, copy_sparse};
use slipway::vm::machine::Machine;
use slipway::vm::machine::disk::Bus;

use crate::first_boot::Disks;

/// The name by which a SAN presents one disk on each path (NAA, as in `scsi-hd`'s property `wwn`).
const WWN: &str = "wwn=0x5000c500a1b2c3d4";
const MULTIPATH: &str = "several paths to one disk (multipath)";
/// Time in which an init that ignores the refusal would write to a disk.
const GRACE: Duration = Duration::from_secs(3);

/// A system disk and an etcd disk that are there twice are refused, by two paths under the name of the disk, and as a copy,
/// which has no name in common; no byte of that disk changes.
pub(crate) fn disks_that_are_there_twice_are_refused(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let disks = Disks::new(&node, &[(ETCD_SERIAL, ETCD_SIZE)])?;
    let cases = [
        (
            ETCD_SERIAL,
            Some(WWN),
            "the etcd volume is there by several paths",
        ),
        (
            SYSTEM_SERIAL,
            Some(WWN),
            "the root is there by several paths",
        ),
        (SYSTEM_SERIAL, None, "more than one disk holds the root"),
    ];
    for (serial, name, fault) in cases {
        let path = name.map_or("", |_| MULTIPATH);
        let about = || format!("the disk {serial} twice, named {name:?}");
        refused(
            lab,
            &node,
            &disks,
            serial,
            name,
            &[fault, path, "sda", "sdb"],
        )
        .with_context(about)?;
    }
    Ok(())
}

fn refused(
    lab: &mut Lab,
    node: &Node,
    disks: &Disks,
    serial: &str,
    name: Option<&str>,
    words: &[&str],
) -> Result<()> {
    let plan = BootOptions {
        etcd: false,
        ..BootOptions::default()
    };
    let mut machine = lab.machine(node, &plan)?;
    let file = node.folder().join("disks.raw");
    copy_sparse(&disks.file, &file)?;
    disks.give(&mut machine, &file);
    twice(&mut machine, serial, name)?;
    let running = lab.start(node, machine, None)?;
    running.wait_console(words, timeouts::INIT)?;
    thread::sleep(GRACE);
    let text = running.vm.console().text();
    ensure!(!text.contains(HANDOFF_LINE), "the node continued");
    running.vm.pull_plug();
    let range = disks.range(serial)?;
    ensure!(
        same(&File::open(&disks.file)?, &File::open(&file)?, range)?,
        "the disk was changed"
    );
    Ok(())
}

/// Gives a disk a second time, both on SCSI controllers; with a name they are paths to one disk, without one they are equal
/// in content alone.
fn twice(machine: &mut Machine, serial: &str, name: Option<&str>) -> Result<()> {
    let disk = machine.disks.iter_mut().find(|disk| disk.serial == serial);
    let disk = disk.context("finding the disk")?;
    disk.bus = Bus::Scsi;
    let second = disk.clone();
    machine.disks.push(second);
    if let Some(name) = name {
        machine.names.insert(serial.to_owned(), name.to_owned());
    }
    Ok(())
}
