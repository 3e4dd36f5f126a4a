//! The hardware of a machine as plain data, and QEMU's arguments for it.
//!
//! This module starts no process. Paths are the host's; [`Line`] collects the folders to bind into
//! the tools tree and writes the paths inside it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use image::guid::Guid;

pub mod disk;
pub mod line;
pub mod nets;
#[cfg(test)]
mod tests;

use disk::{Disk, Format, SHARED};
use line::{INSIDE, Line, escape};
use nets::Net;

use super::hub::Peer;

/// The fw_cfg name of an Ignition config for the guest.
pub const FW_CFG_CONFIG: &str = "opt/com.coreos/config";
/// The firmware of Debian's `ovmf` without Secure Boot, inside the tools tree.
pub const OVMF_CODE: &str = "/usr/share/OVMF/OVMF_CODE_4M.fd";
/// The empty variable store for this firmware.
pub const OVMF_VARS: &str = "usr/share/OVMF/OVMF_VARS_4M.fd";
/// Kernel options that make virtual time repeatable: no random layout, no measured loop and clock speeds.
pub const REPEATABLE: &str = "nokaslr lpj=4000000 tsc=reliable";

/// The processor of an emulated machine: all that QEMU emulates, without the flags by which a kernel copies and clears pages with
/// `rep movsb` and `rep stosb`. QEMU executes these one byte at a time.
pub const EMULATED_CPU: &str = "max,-erms,-fsrm,-fzrm,-fsrs,-fsrc";
/// Kernel options of an emulated machine. Sleeps end at the next tick: each otherwise sets the local APIC's timer and is interrupted by
/// it, every one of these is an access to an emulated device below the lock of all of QEMU, and programs in Go sleep for microseconds all
/// the time. And no code against speculation, which an emulated processor does not do.
pub const EMULATED: &str = "highres=off mitigations=off";
/// The word of firmware's tables by which the stub of an image gets more of a command line, without Secure Boot
/// (<https://www.freedesktop.org/software/systemd/man/latest/smbios-type-11.html>).
const STUB_CMDLINE: &str = "io.systemd.stub.kernel-cmdline-extra";

/// The execution of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// The host's processor.
    Kvm,
    /// Software emulation.
    Tcg,
}

/// The guest's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The host's.
    #[default]
    Real,
    /// Virtual time: it advances with executed instructions, so that a boot takes the same time on every host.
    /// Only with [`Accel::Tcg`].
    Virtual,
    /// That of a machine whose battery is empty: the power-on is the beginning of 1970.
    Lost,
}

/// The start of the machine.
#[derive(Clone, Debug)]
pub enum Start {
    /// UEFI firmware, from the first disk; it writes to the variable store `vars`.
    Firmware {
        /// The variable store.
        vars: PathBuf,
    },
    /// Kernel and initrd, loaded into memory by QEMU.
    Direct {
        /// The kernel image.
        kernel: PathBuf,
        /// The initrd.
        initrd: PathBuf,
        /// The kernel's command line.
        cmdline: String,
    },
    /// iPXE in the network card's ROM, which fetches and runs a script.
    Network {
        /// URL of the script from the guest's side.
        script: String,
    },
}

/// A forwarded TCP port, from the host's loopback to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Port on the host's loopback; 0 selects a free one.
    pub host: u16,
    /// Port in the guest.
    pub guest: u16,
}

impl std::str::FromStr for Forward {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is not a port forward; expected HOSTPORT:GUESTPORT, as 2222:22");
        let (host, guest) = text.split_once(':').ok_or_else(wrong)?;
        Ok(Self {
            host: host.parse().map_err(|_| wrong())?,
            guest: guest.parse().map_err(|_| wrong())?,
        })
    }
}

/// The effect of a reset by the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnReset {
    /// The machine starts again, as a physical one does.
    #[default]
    Restart,
    /// QEMU ends.
    Stop,
}

/// A complete machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Memory in MiB.
    pub memory: u32,
    /// Processors.
    pub cpus: u32,
    /// The execution of instructions.
    pub accel: Accel,
    /// The guest's clock.
    pub clock: Clock,
    /// SMBIOS UUID: the node's identity when no platform gives an instance id.
    pub uuid: Guid,
    /// Its start: firmware, kernel or network.
    pub start: Start,
    /// Disks, in the order of the controllers.
    pub disks: Vec<Disk>,
    /// Further properties of disks' devices, by serial number: names that a cloud would give. Those of an NVMe disk are of
    /// its namespace.
    pub names: BTreeMap<String, String>,
    /// Disks that fail: by serial number the rules of QEMU's `blkdebug`
    /// (<https://www.qemu.org/docs/master/devel/testing/blkdebug.html>). The guest gets the errors.
    pub faults: BTreeMap<String, PathBuf>,
    /// The folder with the state of a TPM 2, if the machine has one.
    pub tpm: Option<PathBuf>,
    /// Folders of the disks' backing files, bound inside at the same path as outside.
    pub folders: Vec<PathBuf>,
    /// The Ignition config, passed by fw_cfg.
    pub config: Option<PathBuf>,
    /// Forwarded ports.
    pub forwards: Vec<Forward>,
    /// Names of the virtio serial ports.
    pub ports: Vec<String>,
    /// The networks, each with its cards.
    pub nets: Vec<Net>,
    /// The card for a network with other machines, behind the cards of all others.
    pub peer: Option<Peer>,
    /// Whether all that the cards of the first network send and receive is kept in `net.pcap`.
    pub capture: bool,
    /// The effect of a reset.
    pub on_reset: OnReset,
    /// The file that records every write to the file of the [`Format::Part`]s in its order,
    /// with the guest's flushes (QEMU's `blklogwrites`, in the format of the kernel's `dm-log-writes`).
    pub record: Option<PathBuf>,
}

