//! The state of a node.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, bail, ensure};
use image::layout::{GIB, LABEL_STATE, LABEL_VAR};
use image::paths::{NODE_SETTINGS, STATE, STATE_PROVISIONED};
use image::report::{LINE, Report};
use qemu_tests::disk_content::{ext4_identity, partitions, wipe_superblocks};
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::running::Running;
use qemu_tests::timeouts;
use serde_json::json;
use slipway::vm::agent::data_url;
use slipway::vm::channel::Waited;
use slipway::vm::disks::{Node, partition};
use slipway::vm::machine::disk::Bus;
use slipway::vm::machine::{OnReset, Start};

/// Growth of the disk, bytes.
const MORE: u64 = 3 * GIB;
/// Number of failures for the same reason after which a node stays up.
const ENOUGH: usize = 3;

/// After a disk grew between two boots, its partition table is corrected and `var` has the new space.
pub(crate) fn var_grows_with_its_disk(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let size = |running: &qemu_tests::running::Running| -> Result<u64> {
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

/// A copy of a node's disk is another node on a machine with another UUID, although the disks have the same names: the serial
/// number and the namespace's EUI-64 that QEMU gives by default. The node itself stays what it is.
pub(crate) fn an_image_of_a_running_node_is_another_node(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let plan = BootOptions {
        bus: Bus::Nvme,
        ..BootOptions::default()
    };
    let boot = |lab: &mut Lab, node: &Node, script: &str| -> Result<(String, String)> {
        let running = lab.boot(node, &plan)?;
        running.wait_handoff(timeouts::INIT)?;
        running.wait_agent()?;
        let id = running.run("cat /etc/machine-id")?;
        let kept = running.run("cat /var/kept 2>/dev/null || echo none")?;
        running.run(script)?;
        running.power_off()?;
        Ok((id, kept))
    };
    let (id, kept) = boot(lab, &node, "echo kept > /var/kept && sync /var/kept")?;
    ensure!(kept == "none", "a new node has a file: {kept:?}");
    let copy = lab.node_of(&node.system())?;
    let (other, kept) = boot(lab, &copy, "true")?;
    ensure!(
        other != id && kept == "none",
        "the copy of {id} is {other} and has {kept:?}"
    );
    let (again, kept) = boot(lab, &node, "true")?;
    ensure!(
        again == id && kept == "kept",
        "the node {id} is {again} and has {kept:?}"
    );
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

/// Four zeroed sectors over the superblocks of `state` and `var` are repaired from backups, and all is there. Without any
/// superblock the node reports the damage, formats nothing, and is made anew by the word that the report names, once. A
/// truncated marker is reported too, and never taken for a first boot.
pub(crate) fn damage_is_repaired_or_reported_and_nothing_is_formatted(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let running = boot_with(lab, &node, None)?;
    running.wait_handoff(timeouts::INIT)?;
    running.wait_agent()?;
    running.run("echo kept > /var/kept && sync /var/kept")?;
    // Not unmounted: the journals have to be replayed too.
    running.vm.pull_plug();
    repaired(lab, &node).context("with damaged superblocks")?;

    let word = reported(lab, &node, LABEL_VAR).context("without superblocks of var")?;
    let running = boot_with(lab, &node, Some(&word))?;
    is_made_anew(&running).with_context(|| format!("after {word}"))?;
    // The word stays on the command line, and does nothing more.
    running.run(&format!(
        "truncate -s 100 {STATE}/{STATE_PROVISIONED} && sync {STATE}/{STATE_PROVISIONED}"
    ))?;
    // The answer comes before the agent goes.
    running.run("(sleep 1; systemctl --no-block reboot) > /dev/null 2>&1 &")?;
    let report: Report = serde_json::from_str(&running.wait_report(timeouts::HANDOFF)?)?;
    ensure!(
        report.step == "state" && report.what.contains(STATE_PROVISIONED),
        "the truncated marker: {report:?}"
    );
    let text = running.vm.console().text();
    let times = text.matches("is discarded").count();
    ensure!(times == 1, "{word} acted {times} times");
    running.vm.pull_plug();

    let word = reported(lab, &node, LABEL_STATE).context("without superblocks of state")?;
    let running = boot_with(lab, &node, Some(&word))?;
    is_made_anew(&running).with_context(|| format!("after {word}"))
}

/// A node whose primary partition table is damaged boots by the backup and restores it; with both damaged the report says so, and
/// the disk is not written to.
pub(crate) fn a_damaged_partition_table_is_restored_or_reported(lab: &mut Lab) -> Result<()> {
    const HEADER: [u8; 512] = [0; 512];
    let node = lab.node()?;
    let running = boot_with(lab, &node, None)?;
    running.wait_handoff(timeouts::INIT)?;
    running.vm.pull_plug();
    let before = partitions(&node.system(), 0)?;
    let disk = OpenOptions::new().write(true).open(node.system())?;
    let last = disk.metadata()?.len() - 512;
    disk.write_all_at(&HEADER, 512)?;
    let running = boot_with(lab, &node, None)?;
    running.wait_handoff(timeouts::INIT)?;
    running.wait_agent()?;
    let kept = running.run("cat /etc/probe")?;
    ensure!(kept == "applied", "the config's file has {kept:?}");
    running.power_off()?;
    ensure!(
        partitions(&node.system(), 0)? == before,
        "the primary table is another one"
    );

    for at in [512, last] {
        disk.write_all_at(&HEADER, at)?;
    }
    let written = || disk.metadata().and_then(|meta| meta.modified());
    let damaged = written()?;
    let plan = BootOptions {
        on_reset: OnReset::Stop,
        ..BootOptions::default()
    };
    let running = lab.boot(&node, &plan)?;
    // The init waits two minutes for another disk.
    let report: Report = serde_json::from_str(&running.wait_report(timeouts::HANDOFF)?)?;
    running.vm.pull_plug();
    let found = report.found.as_deref().unwrap_or_default();
    ensure!(
        report.step == "root" && found.contains("both copies of its GPT are damaged"),
        "{report:?}"
    );
    ensure!(written()? == damaged, "the disk was written to");
    Ok(())
}

/// Boots directly with a config of one file, and an additional word on the command line.
fn boot_with(lab: &mut Lab, node: &Node, word: Option<&str>) -> Result<Running> {
    let config = json!({
        "ignition": { "version": "3.4.0" },
        "storage": { "files": [{ "path": "/etc/probe", "contents": { "source": data_url(b"applied\n") } }] },
    });
    let mut machine = lab.machine(node, &BootOptions::default())?;
    if let (Start::Direct { cmdline, .. }, Some(word)) = (&mut machine.start, word) {
        cmdline.push(' ');
        cmdline.push_str(word);
    }
    lab.start(node, machine, Some(config))
}

/// Zeroes the superblocks of both file systems: the next boot repairs them, says so, and has all that was there.
fn repaired(lab: &mut Lab, node: &Node) -> Result<()> {
    let mut before = Vec::new();
    let disk = OpenOptions::new().write(true).open(node.system())?;
    for label in [LABEL_STATE, LABEL_VAR] {
        let (start, _) = partition(&node.system(), label)?;
        before.push((start, ext4_identity(&node.system(), start)?));
        disk.write_all_at(&[0; 4 * 512], start + 1024)?;
    }
    drop(disk);
    let running = boot_with(lab, node, None)?;
    // e2fsck reads all inode tables.
    running.wait_handoff(timeouts::HANDOFF)?;
    let text = running.vm.console().text();
    for label in [LABEL_STATE, LABEL_VAR] {
        let said = text.lines().any(|line| {
            line.contains(&format!("({label}) was damaged")) && line.contains("from the backup")
        });
        ensure!(said, "the console does not say that {label} was repaired");
    }
    running.wait_agent()?;
    let kept = running.run("cat /etc/probe /var/kept")?;
    ensure!(kept == "applied\nkept", "of the files there is {kept:?}");
    running.power_off()?;
    for (start, identity) in before {
        ensure!(
            ext4_identity(&node.system(), start)? == identity,
            "the file system at byte {start} was made again"
        );
    }
    Ok(())
}

/// Destroys all superblocks of a file system: the next boot reports it and writes none. Gives the word that the report names
/// for a reset.
fn reported(lab: &mut Lab, node: &Node, label: &str) -> Result<String> {
    let (start, size) = partition(&node.system(), label)?;
    let places = wipe_superblocks(&node.system(), start, size)?;
    ensure!(places.len() > 1, "{label} has no backup superblock");
    let running = boot_with(lab, node, None)?;
    let report: Report = serde_json::from_str(&running.wait_report(timeouts::INIT)?)?;
    running.vm.pull_plug();
    ensure!(
        report.step.starts_with(label) && report.what.contains(&format!("({label}) is damaged")),
        "{report:?}"
    );
    let disk = File::open(node.system())?;
    for at in places {
        let mut bytes = [1; 1024];
        disk.read_exact_at(&mut bytes, at)?;
        ensure!(
            bytes.iter().all(|byte| *byte == 0),
            "a superblock was written at byte {at}"
        );
    }
    let fix = report.fix.context("the report names no remedy")?;
    let word = fix
        .split_whitespace()
        .find(|word| word.starts_with("slipway.reset="));
    Ok(word
        .with_context(|| format!("no reset in {fix:?}"))?
        .to_owned())
}

/// The node was provisioned anew: the config's file is there, what it had accumulated is not.
fn is_made_anew(running: &Running) -> Result<()> {
    running.wait_handoff(timeouts::INIT)?;
    running.wait_agent()?;
    let found = running.run("cat /etc/probe; test -e /var/kept || echo gone")?;
    ensure!(found == "applied\ngone", "found {found:?}");
    Ok(())
}
