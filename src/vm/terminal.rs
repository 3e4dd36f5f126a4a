//! The machine's console on the user's terminal: input, output, and the ways to leave.

use std::io::{IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::SpecialCharacterIndices::{VQUIT, VSUSP};
use nix::sys::termios::{
    self, _POSIX_VDISABLE, InputFlags, LocalFlags, OutputFlags, SetArg, Termios,
};
use nix::unistd::read;

use super::channel::{Channel, Sink};
use super::process::Vm;
use crate::host::interrupt::Interrupt;

/// Ctrl-A, the prefix of our commands.
const ESCAPE: u8 = 0x01;
/// Ctrl-C in the guest's input.
const CONTROL_C: u8 = 0x03;
/// Interval of the checks for the machine's end and for signals while no key arrives.
const LOOK: Duration = Duration::from_millis(100);

/// The reason why a session at the console ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Ctrl-A X.
    Asked,
    /// Ctrl-C or another signal.
    Interrupted,
    /// The machine switched itself off.
    PoweredOff,
}

/// Switches the terminal to a mode that passes each key to the guest at once; restored when dropped. Ctrl-C alone stays a
/// signal: it leaves the machine. Ctrl-\ would end this program with the terminal in that mode, and Ctrl-Z stop the machine.
#[derive(Debug)]
pub struct Keys {
    before: Option<Termios>,
}

impl Keys {
    /// Changes the mode if standard input is a terminal.
    ///
    /// # Errors
    /// If the terminal refuses.
    pub fn take() -> Result<Self> {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return Ok(Self { before: None });
        }
        let before = termios::tcgetattr(&stdin).context("reading the terminal's mode")?;
        termios::tcsetattr(&stdin, SetArg::TCSANOW, &for_guest(before.clone()))
            .context("setting the terminal's mode")?;
        Ok(Self {
            before: Some(before),
        })
    }
}

fn for_guest(mut mode: Termios) -> Termios {
    mode.local_flags
        .remove(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::IEXTEN);
    mode.input_flags
        .remove(InputFlags::ICRNL | InputFlags::INLCR | InputFlags::IXON);
    mode.output_flags.insert(OutputFlags::OPOST);
    for key in [VQUIT, VSUSP] {
        mode.control_chars[key as usize] = _POSIX_VDISABLE;
    }
    mode
}

impl Drop for Keys {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // If the terminal has gone, there is no mode to restore.
            termios::tcsetattr(std::io::stdin(), SetArg::TCSANOW, before).ok();
        }
    }
}

/// Writes the console's bytes to standard output as they arrive.
pub fn to_stdout(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    // Standard output may be closed: the machine continues to run.
    out.write_all(bytes).and_then(|()| out.flush()).ok();
}

/// Writes the console's text to standard error, as events among those of the progress: with `--json` standard output has results alone.
#[must_use]
pub fn to_events() -> Sink {
    Box::new(events(std::io::stderr()))
}

/// Writes each piece of the console as a JSON object on a line.
fn events(mut to: impl Write + Send) -> impl FnMut(&[u8]) + Send {
    let mut open = Vec::new();
    move |bytes: &[u8]| {
        open.extend_from_slice(bytes);
        // An empty piece is the console's end.
        let length = match bytes.is_empty() {
            true => open.len(),
            false => whole(&open),
        };
        let rest = open.split_off(length);
        let text = String::from_utf8_lossy(&open).into_owned();
        if !text.is_empty() {
            let event = serde_json::json!({"event": "console", "text": text});
            // Standard error may be closed: the machine continues to run.
            writeln!(to, "{event}").ok();
        }
        open = rest;
    }
}

/// How many bytes there are before a last character of which more bytes are to come.
fn whole(bytes: &[u8]) -> usize {
    let last = bytes.utf8_chunks().last();
    let last = last.map_or(0, |chunk| match std::str::from_utf8(chunk.invalid()) {
        Err(error) if error.error_len().is_none() => chunk.invalid().len(),
        _ => 0,
    });
    bytes.len() - last
}

/// Passes keys to the guest until the user leaves, a signal arrives, or the machine ends. `each` is called between
/// checks and may end the session as well.
///
/// # Errors
/// If the machine cannot be watched.
pub fn attend(
    vm: &mut Vm,
    interrupt: &Interrupt,
    mut each: impl FnMut(&Vm) -> Option<Left>,
) -> Result<Left> {
    let input = std::io::stdin().lock();
    let mut open = true;
    let mut command = false;
    loop {
        if interrupt.requested() {
            return Ok(Left::Interrupted);
        }
        if vm.ended()?.is_some() {
            vm.wait_end(Duration::ZERO)?;
            return Ok(Left::PoweredOff);
        }
        if let Some(left) = each(vm) {
            return Ok(left);
        }
        if !open {
            std::thread::sleep(LOOK);
            continue;
        }
        let Some(keys) = keys(input.as_fd())? else {
            continue;
        };
        open = !keys.is_empty();
        let (bytes, leave) = translate(&keys, &mut command);
        if leave {
            return Ok(Left::Asked);
        }
        say(vm.console(), &bytes);
    }
}

