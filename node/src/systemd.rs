//! Questions to systemd: which units have failed, and which gettys there are.
//!
//! The state of a unit is in no file, so systemd is asked by D-Bus, on the socket that `systemctl` uses as root: it answers
//! before the bus of the system runs and without it. One method with two lists of strings is all that is asked, so the messages
//! are written and read here; starting `systemctl` every few seconds would cost more than all else.
//! The protocol: <https://dbus.freedesktop.org/doc/dbus-specification.html>; the method: org.freedesktop.systemd1(5).

mod message;
#[cfg(test)]
mod tests;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use data_encoding::HEXLOWER;
use linux::world::World;
use serde::Serialize;

use self::message::{HEADER, Kind, call, rest};

/// systemd's socket for direct connections.
const SOCKET: &str = "/run/systemd/private";
/// How long each answer may take.
const SOON: Duration = Duration::from_secs(2);
/// More than the answer for all units of a node: a broken peer must not fill the memory.
const LARGEST: usize = 4 << 20;
/// Signals that may come before an answer: systemd sends those of every change to direct connections.
const SIGNALS: usize = 10_000;

/// States of a unit that failed, or that is started again and again because it fails.
const FAILED: [&str; 2] = ["failed", "auto-restart"];
/// The names of units that ask for a login on a console.
const GETTYS: [&str; 4] = [
    "getty@*.service",
    "serial-getty@*.service",
    "autovt@*.service",
    "console-getty.service",
];

/// A unit, as systemd lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Unit {
    pub(crate) name: String,
    pub(crate) description: String,
    /// As `failed`, `active`, `activating`.
    pub(crate) active: String,
    /// As `failed`, `auto-restart`, `running`.
    pub(crate) sub: String,
    /// The job that waits for it, as `start`.
    #[serde(skip)]
    job: String,
}

#[cfg(test)]
impl Unit {
    /// A unit that has failed.
    pub(crate) fn failed(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            description: "A unit of a test".to_owned(),
            active: "failed".to_owned(),
            sub: "failed".to_owned(),
            job: String::new(),
        }
    }
}

/// The units that have failed or fail again and again, and the consoles that gettys have or are to get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Units {
    pub(crate) failed: Vec<Unit>,
    /// Names of terminals below `/dev`.
    pub(crate) gettys: Vec<String>,
}

/// Asks systemd.
///
/// # Errors
/// If it does not answer.
pub(crate) fn units(world: &World) -> Result<Units> {
    let path = world.in_run(SOCKET);
    let about = || format!("asking systemd at {}", path.display());
    let ask = || {
        let mut peer = Peer::connect(UnixStream::connect(&path)?)?;
        let failed = peer.list(&FAILED, &[])?;
        let gettys = peer.list(&[], &GETTYS)?;
        Ok::<_, anyhow::Error>((failed, gettys))
    };
    let (failed, gettys) = ask().with_context(about)?;
    Ok(Units {
        failed,
        gettys: gettys.iter().filter_map(terminal).collect(),
    })
}

/// The terminal of a getty that runs, or that a job is to start.
fn terminal(unit: &Unit) -> Option<String> {
    let gone = ["inactive", "failed"].contains(&unit.active.as_str());
    if gone && unit.job != "start" {
        return None;
    }
    let instance = unit.name.strip_suffix(".service")?.split_once('@');
    // `/` in a name is written `-` (systemd.unit(5)).
    Some(instance.map_or_else(|| "console".to_owned(), |(_, tty)| tty.replace('-', "/")))
}

/// A connection to systemd.
struct Peer {
    stream: BufReader<UnixStream>,
    serial: u32,
}

impl Peer {
    /// Says who asks: the kernel tells the peer the same.
    fn connect(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(SOON))?;
        stream.set_write_timeout(Some(SOON))?;
        let user = nix::unistd::geteuid().to_string();
        let hexadecimal = HEXLOWER.encode(user.as_bytes());
        let mut stream = BufReader::new(stream);
        let hello = format!("\0AUTH EXTERNAL {hexadecimal}\r\n");
        stream.get_mut().write_all(hello.as_bytes())?;
        let mut line = Vec::new();
        (&mut stream).take(1000).read_until(b'\n', &mut line)?;
        ensure!(
            line.starts_with(b"OK "),
            "expected OK, found {:?}",
            String::from_utf8_lossy(&line)
        );
        stream.get_mut().write_all(b"BEGIN\r\n")?;
        Ok(Self { stream, serial: 0 })
    }

    /// The units in one of these states, all if there is none, with one of these names.
    fn list(&mut self, states: &[&str], names: &[&str]) -> Result<Vec<Unit>> {
        self.serial += 1;
        let call = call(self.serial, "ListUnitsByPatterns", &[states, names]);
        self.stream.get_mut().write_all(&call)?;
        for _ in 0..SIGNALS {
            let (head, body) = self.message()?;
            if head.reply_to != Some(self.serial) {
                continue;
            }
            let units = match head.kind {
                Kind::Return => message::units(&body),
                Kind::Other => None,
                Kind::Error => bail!("systemd refuses: {}", head.error.unwrap_or_default()),
            };
            return units.context("the answer is not a list of units");
        }
        bail!("no answer among {SIGNALS} messages")
    }

    fn message(&mut self) -> Result<(message::Head, Vec<u8>)> {
        let mut start = [0; HEADER];
        self.stream.read_exact(&mut start)?;
        let (fields, body) = rest(&start).context("not a message of D-Bus")?;
        ensure!(
            fields.saturating_add(body) <= LARGEST,
            "a message of {body} bytes, expected {LARGEST} at most"
        );
        let mut bytes = start.to_vec();
        bytes.resize(HEADER + fields + body, 0);
        self.stream.read_exact(&mut bytes[HEADER..])?;
        let body = bytes.split_off(HEADER + fields);
        let head = message::head(&bytes).context("not a message of D-Bus")?;
        Ok((head, body))
    }
}