/// Names of a running machine's files in its own folder.
pub mod files {
    /// The console's socket.
    pub const CONSOLE: &str = "console.sock";
    /// The control socket.
    pub const CONTROL: &str = "qmp.sock";
    /// QEMU's standard error.
    pub const STDERR: &str = "qemu.stderr";
    /// The TPM's control socket.
    pub const TPM: &str = "tpm.sock";
    /// Standard error of the TPM's emulator.
    pub const TPM_STDERR: &str = "tpm.stderr";
    /// The connection to the other machines.
    pub const PEERS: &str = "peers.sock";
    /// Captured packets.
    pub const PACKETS: &str = "net.pcap";

    /// Socket of the port with this number.
    #[must_use]
    pub fn port(number: usize) -> String {
        format!("port-{number}.sock")
    }
}

impl Machine {
    /// QEMU's arguments for this machine, whose files are in `place`.
    ///
    /// # Errors
    /// If a file is missing, a serial number is too long, or virtual time is requested with KVM.
    pub fn line(&self, place: &Path) -> Result<Line> {
        let mut line = Line::default();
        line.binds
            .push((place.canonicalize()?, format!("{INSIDE}/0")));
        for folder in &self.folders {
            let folder = folder
                .canonicalize()
                .with_context(|| format!("looking for {}", folder.display()))?;
            let text = folder
                .to_str()
                .with_context(|| format!("{} is not UTF-8", folder.display()))?;
            line.binds.push((folder.clone(), text.to_owned()));
        }
        self.board(&mut line)?;
        self.consoles(&mut line);
        self.begin(&mut line)?;
        self.shared_file(&mut line)?;
        for (number, disk) in self.disks.iter().enumerate() {
            let (names, fault) = (self.names.get(&disk.serial), self.faults.get(&disk.serial));
            disk.write(number, names, fault, &mut line)?;
        }
        self.network(&mut line);
        if self.tpm.is_some() {
            line.arg(
                "-chardev",
                format!("socket,id=tpm-control,path={INSIDE}/0/{}", files::TPM),
            );
            line.arg("-tpmdev", "emulator,id=tpm,chardev=tpm-control");
            line.arg("-device", "tpm-crb,tpmdev=tpm");
        }
        if let Some(config) = &self.config {
            let path = line.inside(config)?;
            line.arg(
                "-fw_cfg",
                format!("name={FW_CFG_CONFIG},file={}", escape(&path)),
            );
        }
        Ok(line)
    }

    fn board(&self, line: &mut Line) -> Result<()> {
        for flag in ["-nodefaults", "-no-user-config"] {
            line.args.push(flag.to_owned());
        }
        line.arg("-display", "none");
        line.arg("-name", "slipway");
        line.arg("-machine", "q35,smm=off,vmport=off,usb=off,graphics=off");
        match (self.accel, self.clock) {
            (Accel::Kvm, Clock::Virtual) => {
                bail!("virtual time needs software emulation: --accel tcg")
            }
            (Accel::Kvm, Clock::Real | Clock::Lost) => {
                line.arg("-accel", "kvm");
                line.arg("-cpu", "host");
            }
            (Accel::Tcg, Clock::Real | Clock::Lost) => {
                line.arg("-accel", "tcg,thread=multi");
                line.arg("-cpu", EMULATED_CPU);
            }
            (Accel::Tcg, Clock::Virtual) => {
                line.arg("-accel", "tcg,thread=single");
                line.arg("-cpu", "max");
                line.arg("-icount", "shift=1,sleep=off");
                line.arg("-rtc", "base=2026-01-01T00:00:00,clock=vm");
                line.arg("-seed", "1");
            }
        }
        if self.clock == Clock::Lost {
            line.arg("-rtc", "base=1970-01-01T00:00:00");
        }
        line.arg("-smp", self.cpus.to_string());
        line.arg("-m", self.memory.to_string());
        line.arg("-uuid", self.uuid.to_string());
        line.arg("-device", "virtio-rng-pci");
        line.arg("-device", "i6300esb");
        line.arg("-action", "watchdog=reset");
        if self.on_reset == OnReset::Stop {
            line.arg("-action", "reboot=shutdown");
        }
        Ok(())
    }

