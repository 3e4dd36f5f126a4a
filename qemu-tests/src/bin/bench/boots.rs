//! Boots in virtual time: from the start of `/init` to the root's systemd, of one disk by one kernel with three initrds.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use image::report::Handoff;
use qemu_tests::lab::{Lab, Plan};
use slipway::qemu::channel::Waited;
use slipway::qemu::disks::{Node, copy_sparse};
use slipway::qemu::machine::{Accel, Clock, Start};

use crate::bench::Bench;
use crate::printk::{self, Boot};
use crate::table::{Goal, Row, Table, Unit, median};

/// A peer's boot in virtual time, on one emulated processor of a loaded host.
const PATIENCE: Duration = Duration::from_secs(900);
/// Everything is said to the kernel's log and shown with its time; systemd keeps its status lines to itself.
const TOLD: &str = " quiet loglevel=7";
/// How a generic initrd finds the verified root that `roothash=` names.
const PEERS_ROOT: &str = " root=/dev/mapper/root rootfstype=erofs ro";

/// An initrd to boot with.
struct Initrd {
    name: &'static str,
    path: Option<PathBuf>,
    /// How many systemds speak until the root's does.
    systemds: usize,
    boots: Vec<Boot>,
    handoffs: Vec<f64>,
}

/// Measures `repeats` second boots with each initrd.
///
/// # Errors
/// If one does not come to the root's systemd.
pub(crate) fn measure(bench: &mut Bench, repeats: usize, table: &mut Table) -> Result<()> {
    let dracut = bench.dracut_initrd()?;
    let mkosi = bench.mkosi()?.initrd()?;
    let (clean, _) = bench.provisioned()?;
    let initrd = |name, path, systemds| Initrd {
        name,
        path,
        systemds,
        boots: Vec::new(),
        handoffs: Vec::new(),
    };
    let mut initrds = [
        initrd("ours", None, 1),
        initrd("dracut", Some(dracut), 2),
        initrd("mkosi", Some(mkosi), 2),
    ];
    let mut own_size = 0;
    for run in 1..=repeats {
        for initrd in &mut initrds {
            let console = bench.folder().join(format!("boot-{}.log", initrd.name));
            let (boot, handoff, size) = once(bench.lab()?, &clean, initrd, &console)?;
            bench.say(&format!(
                "boot {run} of {repeats} with {}: kernel {:.3} s, /init to the root's systemd {:.3} s",
                initrd.name,
                boot.init,
                boot.system - boot.init
            ));
            initrd.boots.push(boot);
            if let Some(handoff) = handoff {
                initrd.handoffs.push(handoff);
                own_size = size;
            }
        }
    }
    rows(&initrds, own_size, table)
}

/// One boot of a copy of the clean disks, ended as soon as the root's systemd has spoken: the two moments, the init's
/// own time from `/init` to its handoff, and the initrd's size.
fn once(
    lab: &mut Lab,
    clean: &Node,
    initrd: &Initrd,
    console: &Path,
) -> Result<(Boot, Option<f64>, u64)> {
    let folder = clean.folder().with_file_name("measured");
    slipway::cache::remove(&folder)?;
    let node = copied(clean, &folder, lab)?;
    let mut machine = lab.machine(&node, &Plan::default())?;
    machine.accel = Accel::Tcg;
    machine.clock = Clock::Virtual;
    machine.cpus = 1;
    let Start::Direct {
        initrd: file,
        cmdline,
        ..
    } = &mut machine.start
    else {
        bail!("a boot for measuring is direct");
    };
    cmdline.push_str(TOLD);
    if let Some(path) = &initrd.path {
        cmdline.push_str(PEERS_ROOT);
        file.clone_from(path);
    }
    let size = fs::metadata(&file)?.len();
    let running = lab.start(&node, machine, None)?;
    let found = running
        .vm
        .console()
        .wait(PATIENCE, |text| printk::find(text, initrd.systemds));
    let text = running.vm.console().text();
    fs::write(console, &text)?;
    let Waited::Found(boot) = found else {
        bail!(
            "the boot with {}'s initrd did not come to the root's systemd: {found:?}; its console is in {}",
            initrd.name,
            console.display()
        );
    };
    running.vm.pull_plug();
    slipway::cache::remove(&folder)?;
    let handoff = match initrd.path {
        Some(_) => None,
        None => Some(since(&text, boot)?),
    };
    Ok((boot, handoff, size))
}

/// Seconds from `/init` to the init's own handoff line.
fn since(console: &str, boot: Boot) -> Result<f64> {
    let handoff = Handoff::find(console).context("the init did not say its handoff")?;
    let micros = i32::try_from(handoff.micros).context("a boot of more than half an hour")?;
    let seconds = f64::from(micros) / 1e6 - boot.init;
    ensure!(
        seconds > 0.0 && boot.init + seconds <= boot.system,
        "the handoff is not between /init and the root's systemd"
    );
    Ok(seconds)
}

/// A node with copies of another's files.
fn copied(clean: &Node, folder: &Path, lab: &Lab) -> Result<Node> {
    fs::create_dir_all(folder)?;
    for entry in fs::read_dir(clean.folder())? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            copy_sparse(&entry.path(), &folder.join(entry.file_name()))?;
        }
    }
    Node::prepare(folder, &lab.image.disk, &lab.tools)
}

fn rows(initrds: &[Initrd], own_size: u64, table: &mut Table) -> Result<()> {
    let [ours, peers @ ..] = initrds else {
        return Ok(());
    };
    let spans = |initrd: &Initrd| -> Vec<f64> {
        initrd
            .boots
            .iter()
            .map(|boot| boot.system - boot.init)
            .collect()
    };
    table.rows.push(Row {
        group: "boots",
        what: "/init → handoff, second boot, etcd disk".into(),
        unit: Unit::VirtualSeconds,
        ours: ours.handoffs.clone(),
        peer: None,
        goals: vec![Goal::AtMost(1.2)],
    });
    for (peer, times) in peers.iter().zip([4.0, 6.0]) {
        let name = peer.name;
        table.rows.push(Row {
            group: "boots",
            what: format!("/init → the root's systemd, beside {name}"),
            unit: Unit::VirtualSeconds,
            ours: spans(ours),
            peer: Some((name, spans(peer))),
            goals: vec![Goal::Times(times)],
        });
        let kernel = |initrd: &Initrd| initrd.boots.iter().map(|boot| boot.init).collect();
        table.rows.push(Row {
            group: "boots",
            what: format!("kernel's start → /init, beside {name}"),
            unit: Unit::VirtualSeconds,
            ours: kernel(ours),
            peer: Some((name, kernel(peer))),
            goals: Vec::new(),
        });
        let size = match &peer.path {
            Some(path) => fs::metadata(path)?.len(),
            None => 0,
        };
        table.rows.push(Row {
            group: "boots",
            what: format!("initrd, beside {name}"),
            unit: Unit::Mebibytes,
            ours: vec![mebibytes(own_size)],
            peer: Some((name, vec![mebibytes(size)])),
            goals: Vec::new(),
        });
    }
    table.notes.push(format!(
        "our boots have {:.3} s between the handoff and the first line of the root's systemd, which belong to neither",
        median(&spans(ours)) - median(&ours.handoffs)
    ));
    Ok(())
}

/// Bytes in units of 2^20.
#[allow(clippy::cast_precision_loss, reason = "no file here has 2^53 bytes")]
pub(crate) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
