//! Disks of earlier and of later releases.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use image::guid::Guid;
use image::layout::{
    LABEL_ESP, LABEL_ROOT_A, LABEL_ROOT_B, LABEL_STATE, LABEL_VAR, LABEL_VERITY_A, LABEL_VERITY_B,
};
use image::paths::{STATE, STATE_ETCD, STATE_MACHINE_ID, STATE_PROVISIONED};
use image::report::{HANDOFF_LINE, Report};
use qemu_tests::disk_content::{dump, ext4_identity};
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::packed_disk::unpack;
use qemu_tests::running::Running;
use qemu_tests::timeouts;
use serde_json::{Value, json};
use slipway::format::gpt::Table;
use slipway::format::sparse::data;
use slipway::vm::agent::data_url;
use slipway::vm::disks::{Node, copy_sparse, partition};
use slipway::vm::machine::OnReset;
use tempfile::TempDir;

/// What a node is and has.
const WHAT_IT_IS: &str = "cat /etc/machine-id /etc/probe /var/kept; findmnt -no UUID /var/lib/etcd";

/// A node that the first release provisioned (a marker with a serial number and no version, no record of the etcd volume) keeps its
/// identity, its data and its volume, and has the record from then on. A marker of a later form is refused by its file and version:
/// the node is not provisioned, and no file system is made again.
pub(crate) fn an_earlier_disk_is_kept_and_a_later_one_is_refused(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let running = boot(lab, &node)?;
    running.run("echo kept > /var/kept && sync /var/kept")?;
    let is = running.run(WHAT_IT_IS)?;
    let identities = identities(&node)?;
    rewrite(&running, |marker| {
        let was = &marker["identity"];
        *marker = json!({
            "identity": { "instance": was["instance"], "disk": was["disk"] },
            "image": marker["image"],
            "config": marker["config"],
        });
    })?;
    running.run(&format!("rm {STATE}/{STATE_ETCD} && sync {STATE}"))?;
    running.power_off()?;

    let running = boot(lab, &node).context("with the disk of the first release")?;
    let now = running.run(WHAT_IT_IS)?;
    ensure!(now == is, "the node was {is:?} and is {now:?}");
    let record = running.run(&format!("cat {STATE}/{STATE_ETCD}"))?;
    let uuid = is.lines().last().unwrap_or_default();
    ensure!(
        !uuid.is_empty() && record.contains(uuid),
        "the volume {uuid:?} is not recorded: {record}"
    );
    rewrite(&running, |marker| marker["version"] = 2.into())?;
    running.power_off()?;

    let plan = BootOptions {
        on_reset: OnReset::Stop,
        ..BootOptions::default()
    };
    let running = lab.boot(&node, &plan)?;
    let report: Report = serde_json::from_str(&running.wait_report(timeouts::INIT)?)?;
    ensure!(
        report.step == "state"
            && report.what.contains(STATE_PROVISIONED)
            && report.found.as_deref() == Some("version 2"),
        "{report:?}"
    );
    let console = running.vm.console().text();
    ensure!(!console.contains(HANDOFF_LINE), "the node was handed off");
    running.vm.pull_plug();
    ensure!(
        self::identities(&node)? == identities,
        "a file system was made again"
    );
    Ok(())
}

/// The disks of a node that an earlier build provisioned (`tests/data/older`), with today's root in the other slot: the node keeps
/// its identity, its data and its etcd volume, and nothing is formatted.
pub(crate) fn a_node_of_an_earlier_build_boots_todays_image(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let today = node.folder().join("today.raw");
    fs::rename(node.system(), &today)?;
    unpack(include_bytes!("../data/older/system.gz"), &node.system())?;
    unpack(include_bytes!("../data/older/etcd.gz"), &node.etcd())?;
    fs::write(
        node.folder().join("uuid"),
        include_str!("../data/older/uuid"),
    )?;
    update(&today, &node.system())?;
    let identities = identities(&node)?;
    let before = state(lab, &node)?;
    let machine = read(&before, STATE_MACHINE_ID)?;
    ensure!(
        !before.path().join(STATE_ETCD).exists(),
        "the earlier build had a record of its volume"
    );
    let uuid = Guid(identities[0][4..20].try_into()?).to_string();
    let has = [machine.trim(), "kept", &uuid, "written"].map(|word| format!("probe has {word}"));
    let mut words: Vec<&str> = has.iter().map(String::as_str).collect();
    words.push("probe ends");
    for boot in ["the first", "the second"] {
        let machine = lab.machine(&node, &BootOptions::default())?;
        let running = lab.launch(&node, machine)?;
        running.wait_handoff(timeouts::INIT)?;
        running
            .wait_console(&words, timeouts::AGENT)
            .with_context(|| format!("{boot} boot of today's image"))?;
        running.vm.pull_plug();
        ensure!(
            self::identities(&node)? == identities,
            "a file system was made again by {boot} boot"
        );
    }
    let after = state(lab, &node)?;
    let record = read(&after, STATE_ETCD)?;
    ensure!(record.contains(&uuid), "the record is {record}");
    for file in [STATE_MACHINE_ID, STATE_PROVISIONED] {
        let [was, is] = [read(&before, file)?, read(&after, file)?];
        ensure!(
            file == STATE_PROVISIONED || was == is,
            "{file} was {was:?} and is {is:?}"
        );
        ensure!(!is.is_empty(), "{file} is empty");
    }
    Ok(())
}

