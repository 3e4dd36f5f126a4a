//! An ESP without a free byte.

use std::collections::BTreeMap;
use std::fs::File;

use anyhow::{Context, Result, ensure};
use image::addon;
use image::layout::LABEL_ESP;
use image::report::{HANDOFF_LINE, Report};
use qemu_tests::full_fat::FullFat;
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::timeouts;
use serde_json::json;
use slipway::format::fat;
use slipway::vm::disks::{Node, partition};
use slipway::vm::machine::OnReset;

/// A kernel argument that nothing reads.
const WORD: &str = "slipway.probe=afloat";

/// Kernel arguments that an ESP without room cannot take are refused by their file, with nothing of it left behind; the loader
/// counts the boot all the same. With room they take one reboot. A node whose ESP is filled later boots with them, and blesses its
/// entry.
pub(crate) fn a_full_esp_is_named_and_the_node_keeps_booting(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let (start, _) = partition(&node.system(), LABEL_ESP)?;
    let (shipped, _) = esp(&node)?;
    let full = FullFat::fill(&node.system(), start)?;
    let refused = BootOptions {
        config: Some(json!({
            "ignition": { "version": "3.4.0" },
            "kernelArguments": { "shouldExist": [WORD] },
        })),
        direct: false,
        on_reset: OnReset::Stop,
        ..BootOptions::default()
    };
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
    let (files, counter) = esp(&node)?;
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
    let (written, _) = esp(&node)?;
    let words = written.get(addon::PATH).and_then(|file| addon::words(file));
    ensure!(words == Some(WORD), "the addon has {words:?}");

    FullFat::fill(&node.system(), start)?;
    let running = lab.boot(&node, &plan)?;
    running.wait_handoff(timeouts::HANDOFF)?;
    running.wait_agent()?;
    let cmdline = running.run("cat /proc/cmdline")?;
    ensure!(cmdline.ends_with(WORD), "the command line is {cmdline:?}");
    running.run("/usr/lib/slipway/slipway-node bless")?;
    running.power_off()?;
    let (files, counter) = esp(&node)?;
    ensure!(
        files == written,
        "files on the full ESP: {:?}",
        files.keys()
    );
    ensure!(counter.is_none(), "blessed, the entry has {counter:?}");
    Ok(())
}

/// Paths and contents.
type Files = BTreeMap<String, Vec<u8>>;

/// The files of the ESP, the boot entry by its name without a counter; and that.
fn esp(node: &Node) -> Result<(Files, Option<String>)> {
    let (start, _) = partition(&node.system(), LABEL_ESP)?;
    let mut counter = None;
    let files = fat::files(&mut File::open(node.system())?, start).context("reading the ESP")?;
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
