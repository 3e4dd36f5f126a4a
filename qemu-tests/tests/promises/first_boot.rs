//! A first boot with a config that has one of each kind of entry: its disks, and what is on them afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use image::layout::{LABEL_STATE, LABEL_VAR, SectorSize};
use image::paths::{
    ETC_UPPER, ETC_WORK, ETCD_IDENTITY, IGNITION_RESULT, STATE_DISKS, STATE_ETCD, STATE_FILES,
    STATE_LEDGER, STATE_MACHINE_ID, STATE_PROVISIONED, STATE_TIMELINES,
};
use qemu_tests::disk_content::{debugfs, dump, ext4_identity, partitions, same, unformatted};
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::running::Running;
use qemu_tests::timeouts;
use qemu_tests::write_log::{Writes, clear};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use slipway::install::tools::Tools;
use slipway::vm::agent::data_url;
use slipway::vm::disks::{ETCD_SERIAL, ETCD_SIZE, Node, SYSTEM_SERIAL, copy_data, copy_sparse};
use slipway::vm::machine::disk::{Bus, Disk, Format};
use slipway::vm::machine::{Machine, files};

/// Size of a file with many blocks, bytes. The kernel reads fw_cfg a page at a time, and each page from the config's
/// first byte on: a boot's time grows with the square of the config's size.
const LARGE: usize = 32 << 10;
/// Size of the disk that the config partitions, bytes.
const DATA_SIZE: u64 = 512 << 20;
pub(crate) const DATA_SERIAL: &str = "data";
/// UUID that the config gives to one of its file systems.
const DATA_UUID: &str = "8b6c1a3e-6c2e-4a0e-9d6f-0f7f6a3c9a11";
const DATA_LABEL: &str = "kept";

/// A config with one of each kind of entry that a cut could leave incomplete.
fn config() -> Value {
    let file = |path: &str, text: &str| json!({ "path": path, "contents": { "source": data_url(text.as_bytes()) } });
    let mut rc = file("/home/probe/.bashrc", "# mine\n");
    rc["user"] = json!({ "name": "probe" });
    json!({
        "ignition": { "version": "3.4.0" },
        "passwd": {
            "groups": [{ "name": "team", "gid": 2000 }],
            "users": [
                { "name": "probe", "groups": ["team", "sudo"], "passwordHash": "$y$j9T$x", "sshAuthorizedKeys": ["ssh-ed25519 AAAA probe"] },
                { "name": "owner", "homeDir": "/var/home/owner" },
                { "name": "helper", "system": true, "noCreateHome": true },
            ],
        },
        "storage": {
            "disks": [{
                "device": format!("/dev/disk/by-id/virtio-{DATA_SERIAL}"),
                "wipeTable": true,
                "partitions": [{ "label": "one", "number": 1, "sizeMiB": 128 }, { "label": "two", "sizeMiB": 0 }],
            }],
            "filesystems": [
                { "device": "/dev/disk/by-partlabel/one", "format": "ext4", "label": DATA_LABEL, "uuid": DATA_UUID, "path": "/var/lib/one" },
                { "device": "/dev/disk/by-partlabel/two", "format": "ext4", "path": "/var/home/owner" },
            ],
            "directories": [{ "path": "/var/lib/app/deep", "mode": 0o750, "user": { "name": "probe" } }],
            "files": [
                file("/etc/probe/deep/file", "probe\n"),
                { "path": "/etc/hosts", "append": [{ "source": data_url(b"192.0.2.1 a\n") }, { "source": data_url(b"192.0.2.2 b\n") }] },
                { "path": "/var/lib/log", "append": [{ "source": data_url(b"line\n") }] },
                file("/var/lib/one/below/file", "on the disk\n"),
                file("/opt/large", &"0123456789abcdef".repeat(LARGE / 16)),
                rc,
            ],
            "links": [
                { "path": "/etc/probe/link", "target": "deep/file" },
                { "path": "/etc/probe/hard", "target": "/etc/probe/deep/file", "hard": true },
            ],
        },
        "systemd": { "units": [
            { "name": "probe.service", "enabled": true, "contents": "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n" },
            { "name": "apt-daily.timer", "mask": true },
        ]},
    })
}

