//! Boots in virtual time, from the start of `/init` to the root's systemd: one disk and one kernel with three initrds.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use qemu_tests::lab::{BootOptions, Lab};
use slipway::vm::channel::Waited;
use slipway::vm::disks::{Node, copy_sparse};
use slipway::vm::machine::{Accel, Clock, Start};

use crate::kernel_log::{self, Boot, Kind};
use crate::session::Session;
use crate::table::{Goal, Row, Table, Unit, mebibytes};

/// Timeout of a peer's boot in virtual time, on one emulated processor of a loaded host.
const TIMEOUT: Duration = Duration::from_secs(900);
/// All kernel messages are on the console, with their times; systemd prints no status lines.
const LOG_ALL: &str = " quiet loglevel=7";
/// The root for a generic initrd, opened by `roothash=`.
const PEERS_ROOT: &str = " root=/dev/mapper/root rootfstype=erofs ro";

/// An initrd to boot with.
struct Initrd {
    name: &'static str,
    path: Option<PathBuf>,
    kind: Kind,
    /// Bytes.
    size: u64,
    boots: Vec<Boot>,
}

/// Measures `repeats` second boots with each initrd.
///
/// # Errors
/// If a boot does not reach the root's systemd.
pub(crate) fn measure(session: &mut Session, repeats: usize, table: &mut Table) -> Result<()> {
    let dracut = session.dracut_initrd()?;
    let mkosi = session.mkosi()?.initrd()?;
    let (clean, _) = session.provisioned()?;
    let initrd = |name, path, kind| Initrd {
        name,
        path,
        kind,
        size: 0,
        boots: Vec::new(),
    };
    let mut initrds = [
        initrd("ours", None, Kind::Slipway),
        initrd("dracut", Some(dracut), Kind::Systemd),
        initrd("mkosi", Some(mkosi), Kind::Systemd),
    ];
    for run in 1..=repeats {
        for initrd in &mut initrds {
            let console = session.folder().join(format!("boot-{}.log", initrd.name));
            let (boot, size) = once(session.lab()?, &clean, initrd, &console)?;
            session.say(&format!(
                "boot {run} of {repeats} with {}: kernel {:.3} s, /init to the handoff {:.3} s, to systemd {:.3} s more",
                initrd.name,
                boot.init,
                boot.handoff - boot.init,
                boot.system - boot.handoff
            ));
            initrd.boots.push(boot);
            initrd.size = size;
        }
    }
    rows(&initrds, table);
    Ok(())
}

/// One boot of a copy of the clean disks up to the first message of the root's systemd: its times, and the initrd's size.
fn once(lab: &mut Lab, clean: &Node, initrd: &Initrd, console: &Path) -> Result<(Boot, u64)> {
    let folder = clean.folder().with_file_name("measured");
    slipway::host::cache::remove(&folder)?;
    let node = copied(clean, &folder, lab)?;
    let mut machine = lab.machine(&node, &BootOptions::default())?;
    machine.accel = Accel::Tcg;
    machine.clock = Clock::Virtual;
    machine.cpus = 1;
    let Start::Direct {
        initrd: file,
        cmdline,
        ..
    } = &mut machine.start
    else {
        bail!("the measured boot is not direct");
    };
    cmdline.push_str(LOG_ALL);
    if let Some(path) = &initrd.path {
        cmdline.push_str(PEERS_ROOT);
        file.clone_from(path);
    }
    let size = fs::metadata(&file)?.len();
    let running = lab.start(&node, machine, None)?;
    let found = running
        .vm
        .console()
        .wait(TIMEOUT, |text| kernel_log::find(text, initrd.kind));
    let text = running.vm.console().text();
    fs::write(console, &text)?;
    let Waited::Found(boot) = found else {
        bail!(
            "the boot with {}'s initrd did not reach the root's systemd: {found:?}; its console is in {}",
            initrd.name,
            console.display()
        );
    };
    running.vm.pull_plug();
    slipway::host::cache::remove(&folder)?;
    Ok((boot, size))
}

/// A node with copies of another node's files.
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

fn rows(initrds: &[Initrd], table: &mut Table) {
    let [ours, peers @ ..] = initrds else {
        return;
    };
    let times = |initrd: &Initrd, time: fn(&Boot) -> f64| -> Vec<f64> {
        initrd.boots.iter().map(time).collect()
    };
    for (peer, least) in peers.iter().zip([4.0, 6.0]) {
        let mut row_of = |what: &str, time: fn(&Boot) -> f64, goals| {
            table.rows.push(Row {
                group: "boots",
                what: what.to_owned(),
                unit: Unit::VirtualSeconds,
                ours: times(ours, time),
                peer: Some((peer.name, times(peer, time))),
                goals,
            });
        };
        row_of(
            "/init → handoff, second boot",
            |boot| boot.handoff - boot.init,
            vec![Goal::Times(least), Goal::AtMost(1.2)],
        );
        row_of("kernel's start → /init", |boot| boot.init, Vec::new());
        row_of(
            "kernel's start → the root's systemd",
            |boot| boot.system,
            Vec::new(),
        );
    }
    let sizes: Vec<String> = initrds
        .iter()
        .map(|initrd| format!("{} {:.2} MiB", initrd.name, mebibytes(initrd.size)))
        .collect();
    table.notes.push(format!(
        "boots: ours is the demo's initrd with the drivers of QEMU alone, the peers' have all drivers that they put into an initrd \
         for any machine ({}); `bench sizes` compares initrds of equal breadth",
        sizes.join(", ")
    ));
    table.notes.push(
        "boots: the handoff is our init's last line in the kernel's log, and with the peers the end of \
         their journal just before it; ours has checked and mounted state, var and the etcd disk by then, the peers' have mounted the root; dracut: \
         --no-hostonly with systemd-veritysetup; mkosi: its default initrd"
            .into(),
    );
}