/// The keys that arrive within [`LOOK`], if any; empty at the end of the input.
///
/// Read from the descriptor: a reader with a buffer takes a whole paste from it, and `poll` then finds nothing to read.
fn keys(descriptor: BorrowedFd<'_>) -> Result<Option<Vec<u8>>> {
    if !readable(descriptor)? {
        return Ok(None);
    }
    let mut keys = vec![0; 256];
    match read(descriptor, &mut keys) {
        Ok(count) => keys.truncate(count),
        Err(Errno::EINTR | Errno::EAGAIN) => return Ok(None),
        // The terminal has gone.
        Err(_) => keys.clear(),
    }
    Ok(Some(keys))
}

fn readable(descriptor: BorrowedFd<'_>) -> Result<bool> {
    let mut look = [PollFd::new(descriptor, PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(LOOK)?;
    match poll(&mut look, timeout) {
        Ok(count) => Ok(count > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(error) => Err(error).context("waiting for keys"),
    }
}

fn say(console: &Channel, bytes: &[u8]) {
    if !bytes.is_empty() {
        // The machine may have ended: the next check notices it.
        console.say(bytes).ok();
    }
}

/// The keys for the guest, and whether the user leaves. `command` stores a Ctrl-A between calls.
fn translate(keys: &[u8], command: &mut bool) -> (Vec<u8>, bool) {
    let mut out = Vec::new();
    for &key in keys {
        if std::mem::take(command) {
            match key {
                b'x' | b'X' => return (out, true),
                b'c' | b'C' => out.push(CONTROL_C),
                ESCAPE | b'a' => out.push(ESCAPE),
                _ => {}
            }
        } else if key == ESCAPE {
            *command = true;
        } else {
            out.push(key);
        }
    }
    (out, false)
}

#[cfg(test)]
mod tests {
    use nix::sys::termios::SpecialCharacterIndices::{self, VINTR};

    use super::*;

    #[test]
    fn of_all_keys_only_control_c_is_a_signal() {
        let ends = nix::pty::openpty(None, None).unwrap();
        let before = termios::tcgetattr(&ends.slave).unwrap();
        let mode = for_guest(before.clone());
        assert!(mode.local_flags.contains(LocalFlags::ISIG));
        let of = |mode: &Termios, key: SpecialCharacterIndices| mode.control_chars[key as usize];
        assert_eq!(of(&mode, VINTR), CONTROL_C);
        for key in [VQUIT, VSUSP] {
            assert_ne!(of(&before, key), _POSIX_VDISABLE);
            assert_eq!(of(&mode, key), _POSIX_VDISABLE);
        }
    }

    #[test]
    fn a_paste_arrives_without_another_key() {
        let (input, mut output) = std::io::pipe().unwrap();
        let paste: Vec<u8> = (b'a'..=b'z').cycle().take(1000).collect();
        output.write_all(&paste).unwrap();
        let mut found = Vec::new();
        while let Some(keys) = keys(input.as_fd()).unwrap() {
            assert!(!keys.is_empty(), "the input is open");
            found.extend(keys);
        }
        assert_eq!(found, paste);
        drop(output);
        assert_eq!(keys(input.as_fd()).unwrap(), Some(Vec::new()));
    }

    #[test]
    fn the_console_as_events_is_an_object_on_each_line() {
        let mut out = Vec::new();
        {
            let mut sink = events(&mut out);
            let pieces: [&[u8]; 7] = [
                b"\x1b[1mlogin: ",
                b"one\r\ntwo \xe2",
                b"\x82",
                b"\xac \xff end",
                b"\xc3\xa4",
                b"\xc3",
                b"",
            ];
            for piece in pieces {
                sink(piece);
            }
        }
        let out = String::from_utf8(out).unwrap();
        let texts: Vec<String> = out
            .lines()
            .map(|line| {
                let event: serde_json::Value = serde_json::from_str(line).unwrap();
                assert_eq!(event["event"], "console", "{line}");
                event["text"].as_str().unwrap().to_owned()
            })
            .collect();
        let expected = [
            "\u{1b}[1mlogin: ",
            "one\r\ntwo ",
            "\u{20ac} \u{fffd} end",
            "\u{e4}",
            "\u{fffd}",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn control_a_begins_a_command() {
        let mut command = false;
        assert_eq!(translate(b"ls\r", &mut command), (b"ls\r".to_vec(), false));
        assert_eq!(translate(b"a\x01", &mut command), (b"a".to_vec(), false));
        assert_eq!(translate(b"x", &mut command), (vec![], true));
        assert_eq!(
            translate(b"\x01\x01\x01c\x01qz", &mut command),
            (vec![ESCAPE, CONTROL_C, b'z'], false)
        );
    }
}
