//! QEMU's control socket: the machine protocol (QMP, <https://www.qemu.org/docs/master/interop/qmp-spec.html>).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// A connected control socket.
#[derive(Debug)]
pub struct Control {
    socket: UnixStream,
    heard: Arc<(Mutex<Heard>, Condvar)>,
}

#[derive(Debug, Default)]
struct Heard {
    answers: Vec<Value>,
    events: Vec<Event>,
    closed: bool,
}

/// An event of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// QEMU's name for it: `RESET`, `SHUTDOWN`, `WATCHDOG`, …
    pub name: String,
    /// Its reason, if any: `guest-reset`, `guest-shutdown`, `host-qmp-quit`, …
    pub reason: Option<String>,
}

/// Timeout of an answer; QEMU answers at once unless the host is overloaded.
const ANSWER: Duration = Duration::from_secs(30);

impl Control {
    /// Takes the socket and negotiates the protocol.
    ///
    /// # Errors
    /// If QEMU does not answer.
    pub fn attach(socket: UnixStream) -> Result<Self> {
        socket.set_nonblocking(false)?;
        let reader = BufReader::new(socket.try_clone().context("sharing the control socket")?);
        let heard = Arc::new((Mutex::new(Heard::default()), Condvar::new()));
        let theirs = Arc::clone(&heard);
        std::thread::Builder::new()
            .name("qmp".into())
            .spawn(move || {
                for line in reader.lines().map_while(Result::ok) {
                    if let Ok(value) = serde_json::from_str(&line) {
                        hear(&theirs, value);
                    }
                }
                theirs
                    .0
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .closed = true;
                theirs.1.notify_all();
            })
            .context("starting the control socket's thread")?;
        let control = Self { socket, heard };
        control.command("qmp_capabilities")?;
        Ok(control)
    }

    /// Sends a command without arguments and waits for the answer.
    ///
    /// # Errors
    /// If QEMU refuses it, has ended, or does not answer.
    pub fn command(&self, name: &str) -> Result<Value> {
        self.command_with(name, json!({}))
    }

    /// Gives a command with arguments and waits for the answer.
    ///
    /// # Errors
    /// As [`Control::command`].
    pub fn command_with(&self, name: &str, arguments: Value) -> Result<Value> {
        let mut text = json!({ "execute": name, "arguments": arguments }).to_string();
        text.push('\n');
        (&self.socket)
            .write_all(text.as_bytes())
            .with_context(|| format!("asking QEMU to {name}"))?;
        let end = Instant::now() + ANSWER;
        let mut heard = self.heard.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(answer) = heard.answers.pop() {
                if let Some(error) = answer.get("error") {
                    bail!("QEMU refuses to {name}: {error}");
                }
                return Ok(answer.get("return").cloned().unwrap_or_default());
            }
            if heard.closed {
                bail!("QEMU ended before it answered {name}");
            }
            let Some(left) = end.checked_duration_since(Instant::now()) else {
                bail!("QEMU did not answer {name} within {} s", ANSWER.as_secs());
            };
            heard = self
                .heard
                .1
                .wait_timeout(heard, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// All events so far.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.heard
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .events
            .clone()
    }
}

fn hear(heard: &(Mutex<Heard>, Condvar), value: Value) {
    let mut inner = heard.0.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(name) = value.get("event").and_then(Value::as_str) {
        let reason = value
            .pointer("/data/reason")
            .and_then(Value::as_str)
            .map(str::to_owned);
        inner.events.push(Event {
            name: name.to_owned(),
            reason,
        });
    } else if value.get("return").is_some() || value.get("error").is_some() {
        inner.answers.push(value);
    }
    heard.1.notify_all();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_events_and_refusals_are_told_apart() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let qemu = std::thread::spawn(move || {
            let mut lines = BufReader::new(theirs.try_clone().unwrap()).lines();
            (&theirs).write_all(b"{\"QMP\": {}}\n").unwrap();
            lines.next().unwrap().unwrap();
            (&theirs).write_all(b"{\"return\": {}}\n").unwrap();
            lines.next().unwrap().unwrap();
            (&theirs)
                .write_all(
                    b"{\"event\": \"RESET\", \"data\": {\"guest\": true, \"reason\": \"guest-reset\"}}\n{\"error\": {\"desc\": \"no\"}}\n",
                )
                .unwrap();
        });
        let control = Control::attach(ours).unwrap();
        let error = control.command("dance").unwrap_err().to_string();
        assert!(error.contains("dance") && error.contains("no"), "{error}");
        assert_eq!(
            control.events(),
            [Event {
                name: "RESET".into(),
                reason: Some("guest-reset".into())
            }]
        );
        qemu.join().unwrap();
        assert!(control.command("quit").is_err());
    }
}
