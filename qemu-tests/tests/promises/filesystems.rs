//! File systems of other kinds than ext4: XFS, btrfs and FAT.

use anyhow::{Context, Result, ensure};
use image::layout::GIB;
use image::report::{HANDOFF_LINE, Report};
use qemu_tests::disk_content::digest;
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::timeouts;
use serde_json::{Value, json};
use slipway::vm::agent::data_url;
use slipway::vm::disks::{Node, blank};
use slipway::vm::machine::OnReset;
use slipway::vm::machine::disk::Disk;
use slipway::vm::run::Image;

use crate::disks::{boot_and_wait, disk, expect_answers, mount_unit_of};

/// Serial number of the disk with the three partitions.
const SERIAL: &str = "three";
/// A file that no config has, written by the running node.
const KEPT: &str = "by the running node";

/// A partition with its file system.
struct Part {
    /// Of the partition.
    label: &'static str,
    /// MiB; 0 for the rest. `mkfs.xfs` makes nothing below 300.
    size: u64,
    kind: &'static str,
    /// Label and UUID of the file system.
    name: &'static str,
    uuid: &'static str,
}

const PARTS: [Part; 3] = [
    Part {
        label: "one",
        size: 320,
        kind: "xfs",
        name: "data-one",
        uuid: "6b1c2a53-6c2e-4a0e-9d6f-0f7f6a3c9a11",
    },
    Part {
        label: "two",
        size: 320,
        kind: "btrfs",
        name: "data-two",
        uuid: "6b1c2a53-6c2e-4a0e-9d6f-0f7f6a3c9a12",
    },
    Part {
        label: "three",
        size: 0,
        kind: "vfat",
        name: "DATA-THREE",
        uuid: "A1B2-C3D4",
    },
];

impl Part {
    fn device(&self) -> String {
        format!("/dev/disk/by-partlabel/{}", self.label)
    }

    fn path(&self) -> String {
        format!("/var/lib/{}", self.label)
    }

    /// The file that the config has on it.
    fn text(&self) -> String {
        format!("a file of the config, on {}", self.kind)
    }

    /// The same partition with another kind, without a label and a UUID of its own.
    const fn with(&self, kind: &'static str) -> Self {
        Self {
            label: self.label,
            size: self.size,
            kind,
            name: "",
            uuid: "",
        }
    }
}

/// A config with these partitions, file systems, mounts, and a file on each.
fn config(parts: &[Part], wipe: bool) -> Value {
    let each = |entry: &dyn Fn(&Part) -> Value| parts.iter().map(entry).collect::<Vec<_>>();
    json!({
        "ignition": { "version": "3.4.0" },
        "storage": {
            "disks": [{
                "device": format!("/dev/disk/by-id/virtio-{SERIAL}"),
                "partitions": each(&|part| json!({ "label": part.label, "sizeMiB": part.size })),
            }],
            "filesystems": each(&|part| {
                let mut entry = json!({
                    "device": part.device(),
                    "format": part.kind,
                    "path": part.path(),
                    "wipeFilesystem": wipe,
                });
                for (key, value) in [("label", part.name), ("uuid", part.uuid)] {
                    if !value.is_empty() {
                        entry[key] = value.into();
                    }
                }
                entry
            }),
            "files": each(&|part| json!({
                "path": format!("{}/below/probe", part.path()),
                "contents": { "source": data_url(part.text().as_bytes()) },
            })),
        },
        "systemd": { "units": each(&|part| mount_unit_of(&part.path(), &part.device(), part.kind)) },
    })
}

/// What the running node says of these partitions.
fn answers(parts: &[Part], kept: &str) -> Vec<(String, String)> {
    let mut answers = Vec::new();
    for part in parts {
        let (path, device) = (part.path(), part.device());
        let mut expect = |script: String, answer: &str| answers.push((script, answer.to_owned()));
        expect(format!("cat {path}/below/probe"), &part.text());
        expect(format!("cat {path}/kept 2>/dev/null || echo none"), kept);
        expect(format!("findmnt -no FSTYPE {path}"), part.kind);
        let tags = [
            ("TYPE", part.kind),
            ("LABEL", part.name),
            ("UUID", part.uuid),
        ];
        for (tag, value) in tags.into_iter().filter(|(_, value)| !value.is_empty()) {
            expect(
                format!("blkid -c /dev/null -s {tag} -o value {device}"),
                value,
            );
        }
    }
    answers
}

