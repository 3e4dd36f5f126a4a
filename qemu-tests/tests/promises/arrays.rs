//! RAID arrays of each level.

use anyhow::{Context, Result};
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::running::Running;
use serde_json::{Value, json};
use slipway::vm::agent::data_url;

use crate::disks::{boot_and_wait, disk, expect_answers};

/// The disks, each with one member of each array.
const DISKS: [&str; 4] = ["a", "b", "c", "d"];
/// Size of a member, MiB.
const MEMBER: u32 = 80;

/// An array of all disks: level, spare members, and the lost members that it bears.
struct Level {
    name: &'static str,
    spares: u32,
    bears: u32,
}

const LEVELS: [Level; 5] = [
    Level {
        name: "raid0",
        spares: 0,
        bears: 0,
    },
    Level {
        name: "raid1",
        spares: 1,
        bears: 2,
    },
    Level {
        name: "raid5",
        spares: 0,
        bears: 1,
    },
    Level {
        name: "raid6",
        spares: 0,
        bears: 2,
    },
    Level {
        name: "raid10",
        spares: 0,
        bears: 1,
    },
];

/// Partitions, arrays, file systems and a file on each.
fn config() -> Value {
    let member =
        |level: &Level, disk: &str| format!("/dev/disk/by-partlabel/{}-{disk}", level.name);
    let disks = DISKS.iter().map(|disk| {
        let parts = LEVELS
            .iter()
            .map(|level| json!({ "label": format!("{}-{disk}", level.name), "sizeMiB": MEMBER }));
        json!({
            "device": format!("/dev/disk/by-id/virtio-{disk}"),
            "wipeTable": true,
            "partitions": parts.collect::<Vec<_>>(),
        })
    });
    let raid = LEVELS.iter().map(|level| {
        let devices: Vec<String> = DISKS.iter().map(|disk| member(level, disk)).collect();
        json!({ "name": level.name, "level": level.name, "devices": devices, "spares": level.spares })
    });
    let filesystems = LEVELS.iter().map(|level| {
        json!({
            "device": format!("/dev/md/{}", level.name),
            "format": "ext4",
            "path": format!("/var/lib/{}", level.name),
        })
    });
    let files = LEVELS.iter().map(|level| {
        json!({
            "path": format!("/var/lib/{}/probe", level.name),
            "contents": { "source": data_url(level.name.as_bytes()) },
        })
    });
    json!({
        "ignition": { "version": "3.4.0" },
        "storage": {
            "disks": disks.collect::<Vec<_>>(),
            "raid": raid.collect::<Vec<_>>(),
            "filesystems": filesystems.collect::<Vec<_>>(),
            "files": files.collect::<Vec<_>>(),
        },
    })
}

/// Arrays of the levels 0, 1 with a spare, 5, 6 and 10 are made, with a file system and a file on each; the next boots find them,
/// also without one disk, and without two, as far as the level bears it.
pub(crate) fn each_level_bears_the_loss_that_it_promises(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let mut more = Vec::new();
    for serial in DISKS {
        more.push(disk(&node, serial)?);
    }
    let mut plan = BootOptions {
        config: Some(config()),
        more,
        ..BootOptions::default()
    };
    for lost in 0..=2 {
        let names: Vec<String> = LEVELS
            .iter()
            .filter(|level| level.bears >= lost)
            .map(|level| format!("/dev/md/{}", level.name))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let running = boot_and_wait(lab, &node, &plan, &names)
            .with_context(|| format!("without {lost} disks"))?;
        for level in LEVELS.iter().filter(|level| level.bears >= lost) {
            is_there(&running, level, lost)
                .with_context(|| format!("{} without {lost} disks", level.name))?;
        }
        running.power_off()?;
        plan.more.pop();
    }
    Ok(())
}

/// The array has its level and its file, and misses its part of the lost disks.
fn is_there(running: &Running, level: &Level, lost: u32) -> Result<()> {
    let name = level.name;
    let sysfs = format!("/sys/class/block/$(basename $(readlink -f /dev/md/{name}))/md");
    // The last disks are lost: that of the spare is the first.
    let degraded = lost.saturating_sub(level.spares).to_string();
    // Level 0 has the first of these files only. A level with parity is made degraded, and the kernel rebuilds one member.
    let kinds = format!(
        "cd {sysfs}; for i in {{1..80}}; do missing=$(cat degraded 2>/dev/null || echo 0); \
         [ \"$missing $(cat sync_action 2>/dev/null || echo idle)\" = '{degraded} idle' ] && break; sleep 1; done; \
         cat level raid_disks; echo $missing"
    );
    let expected = format!("{name}\n{}\n{degraded}", 4 - level.spares);
    let read = format!(
        "mkdir -p /run/{name} && {{ mountpoint -q /run/{name} || mount -o ro /dev/md/{name} /run/{name}; }} && cat /run/{name}/probe && umount /run/{name}"
    );
    expect_answers(running, &[(&*kinds, &*expected), (&*read, name)])
}
