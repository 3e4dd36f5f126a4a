//! The ESP: without a free byte, and when the power is cut while the kernel's arguments are written to it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use image::addon;
use image::layout::LABEL_ESP;
use image::report::{HANDOFF_LINE, Report};
use qemu_tests::full_fat::FullFat;
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::random::{self, Random};
use qemu_tests::runner::note;
use qemu_tests::running::{Running, of_image};
use qemu_tests::timeouts;
use qemu_tests::write_log::Writes;
use serde_json::json;
use slipway::format::fat;
use slipway::vm::disks::{ETCD_SERIAL, ETCD_SIZE, Node, copy_sparse, partition};
use slipway::vm::machine::{Machine, OnReset};

use crate::first_boot::Disks;

/// A kernel argument that nothing reads.
const WORD: &str = "slipway.probe=afloat";
/// Number of power cuts.
const CUTS: usize = 8;

/// Kernel arguments that an ESP without room cannot take are refused by their file, with nothing of it left behind; the loader
/// counts the boot all the same. With room they take one reboot. A node whose ESP is filled later boots with them, and blesses its
/// entry.
pub(crate) fn a_full_esp_is_named_and_the_node_keeps_booting(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let (start, _) = partition(&node.system(), LABEL_ESP)?;
    let (shipped, _) = esp(&node.system())?;
    let full = FullFat::fill(&node.system(), start)?;
    let refused = with_argument();
    let running = lab.boot(&node, &refused)?;
    let report: Report = serde_json::from_str(&running.wait_report(timeouts::HANDOFF)?)?;
    let text = format!("{report:?}");
    ensure!(report.step == "kernel_arguments", "{text}");
    for word in [addon::PATH, "No space left on device", "bytes free on it"] {
        ensure!(text.contains(word), "{word:?} is not in {text}");
    }
    let console = running.vm.console().text();
    ensure!(!console.contains(HANDOFF_LINE), "the node was handed off");
    running.vm.pull_plug();
    let (files, counter) = esp(&node.system())?;
    ensure!(
        files == shipped,
        "files on the full ESP: {:?}",
        files.keys()
    );
    ensure!(counter.as_deref() == Some("2-1"), "counted: {counter:?}");

    full.free()?;
    let plan = BootOptions {
        on_reset: OnReset::Restart,
        ..refused
    };
    let running = lab.boot(&node, &plan)?;
    running.wait_handoff(timeouts::HANDOFF + timeouts::HANDOFF)?;
    running.wait_agent()?;
    running.power_off()?;
    let (written, _) = esp(&node.system())?;
    let words = written.get(addon::PATH).and_then(|file| addon::words(file));
    ensure!(words == Some(WORD), "the addon has {words:?}");

    FullFat::fill(&node.system(), start)?;
    let running = lab.boot(&node, &plan)?;
    running.wait_handoff(timeouts::HANDOFF)?;
    running.wait_agent()?;
    let cmdline = running.run("cat /proc/cmdline")?;
    ensure!(
        of_image(&cmdline).ends_with(WORD),
        "the command line is {cmdline:?}"
    );
    // It waits for the static pods.
    running.run_within("/usr/lib/slipway/slipway-node bless", timeouts::AGENT)?;
    running.power_off()?;
    let (files, counter) = esp(&node.system())?;
    ensure!(
        files == written,
        "files on the full ESP: {:?}",
        files.keys()
    );
    ensure!(counter.is_none(), "blessed, the entry has {counter:?}");
    Ok(())
}

