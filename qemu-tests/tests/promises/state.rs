//! The state of a node.

use std::fs::OpenOptions;

use anyhow::{Context, Result, bail, ensure};
use image::layout::GIB;
use image::paths::NODE_SETTINGS;
use image::report::LINE;
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::timeouts;
use slipway::vm::channel::Waited;

/// Growth of the disk, bytes.
const MORE: u64 = 3 * GIB;
/// Number of failures for the same reason after which a node stays up.
const ENOUGH: usize = 3;

/// After a disk grew between two boots, its partition table is corrected and `var` has the new space.
pub(crate) fn var_grows_with_its_disk(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let size = |running: &qemu_tests::lab::Running| -> Result<u64> {
        let text = running.run("findmnt -bno SIZE /var")?;
        text.trim()
            .parse()
            .with_context(|| format!("reading the size {text:?}"))
    };
    let running = lab.boot(&node, &BootOptions::default())?;
    running.wait_handoff(timeouts::INIT)?;
    running.wait_agent()?;
    let before = size(&running)?;
    running.run("echo kept > /var/kept && sync /var/kept")?;
    running.power_off()?;

    let disk = OpenOptions::new().write(true).open(node.system())?;
    disk.set_len(disk.metadata()?.len() + MORE)?;
    drop(disk);
    let running = lab.boot(&node, &BootOptions::default())?;
    running.wait_handoff(timeouts::INIT)?;
    running.wait_agent()?;
    let after = size(&running)?;
    // The metadata of a larger ext4 takes a few per cent of the new space.
    ensure!(
        after > before + MORE / 10 * 9,
        "the disk grew by {MORE} bytes, /var from {before} to {after}"
    );
    let kept = running.run("cat /var/kept")?;
    ensure!(kept == "kept", "after the growth the file has {kept:?}");
    Ok(())
}

/// A node whose settings are invalid reboots twice with a report, and stays up with it the third time.
pub(crate) fn the_third_failure_in_a_row_stays_up(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let running = lab.boot(&node, &BootOptions::default())?;
    running.wait_handoff(timeouts::INIT)?;
    running.wait_agent()?;
    running.run(&format!(
        "mkdir -p /etc/slipway && echo 'role = \"kontroll-plane\"' > {NODE_SETTINGS}"
    ))?;
    running.power_off()?;

    // A reset boots the same kernel again, as on a physical machine.
    let running = lab.boot(&node, &BootOptions::default())?;
    let reports = |text: &str| text.matches(LINE).count();
    for number in 1..=ENOUGH {
        let waited = running.vm.console().wait(timeouts::INIT, |text| {
            (reports(text) >= number).then_some(())
        });
        ensure!(
            waited == Waited::Found(()),
            "no report {number}: {waited:?}"
        );
    }
    let text = running.vm.console().text();
    for (words, times) in [
        ("The node reboots in 10 s.", ENOUGH - 1),
        ("The node stays up with this report", 1),
    ] {
        let found = text.matches(words).count();
        ensure!(
            found == times,
            "expected {words:?} {times} times, found {found}"
        );
    }
    for word in [NODE_SETTINGS, "kontroll-plane", "control-plane"] {
        if !text.contains(word) {
            bail!("the report does not name {word:?}");
        }
    }
    let waited = running.vm.console().wait(timeouts::STAYS_UP, |text| {
        (reports(text) > ENOUGH || text.matches("Linux version").count() > ENOUGH).then_some(())
    });
    ensure!(
        waited == Waited::Late,
        "the node did not stay up with its report: {waited:?}"
    );
    Ok(())
}