/// All disks of a machine, one after another in one file, so that their writes have one order.
pub(crate) struct Disks {
    pub(crate) file: PathBuf,
    /// Serial number, first byte, bytes.
    parts: Vec<(&'static str, u64, u64)>,
}

impl Disks {
    /// The system disk, and further ones by serial number and size.
    pub(crate) fn new(node: &Node, more: &[(&'static str, u64)]) -> Result<Self> {
        let file = node.folder().join("before.raw");
        // A machine of the node still looks at the disk's own file.
        fs::hard_link(node.system(), &file).context("taking the system disk")?;
        let mut end = fs::metadata(&file)?.len();
        let mut parts = vec![(SYSTEM_SERIAL, 0, end)];
        for (serial, size) in more {
            parts.push((serial, end, *size));
            end += size;
        }
        OpenOptions::new().write(true).open(&file)?.set_len(end)?;
        Ok(Self { file, parts })
    }

    /// The first byte of a disk.
    pub(crate) fn at(&self, serial: &str) -> Result<u64> {
        Ok(self.range(serial)?.start)
    }

    /// The bytes of a disk in the file.
    pub(crate) fn range(&self, serial: &str) -> Result<Range<u64>> {
        let part = self.parts.iter().find(|(name, ..)| *name == serial);
        let (_, at, size) = part.context("finding a disk")?;
        Ok(*at..at + size)
    }

    /// Byte ranges of the image's own partitions in the file.
    fn image(&self) -> Result<Range<u64>> {
        let all = partitions(&self.file, self.at(SYSTEM_SERIAL)?)?;
        let first = all.iter().map(|(_, start, _)| *start).min();
        let behind = all.iter().map(|(_, start, size)| start + size).max();
        let lacks = "the image has no partitions";
        Ok(first.context(lacks)?..behind.context(lacks)?)
    }

    /// Restores the disks in `file` to their content before the first boot, except the image's own partitions: they are most
    /// of the data, and no boot writes to them.
    pub(crate) fn reset(&self, file: &File) -> Result<()> {
        let (before, image) = (File::open(&self.file)?, self.image()?);
        let size = before.metadata()?.len();
        for stretch in [0..image.start, image.end..size] {
            clear(file, stretch.start, stretch.end - stretch.start)?;
            copy_data(&before, file, stretch)?;
        }
        Ok(())
    }

    /// Whether the image's own partitions in `file` are unchanged.
    pub(crate) fn has_image(&self, file: &Path) -> Result<bool> {
        same(&File::open(&self.file)?, &File::open(file)?, self.image()?)
    }

    /// The machine with the disks in `file`.
    pub(crate) fn give(&self, machine: &mut Machine, file: &Path) {
        let disk = |(serial, at, size): &(&str, u64, u64)| Disk {
            path: file.to_owned(),
            format: Format::Part {
                at: *at,
                size: *size,
            },
            bus: Bus::Virtio,
            serial: (*serial).to_owned(),
            sector: SectorSize::default(),
            read_only: false,
        };
        machine.disks = self.parts.iter().map(disk).collect();
    }
}

/// The content of a node's disks, without the parts that differ from node to node.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    /// Disk and label → start and size, bytes.
    partitions: BTreeMap<String, (u64, u64)>,
    /// Path → kind and mode, owner, SHA-256 of the content.
    entries: BTreeMap<String, String>,
}

/// Start of each file system on the disks, by a name for messages.
fn file_systems(disks: &Disks, file: &Path) -> Result<Vec<(&'static str, u64)>> {
    let (system, data) = (disks.at(SYSTEM_SERIAL)?, disks.at(DATA_SERIAL)?);
    let mut found = vec![("etcd", disks.at(ETCD_SERIAL)?)];
    for (disk, name, label) in [
        (system, "state", LABEL_STATE),
        (system, "var", LABEL_VAR),
        (data, "one", "one"),
        (data, "two", "two"),
    ] {
        let all = partitions(file, disk).unwrap_or_default();
        if let Some((_, start, _)) = all.into_iter().find(|(have, ..)| have == label) {
            found.push((name, start));
        }
    }
    Ok(found)
}

/// UUID, label and creation time of each file system that exists.
fn identities(disks: &Disks, file: &Path) -> Result<BTreeMap<&'static str, Vec<u8>>> {
    let all = file_systems(disks, file)?.into_iter();
    Ok(all
        .filter_map(|(name, start)| Some((name, ext4_identity(file, start).ok()?)))
        .collect())
}

/// The file systems that must not be created again, by the node's own journal at the cut.
fn made(tools: &Tools, disks: &Disks, file: &Path) -> Result<Vec<&'static str>> {
    let all = file_systems(disks, file)?;
    let read = |name: &str, path: &str| -> String {
        let start = all.iter().find(|(have, _)| *have == name);
        start
            .and_then(|(_, start)| debugfs(tools, file, *start, &format!("cat {path}")).ok())
            .unwrap_or_default()
    };
    if serde_json::from_str::<Value>(&read("state", STATE_PROVISIONED)).is_ok() {
        let mut names = vec!["state", "var", "one", "two"];
        // The init writes it after the marker.
        if serde_json::from_str::<Value>(&read("etcd", ETCD_IDENTITY)).is_ok() {
            names.push("etcd");
        }
        return Ok(names);
    }
    let journal: Value = serde_json::from_str(&read("state", STATE_DISKS)).unwrap_or_default();
    let mut names = Vec::new();
    for (number, name) in ["one", "two"].into_iter().enumerate() {
        let place = format!("$.storage.filesystems.{number}");
        if journal["entries"][&place]["stage"] == "done" {
            names.push(name);
        }
    }
    Ok(names)
}

