//! RAID arrays and encrypted volumes of a config.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use image::layout::MIB;
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::running::Running;
use qemu_tests::timeouts;
use qemu_tests::write_log::Writes;
use serde_json::{Value, json};
use slipway::IGNITION_PROGRAM;
use slipway::vm::agent::data_url;
use slipway::vm::disks::{ETCD_SERIAL, ETCD_SIZE, Node, copy_sparse};
use slipway::vm::machine::OnReset;
use slipway::vm::machine::disk::Disk;

use crate::disks::{boot_and_wait, disk, expect_answers, mount_unit};
use crate::first_boot::Disks;

/// The content of a file: long enough that it cannot be on a disk by accident.
const WRITTEN: &str = "slipway wrote these words into a file";
/// What a node says of `/var` on an encrypted mirror.
const VAULT: [(&str, &str); 3] = [
    ("cat /etc/probe", WRITTEN),
    (
        "test $(stat -c %Hd:%Ld /var) = $(stat -L -c %Hr:%Lr /dev/mapper/vault) && echo same",
        "same",
    ),
    (
        "cat /sys/dev/block/$(stat -c %Hd:%Ld /var)/slaves/md*/md/level",
        "raid1",
    ),
];
/// Size of a disk of the mirror whose making is cut off, bytes.
const MEMBER: u64 = 512 * MIB;
/// Number of cuts.
const CUTS: usize = 8;
/// The key of a volume.
const KEY: &str = "planted-key-8c1f2a7e";

/// A mirror of two disks is created and mounted; after the loss of one disk the next boot still has the files.
pub(crate) fn a_mirror_survives_the_loss_of_a_disk(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let device = "/dev/md/pair";
    let config = json!({
        "ignition": { "version": "3.4.0" },
        "storage": {
            "raid": [{ "name": "pair", "level": "raid1", "devices":
                ["/dev/disk/by-id/virtio-left", "/dev/disk/by-id/virtio-right"] }],
            "filesystems": [{ "device": device, "format": "ext4", "path": "/var/lib/pair" }],
            "files": [{ "path": "/var/lib/pair/probe", "contents": { "source": data_url(WRITTEN.as_bytes()) } }],
        },
        "systemd": { "units": [mount_unit("/var/lib/pair", device)] },
    });
    let (left, right) = (disk(&node, "left")?, disk(&node, "right")?);
    let mut plan = BootOptions {
        config: Some(config),
        more: vec![left, right],
        ..BootOptions::default()
    };
    let sysfs = "/sys/class/block/$(basename $(readlink -f /dev/md/pair))/md";
    let (level, degraded) = (
        format!("cat {sysfs}/level"),
        format!("cat {sysfs}/degraded"),
    );
    let answers = |missing| {
        [
            ("cat /var/lib/pair/probe", WRITTEN),
            (&*level, "raid1"),
            (&*degraded, missing),
            ("grep -c ' /var/lib/pair ' /proc/self/mountinfo", "1"),
        ]
    };
    let running = boot_and_wait(lab, &node, &plan, &["/dev/md/pair"])?;
    expect_answers(&running, &answers("0")).context("after the first boot")?;
    running.power_off()?;
    plan.more.pop();
    let running = boot_and_wait(lab, &node, &plan, &["/dev/md/pair"])?;
    expect_answers(&running, &answers("1")).context("with one disk")
}

