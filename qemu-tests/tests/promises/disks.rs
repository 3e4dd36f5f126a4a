//! Disks, file systems and mounts of a config.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use image::layout::{LABEL_STATE, LABEL_VAR, SectorSize};
use image::report::HANDOFF_LINE;
use qemu_tests::disk_content::{Content, digest, ext4_identity};
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::random::Random;
use qemu_tests::running::Running;
use qemu_tests::timeouts;
use serde_json::{Value, json};
use slipway::vm::agent::data_url;
use slipway::vm::disks::{Node, blank, partition};
use slipway::vm::machine::OnReset;
use slipway::vm::machine::disk::{Bus, Disk, Format};
use slipway::vm::run::Image;

const MIB: u64 = 1 << 20;
/// The demo for disks with sectors of 4096 bytes, laid beside the images of the promises.
const LARGE_SECTORS: &str = r#"
extends = "../../recipes/demo.toml"
[image]
name = "large-sectors"
[disk]
sector-size = 4096
"#;

/// An additional disk of a node, blank on its first use.
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
        sector: SectorSize::default(),
        read_only: false,
    })
}

/// A mount unit of a config, enabled at every boot.
pub(crate) fn mount_unit(path: &str, device: &str) -> Value {
    mount_unit_of(path, device, "ext4")
}

/// The same for a file system of any kind.
pub(crate) fn mount_unit_of(path: &str, device: &str, kind: &str) -> Value {
    json!({
        "name": format!("{}.mount", path.trim_start_matches('/').replace('/', "-")),
        "enabled": true,
        "contents": format!("[Mount]\nWhat={device}\nWhere={path}\nType={kind}\n[Install]\nRequiredBy=local-fs.target\n"),
    })
}

/// Boots to the handoff and waits for the agent, and for these names below /dev, which udev creates. `udevadm settle`
/// would take longer than the rest of the boot.
pub(crate) fn boot_and_wait(
    lab: &mut Lab,
    node: &Node,
    plan: &BootOptions,
    names: &[&str],
) -> Result<Running> {
    let running = lab.boot(node, plan)?;
    running.wait_handoff(timeouts::INIT)?;
    running.wait_agent()?;
    for name in names {
        running.run(&format!("until [ -e {name} ]; do sleep 0.2; done"))?;
    }
    Ok(running)
}

/// Runs scripts, each of which must print the given answer.
pub(crate) fn expect_answers(node: &Running, answers: &[(&str, &str)]) -> Result<()> {
    for (script, expected) in answers {
        let found = node.run(script)?;
        ensure!(
            found == *expected,
            "`{script}` gave {found:?}; expected {expected:?}"
        );
    }
    Ok(())
}

/// A wiped table with two partitions, file systems on them and on another disk, and files on these: all present after the
/// first boot, and unchanged, with the same identities, after the second.
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
    let plan = BootOptions {
        config: Some(config),
        more: vec![disk(&node, "table")?, disk(&node, "whole")?],
        ..BootOptions::default()
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
        // A home directory that was created as a mount point belongs to its user.
        ("stat -c '%U %a' /var/home/probe", "probe 700"),
    ];
    let running = boot_and_wait(lab, &node, &plan, &names)?;
    expect_answers(&running, &answers).context("after the first boot")?;
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
    let running = boot_and_wait(lab, &node, &plan, &names)?;
    expect_answers(&running, &answers).context("after the second boot")?;
    running.vm.pull_plug();
    ensure!(identities()? == before, "something was created again");
    Ok(())
}