fn outcome(tools: &Tools, disks: &Disks, file: &Path, out: &Path) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for serial in [SYSTEM_SERIAL, DATA_SERIAL] {
        for (label, start, size) in partitions(file, disks.at(serial)?)? {
            outcome
                .partitions
                .insert(format!("{serial} {label}"), (start, size));
        }
    }
    let noted = unformatted(file, disks.at(SYSTEM_SERIAL)?)?;
    ensure!(
        noted.is_empty(),
        "the table says that {noted:?} are still to be formatted"
    );
    let found = file_systems(disks, file)?;
    // In parallel: most of the time goes to the start of the programs.
    let read = |(name, start): &(&str, u64)| {
        dump(tools, file, *start, &out.join(name)).with_context(|| format!("reading {name}"))
    };
    thread::scope(|scope| {
        let threads: Vec<_> = found
            .iter()
            .map(|place| scope.spawn(move || read(place)))
            .collect();
        let ends = threads.into_iter().map(|thread| match thread.join() {
            Ok(read) => read,
            Err(_) => bail!("a thread has panicked"),
        });
        ends.collect::<Result<()>>()
    })?;
    for (name, _) in &found {
        let folder = out.join(name);
        let mut entries = Vec::new();
        walk(&folder, &folder, &mut entries)?;
        for (path, meta, content) in entries {
            let path = format!("{name}:/{path}");
            if let Some(content) = settled(&path, content)? {
                let hash = Sha256::digest(&content);
                let (mode, owner) = (meta.mode(), (meta.uid(), meta.gid()));
                let text = format!("{mode:o} {owner:?} {hash:02x?}");
                outcome.entries.insert(path, text);
            }
        }
    }
    let one = found.into_iter().find(|(name, _)| *name == "one");
    let identity = ext4_identity(file, one.context("there is no partition one")?.1)?;
    let uuid: Vec<u8> = DATA_UUID
        .replace('-', "")
        .as_bytes()
        .chunks(2)
        .filter_map(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok())
        .collect();
    ensure!(
        identity[4..20] == uuid && identity[20..].starts_with(DATA_LABEL.as_bytes()),
        "the config's file system does not have the config's UUID and label"
    );
    Ok(outcome)
}

