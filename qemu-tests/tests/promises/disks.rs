//! Disks, file systems and mounts that a config asks for.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use image::report::HANDOFF_LINE;
use qemu_tests::disk_content::{digest, ext4_identity};
use qemu_tests::lab::{Lab, Plan, Running};
use qemu_tests::timeouts;
use serde_json::{Value, json};
use slipway::vm::agent::data_url;
use slipway::vm::disks::{Node, blank, partition};
use slipway::vm::machine::{Bus, Disk, Format, OnReset};

const MIB: u64 = 1 << 20;

/// Another disk of a node, blank the first time.
pub(crate) fn disk(node: &Node, serial: &str) -> Result<Disk> {
    let path: PathBuf = node.folder().join(format!("{serial}.raw"));
    if !path.exists() {
        blank(&path, 512 * MIB)?;
    }
    Ok(Disk {
        path,
        format: Format::Raw,
        bus: Bus::Virtio,
        serial: serial.to_owned(),
    })
}

/// A unit that mounts a file system at every boot, as a config brings it.
pub(crate) fn mount_unit(path: &str, device: &str) -> Value {
    json!({
        "name": format!("{}.mount", path.trim_start_matches('/').replace('/', "-")),
        "enabled": true,
        "contents": format!("[Mount]\nWhat={device}\nWhere={path}\nType=ext4\n[Install]\nRequiredBy=local-fs.target\n"),
    })
}

/// Boots to the handoff and waits for the agent, and for these names below /dev, which are udev's. It comes to disks first;
/// all of its work takes longer than the rest of the boot.
pub(crate) fn up(lab: &mut Lab, node: &Node, plan: &Plan, names: &[&str]) -> Result<Running> {
    let running = lab.boot(node, plan)?;
    running.wait_handoff(timeouts::INIT)?;
    running.wait_agent()?;
    for name in names {
        running.tell(&format!("until [ -e {name} ]; do sleep 0.2; done"))?;
    }
    Ok(running)
}

/// Asks, each question with the answer that it must have.
pub(crate) fn says(node: &Running, answers: &[(&str, &str)]) -> Result<()> {
    for (script, expected) in answers {
        let found = node.tell(script)?;
        ensure!(
            found == *expected,
            "`{script}` gave {found:?}; expected {expected:?}"
        );
    }
    Ok(())
}

/// A wiped table with two partitions, file systems on them and on another disk, and files written into them: all there
/// after the first boot, and in the second one the same, byte for byte of their identities.
pub(crate) fn file_systems_are_made_once_and_survive_a_second_boot(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let by_label = "/dev/disk/by-partlabel/data-one";
    let whole = "/dev/disk/by-id/virtio-whole";
    let config = json!({
        "ignition": { "version": "3.4.0" },
        "passwd": { "users": [{ "name": "probe", "homeDir": "/var/home/probe" }] },
        "storage": {
            "disks": [{
                "device": "/dev/disk/by-id/virtio-table",
                "wipeTable": true,
                "partitions": [
                    { "label": "data-one", "number": 1, "sizeMiB": 128 },
                    { "label": "data-two", "sizeMiB": 0 },
                ],
            }],
            "filesystems": [
                { "device": by_label, "format": "ext4", "label": "one", "path": "/var/lib/one", "mountOptions": ["noatime"] },
                { "device": "/dev/disk/by-partlabel/data-two", "format": "swap" },
                { "device": whole, "format": "ext4", "path": "/var/home/probe" },
            ],
            "files": [{ "path": "/var/lib/one/below/probe", "contents": { "source": data_url(b"written\n") } }],
        },
        "systemd": { "units": [mount_unit("/var/lib/one", by_label), mount_unit("/var/home/probe", whole)] },
    });
    let names = [by_label, "/dev/disk/by-partlabel/data-two", whole];
    let plan = Plan {
        config: Some(config),
        more: vec![disk(&node, "table")?, disk(&node, "whole")?],
        ..Plan::default()
    };
    let answers = [
        ("cat /var/lib/one/below/probe", "written"),
        ("stat -f -c %T /var/lib/one", "ext2/ext3"),
        (
            "blkid -s LABEL -o value /dev/disk/by-partlabel/data-one",
            "one",
        ),
        (
            "blkid -s TYPE -o value /dev/disk/by-partlabel/data-two",
            "swap",
        ),
        (
            "grep -c ' /var/lib/one \\| /var/home/probe ' /proc/self/mountinfo",
            "2",
        ),
        // A home that a mount made is its user's.
        ("stat -c '%U %a' /var/home/probe", "probe 700"),
    ];
    let running = up(lab, &node, &plan, &names)?;
    says(&running, &answers).context("after the first boot")?;
    running.power_off()?;
    let table = node.folder().join("table.raw");
    let identities = || -> Result<_> {
        let (one, _) = partition(&table, "data-one")?;
        Ok((
            ext4_identity(&table, one)?,
            ext4_identity(&node.folder().join("whole.raw"), 0)?,
            partition(&table, "data-two")?,
        ))
    };
    let before = identities()?;
    let running = up(lab, &node, &plan, &names)?;
    says(&running, &answers).context("after the second boot")?;
    running.vm.pull_plug();
    ensure!(identities()? == before, "something was made again");
    Ok(())
}

