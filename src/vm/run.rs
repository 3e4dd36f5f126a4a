//! Runs a built image in QEMU from the tools tree.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::accel::{self, Choice};
use super::channel::Sink;
use super::disks::{self, Node};
use super::machine::disk::Bus;
use super::machine::nets::Net;
use super::machine::{Accel, Clock, Forward, Machine, OnReset, Start};
use super::process::Vm;
use super::terminal::{self, Keys, Left};
use super::{preflight, timeline};
use crate::artifact;
use crate::format::uki;
use crate::host::atomic_file;
use crate::host::session::Session;
use crate::install::tools::Tools;

/// The user's options for a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The Ignition config for the guest.
    pub ignition: Option<PathBuf>,
    /// Forwarded ports.
    pub forwards: Vec<Forward>,
    /// Kernel and initrd loaded into memory by QEMU, without firmware.
    pub direct: bool,
    /// Acceleration.
    pub accel: Choice,
    /// Virtual time.
    pub icount: bool,
    /// The controller of the disks.
    pub bus: Bus,
    /// Memory in MiB.
    pub memory: u32,
    /// Processors.
    pub cpus: u32,
    /// Whether the machine has an etcd disk.
    pub etcd: bool,
    /// Whether the machine has a TPM 2, whose state is kept with the node's disks.
    pub tpm: bool,
    /// Folder that keeps the node's disks between runs; without it they are temporary.
    pub node: Option<PathBuf>,
    /// Whether what the folder keeps is removed first.
    pub fresh: bool,
    /// Words that are added to the kernel's command line, with `direct`.
    pub append: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ignition: None,
            forwards: Vec::new(),
            direct: false,
            accel: Choice::Auto,
            icount: false,
            bus: Bus::Virtio,
            memory: 2048,
            cpus: 2,
            etcd: true,
            tpm: false,
            node: None,
            fresh: false,
            append: Vec::new(),
        }
    }
}

/// The files of a built image that a run needs.
#[derive(Clone, Debug)]
pub struct Image {
    /// The output folder.
    pub out: PathBuf,
    /// The disk.
    pub disk: PathBuf,
    /// The unified kernel image.
    pub uki: PathBuf,
}

impl Image {
    /// Finds the files of an output folder.
    ///
    /// # Errors
    /// If the folder has no disk, or not exactly one unified kernel image.
    pub fn open(out: &Path) -> Result<Self> {
        let disk = out.join(artifact::DISK);
        if !disk.is_file() {
            bail!(
                "{} has no {}; expected the output folder of `slipway build`",
                out.display(),
                artifact::DISK
            );
        }
        let mut found = Vec::new();
        for entry in fs::read_dir(out).with_context(|| format!("reading {}", out.display()))? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "efi") {
                found.push(path);
            }
        }
        match found.as_slice() {
            [uki] => Ok(Self {
                out: out.to_owned(),
                disk,
                uki: uki.clone(),
            }),
            _ => bail!(
                "{} has {} unified kernel images; expected one",
                out.display(),
                found.len()
            ),
        }
    }

    /// Extracts kernel, initrd and command line from the unified kernel image, into a folder.
    ///
    /// # Errors
    /// If the image has no such sections.
    pub fn direct(&self, folder: &Path, append: &[String]) -> Result<Start> {
        let bytes =
            fs::read(&self.uki).with_context(|| format!("reading {}", self.uki.display()))?;
        let section = |name: &str| {
            uki::section(&bytes, name)
                .and_then(|found| found.context("no such section"))
                .with_context(|| format!("reading section {name} of {}", self.uki.display()))
        };
        let (kernel, initrd) = (folder.join("linux"), folder.join("initrd"));
        fs::write(&kernel, section(".linux")?).context("writing the kernel")?;
        fs::write(&initrd, section(".initrd")?).context("writing the initrd")?;
        let text = String::from_utf8_lossy(section(".cmdline")?);
        let mut cmdline = text.trim_end_matches('\0').trim().to_owned();
        for word in append {
            cmdline.push(' ');
            cmdline.push_str(word);
        }
        Ok(Start::Direct {
            kernel,
            initrd,
            cmdline,
        })
    }
}

/// The machine for these options and the node's files.
///
/// # Errors
/// If a file cannot be created.
pub fn machine(image: &Image, node: &Node, options: &Options, accel: Accel) -> Result<Machine> {
    let start = if options.direct {
        image.direct(node.folder(), &options.append)?
    } else {
        Start::Firmware { vars: node.vars() }
    };
    let mut disks = vec![node.system_disk(options.bus)?];
    if options.etcd {
        disks.push(node.etcd_disk(options.bus)?);
    }
    Ok(Machine {
        memory: options.memory,
        cpus: if options.icount { 1 } else { options.cpus },
        accel,
        clock: if options.icount {
            Clock::Virtual
        } else {
            Clock::Real
        },
        uuid: node.uuid()?,
        start,
        disks,
        names: BTreeMap::new(),
        faults: BTreeMap::new(),
        tpm: options.tpm.then(|| node.tpm()),
        folders: Vec::new(),
        config: options.ignition.clone(),
        forwards: options.forwards.clone(),
        ports: Vec::new(),
        nets: vec![Net::default()],
        peer: None,
        capture: false,
        on_reset: OnReset::Restart,
        record: None,
    })
}