fn walk(root: &Path, folder: &Path, out: &mut Vec<(String, fs::Metadata, Vec<u8>)>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let meta = path.symlink_metadata()?;
        let content = if meta.is_symlink() {
            fs::read_link(&path)?.into_os_string().into_encoded_bytes()
        } else if meta.is_file() {
            fs::read(&path)?
        } else {
            Vec::new()
        };
        let shown = path.strip_prefix(root)?.to_string_lossy().into_owned();
        if meta.is_dir() {
            walk(root, &path, out)?;
        }
        out.push((shown, meta, content));
    }
    Ok(())
}

/// The content without the parts that differ between nodes and boots; none for files that are not a result of the
/// config.
fn settled(path: &str, content: Vec<u8>) -> Result<Option<Vec<u8>>> {
    let upper = format!("var:{}", ETC_UPPER.trim_start_matches("/var"));
    let work = format!("var:{}", ETC_WORK.trim_start_matches("/var"));
    let json = || -> Result<Value> {
        serde_json::from_slice(&content).with_context(|| format!("reading {path} as JSON"))
    };
    let without = |mut value: Value, keys: &[&str]| {
        for key in keys {
            // A missing key stays a difference.
            if let Some(slot) = value.get_mut(*key) {
                *slot = Value::Null;
            }
        }
        Some(value.to_string().into_bytes())
    };
    let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
    // Temporary files, timelines and failures, not a result.
    let passing = path.starts_with(&work)
        || path.contains(STATE_TIMELINES)
        || path == format!("state:/{STATE_LEDGER}")
        || name == "lost+found";
    Ok(if passing {
        None
    } else if path == format!("{upper}/machine-id") || path == format!("state:/{STATE_MACHINE_ID}")
    {
        ensure!(content.len() == 33, "{path} has {} bytes", content.len());
        Some(Vec::new())
    } else if IGNITION_RESULT
        .rsplit_once('/')
        .is_some_and(|(_, result)| name == result)
    {
        without(json()?, &["provisioningBootID", "provisioningDate"])
    } else if name == ETCD_IDENTITY {
        without(json()?, &["filesystem", "created", "machineId"])
    } else if path == format!("state:/{STATE_ETCD}") {
        without(json()?, &["filesystem"])
    } else if path == format!("state:/{STATE_FILES}") {
        without(json()?, &["etc"])
    } else if path == format!("state:/{STATE_PROVISIONED}") {
        without(json()?, &["var"])
    } else if path == format!("state:/{STATE_DISKS}") {
        Some(without_tables(&String::from_utf8(content)?).into_bytes())
    } else {
        Some(content)
    })
}

/// The journal of the disks without the GUIDs of the tables, which are drawn: its keys have them.
fn without_tables(journal: &str) -> String {
    const MARK: &str = " of GPT ";
    let mut parts = journal.split(MARK);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |out, part| {
        let rest = part.get(36..).unwrap_or_default();
        format!("{out}{MARK}{rest}")
    })
}

/// Boots these disks with the config.
fn start(
    lab: &mut Lab,
    node: &Node,
    disks: &Disks,
    file: &Path,
    change: impl FnOnce(&mut Machine),
) -> Result<Running> {
    // The disks are not those of the options: the system disk's file is elsewhere.
    let plan = BootOptions {
        etcd: false,
        ..BootOptions::default()
    };
    let mut machine = lab.machine(node, &plan)?;
    disks.give(&mut machine, file);
    change(&mut machine);
    lab.start(node, machine, Some(config()))
}

fn boot(
    lab: &mut Lab,
    node: &Node,
    disks: &Disks,
    file: &Path,
    record: Option<&Path>,
) -> Result<()> {
    let running = start(lab, node, disks, file, |machine| {
        machine.record = record.map(Path::to_owned);
    })?;
    running.wait_handoff(timeouts::INIT).with_context(|| {
        let said = fs::read_to_string(node.folder().join(files::STDERR)).unwrap_or_default();
        format!("QEMU says {said:?}")
    })?;
    running.vm.pull_plug();
    Ok(())
}