/// One volume opens with its key file, one with the machine's TPM alone, at every boot; neither their content nor the key
/// is readable on their disks or on the console, and another machine's TPM does not open them.
pub(crate) fn volumes_open_with_their_key_file_and_with_the_tpm(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let (keyed, sealed) = ("/dev/mapper/keyed", "/dev/mapper/sealed");
    let written = data_url(WRITTEN.as_bytes());
    // With another TPM it stays closed, and the node boots without it.
    let mut unit = mount_unit("/var/lib/sealed", sealed);
    let text = unit["contents"].as_str().unwrap_or_default();
    let text = text.replace("RequiredBy=local-fs.target", "WantedBy=multi-user.target");
    unit["contents"] = text.into();
    let config = json!({
        "ignition": { "version": "3.4.0" },
        "storage": {
            "luks": [
                { "name": "keyed", "device": "/dev/disk/by-id/virtio-keyed", "label": "keyed", "discard": true,
                  "keyFile": { "source": data_url(KEY.as_bytes()) } },
                { "name": "sealed", "device": "/dev/disk/by-id/virtio-sealed", "clevis": { "tpm2": true } },
            ],
            "filesystems": [
                { "device": keyed, "format": "ext4", "path": "/var/lib/keyed" },
                { "device": sealed, "format": "ext4", "path": "/var/lib/sealed" },
            ],
            "files": [
                { "path": "/var/lib/keyed/probe", "contents": { "source": written } },
                { "path": "/var/lib/sealed/probe", "contents": { "source": written } },
            ],
        },
        "systemd": { "units": [mount_unit("/var/lib/keyed", keyed), unit] },
    });
    let plan = BootOptions {
        config: Some(config),
        more: vec![disk(&node, "keyed")?, disk(&node, "sealed")?],
        tpm: true,
        ..BootOptions::default()
    };
    let answers = [
        ("cat /var/lib/keyed/probe", WRITTEN),
        (
            "systemctl start var-lib-sealed.mount; cat /var/lib/sealed/probe",
            WRITTEN,
        ),
        (
            "cryptsetup status keyed | grep -c -e LUKS2 -e discards",
            "2",
        ),
        ("stat -c %a /etc/luks/keyed /etc/crypttab | uniq", "600"),
        ("ls /etc/luks", "keyed"),
        // The random key is removed: the TPM's is the only one.
        (
            "cryptsetup luksDump --dump-json-metadata /dev/disk/by-id/virtio-sealed | grep -c '\"type\":\"systemd-tpm2\"'",
            "1",
        ),
        (
            "cryptsetup luksDump /dev/disk/by-id/virtio-sealed | grep -c -E '^ +[0-9]+: luks2$'",
            "1",
        ),
    ];
    for boot in ["first", "second"] {
        let running = boot_and_wait(lab, &node, &plan, &[keyed, sealed])?;
        running.wait_services()?;
        expect_answers(&running, &answers).with_context(|| format!("after the {boot} boot"))?;
        let console = running.vm.console().text();
        ensure!(!console.contains(KEY), "the key is on the console");
        running.power_off()?;
        for disk in &plan.more {
            for words in [WRITTEN, KEY] {
                ensure!(
                    !holds(&disk.path, words.as_bytes())?,
                    "{words:?} is readable on the disk {}",
                    disk.serial
                );
            }
        }
    }
    // The TPM of another machine.
    fs::remove_dir_all(node.tpm()).context("taking the TPM away")?;
    let running = boot_and_wait(lab, &node, &plan, &[keyed])?;
    running.wait_services()?;
    let answers = [
        answers[0],
        ("test -e /dev/mapper/sealed || echo closed", "closed"),
    ];
    expect_answers(&running, &answers).context("with another TPM")
}