/// Looks at what a run asks of this host, for callers that first do what takes long: memory, ports, the Ignition config and the node's
/// folder. `disk` is the image's, if it is built already.
///
/// # Errors
/// As [`preflight::check`] and [`Node::check`], and if the config is not there.
pub fn check(options: &Options, disk: Option<&Path>) -> Result<()> {
    preflight::check(options.memory, &options.forwards)?;
    if let Some(config) = &options.ignition {
        // Not opened: it may be a pipe.
        let meta = fs::metadata(config);
        let meta = meta.with_context(|| format!("--ignition {}", config.display()))?;
        ensure!(
            !meta.is_dir(),
            "--ignition {}: expected a file, found a folder",
            config.display()
        );
    }
    match &options.node {
        Some(folder) => Node::check(folder, disk, options.fresh),
        None => Ok(()),
    }
}

/// The options with a config that QEMU finds in its tree: one that comes by a pipe, as a shell's `<(…)`, is read into this folder.
fn with_config(options: &Options, folder: &Path) -> Result<Options> {
    let mut options = options.clone();
    if let Some(config) = options.ignition.as_mut().filter(|path| !path.is_file()) {
        let bytes =
            fs::read(&*config).with_context(|| format!("--ignition {}", config.display()))?;
        let copy = folder.join("config.ign");
        // It may have keys.
        atomic_file::write(&copy, 0o600, |file| Ok(file.write_all(&bytes)?))?;
        *config = copy;
    }
    Ok(options)
}

/// Boots an image with the console on standard input and at `console`, until the user leaves or the node powers off.
/// Only the folder in [`Options::node`], if given, remains.
///
/// # Errors
/// If the machine does not start, or the user interrupted it.
pub fn run(
    session: &Session,
    image: &Image,
    tools: &Tools,
    options: &Options,
    console: Sink,
) -> Result<()> {
    let progress = &session.progress;
    let _guard = session.interrupt.guard();
    check(options, Some(&image.disk))?;
    let scratch = session.cache.scratch()?;
    let (accel, why) = accel::choose(
        tools,
        if options.icount {
            Choice::Tcg
        } else {
            options.accel
        },
    )?;
    if let Some(why) = why {
        progress.say(&format!(
            "software emulation, since KVM cannot be used: {why}"
        ));
    }
    let folder = options.node.as_deref().unwrap_or(scratch.path());
    let node = Node::of_run(folder, &image.disk, tools, options.fresh)?;
    let machine = machine(image, &node, &with_config(options, scratch.path())?, accel)?;
    progress.say(
        "the console follows; leave by Ctrl-A X or Ctrl-C (Ctrl-A C sends Ctrl-C to the node)",
    );
    let left = {
        let _keys = Keys::take()?;
        let mut vm = Vm::start(tools, &machine, scratch.path(), Some(console))?;
        terminal::attend(&mut vm, &session.interrupt, |_| None)?
    };
    progress.say("");
    match disks::timelines(tools, &node.system()).and_then(|boots| last_boot(&boots)) {
        Ok(text) => text.iter().for_each(|text| progress.say(text)),
        // Whoever leaves cuts the power, perhaps while it is written.
        Err(error) => progress.say(&format!("no timeline of this boot: {error:#}")),
    }
    match left {
        Left::Interrupted => bail!("interrupted"),
        Left::Asked | Left::PoweredOff => Ok(()),
    }
}

/// The name and the table of the last of these boots.
fn last_boot(boots: &[(String, String)]) -> Result<Option<String>> {
    let table = |(boot, lines): &(String, String)| {
        let spans = timeline::read(lines)?;
        Ok(format!("boot {boot}\n{}", timeline::table(&spans)))
    };
    boots.last().map(table).transpose()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn the_last_boot_has_its_name_and_its_table() {
        let boot = |name: &str, lines: &str| (name.to_owned(), lines.to_owned());
        assert_eq!(last_boot(&[]).unwrap(), None);
        let line = "{\"source\":\"init\",\"name\":\"root\",\"start\":0}";
        let boots = [boot("1", "{\"cut"), boot("2", line)];
        let text = last_boot(&boots).unwrap().unwrap();
        assert!(text.starts_with("boot 2\nsource "), "{text}");
        assert!(last_boot(&boots[..1]).is_err());
    }

    #[test]
    fn a_config_by_a_pipe_is_read_and_a_file_is_taken_where_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let given = |path: PathBuf| {
            let options = Options {
                ignition: Some(path),
                ..Options::default()
            };
            with_config(&options, folder.path()).unwrap().ignition
        };
        let file = folder.path().join("node.bu");
        fs::write(&file, "variant: slipway").unwrap();
        assert_eq!(given(file.clone()), Some(file));
        let (from, mut to) = std::io::pipe().unwrap();
        to.write_all(b"{}").unwrap();
        drop(to);
        let config = given(format!("/proc/self/fd/{}", from.as_raw_fd()).into()).unwrap();
        // What QEMU is given it by: the path of a pipe leads nowhere.
        assert!(config.canonicalize().unwrap().is_file());
        assert_eq!(fs::read(config).unwrap(), b"{}");
        let none = with_config(&Options::default(), folder.path()).unwrap();
        assert_eq!(none.ignition, None);
    }
}