/// Writes the root of an image into the second slot of a node's disk, and its ESP, as an update does.
fn update(image: &Path, system: &Path) -> Result<()> {
    let mut from = File::open(image)?;
    let mut to = File::options().read(true).write(true).open(system)?;
    let new = Table::read(&mut from)?;
    let mut table = Table::read(&mut to)?;
    for (source, target) in [
        (LABEL_ESP, LABEL_ESP),
        (LABEL_ROOT_A, LABEL_ROOT_B),
        (LABEL_VERITY_A, LABEL_VERITY_B),
    ] {
        let source = new.partitions.iter().find(|part| part.label == source);
        let source = source.context("the image's partition")?;
        let mut slots = table.partitions.iter_mut();
        let slot = slots.find(|part| part.label == target);
        let slot = slot.context("the node's slot")?;
        ensure!(source.size <= slot.size, "{target} is too small");
        if target != LABEL_ESP {
            slot.guid = source.guid;
        }
        for (at, length) in data(&from)? {
            let (start, end) = (at.max(source.offset), at + length);
            let end = end.min(source.offset + source.size);
            if start < end {
                let mut bytes = vec![0; usize::try_from(end - start)?];
                from.read_exact_at(&mut bytes, start)?;
                to.write_all_at(&bytes, slot.offset + (start - source.offset))?;
            }
        }
    }
    table.write(&mut to)
}

/// The files of a node's `state`, read from a copy, so that the log is replayed by the node alone.
fn state(lab: &Lab, node: &Node) -> Result<TempDir> {
    let copies = tempfile::tempdir_in(node.folder())?;
    let copy = copies.path().join("system.raw");
    copy_sparse(&node.system(), &copy)?;
    let (start, _) = partition(&copy, LABEL_STATE)?;
    let out = tempfile::tempdir_in(node.folder())?;
    dump(&lab.tools, &copy, start, out.path())?;
    Ok(out)
}

fn read(folder: &TempDir, name: &str) -> Result<String> {
    let path = folder.path().join(name);
    fs::read_to_string(path).with_context(|| format!("reading {name} of state"))
}

fn boot(lab: &mut Lab, node: &Node) -> Result<Running> {
    let config = json!({
        "ignition": { "version": "3.4.0" },
        "storage": { "files": [{ "path": "/etc/probe", "contents": { "source": data_url(b"applied\n") } }] },
    });
    let plan = BootOptions {
        config: Some(config),
        ..BootOptions::default()
    };
    let running = lab.boot(node, &plan)?;
    running.wait_handoff(timeouts::INIT)?;
    running.wait_agent()?;
    Ok(running)
}

/// Replaces the marker by what is made of it.
fn rewrite(running: &Running, change: impl FnOnce(&mut Value)) -> Result<()> {
    let path = format!("{STATE}/{STATE_PROVISIONED}");
    let mut marker: Value = serde_json::from_str(&running.run(&format!("cat {path}"))?)?;
    change(&mut marker);
    running.run(&format!(
        "cat > {path}.new <<'END' && mv {path}.new {path} && sync {STATE}\n{marker}\nEND"
    ))?;
    Ok(())
}

/// Of the node's file systems: another formatting changes them.
fn identities(node: &Node) -> Result<Vec<Vec<u8>>> {
    let mut found = vec![ext4_identity(&node.etcd(), 0)?];
    for label in [LABEL_STATE, LABEL_VAR] {
        let (start, _) = partition(&node.system(), label)?;
        found.push(ext4_identity(&node.system(), start)?);
    }
    Ok(found)
}