/// A first boot that nothing disturbed: the log of its writes and its result.
pub(crate) struct Recorded {
    pub(crate) node: Node,
    pub(crate) disks: Disks,
    pub(crate) writes: Writes,
    /// The disks that [`Recorded::converges`] boots.
    file: PathBuf,
    expected: Outcome,
}

impl Recorded {
    pub(crate) fn new(lab: &mut Lab) -> Result<Self> {
        let node = lab.node()?;
        let disks = Disks::new(&node, &[(ETCD_SERIAL, ETCD_SIZE), (DATA_SERIAL, DATA_SIZE)])?;
        let (file, record) = (
            node.folder().join("disks.raw"),
            node.folder().join("record"),
        );
        File::create(&record)?;
        copy_sparse(&disks.file, &file)?;
        boot(lab, &node, &disks, &file, Some(&record))?;
        let out = tempfile::tempdir_in(node.folder())?;
        let expected = outcome(&lab.tools, &disks, &file, &out.path().join("whole"))?;
        ensure!(
            expected.entries.len() > 60 && expected.partitions.len() == 9,
            "the undisturbed boot left too few files: {expected:#?}"
        );
        Ok(Self {
            writes: Writes::open(&record)?,
            node,
            disks,
            file,
            expected,
        })
    }

    /// The disks as they were before the boot, which a caller changes and [`Recorded::converges`] boots.
    pub(crate) fn before(&self) -> Result<File> {
        let copy = OpenOptions::new().read(true).write(true).open(&self.file)?;
        self.disks.reset(&copy)?;
        Ok(copy)
    }

    /// Boots the disks of [`Recorded::before`] with a changed machine.
    pub(crate) fn start(
        &self,
        lab: &mut Lab,
        change: impl FnOnce(&mut Machine),
    ) -> Result<Running> {
        start(lab, &self.node, &self.disks, &self.file, change)
    }

    /// Boots the disks of [`Recorded::before`] to the handoff, and gives the log of the writes.
    pub(crate) fn recovery(&self, lab: &mut Lab) -> Result<Writes> {
        let record = self.node.folder().join("record-again");
        File::create(&record)?;
        boot(lab, &self.node, &self.disks, &self.file, Some(&record))?;
        Writes::open(&record)
    }

    /// Boots disks that a first boot left incomplete, with the same config: the result is the expected one, and no file
    /// system that was complete is created again.
    pub(crate) fn converges(&self, lab: &mut Lab) -> Result<()> {
        let (disks, file) = (&self.disks, &self.file);
        let begin = Instant::now();
        let kept = made(&lab.tools, disks, file)?;
        let before = identities(disks, file)?;
        boot(lab, &self.node, disks, file, None)?;
        let after = identities(disks, file)?;
        for name in kept {
            ensure!(
                before.get(name) == after.get(name),
                "{name} was created again"
            );
        }
        let out = tempfile::tempdir_in(self.node.folder())?;
        self.expected
            .compare(&outcome(&lab.tools, disks, file, out.path())?)?;
        let took = begin.elapsed();
        ensure!(took < timeouts::INIT, "it took {} s", took.as_secs());
        Ok(())
    }

    /// No boot so far wrote to the image's own partitions.
    pub(crate) fn has_image(&self) -> Result<()> {
        ensure!(
            self.disks.has_image(&self.file)?,
            "a boot wrote to the image's own partitions"
        );
        Ok(())
    }
}

impl Outcome {
    /// Fails with all differences of another outcome.
    fn compare(&self, found: &Self) -> Result<()> {
        ensure!(
            found.partitions == self.partitions,
            "expected {:#?}; found {:#?}",
            self.partitions,
            found.partitions
        );
        let paths: BTreeSet<&String> = found.entries.keys().chain(self.entries.keys()).collect();
        let differences: Vec<String> = paths
            .into_iter()
            .filter(|path| found.entries.get(*path) != self.entries.get(*path))
            .map(|path| {
                let (expected, found) = (self.entries.get(path), found.entries.get(path));
                format!("{path}: expected {expected:?}; found {found:?}")
            })
            .collect();
        ensure!(differences.is_empty(), "{}", differences.join("\n"));
        Ok(())
    }
}
