//! Disks that fail during a first boot.

use anyhow::{Context, Result, ensure};
use image::report::{HANDOFF_LINE, LINE, Report};
use nix::errno::Errno;
use qemu_tests::disk_fault::{DiskFault, Request, Times};
use qemu_tests::lab::Lab;
use qemu_tests::runner::note;
use qemu_tests::timeouts;
use slipway::vm::channel::Waited;
use slipway::vm::disks::{ETCD_SERIAL, SYSTEM_SERIAL};
use slipway::vm::machine::disk::Bus;

use crate::first_boot::{DATA_SERIAL, Recorded};

/// A fault: the disk, and when in the order of its requests.
struct Case {
    serial: &'static str,
    request: Request,
    /// Per cent of the disk's writes in an undisturbed boot, or for other requests their number.
    when: usize,
    times: Times,
    errno: Errno,
}

const fn case(
    serial: &'static str,
    request: Request,
    when: usize,
    times: Times,
    errno: Errno,
) -> Case {
    Case {
        serial,
        request,
        when,
        times,
        errno,
    }
}

/// The faults: spread over the disks and over the steps that write to each.
const CASES: &[Case] = &[
    case(SYSTEM_SERIAL, Request::Write, 0, Times::Always, Errno::EIO),
    case(SYSTEM_SERIAL, Request::Write, 25, Times::Once, Errno::EIO),
    case(SYSTEM_SERIAL, Request::Write, 50, Times::Always, Errno::EIO),
    case(SYSTEM_SERIAL, Request::Flush, 5, Times::Once, Errno::EIO),
    case(DATA_SERIAL, Request::Read, 1, Times::Always, Errno::EIO),
    case(DATA_SERIAL, Request::Write, 0, Times::Always, Errno::EIO),
    case(DATA_SERIAL, Request::Write, 50, Times::Once, Errno::EIO),
    case(DATA_SERIAL, Request::Flush, 2, Times::Once, Errno::EIO),
    case(ETCD_SERIAL, Request::Write, 0, Times::Once, Errno::EIO),
    case(
        ETCD_SERIAL,
        Request::Write,
        40,
        Times::Always,
        Errno::ENOSPC,
    ),
];

/// One disk fails at one point of a first boot, once or from then on: the boot ends in a report that names the disk, or goes
/// on. Once the disk works, the next boot gives the result of an undisturbed one.
pub(crate) fn a_disk_that_fails_is_named_and_the_next_boot_converges(lab: &mut Lab) -> Result<()> {
    let recorded = Recorded::new(lab)?;
    for case in CASES {
        let range = recorded.disks.range(case.serial)?;
        let number = match case.request {
            Request::Write => recorded.writes.writes_to(&range) * case.when / 100 + 1,
            Request::Read | Request::Flush => case.when,
        };
        let fault = DiskFault {
            request: case.request,
            number,
            times: case.times,
            errno: case.errno,
        };
        let about = format!("{} with {fault:?}", case.serial);
        let end = fails(lab, &recorded, case.serial, fault).with_context(|| about.clone())?;
        note(&format!("{about}: {end}"));
        recorded
            .converges(lab)
            .with_context(|| format!("the boot after {about}, {end}"))?;
    }
    recorded.has_image()
}

/// Boots with the fault; gives how the boot ended.
fn fails(lab: &mut Lab, recorded: &Recorded, serial: &str, fault: DiskFault) -> Result<String> {
    drop(recorded.before()?);
    let rules = recorded.node.folder().join("blkdebug");
    std::fs::write(&rules, fault.rules()).context("writing the rules")?;
    let running = recorded.start(lab, |machine| {
        for disk in machine
            .disks
            .iter_mut()
            .filter(|disk| disk.serial == serial)
        {
            // virtio-blk knows one error only.
            if fault.errno == Errno::ENOSPC {
                disk.bus = Bus::Scsi;
            }
        }
        machine.faults.insert(serial.to_owned(), rules);
    })?;
    let found = running.vm.console().wait(timeouts::HANDOFF, |text| {
        if let Some((line, _)) = text
            .split_once(LINE)
            .and_then(|(_, rest)| rest.split_once('\n'))
        {
            return Some(Some(line.trim().to_owned()));
        }
        text.contains(HANDOFF_LINE).then_some(None)
    });
    let Waited::Found(report) = found else {
        anyhow::bail!("neither a report nor the handoff: {found:?}");
    };
    let events = running.vm.events();
    ensure!(
        events.iter().any(|event| event.name == "BLOCK_IO_ERROR"),
        "the disk did not fail: {events:?}"
    );
    running.vm.pull_plug();
    let Some(report) = report else {
        return Ok("it went on".to_owned());
    };
    named(serial, serde_json::from_str(&report)?)
}

/// The report names the disk.
fn named(serial: &str, report: Report) -> Result<String> {
    let text = format!("{report:?}");
    let names = match serial {
        SYSTEM_SERIAL => ["vda", "virtio-system", "state"],
        ETCD_SERIAL => ["vdb", "virtio-etcd", "sda"],
        _ => ["vdc", "virtio-data", "vdb"],
    };
    ensure!(
        names.iter().any(|name| text.contains(name)),
        "the report does not name the disk: {text}"
    );
    Ok(format!("step {}: {}", report.step, report.what))
}