    fn consoles(&self, line: &mut Line) {
        let socket = |line: &mut Line, id: &str, file: &str| {
            line.arg(
                "-chardev",
                format!("socket,id={id},path={INSIDE}/0/{file},server=off"),
            );
        };
        socket(line, "console", files::CONSOLE);
        line.arg("-serial", "chardev:console");
        socket(line, "control", files::CONTROL);
        line.arg("-mon", "chardev=control,mode=control");
        if !self.ports.is_empty() {
            line.arg("-device", "virtio-serial-pci");
        }
        for (number, name) in self.ports.iter().enumerate() {
            socket(line, &format!("port{number}"), &files::port(number));
            line.arg(
                "-device",
                format!("virtserialport,chardev=port{number},name={}", escape(name)),
            );
        }
    }

    fn begin(&self, line: &mut Line) -> Result<()> {
        match &self.start {
            Start::Firmware { vars } => {
                let vars = line.inside(vars)?;
                line.arg(
                    "-drive",
                    format!("if=pflash,unit=0,format=raw,readonly=on,file={OVMF_CODE}"),
                );
                line.arg(
                    "-drive",
                    format!("if=pflash,unit=1,format=raw,file={}", escape(&vars)),
                );
                if let Some(options) = self.kernel_options() {
                    let value = format!("type=11,value={STUB_CMDLINE}={options}");
                    line.arg("-smbios", value);
                }
            }
            Start::Direct {
                kernel,
                initrd,
                cmdline,
            } => {
                let kernel = line.inside(kernel)?;
                let initrd = line.inside(initrd)?;
                line.arg("-kernel", kernel);
                line.arg("-initrd", initrd);
                let words = [Some(cmdline.trim()), self.kernel_options()];
                let words: Vec<&str> = words.into_iter().flatten().collect();
                line.arg("-append", words.join(" "));
            }
            Start::Network { .. } => {}
        }
        Ok(())
    }

    /// Kernel options by which this machine differs from a physical one.
    const fn kernel_options(&self) -> Option<&'static str> {
        match (self.accel, self.clock) {
            (Accel::Kvm, _) => None,
            (Accel::Tcg, Clock::Virtual) => Some(REPEATABLE),
            (Accel::Tcg, Clock::Real | Clock::Lost) => Some(EMULATED),
        }
    }

    /// Adds the file that contains the parts, and above it the recorder of writes.
    fn shared_file(&self, line: &mut Line) -> Result<()> {
        let part = |disk: &&Disk| matches!(disk.format, Format::Part { .. });
        let mut parts = self.disks.iter().filter(part);
        let Some(first) = parts.next() else {
            return Ok(());
        };
        if let Some(other) = parts.find(|other| other.path != first.path) {
            bail!(
                "the disks that are parts of files are to be of one; found {} and {}",
                first.path.display(),
                other.path.display()
            );
        }
        let path = escape(&line.inside(&first.path)?);
        let name = if self.record.is_some() {
            "below"
        } else {
            SHARED
        };
        line.arg(
            "-blockdev",
            format!("driver=file,node-name={name},filename={path},discard=unmap,cache.no-flush=on"),
        );
        if let Some(record) = &self.record {
            let path = escape(&line.inside(record)?);
            line.arg(
                "-blockdev",
                format!("driver=file,node-name=record,filename={path},cache.no-flush=on"),
            );
            // Only the guest's flushes are recorded.
            line.arg(
                "-blockdev",
                format!("driver=blklogwrites,node-name={SHARED},file=below,log=record,log-sector-size=512,discard=unmap"),
            );
        }
        Ok(())
    }

    fn network(&self, line: &mut Line) {
        let mut cards = 0;
        for (number, net) in self.nets.iter().enumerate() {
            let first = number == 0;
            let mut user = String::new();
            if let (true, Start::Network { script }) = (first, &self.start) {
                user += &format!(",bootfile={}", escape(script));
            }
            for forward in self.forwards.iter().filter(|_| first) {
                user += &format!(",hostfwd=tcp:127.0.0.1:{}-:{}", forward.host, forward.guest);
            }
            let (backends, ids) = net.backends(number, &user, &format!("{INSIDE}/0"));
            for backend in backends {
                line.arg("-netdev", backend);
            }
            for id in ids {
                // With a speed, which LACP needs: a bond leaves out a card whose speed is unknown.
                let mac = nets::mac(cards);
                let mut card =
                    format!("virtio-net-pci,netdev={id},mac={mac},speed=10000,duplex=full");
                match (&self.start, cards) {
                    (Start::Network { .. }, 0) => card += ",bootindex=0",
                    // No option ROM: nothing boots from the network, and the firmware is spared from reading it.
                    _ => card += ",romfile=",
                }
                line.arg("-device", card);
                cards += 1;
            }
        }
        if let Some(peer) = &self.peer {
            let socket = format!("{INSIDE}/0/{}", files::PEERS);
            line.arg(
                "-netdev",
                format!("stream,id=peers,server=off,addr.type=unix,addr.path={socket}"),
            );
            line.arg(
                "-device",
                format!("virtio-net-pci,netdev=peers,mac={},romfile=", peer.mac),
            );
        }
        if self.capture {
            line.arg(
                "-object",
                format!(
                    "filter-dump,id=dump,netdev=net,file={INSIDE}/0/{}",
                    files::PACKETS
                ),
            );
        }
    }
}