/// A file system on an encrypted volume on a mirror of the disks `left` and `right`, mounted at `path`, and a file.
fn encrypted_mirror(path: &str, file: &str) -> Value {
    json!({
        "ignition": { "version": "3.4.0" },
        "storage": {
            "raid": [{ "name": "pair", "level": "raid1", "devices":
                ["/dev/disk/by-id/virtio-left", "/dev/disk/by-id/virtio-right"] }],
            "luks": [{ "name": "vault", "device": "/dev/md/pair", "keyFile": { "source": data_url(KEY.as_bytes()) },
                "options": ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"] }],
            "filesystems": [{ "device": "/dev/mapper/vault", "format": "ext4", "path": path }],
            "files": [{ "path": file, "contents": { "source": data_url(WRITTEN.as_bytes()) } }],
        },
    })
}

/// The power is cut at moments spread over a first boot that makes a mirror, an encrypted volume on it and `/var` there: the next
/// boot completes them all, and the one after it has them.
pub(crate) fn an_encrypted_mirror_that_was_cut_off_is_completed(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let more = [
        (ETCD_SERIAL, ETCD_SIZE),
        ("left", MEMBER),
        ("right", MEMBER),
    ];
    let disks = Disks::new(&node, &more)?;
    let [file, record] = ["disks.raw", "record"].map(|name| node.folder().join(name));
    File::create(&record)?;
    copy_sparse(&disks.file, &file)?;
    let boot = |lab: &mut Lab, record: Option<&Path>| -> Result<Running> {
        let plan = BootOptions {
            etcd: false,
            ..BootOptions::default()
        };
        let mut machine = lab.machine(&node, &plan)?;
        disks.give(&mut machine, &file);
        machine.record = record.map(Path::to_owned);
        let config = encrypted_mirror("/var", "/etc/probe");
        let running = lab.start(&node, machine, Some(config))?;
        running.wait_handoff(timeouts::HANDOFF)?;
        Ok(running)
    };
    boot(lab, Some(&record))?.vm.pull_plug();
    let writes = Writes::open(&record)?;
    let moments = writes.spread(CUTS);
    ensure!(moments.len() == CUTS, "the boot has {moments:?} moments");
    for moment in moments {
        let about = || format!("the power was cut after {moment} writes and flushes");
        let copy = File::options().read(true).write(true).open(&file)?;
        disks.reset(&copy)?;
        writes.replay(0..moment, &copy)?;
        for which in ["next", "third"] {
            let about = || format!("{}, {which} boot", about());
            let running = boot(lab, None).with_context(about)?;
            running.wait_agent().with_context(about)?;
            expect_answers(&running, &VAULT).with_context(about)?;
            running.vm.pull_plug();
        }
    }
    ensure!(
        disks.has_image(&file)?,
        "a boot wrote to the image's own partitions"
    );
    Ok(())
}

/// `/var` on an encrypted volume on a mirror: the init starts both at every later boot, without a config.
pub(crate) fn an_encrypted_mirror_serves_as_var(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let config = encrypted_mirror("/var", "/etc/probe");
    let plan = BootOptions {
        config: Some(config),
        more: vec![disk(&node, "left")?, disk(&node, "right")?],
        ..BootOptions::default()
    };
    let active = (
        "systemctl is-active systemd-cryptsetup@vault.service",
        "active",
    );
    for boot in ["first", "second"] {
        let running = boot_and_wait(lab, &node, &plan, &["/dev/mapper/vault"])?;
        running.wait_services()?;
        expect_answers(&running, &VAULT).with_context(|| format!("after the {boot} boot"))?;
        expect_answers(&running, &[active]).with_context(|| format!("after the {boot} boot"))?;
        running.power_off()?;
    }
    for disk in &plan.more {
        ensure!(
            !holds(&disk.path, WRITTEN.as_bytes())?,
            "the file's content is readable on the disk {}",
            disk.serial
        );
    }
    Ok(())
}

/// A first boot that failed after it created an array: the next attempt finds the array and starts it unchanged.
pub(crate) fn an_existing_array_is_not_made_again(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let config = json!({
        "ignition": { "version": "3.4.0" },
        "storage": {
            "raid": [{ "name": "pair", "level": "raid1", "devices":
                ["/dev/disk/by-id/virtio-left", "/dev/disk/by-id/virtio-right"] }],
            "luks": [{ "name": "vault", "device": "/dev/md/pair", "keyFile": { "source": data_url(KEY.as_bytes()) },
                "options": ["--no-such-option"] }],
        },
    });
    let plan = BootOptions {
        config: Some(config),
        on_reset: OnReset::Stop,
        more: vec![disk(&node, "left")?, disk(&node, "right")?],
        ..BootOptions::default()
    };
    // The UUID in the array's superblock (version 1.2, at 4 KiB: magic, version, features, padding, UUID).
    let uuid = || -> Result<[u8; 16]> {
        let (mut found, mut magic) = ([0; 16], [0; 4]);
        for disk in &plan.more {
            let file = File::open(&disk.path)?;
            file.read_exact_at(&mut magic, 4096)?;
            ensure!(magic == *b"\xfc\x4e\x2b\xa9", "no array on {}", disk.serial);
            file.read_exact_at(&mut found, 4096 + 16)?;
        }
        Ok(found)
    };
    let mut made = Vec::new();
    for attempt in ["first", "second"] {
        let running = lab.boot(&node, &plan)?;
        let report = running.wait_report(timeouts::INIT)?;
        ensure!(
            report.contains("storage.luks.0") && report.contains("no-such-option"),
            "the {attempt} attempt failed for another reason: {report}"
        );
        ensure!(!report.contains(KEY), "the key is in the report");
        running.vm.pull_plug();
        made.push(uuid()?);
    }
    ensure!(made[0] == made[1], "the array was created again");
    Ok(())
}

/// One stage of the drop-in on a running node, which has udev as another system's initrd does; no stage prints the key.
fn stage(node: &Running, name: &str) -> Result<()> {
    let script = format!(
        "IGNITION_CONFIG_FILE=/run/probe/config.ign /run/probe/ignition -platform file -stage {name} \
         -root /run/newroot -log-to-stdout"
    );
    let said = node.run_within(&script, timeouts::INIT)?;
    ensure!(
        said.contains("finished successfully") && !said.contains(KEY),
        "the stage {name} said:\n{said}"
    );
    Ok(())
}

/// A disk that begins with the program `ignition`, since the guest's root is read-only.
fn program_disk(node: &Node) -> Result<Disk> {
    let disk = disk(node, "program")?;
    let file = File::options().write(true).open(&disk.path)?;
    file.write_all_at(IGNITION_PROGRAM, 0)
        .with_context(|| format!("writing {}", disk.path.display()))?;
    Ok(disk)
}

/// Writes the program, the config and a root with accounts into the guest's `/run`.
fn lay_out(node: &Running, config: &serde_json::Value) -> Result<()> {
    let size = IGNITION_PROGRAM.len();
    let script = format!(
        "set -e\n\
         mkdir -p /run/probe /run/newroot/etc\n\
         head -c {size} /dev/disk/by-id/virtio-program >/run/probe/ignition\n\
         chmod 755 /run/probe/ignition\n\
         echo 'root:x:0:0:root:/root:/bin/bash' >/run/newroot/etc/passwd\n\
         echo 'root:x:0:' >/run/newroot/etc/group\n\
         cat >/run/probe/config.ign <<'END'\n{config}\nEND\n"
    );
    node.run(&script).map(drop)
}

/// The drop-in, stage by stage: a mirror, an encrypted volume on it and a file system on that are created and stay open,
/// are mounted and filled by later processes, and have their key and their line of crypttab in the root. A second run of
/// the disks stage keeps them, whether they are running or stopped.
pub(crate) fn the_drop_in_for_ignition_makes_arrays_and_volumes(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let config = encrypted_mirror("/var/lib/x", "/var/lib/x/probe");
    let plan = BootOptions {
        more: vec![
            disk(&node, "left")?,
            disk(&node, "right")?,
            program_disk(&node)?,
        ],
        ..BootOptions::default()
    };
    let names = [
        "/dev/disk/by-id/virtio-left",
        "/dev/disk/by-id/virtio-right",
        "/dev/disk/by-id/virtio-program",
    ];
    let running = boot_and_wait(lab, &node, &plan, &names)?;
    lay_out(&running, &config)?;
    stage(&running, "fetch")?;
    stage(&running, "disks")?;
    let sysfs = "/sys/class/block/$(basename $(readlink -f /dev/md/pair))";
    let (level, disks, size) = (
        format!("cat {sysfs}/md/level"),
        format!("cat {sysfs}/md/raid_disks"),
        // Sectors: 500 MB of the 512 MiB.
        format!("test $(cat {sysfs}/size) -gt 976562 && echo whole"),
    );
    let made = [
        (&*level, "raid1"),
        (&*disks, "2"),
        (&*size, "whole"),
        (
            "cryptsetup status vault | grep -c -e LUKS2 -e 'device: */dev/md'",
            "2",
        ),
        ("stat -c %a /run/ignition/state", "600"),
    ];
    expect_answers(&running, &made).context("after the disks stage")?;
    stage(&running, "mount")?;
    stage(&running, "files")?;
    expect_answers(&running, &IN_THE_ROOT).context("after the files stage")?;
    stage(&running, "umount")?;
    taken_as_it_is(&running)
}

/// Files that the stages mount and files write into the root.
const IN_THE_ROOT: [(&str, &str); 5] = [
    ("cat /run/newroot/var/lib/x/probe", WRITTEN),
    (
        "test \"$(cat /run/newroot/etc/crypttab)\" = \
         \"vault UUID=$(cryptsetup luksUUID /dev/md/pair) /etc/luks/vault luks,x-initrd.attach\" && echo same",
        "same",
    ),
    (
        "stat -c %a /run/newroot/etc/luks/vault /run/newroot/etc/crypttab | uniq",
        "600",
    ),
    ("cat /run/newroot/etc/luks/vault", KEY),
    // This is the only file of the next system that has the key.
    (
        "grep -o '\"volumes\":\\[\\]' /run/ignition/state",
        "\"volumes\":[]",
    ),
];

/// Another run of the disks stage creates nothing, both with running and with stopped arrays and volumes.
fn taken_as_it_is(running: &Running) -> Result<()> {
    const IDENTITIES: &str = "mdadm --detail --export /dev/md/pair | grep ^MD_UUID= \
        && cryptsetup luksUUID /dev/md/pair && blkid -p -s UUID -o value /dev/mapper/vault";
    const STOP: &str =
        "cryptsetup close vault && udevadm settle && mdadm --stop /dev/md/pair && udevadm settle";
    let mounted = "grep -c ' /run/newroot/var/lib/x ' /proc/self/mountinfo || true";
    expect_answers(running, &[(mounted, "0")]).context("after the umount stage")?;
    let before = running.run(IDENTITIES)?;
    for state in ["running", "stopped"] {
        if state == "stopped" {
            running.run(STOP)?;
        }
        stage(running, "disks").with_context(|| format!("with everything {state}"))?;
        let after = running.run(IDENTITIES)?;
        ensure!(
            before == after,
            "with everything {state} something was created again: before {before:?}, after {after:?}"
        );
    }
    stage(running, "mount")?;
    expect_answers(running, &[(mounted, "1"), IN_THE_ROOT[0]]).context("after another mount")?;
    stage(running, "umount")
}

/// Whether a file contains these bytes.
fn holds(path: &Path, words: &[u8]) -> Result<bool> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let mut starts = bytes
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == words[0]);
    Ok(starts.any(|(at, _)| bytes[at..].starts_with(words)))
}