/// A file system that the config mounts at `/var` replaces the image's own partition, also in later boots, which read no
/// config.
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
    let plan = BootOptions {
        config: Some(config),
        more: vec![disk(&node, "other")?],
        ..BootOptions::default()
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
        let running = boot_and_wait(lab, &node, &plan, &["/dev/disk/by-partlabel/elsewhere"])?;
        expect_answers(&running, &answers).with_context(|| format!("after the {boot} boot"))?;
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

/// A partition that differs in size only is resized if the config allows it; its start and its content are unchanged, and the
/// kernel sees the new size.
pub(crate) fn a_partition_is_resized_in_place(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let disk = with_partition(&node, "old")?;
    let (start, size) = partition(&disk.path, "data")?;
    let mut random = Random::new(1);
    let content: Vec<u8> = (0..size / 8)
        .flat_map(|_| random.bits().to_le_bytes())
        .collect();
    let file = File::options().read(true).write(true).open(&disk.path)?;
    file.write_all_at(&content, start)?;
    let config = json!({
        "ignition": { "version": "3.4.0" },
        "storage": { "disks": [{
            "device": "/dev/disk/by-id/virtio-old",
            "partitions": [{ "number": 1, "label": "data", "sizeMiB": 200, "resize": true }],
        }]},
    });
    let plan = BootOptions {
        config: Some(config),
        more: vec![disk.clone()],
        ..BootOptions::default()
    };
    let running = boot_and_wait(lab, &node, &plan, &["/dev/disk/by-partlabel/data"])?;
    let kernel = "cat /sys/class/block/$(basename $(readlink -f /dev/disk/by-partlabel/data))/size";
    expect_answers(&running, &[(kernel, "409600")])?;
    running.vm.pull_plug();
    let found = partition(&disk.path, "data")?;
    ensure!(
        found == (start, 200 * MIB),
        "expected {:?}; found {found:?}",
        (start, 200 * MIB)
    );
    let mut after = vec![0; content.len()];
    file.read_exact_at(&mut after, start)?;
    ensure!(after == content, "the partition's content changed");
    Ok(())
}

/// Disks that do not match, or hold data of no known kind, and may not be wiped are refused, all mismatches in one report, and no byte of the config's
/// disks changes.
pub(crate) fn a_mismatch_is_refused_and_no_disk_changes(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let (old, blank) = (with_partition(&node, "old")?, disk(&node, "blank")?);
    let raw = disk(&node, "raw")?;
    Content::Random.write(&raw.path, &lab.build_tools)?;
    let config = json!({
        "ignition": { "version": "3.4.0" },
        "storage": {
            "disks": [
                { "device": "/dev/disk/by-id/virtio-blank", "partitions": [{ "label": "fine" }] },
                { "device": "/dev/disk/by-id/virtio-old", "partitions": [{ "number": 1, "label": "other" }] },
            ],
            "filesystems": [
                { "device": "/dev/disk/by-partlabel/fine", "format": "xfs" },
                { "device": "/dev/disk/by-id/virtio-raw", "format": "ext4" },
            ],
        },
    });
    let plan = BootOptions {
        config: Some(config),
        on_reset: OnReset::Stop,
        more: vec![old.clone(), blank.clone(), raw.clone()],
        ..BootOptions::default()
    };
    let disks = [&old.path, &blank.path, &raw.path];
    let digests = || {
        disks
            .iter()
            .map(|path| digest(path))
            .collect::<Result<Vec<_>>>()
    };
    let before = digests()?;
    let running = lab.boot(&node, &plan)?;
    let report = running.wait_report(timeouts::INIT)?;
    let text = running.vm.console().text();
    for word in [
        "disks.1.partitions.0",
        "expected label",
        "found",
        "data",
        "filesystems.1: /dev/disk/by-id/virtio-raw (virtio-raw) holds something else",
        "no known kind",
        "wipeFilesystem: true",
    ] {
        ensure!(report.contains(word), "{word:?} is not in {report}");
    }
    ensure!(!text.contains(HANDOFF_LINE), "the node was handed off");
    running.vm.pull_plug();
    ensure!(before == digests()?, "a refused disk was changed");
    Ok(())
}

/// Disks that look like those of clouds and of hardware: serial number, controller, properties, the name that the config uses.
const NAMED: [(&str, Bus, &str, &str); 10] = [
    (
        "hc",
        Bus::Scsi,
        "vendor=HC,product=Volume,device_id=12345678",
        "scsi-0HC_Volume_12345678",
    ),
    (
        "wwn",
        Bus::Scsi,
        "wwn=0x5000c500a1b2c3d4",
        "wwn-0x5000c500a1b2c3d4",
    ),
    // Linux believes no identifier of QEMU's namespaces (NVME_QUIRK_BOGUS_NID): those are in unit tests.
    ("space", Bus::Nvme, "", "nvme-QEMU_NVMe_Ctrl_space_1"),
    (
        "sata",
        Bus::Sata,
        "model=ST4000,wwn=0x5000c500a1b2c3d5",
        "ata-ST4000_sata",
    ),
    ("virtio", Bus::Virtio, "", "virtio-virtio"),
    // DigitalOcean, Scaleway, Compute Engine and Proxmox VE, whose disk has the name of its slot.
    (
        "do",
        Bus::Scsi,
        "vendor=DO,product=Volume,device_id=etcd-1",
        "scsi-0DO_Volume_etcd-1",
    ),
    (
        "scw",
        Bus::Scsi,
        "vendor=SCW,product=b_ssd,device_id=volume-0a1b",
        "scsi-0SCW_b_ssd_volume-0a1b",
    ),
    (
        "google",
        Bus::Scsi,
        "vendor=Google,product=PersistentDisk,device_id=etcd-1",
        "scsi-0Google_PersistentDisk_etcd-1",
    ),
    (
        "slot",
        Bus::Scsi,
        "device_id=drive-scsi1",
        "scsi-0QEMU_QEMU_HARDDISK_drive-scsi1",
    ),
    ("last", Bus::Nvme, "", "nvme-QEMU_NVMe_Ctrl_last"),
];

/// Each disk is found by the name that udev then gives it too: a file system with its label is behind udev's link. The last
/// one is etcd's, named by `id`.
pub(crate) fn disks_have_the_names_that_udev_gives_them(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let (etcd, others) = NAMED.split_last().context("there are no disks")?;
    let settings = format!(
        "role = \"control-plane\"\n[etcd]\nid = \"{}\"\ncluster = \"demo\"\nformat = \"if-blank\"\nminimum-size = 1048576\n",
        etcd.3
    );
    let filesystems: Vec<Value> = others
        .iter()
        .map(|(serial, _, _, name)| {
            json!({ "device": format!("/dev/disk/by-id/{name}"), "format": "ext4", "label": serial })
        })
        .collect();
    let config = json!({
        "ignition": { "version": "3.4.0" },
        "storage": {
            "filesystems": filesystems,
            "files": [{
                "path": image::paths::NODE_SETTINGS,
                "overwrite": true,
                "contents": { "source": data_url(settings.as_bytes()) },
            }],
        },
    });
    let mut more = Vec::new();
    for (serial, bus, ..) in NAMED {
        let disk = disk(&node, serial)?;
        more.push(Disk { bus, ..disk });
    }
    let plan = BootOptions {
        etcd: false,
        more,
        ..BootOptions::default()
    };
    let mut machine = lab.machine(&node, &plan)?;
    let names = NAMED.iter().filter(|(_, _, names, _)| !names.is_empty());
    machine.names = names
        .map(|(serial, _, names, _)| ((*serial).to_owned(), (*names).to_owned()))
        .collect();
    let running = lab.start(&node, machine, Some(config))?;
    running.wait_handoff(timeouts::INIT)?;
    running.wait_agent()?;
    for (serial, _, _, name) in NAMED {
        let link = format!("/dev/disk/by-id/{name}");
        running.run(&format!("until [ -e {link} ]; do sleep 0.2; done"))?;
        let (script, expected) = match serial == etcd.0 {
            true => (
                format!(
                    "test \"$(findmnt -rno MAJ:MIN /var/lib/etcd)\" = \"$(cat /sys/class/block/$(basename $(readlink -f {link}))/dev)\" && echo same"
                ),
                "same",
            ),
            false => (format!("blkid -s LABEL -o value {link}"), serial),
        };
        let found = running.run(&script)?;
        ensure!(
            found == expected,
            "{link}: expected {expected:?}; found {found:?}"
        );
    }
    Ok(())
}

/// An image for sectors of 4096 bytes boots by UEFI on such a disk, twice, makes its partitions there and has its etcd volume on
/// one of 512; on a disk with other sectors an image, of either kind, ends in the report that names both sizes and the recipe's key.
pub(crate) fn an_image_for_large_sectors_boots_on_such_disks_alone(lab: &mut Lab) -> Result<()> {
    let recipe = lab.folder().join("large-sectors.toml");
    fs::write(&recipe, LARGE_SECTORS).context("writing the recipe")?;
    // What a lock depends on is the demo's.
    let lock = lab.recipes().join("demo.lock");
    fs::copy(&lock, recipe.with_extension("lock")).context("copying the demo's lock")?;
    let image = lab.builder().build("target/qemu-tests/large-sectors")?;
    let node = lab.node_of(&image.disk)?;
    let plan = BootOptions {
        direct: false,
        image: Some(image.clone()),
        ..BootOptions::default()
    };
    let disk = "basename $(readlink -f /sys/class/block/$(basename $(findmnt -no SOURCE /var))/..)";
    let sectors = format!("cat /sys/class/block/$({disk})/queue/logical_block_size");
    for boot in ["first", "second"] {
        let about = || format!("in the {boot} boot");
        let running = lab.boot(&node, &plan)?;
        running
            .wait_handoff(timeouts::HANDOFF)
            .with_context(about)?;
        running.wait_agent().with_context(about)?;
        let answers = [
            (sectors.as_str(), "4096"),
            ("findmnt -no FSTYPE /var/lib/etcd", "ext4"),
        ];
        expect_answers(&running, &answers).with_context(about)?;
        running.power_off()?;
    }
    for label in [LABEL_STATE, LABEL_VAR] {
        let (start, _) = partition(&node.system(), label)?;
        ensure!(start % MIB == 0, "{label} begins at byte {start}");
        ext4_identity(&node.system(), start)?;
    }
    let demo = lab.node()?;
    let wrong = [
        (&demo, None, SectorSize::B4096),
        (&node, Some(image), SectorSize::B512),
    ];
    for (node, image, sector) in wrong {
        refuses_other_sectors(lab, node, image, sector)?;
    }
    Ok(())
}

/// The firmware would not find the loader: the kernel is loaded by QEMU.
fn refuses_other_sectors(
    lab: &mut Lab,
    node: &Node,
    image: Option<Image>,
    sector: SectorSize,
) -> Result<()> {
    let plan = BootOptions {
        on_reset: OnReset::Stop,
        image,
        ..BootOptions::default()
    };
    let mut machine = lab.machine(node, &plan)?;
    let system = machine.disks.first_mut().context("there is no disk")?;
    system.sector = sector;
    let running = lab.start(node, machine, None)?;
    // The init waits two minutes for another disk.
    let report = running.wait_report(timeouts::HANDOFF)?;
    let has = sector.bytes();
    for word in [
        format!("sectors of {has} bytes"),
        format!("sectors of {} bytes", 512 + 4096 - has),
        format!("sector-size = {has} in [disk] of the recipe"),
    ] {
        ensure!(report.contains(&word), "{word:?} is not in {report}");
    }
    running.vm.pull_plug();
    Ok(())
}