/// The promise's image and its disk.
struct Bench {
    image: Image,
    disk: Disk,
}

impl Bench {
    fn plan(&self, config: Value) -> BootOptions {
        BootOptions {
            config: Some(config),
            more: vec![self.disk.clone()],
            on_reset: OnReset::Stop,
            image: Some(self.image.clone()),
            ..BootOptions::default()
        }
    }

    /// Boots to a running node that answers so, has it write its own files, and switches it off.
    fn runs(
        &self,
        lab: &mut Lab,
        node: &Node,
        plan: &BootOptions,
        expected: (&[Part], &str),
    ) -> Result<()> {
        let (parts, kept) = expected;
        let devices: Vec<String> = parts.iter().map(Part::device).collect();
        let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
        let running = boot_and_wait(lab, node, plan, &devices)?;
        let answers = answers(parts, kept);
        let pairs: Vec<(&str, &str)> = answers
            .iter()
            .map(|(a, b)| (a.as_str(), b.as_str()))
            .collect();
        expect_answers(&running, &pairs)?;
        for part in parts {
            running.run(&format!("echo {KEPT} > {}/kept", part.path()))?;
        }
        running.power_off()
    }
}

/// XFS, btrfs and FAT with label and UUID: made once, mounted for the config's files, unchanged in a second boot, and kept by a
/// new node whose config asks for the same. Where another kind stands, all three are refused by name and no byte of the disk
/// changes; with `wipeFilesystem` each becomes the next one's kind.
pub(crate) fn each_kind_is_made_once_kept_and_replaced_with_consent_alone(
    lab: &mut Lab,
) -> Result<()> {
    let image = lab.builder().build("qemu-tests/filesystems")?;
    let node = lab.node_of(&image.disk)?;
    blank(&node.folder().join(format!("{SERIAL}.raw")), GIB)?;
    let disk = disk(&node, SERIAL)?;
    let bench = Bench { image, disk };
    let plan = bench.plan(config(&PARTS, false));
    bench
        .runs(lab, &node, &plan, (&PARTS, "none"))
        .context("in the first boot")?;
    bench
        .runs(lab, &node, &plan, (&PARTS, KEPT))
        .context("in the second boot")?;
    let other = lab.node_of(&bench.image.disk)?;
    bench
        .runs(lab, &other, &plan, (&PARTS, KEPT))
        .context("of another node with the same config")?;

    let [one, two, three] = &PARTS;
    let turned = [one.with("btrfs"), two.with("vfat"), three.with("xfs")];
    let last = lab.node_of(&bench.image.disk)?;
    refused(lab, &bench, &last, &turned)?;
    let plan = bench.plan(config(&turned, true));
    bench
        .runs(lab, &last, &plan, (&turned, "none"))
        .context("with wipeFilesystem")
}

/// Each partition has another kind than the config's: one report names them all, and the disk is unchanged.
fn refused(lab: &mut Lab, bench: &Bench, node: &Node, turned: &[Part]) -> Result<()> {
    let before = digest(&bench.disk.path)?;
    let running = lab.boot(node, &bench.plan(config(turned, false)))?;
    let report: Report = serde_json::from_str(&running.wait_report(timeouts::INIT)?)?;
    ensure!(report.step == "disks", "{report:?}");
    let text = format!("{report:?}");
    for (number, (was, wanted)) in PARTS.iter().zip(turned).enumerate() {
        let place = format!("filesystems.{number}: {}", was.device());
        let line = text.split("\\n").find(|line| line.contains(&place));
        let line = line.with_context(|| format!("{place} is not in {text}"))?;
        for word in [
            format!("expected {}", wanted.kind),
            format!("found {}", was.kind),
            was.name.to_owned(),
        ] {
            ensure!(line.contains(&word), "{word:?} is not in {line}");
        }
    }
    let console = running.vm.console().text();
    ensure!(!console.contains(HANDOFF_LINE), "the node was handed off");
    running.vm.pull_plug();
    ensure!(
        before == digest(&bench.disk.path)?,
        "a refused disk was changed"
    );
    Ok(())
}
