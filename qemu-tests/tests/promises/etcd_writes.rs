//! etcd's acknowledged writes, and power cuts.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use image::paths::ETCD_IDENTITY;
use qemu_tests::disk_content::dump;
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::random::{self, Random};
use qemu_tests::runner::note;
use qemu_tests::write_log::{Writes, entries};
use qemu_tests::{etcd, timeouts};
use serde_json::{Value, json};
use slipway::vm::agent::data_url;
use slipway::vm::disks::{ETCD_SERIAL, ETCD_SIZE, Node, copy_data, copy_sparse};

use crate::first_boot::Disks;

/// Number of power cuts.
const CUTS: usize = 20;
/// How many of their disks a machine boots, in place of etcd alone.
const BOOTS: usize = 3;
/// How many keys are written before the machine ends.
const KEYS: usize = 1500;
/// How long they may take.
const WRITING: Duration = Duration::from_secs(240);
/// The port on which the guest prints each key that etcd has acknowledged.
const PORT: &str = "slipway.keys";

/// Writes increasing numbers, one after the other, and prints each that was acknowledged: a number of eight digits is its own
/// text in base64, which etcd's JSON gateway speaks. Without the port it does nothing.
const WRITER: &str = r#"#!/bin/bash
for found in /sys/class/virtio-ports/*; do
  [ "$(cat "$found/name" 2>/dev/null)" = slipway.keys ] && port=/dev/${found##*/}
done
[ -n "$port" ] || exit 0
exec 4>"$port"
number=0
while :; do
  printf -v key %08d "$number"
  body='{"key":"'$key'","value":"'$key'"}'
  { exec 3<>/dev/tcp/127.0.0.1/2379; } 2>/dev/null || { sleep 1; continue; }
  printf 'POST /v3/kv/put HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' ${#body} "$body" >&3
  done=
  while read -r line <&3 || [ -n "$line" ]; do
    case $line in *'"revision":'*) done=yes ;; esac
  done
  exec 3>&-
  [ -n "$done" ] || { sleep 1; continue; }
  echo "$key" >&4
  number=$((number + 1))
done
"#;

/// Prints all keys, in base64.
const READ: &str = r#"body='{"key":"AA==","range_end":"AA==","keys_only":true}'
exec 3<>/dev/tcp/127.0.0.1/2379
printf 'POST /v3/kv/range HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' ${#body} "$body" >&3
timeout 60 cat <&3 | tail -n1"#;

fn config() -> Value {
    json!({
        "ignition": { "version": "3.4.0" },
        "storage": { "files": [
            { "path": "/etc/probe/writer", "mode": 0o755, "contents": { "source": data_url(WRITER.as_bytes()) } },
        ]},
        "systemd": { "units": [{
            "name": "writer.service",
            "enabled": true,
            "contents": "[Service]\nExecStart=/bin/bash /etc/probe/writer\n[Install]\nWantedBy=multi-user.target\n",
        }]},
    })
}

/// While a client writes to etcd without a pause, the power is cut twenty times, of disks that lose or tear what was not
/// flushed: after each, etcd has every key that it had acknowledged. Three of the nodes are booted; of the others etcd's disk
/// is recovered and read by the image's etcd.
pub(crate) fn no_acknowledged_key_is_lost_when_the_power_is_cut(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let disks = Disks::new(&node, &[(ETCD_SERIAL, ETCD_SIZE)])?;
    let (writes, acknowledged) = written(lab, &node, &disks)?;
    // How many keys were acknowledged when the first `until` operations were done.
    let known = |until: usize| {
        acknowledged
            .iter()
            .filter(|entries| writes.operations_of(**entries) <= until)
            .count()
    };
    let first = acknowledged.first().context("no key was acknowledged")?;
    let first = writes.operations_of(*first);
    let stratum = (writes.count() - first) / CUTS;
    ensure!(stratum > 0, "there were too few writes: {writes:?}");

    let seed = random::seed()?;
    let mut cuts = Cuts::new(&node, &disks, &writes)?;
    for number in 0..CUTS {
        let mut random = Random::new(seed.wrapping_add(number as u64));
        let until = first + number * stratum + 1 + random.below(stratum);
        let expected = known(until);
        let about = format!(
            "cut {number} of seed {seed:#x}, after {until} writes and flushes and {expected} keys"
        );
        note(&about);
        let boots = number % (CUTS / BOOTS) == CUTS / BOOTS - 1;
        let found = cuts
            .found(lab, until, boots, &mut random)
            .with_context(|| about.clone())?;
        all_there(&found, expected).with_context(|| about)?;
        // What is read is what was there at the cut.
        ensure!(
            number > 0 || found.len() < KEYS / 2,
            "the first disk has {} keys already",
            found.len()
        );
    }
    let all = known(writes.count());
    ensure!(
        all > KEYS / 2,
        "only {all} of {KEYS} keys can be told to be acknowledged"
    );
    Ok(())
}

/// The keys are those that the writer wrote, without a gap, and at least so many.
fn all_there(found: &[String], acknowledged: usize) -> Result<()> {
    for (number, key) in found.iter().enumerate() {
        ensure!(*key == format!("{number:08}"), "key {number} is {key:?}");
    }
    ensure!(
        found.len() >= acknowledged,
        "{acknowledged} keys were acknowledged, {} are there",
        found.len()
    );
    Ok(())
}

/// Boots a new node and lets it write its keys; gives the log of its writes, and for each key how many entries the log had,
/// at most, when the key was acknowledged.
fn written(lab: &mut Lab, node: &Node, disks: &Disks) -> Result<(Writes, Vec<usize>)> {
    let (file, record) = (
        node.folder().join("disks.raw"),
        node.folder().join("record"),
    );
    copy_sparse(&disks.file, &file)?;
    File::create(&record)?;
    let mut machine = lab.machine(node, &plan())?;
    disks.give(&mut machine, &file);
    machine.record = Some(record.clone());
    machine.ports.push(PORT.to_owned());
    let running = lab.start(node, machine, Some(config()))?;
    running.wait_handoff(timeouts::HANDOFF)?;
    let port = running.vm.port(PORT)?;
    let mut acknowledged = Vec::new();
    let mut until = Instant::now() + timeouts::HEALTHY;
    while acknowledged.len() < KEYS {
        let count = port.text().lines().count();
        if acknowledged.is_empty() && count > 0 {
            until = Instant::now() + WRITING;
        }
        // Looked at after the keys: the entries of their writes are among them.
        acknowledged.resize(count, entries(&record)?);
        ensure!(Instant::now() < until, "only {count} keys in time");
        std::thread::sleep(Duration::from_millis(5));
    }
    running.vm.pull_plug();
    std::fs::remove_file(file)?;
    Ok((Writes::open(&record)?, acknowledged))
}

/// The disks are not those of the options: the system disk's file is elsewhere.
fn plan() -> BootOptions {
    BootOptions {
        etcd: false,
        ..BootOptions::default()
    }
}

/// The disks at each cut, in ascending order.
struct Cuts<'a> {
    node: Node,
    disks: &'a Disks,
    writes: &'a Writes,
    /// All disks after the first `done` operations.
    base: PathBuf,
    done: usize,
}

