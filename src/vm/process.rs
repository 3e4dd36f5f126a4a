//! A running machine: its process, its channels, and its end.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::channel::{Channel, Listener, Sink};
use super::control::{Control, Event};
use super::machine::{Machine, Start, files};
use super::reap::end;
use super::tpm::Tpm;
use crate::install::tools::Tools;

/// QEMU's program in the tools tree.
pub(super) const PROGRAM: &str = "qemu-system-x86_64";
/// Timeout of QEMU's connections, which it makes before the guest's first instruction; usually within a second.
const CONNECT: Duration = Duration::from_secs(60);

/// A running machine. Dropping it ends it.
#[derive(Debug)]
pub struct Vm {
    child: Child,
    control: Control,
    console: Channel,
    ports: Vec<(String, Channel)>,
    place: PathBuf,
    ended: Option<ExitStatus>,
    _tpm: Option<Tpm>,
}

impl Vm {
    /// Starts a machine whose files (sockets, captured packets) are in the folder `place`.
    /// `sink` gets the console's bytes as they arrive.
    ///
    /// # Errors
    /// If QEMU does not start; the error has QEMU's message.
    pub fn start(
        tools: &Tools,
        machine: &Machine,
        place: &Path,
        sink: Option<Sink>,
    ) -> Result<Self> {
        let line = machine.line(place)?;
        for file in place_files(machine) {
            match std::fs::remove_file(place.join(&file)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("removing an old {file}"));
                }
                _ => {}
            }
        }
        let console = Listener::bind(place, files::CONSOLE)?;
        let control = Listener::bind(place, files::CONTROL)?;
        let ports = (0..machine.ports.len())
            .map(|number| Listener::bind(place, &files::port(number)))
            .collect::<Result<Vec<_>>>()?;
        let peers = machine.peer.as_ref();
        let peers = peers
            .map(|_| Listener::bind(place, files::PEERS))
            .transpose()?;
        let tpm = machine.tpm.as_ref();
        let tpm = tpm
            .map(|state| Tpm::start(tools, state, place))
            .transpose()?;
        let mut child = spawn(tools, machine, &line, place)?;
        let connected = connect(
            &mut child,
            place,
            &console,
            &control,
            &ports,
            peers.as_ref(),
        );
        let (console, control, ports, peers) = match connected {
            Ok(sockets) => sockets,
            Err(error) => {
                end(&mut child);
                return Err(error);
            }
        };
        let attach = || -> Result<_> {
            if let (Some(peer), Some(socket)) = (&machine.peer, peers) {
                peer.hub.plug(socket)?;
            }
            let console = Channel::attach(console, sink)?;
            let named = machine.ports.iter().cloned();
            let ports = named
                .zip(ports)
                .map(|(name, socket)| Ok((name, Channel::attach(socket, None)?)))
                .collect::<Result<Vec<_>>>()?;
            Ok((console, ports, Control::attach(control)?))
        };
        match attach() {
            Ok((console, ports, control)) => Ok(Self {
                child,
                control,
                console,
                ports,
                place: place.to_owned(),
                ended: None,
                _tpm: tpm,
            }),
            Err(error) => {
                end(&mut child);
                // QEMU has said why it ended, and its answer that did not come is only what followed from it.
                Err(match complaint(place).as_str() {
                    "" => error,
                    words => error.context(format!("QEMU did not start{words}")),
                })
            }
        }
    }

    /// The serial console.
    #[must_use]
    pub fn console(&self) -> &Channel {
        &self.console
    }

    /// A virtio serial port by its name.
    ///
    /// # Errors
    /// If the machine has no such port.
    pub fn port(&self, name: &str) -> Result<&Channel> {
        self.ports
            .iter()
            .find(|(have, _)| have == name)
            .map(|(_, channel)| channel)
            .with_context(|| format!("the machine has no port {name:?}"))
    }

    /// The machine's events so far: resets, the watchdog, the shutdown.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.control.events()
    }

    /// The number of resets by the guest.
    #[must_use]
    pub fn resets(&self) -> usize {
        let events = self.events();
        events.iter().filter(|event| event.name == "RESET").count()
    }

    /// Lets a disk take so many bytes a second from now on, 0 for any number; `number` is its place in [`Machine::disks`].
    /// With few, each request but the first waits for hours: the disk hangs.
    ///
    /// # Errors
    /// If the machine has no such disk, or QEMU does not take the command.
    pub fn throttle(&self, number: usize, bytes: u64) -> Result<()> {
        let node = format!("disk{number}");
        let block = self.control.command("query-block")?;
        let device = block
            .as_array()
            .into_iter()
            .flatten()
            .find(|block| {
                let name = block.pointer("/inserted/node-name");
                name.and_then(Value::as_str) == Some(&node)
            })
            .and_then(|block| block.get("qdev"))
            .with_context(|| format!("the machine has no disk {number}"))?;
        let mut limits = json!({ "id": device, "bps": bytes });
        for none in ["bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr"] {
            limits[none] = 0.into();
        }
        self.control
            .command_with("block_set_io_throttle", limits)
            .map(drop)
    }

    /// Gives the processors an interrupt that cannot be masked, as the button of a server does.
    ///
    /// # Errors
    /// If QEMU does not take the command.
    pub fn inject_nmi(&self) -> Result<()> {
        self.control.command("inject-nmi").map(drop)
    }

    /// Presses the power button.
    ///
    /// # Errors
    /// If QEMU does not take the command.
    pub fn press_power_button(&self) -> Result<()> {
        self.control.command("system_powerdown").map(drop)
    }

    /// Cuts the power: the guest's processors stop between two instructions, and QEMU ends.
    pub fn pull_plug(mut self) {
        self.end();
    }

    /// Whether QEMU has ended.
    ///
    /// # Errors
    /// If the state of the process cannot be read.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().context("waiting for QEMU")?;
        }
        Ok(self.ended)
    }

    /// What is known of an end that nobody asked for, behind a colon: the last event, and QEMU's own message.
    #[must_use]
    pub fn last_words(&self) -> String {
        let event = self.events().pop();
        let event = event.map_or_else(String::new, |event| {
            let reason = event.reason.unwrap_or_default();
            format!(": {} {reason}", event.name).trim_end().to_owned()
        });
        event + &complaint(&self.place)
    }

    /// Waits until QEMU ends by itself, as after the guest's power-off.
    ///
    /// # Errors
    /// If it does not end in time, or QEMU failed; the error has QEMU's message.
    pub fn wait_end(&mut self, patience: Duration) -> Result<()> {
        let until = Instant::now() + patience;
        loop {
            if let Some(status) = self.ended()? {
                if !status.success() {
                    bail!("QEMU failed: {status}{}", complaint(&self.place));
                }
                return Ok(());
            }
            if Instant::now() >= until {
                bail!(
                    "the machine is still running after {} s",
                    patience.as_secs()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn end(&mut self) {
        if self.ended.is_none() {
            end(&mut self.child);
        }
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.end();
    }
}

fn place_files(machine: &Machine) -> Vec<String> {
    let mut names = vec![
        files::CONSOLE.to_owned(),
        files::CONTROL.to_owned(),
        files::PACKETS.to_owned(),
        files::PEERS.to_owned(),
        files::TPM.to_owned(),
    ];
    names.extend((0..machine.ports.len()).map(files::port));
    names
}

fn spawn(
    tools: &Tools,
    machine: &Machine,
    line: &super::machine::line::Line,
    place: &Path,
) -> Result<Child> {
    let mut sandbox = tools.sandbox().network(true);
    for (host, inside) in &line.binds {
        sandbox = sandbox.bind(host, inside);
    }
    if machine.accel == super::machine::Accel::Kvm {
        sandbox = sandbox.device("/dev/kvm");
    }
    let stderr = File::create(place.join(files::STDERR)).context("making QEMU's error file")?;
    let what = match machine.start {
        Start::Firmware { .. } => "starting QEMU with UEFI firmware",
        Start::Direct { .. } => "starting QEMU with a kernel",
        Start::Network { .. } => "starting QEMU with iPXE",
    };
    sandbox
        .command(PROGRAM)
        .args(&line.args)
        .stderr(stderr)
        .spawn()
        .context(what)
}

type Sockets = (
    std::os::unix::net::UnixStream,
    std::os::unix::net::UnixStream,
    Vec<std::os::unix::net::UnixStream>,
    Option<std::os::unix::net::UnixStream>,
);

fn connect(
    child: &mut Child,
    place: &Path,
    console: &Listener,
    control: &Listener,
    ports: &[Listener],
    peers: Option<&Listener>,
) -> Result<Sockets> {
    let until = Instant::now() + CONNECT;
    let mut accept = |listener: &Listener| loop {
        if let Some(socket) = listener.accept()? {
            return Ok(socket);
        }
        if let Some(status) = child.try_wait().context("waiting for QEMU")? {
            bail!("QEMU did not start: {status}{}", complaint(place));
        }
        if Instant::now() >= until {
            bail!(
                "QEMU did not connect within {} s{}",
                CONNECT.as_secs(),
                complaint(place)
            );
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    Ok((
        accept(console)?,
        accept(control)?,
        ports.iter().map(&mut accept).collect::<Result<_>>()?,
        peers.map(accept).transpose()?,
    ))
}

/// QEMU's standard error, for the end of an error message.
fn complaint(place: &Path) -> String {
    match std::fs::read_to_string(place.join(files::STDERR)) {
        Ok(text) if !text.trim().is_empty() => format!(": {}", text.trim()),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use image::guid::Guid;

    use super::super::machine::line::INSIDE;
    use super::super::machine::{Accel, Clock, OnReset};
    use super::*;
    use crate::host::cache::Key;
    use crate::host::sandbox::c_program;

    /// What QEMU says of a port in use.
    const WORDS: &str =
        "qemu-system-x86_64: -netdev user,id=net0: Could not set up host forwarding rule";

    /// A tools tree whose QEMU says why it does not start, and ends; before that it connects to its sockets or does not.
    fn failing(connects: bool) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        let folder = tree.path().join("usr/bin");
        std::fs::create_dir_all(&folder).unwrap();
        let sockets = [
            files::CONSOLE.to_owned(),
            files::CONTROL.to_owned(),
            files::port(0),
        ];
        let sockets = sockets.map(|name| format!("at(\"{INSIDE}/0/{name}\");"));
        let sockets = match connects {
            true => sockets.concat(),
            false => String::new(),
        };
        let source = format!(
            "#include <stdio.h>\n#include <string.h>\n#include <sys/socket.h>\n#include <sys/un.h>\n\
             void at(const char *path) {{\n  struct sockaddr_un a = {{ AF_UNIX }};\n  strcpy(a.sun_path, path);\n\
             \x20 if (connect(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&a, sizeof a)) perror(path);\n}}\n\
             int main() {{ {sockets} fputs(\"{WORDS}\\n\", stderr); return 1; }}\n"
        );
        c_program::compile(&source, &folder.join(PROGRAM));
        tree
    }

    fn machine(place: &Path) -> Machine {
        for name in ["kernel", "initrd"] {
            std::fs::write(place.join(name), "").unwrap();
        }
        Machine {
            memory: 512,
            cpus: 1,
            accel: Accel::Tcg,
            clock: Clock::Real,
            uuid: Guid([1; 16]),
            start: Start::Direct {
                kernel: place.join("kernel"),
                initrd: place.join("initrd"),
                cmdline: String::new(),
            },
            disks: Vec::new(),
            names: BTreeMap::new(),
            faults: BTreeMap::new(),
            tpm: None,
            folders: Vec::new(),
            config: None,
            forwards: Vec::new(),
            ports: vec!["slipway.test".into()],
            nets: Vec::new(),
            peer: None,
            capture: false,
            on_reset: OnReset::Stop,
            record: None,
        }
    }

    #[test]
    fn the_words_of_a_qemu_that_does_not_start_are_shown() {
        if !linux::host::is_root() {
            return linux::host::skipped("a sandbox needs root");
        }
        for connects in [false, true] {
            let tree = failing(connects);
            let place = tempfile::tempdir().unwrap();
            let tools = Tools {
                root: tree.path().to_owned(),
                key: Key::of_data("failing", 1).finish(),
                packages: Key::of_data("failing", 1).finish(),
            };
            let started = Vm::start(&tools, &machine(place.path()), place.path(), None);
            let error = format!("{:#}", started.unwrap_err());
            let (first, words) = error.split_once(": ").unwrap();
            assert_eq!(first, "QEMU did not start", "{error}");
            assert!(words.contains(WORDS), "{error}");
        }
    }
}
