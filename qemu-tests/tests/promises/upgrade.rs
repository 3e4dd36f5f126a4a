//! Disks of earlier and of later releases.

use anyhow::{Context, Result, ensure};
use image::layout::{LABEL_STATE, LABEL_VAR};
use image::paths::{STATE, STATE_ETCD, STATE_PROVISIONED};
use image::report::{HANDOFF_LINE, Report};
use qemu_tests::disk_content::ext4_identity;
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::running::Running;
use qemu_tests::timeouts;
use serde_json::{Value, json};
use slipway::vm::agent::data_url;
use slipway::vm::disks::{Node, partition};
use slipway::vm::machine::OnReset;

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