impl<'a> Cuts<'a> {
    fn new(node: &Node, disks: &'a Disks, writes: &'a Writes) -> Result<Self> {
        let base = node.folder().join("base.raw");
        copy_sparse(&disks.file, &base)?;
        Ok(Self {
            node: node.clone(),
            disks,
            writes,
            base,
            done: 0,
        })
    }

    /// The keys that are found after a cut.
    fn found(
        &mut self,
        lab: &mut Lab,
        until: usize,
        boots: bool,
        random: &mut Random,
    ) -> Result<Vec<String>> {
        let flushed = self.writes.flushed(until);
        let base = OpenOptions::new().read(true).write(true).open(&self.base)?;
        self.writes.replay(self.done..flushed, &base)?;
        self.done = flushed;
        let cut = self.copy(&base, boots)?;
        let copy = OpenOptions::new().write(true).open(&cut)?;
        self.writes.replay_losing(flushed..until, random, &copy)?;
        drop(copy);
        match boots {
            true => self.boot(lab, &cut),
            false => self.read(lab, &cut),
        }
    }

    /// A copy of all disks, or of etcd's alone at its place.
    fn copy(&self, base: &File, all: bool) -> Result<PathBuf> {
        let cut = self.node.folder().join("disks.raw");
        if all {
            copy_sparse(&self.base, &cut)?;
            return Ok(cut);
        }
        let copy = File::create(&cut)?;
        copy.set_len(base.metadata()?.len())?;
        let start = self.disks.at(ETCD_SERIAL)?;
        copy_data(base, &copy, start..start + ETCD_SIZE)?;
        Ok(cut)
    }

    /// Boots the node and asks its etcd.
    fn boot(&self, lab: &mut Lab, cut: &Path) -> Result<Vec<String>> {
        let mut machine = lab.machine(&self.node, &plan())?;
        self.disks.give(&mut machine, cut);
        let running = lab.start(&self.node, machine, Some(config()))?;
        running.wait_handoff(timeouts::HANDOFF)?;
        running.wait_services()?;
        running.wait_healthy()?;
        let found = etcd::names(&running.run(READ)?)?;
        running.vm.pull_plug();
        Ok(found)
    }

    /// Recovers etcd's file system and asks an etcd on its files.
    fn read(&self, lab: &Lab, cut: &Path) -> Result<Vec<String>> {
        let out = tempfile::tempdir_in(self.node.folder())?;
        let data = out.path().join("etcd");
        dump(&lab.tools, cut, self.disks.at(ETCD_SERIAL)?, &data)?;
        ensure!(
            data.join(ETCD_IDENTITY).is_file(),
            "the disk is not the node's"
        );
        etcd::keys(&lab.etcd, &data)
    }
}