/// The power is cut while the loader counts a first boot and while the init writes the config's kernel arguments, by turns with
/// a disk that has done all that it was given, and with one that does, loses or tears each write since the last flush by
/// chance. The next boot gets the arguments, and the ESP has the shipped files and the whole addon.
pub(crate) fn kernel_arguments_whose_writing_is_cut_off_converge(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let (shipped, _) = esp(&node.system())?;
    let disks = Disks::new(&node, &[(ETCD_SERIAL, ETCD_SIZE)])?;
    let (start, size) = partition(&disks.file, LABEL_ESP)?;
    let (file, record) = (
        node.folder().join("disks.raw"),
        node.folder().join("record"),
    );
    File::create(&record)?;
    copy_sparse(&disks.file, &file)?;
    let mut running = start_with_argument(lab, &node, &disks, &file, |machine| {
        machine.record = Some(record.clone());
    })?;
    running.vm.wait_end(timeouts::HANDOFF)?;
    let writes = Writes::open(&record)?;
    let moments = writes.moments_in(&(start..start + size));
    ensure!(moments.len() >= CUTS, "only {} moments", moments.len());
    let seed = random::seed()?;
    for number in 0..CUTS {
        let until = moments[number * (moments.len() - 1) / (CUTS - 1)];
        copy_sparse(&disks.file, &file)?;
        let copy = OpenOptions::new().read(true).write(true).open(&file)?;
        let certain = if number.is_multiple_of(2) {
            until
        } else {
            writes.flushed(until)
        };
        writes.replay(0..certain, &copy)?;
        let mut random = Random::new(seed.wrapping_add(number as u64));
        let fates = writes.replay_losing(certain..until, &mut random, &copy)?;
        let cut = format!(
            "cut {number} of seed {seed:#x}, after {until} writes and flushes, {certain} of them certain: {fates:?}"
        );
        note(&cut);
        completes(lab, &node, &disks, &file, &shipped).with_context(|| cut)?;
    }
    Ok(())
}

/// Boots these disks until the argument counts, which may take the reboot; then the ESP has the shipped files and the addon.
fn completes(
    lab: &mut Lab,
    node: &Node,
    disks: &Disks,
    file: &Path,
    shipped: &Files,
) -> Result<()> {
    let running = start_with_argument(lab, node, disks, file, |machine| {
        machine.on_reset = OnReset::Restart;
    })?;
    running.wait_handoff(timeouts::HANDOFF + timeouts::HANDOFF)?;
    running.wait_agent()?;
    let cmdline = running.run("cat /proc/cmdline; sync")?;
    running.vm.pull_plug();
    ensure!(
        of_image(&cmdline).ends_with(WORD),
        "the command line is {cmdline:?}"
    );
    let (mut files, _) = esp(file)?;
    let addon = files.remove(addon::PATH);
    let words = addon.as_deref().and_then(addon::words);
    ensure!(words == Some(WORD), "the addon has {words:?}");
    ensure!(files == *shipped, "files on the ESP: {:?}", files.keys());
    Ok(())
}

fn start_with_argument(
    lab: &mut Lab,
    node: &Node,
    disks: &Disks,
    file: &Path,
    change: impl FnOnce(&mut Machine),
) -> Result<Running> {
    let plan = BootOptions {
        etcd: false,
        ..with_argument()
    };
    let mut machine = lab.machine(node, &plan)?;
    disks.give(&mut machine, file);
    change(&mut machine);
    lab.start(node, machine, plan.config)
}

/// Paths and contents.
type Files = BTreeMap<String, Vec<u8>>;

/// A first boot by UEFI whose config has the argument; it ends with the reset.
fn with_argument() -> BootOptions {
    BootOptions {
        config: Some(json!({
            "ignition": { "version": "3.4.0" },
            "kernelArguments": { "shouldExist": [WORD] },
        })),
        direct: false,
        on_reset: OnReset::Stop,
        ..BootOptions::default()
    }
}

/// The files of a disk's ESP, the boot entry by its name without a counter; and that.
fn esp(disk: &Path) -> Result<(Files, Option<String>)> {
    let (start, _) = partition(disk, LABEL_ESP)?;
    let mut counter = None;
    let files = fat::files(&mut File::open(disk)?, start).context("reading the ESP")?;
    let files = files.into_iter().map(|(path, content)| {
        let Some((stem, count)) = path.strip_suffix(".efi").and_then(|p| p.rsplit_once('+')) else {
            return (path, content);
        };
        counter = Some(count.to_owned());
        (format!("{stem}.efi"), content)
    });
    let files = files.collect();
    Ok((files, counter))
}