/// A file system that the config puts at `/var` takes the place of the image's own partition, in later boots too, which
/// read no config.
pub(crate) fn a_file_system_at_var_replaces_the_images_own(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let config = json!({
        "ignition": { "version": "3.4.0" },
        "storage": {
            "disks": [{
                "device": "/dev/disk/by-id/virtio-other",
                "partitions": [{ "label": "elsewhere", "sizeMiB": 0 }],
            }],
            "filesystems": [{ "device": "/dev/disk/by-partlabel/elsewhere", "format": "ext4", "path": "/var" }],
            "files": [{ "path": "/etc/probe", "contents": { "source": data_url(b"written\n") } }],
        },
    });
    let plan = Plan {
        config: Some(config),
        more: vec![disk(&node, "other")?],
        ..Plan::default()
    };
    let device = "test \"$(stat -c %Hd:%Ld /var)\" = \"$(cat /sys/class/block/$(basename $(readlink -f /dev/disk/by-partlabel/elsewhere))/dev)\" && echo same";
    let answers = [
        (device, "same"),
        ("cat /etc/probe", "written"),
        (
            "grep -lx PARTNAME=var /sys/class/block/*/uevent || echo none",
            "none",
        ),
    ];
    for boot in ["first", "second"] {
        let running = up(lab, &node, &plan, &["/dev/disk/by-partlabel/elsewhere"])?;
        says(&running, &answers).with_context(|| format!("after the {boot} boot"))?;
        if boot == "first" {
            running.power_off()?;
        }
    }
    Ok(())
}

/// A table with one partition of 64 MiB, labelled `data`.
fn with_partition(node: &Node, serial: &str) -> Result<Disk> {
    let disk = disk(node, serial)?;
    let mut table = gpt::GptConfig::new().writable(true).create(&disk.path)?;
    table.add_partition("data", 64 * MIB, gpt::partition_types::LINUX_FS, 0, None)?;
    table.write().context("writing a partition table")?;
    Ok(disk)
}

/// A partition that only has another size is resized where the config says so; its begin and the kernel's view follow.
pub(crate) fn a_partition_is_resized_in_place(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let disk = with_partition(&node, "old")?;
    let (start, _) = partition(&disk.path, "data")?;
    let config = json!({
        "ignition": { "version": "3.4.0" },
        "storage": { "disks": [{
            "device": "/dev/disk/by-id/virtio-old",
            "partitions": [{ "number": 1, "label": "data", "sizeMiB": 200, "resize": true }],
        }]},
    });
    let plan = Plan {
        config: Some(config),
        more: vec![disk.clone()],
        ..Plan::default()
    };
    let running = up(lab, &node, &plan, &["/dev/disk/by-partlabel/data"])?;
    let kernel = "cat /sys/class/block/$(basename $(readlink -f /dev/disk/by-partlabel/data))/size";
    says(&running, &[(kernel, "409600")])?;
    running.vm.pull_plug();
    let found = partition(&disk.path, "data")?;
    ensure!(
        found == (start, 200 * MIB),
        "expected {:?}; found {found:?}",
        (start, 200 * MIB)
    );
    Ok(())
}

/// What does not match and may not be wiped is refused, everything that is wrong together, and no byte of any disk of
/// the config changes.
pub(crate) fn a_mismatch_is_refused_and_no_disk_changes(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let (old, blank) = (with_partition(&node, "old")?, disk(&node, "blank")?);
    let config = json!({
        "ignition": { "version": "3.4.0" },
        "storage": {
            "disks": [
                { "device": "/dev/disk/by-id/virtio-blank", "partitions": [{ "label": "fine" }] },
                { "device": "/dev/disk/by-id/virtio-old", "partitions": [{ "number": 1, "label": "other" }] },
            ],
            "filesystems": [
                { "device": "/dev/disk/by-partlabel/fine", "format": "xfs" },
            ],
        },
    });
    let plan = Plan {
        config: Some(config),
        on_reset: OnReset::Stop,
        more: vec![old.clone(), blank.clone()],
        ..Plan::default()
    };
    let before = [digest(&old.path)?, digest(&blank.path)?];
    let running = lab.boot(&node, &plan)?;
    let report = running.wait_report(timeouts::INIT)?;
    let text = running.vm.console().text();
    for word in ["disks.1.partitions.0", "expected label", "found", "data"] {
        ensure!(report.contains(word), "{word:?} is not in {report}");
    }
    ensure!(!text.contains(HANDOFF_LINE), "the node was handed off");
    running.vm.pull_plug();
    let after = [digest(&old.path)?, digest(&blank.path)?];
    ensure!(before == after, "a refused disk was changed");
    Ok(())
}
