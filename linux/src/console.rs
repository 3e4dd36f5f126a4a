//! Consoles: written without waiting for one that takes no output.
//!
//! A serial line with flow control whose other end is away, and a screen that Ctrl-S has stopped, take no output for ever;
//! so they are opened and written without blocking. Closing a console would wait for its output too, so each stays open.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Result, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::libc::{O_NOCTTY, O_NONBLOCK};
use nix::sys::termios::{FlushArg, tcflush};

use crate::ioctl;

/// How long a console may take nothing before lines for it are dropped. A slow one is waited for as long as it takes
/// bytes: at 1200 baud a byte needs 8 ms.
const PATIENCE: Duration = Duration::from_secs(2);
/// The pause between two tries. A terminal shows that it is writable only when it has less than 256 bytes to send
/// (`n_tty_poll`), seconds later than it takes the next byte on a slow line, so it is not asked.
const RETRY: Duration = Duration::from_millis(10);

/// The consoles that have been written to.
#[derive(Debug, Default)]
pub struct Consoles(Mutex<BTreeMap<PathBuf, Console>>);

#[derive(Debug, Default)]
struct Console {
    device: Option<File>,
    /// Lines that were not written since the console took no more.
    dropped: u64,
    /// Whether the last text of [`Consoles::put`] was not written as a whole.
    stuck: bool,
}

impl Consoles {
    /// Writes a line to the console at `path`. A console that takes nothing for two seconds loses the line, and those
    /// after it until it takes output again; then a line says how many they were.
    ///
    /// # Errors
    /// If the console cannot be opened or written; a line that was dropped is no error.
    pub fn write(&self, path: &Path, line: &str) -> Result<()> {
        let Ok(mut consoles) = self.0.lock() else {
            return Ok(());
        };
        let console = consoles.entry(path.to_owned()).or_default();
        if console.device.is_some() && console.line(path, line).is_ok() {
            return Ok(());
        }
        // A terminal that was hung up since, by agetty for example, has to be opened again.
        console.device = Some(open(path)?);
        console.line(path, line)
    }

    /// Writes a text as it is; returns whether the console took all of it. One that takes nothing for two seconds is not
    /// waited for any more until it takes a whole text.
    ///
    /// # Errors
    /// If the console cannot be opened or written.
    pub fn put(&self, path: &Path, text: &str) -> Result<bool> {
        let Ok(mut consoles) = self.0.lock() else {
            return Ok(false);
        };
        let console = consoles.entry(path.to_owned()).or_default();
        if console.device.is_some()
            && let Ok(whole) = console.text(text)
        {
            return Ok(whole);
        }
        console.device = Some(open(path)?);
        console.text(text)
    }

    /// Rows and columns of a console; none if it does not know them.
    pub fn size(&self, path: &Path) -> Option<(u16, u16)> {
        let mut consoles = self.0.lock().ok()?;
        let console = consoles.entry(path.to_owned()).or_default();
        // Not opened again if it has no size: the close would wait for its output.
        if console.device.is_none() {
            console.device = Some(open(path).ok()?);
        }
        console.device.as_ref().and_then(ioctl::window)
    }

    /// Closes one console.
    pub fn close(&self, path: &Path) {
        let Ok(mut consoles) = self.0.lock() else {
            return;
        };
        if let Some(console) = consoles.remove(path) {
            console.close();
        }
    }

    /// Closes all consoles. The kernel waits up to 30 seconds for what a console has yet to send; where it sends nothing,
    /// that is thrown away before.
    pub fn release(&self) {
        let Ok(mut consoles) = self.0.lock() else {
            return;
        };
        for console in std::mem::take(&mut *consoles).into_values() {
            console.close();
        }
    }
}

fn open(path: &Path) -> Result<File> {
    OpenOptions::new()
        .append(true)
        .custom_flags(O_NOCTTY | O_NONBLOCK)
        .open(path)
}

impl Console {
    fn close(self) {
        if let Some(device) = self.device
            && (self.dropped > 0 || self.stuck)
        {
            // Best effort: not every console is a terminal.
            tcflush(&device, FlushArg::TCOFLUSH).unwrap_or_default();
        }
    }

    /// Whether all of a text was written.
    fn text(&mut self, text: &str) -> Result<bool> {
        let patience = match self.stuck {
            true => Duration::ZERO,
            false => PATIENCE,
        };
        let whole = self.push(text.as_bytes(), patience)?;
        self.stuck = !whole;
        Ok(whole)
    }

    fn line(&mut self, path: &Path, line: &str) -> Result<()> {
        let mut text = format!("{line}\n");
        let mut patience = PATIENCE;
        if self.dropped > 0 {
            let dropped = self.dropped;
            // The last line before may have come in part.
            text = format!(
                "\nslipway: {dropped} lines are missing here: this console took no output\n{text}"
            );
            patience = Duration::ZERO;
        }
        if self.push(text.as_bytes(), patience)? {
            self.dropped = 0;
            return Ok(());
        }
        self.dropped += 1;
        if self.dropped == 1 {
            tracing::warn!(
                "{} takes no output; lines for it are dropped until it does",
                path.display()
            );
        }
        Ok(())
    }

    /// Whether all of it was written; `patience` is for the first byte.
    fn push(&mut self, mut bytes: &[u8], patience: Duration) -> Result<bool> {
        let Some(device) = &mut self.device else {
            return Ok(false);
        };
        let mut until = Instant::now() + patience;
        while !bytes.is_empty() {
            match device.write(bytes) {
                Ok(0) => return Ok(false),
                Ok(count) => {
                    bytes = &bytes[count..];
                    until = Instant::now() + PATIENCE;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                Err(_) if Instant::now() >= until => return Ok(false),
                Err(_) => std::thread::sleep(RETRY),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::fd::OwnedFd;

    use nix::pty::openpty;
    use nix::sys::termios::{FlowArg, tcflow};

    use super::*;

    /// A terminal: the end that a person has, and the path of the device.
    fn terminal() -> (File, OwnedFd, PathBuf) {
        let ends = openpty(None, None).unwrap();
        let path = nix::unistd::ttyname(&ends.slave).unwrap();
        (File::from(ends.master), ends.slave, path)
    }

    fn read(person: &mut File) -> String {
        let mut bytes = vec![0; 1 << 20];
        let mut text = String::new();
        while !text.ends_with("end\r\n") {
            let count = person.read(&mut bytes).unwrap();
            text += &String::from_utf8_lossy(&bytes[..count]);
        }
        text
    }

    #[test]
    fn a_console_that_nobody_reads_blocks_nothing_and_counts_what_it_misses() {
        let (mut person, _kept, path) = terminal();
        let consoles = Consoles::default();
        let began = Instant::now();
        let line = "x".repeat(1000);
        // More than the kernel holds for a terminal.
        for _ in 0..500 {
            consoles.write(&path, &line).unwrap();
        }
        let took = began.elapsed();
        assert!(took >= PATIENCE && took < PATIENCE * 2, "{took:?}");
        let dropped = consoles.0.lock().unwrap()[&path].dropped;
        assert!(dropped > 100, "{dropped}");
        let reader = std::thread::spawn(move || read(&mut person));
        // The person reads again: from some line on all come, the first with the number of those that are missing.
        while consoles.0.lock().unwrap()[&path].dropped > 0 {
            consoles.write(&path, "again").unwrap();
        }
        consoles.write(&path, "end").unwrap();
        let text = reader.join().unwrap();
        let notice = text
            .lines()
            .find_map(|line| {
                line.strip_prefix("slipway: ")?
                    .strip_suffix(" lines are missing here: this console took no output")
            })
            .unwrap();
        assert!(notice.parse::<u64>().unwrap() >= dropped, "{notice}");
        assert!(text.ends_with("again\r\nend\r\n"), "{text}");
    }

    #[test]
    fn a_stopped_terminal_blocks_nothing_and_is_let_go() {
        let (mut person, device, path) = terminal();
        let consoles = Consoles::default();
        consoles.write(&path, "before").unwrap();
        // What Ctrl-S does, without the kernel's delay between the ends of a terminal.
        tcflow(&device, FlowArg::TCOOFF).unwrap();
        let began = Instant::now();
        for _ in 0..5 {
            consoles.write(&path, "while it is stopped").unwrap();
        }
        assert!(began.elapsed() < PATIENCE * 2);
        assert_eq!(consoles.0.lock().unwrap()[&path].dropped, 5);
        let began = Instant::now();
        consoles.release();
        assert!(began.elapsed() < PATIENCE);
        tcflow(&device, FlowArg::TCOON).unwrap();
        consoles.write(&path, "end").unwrap();
        assert!(read(&mut person).ends_with("before\r\nend\r\n"));
    }

    #[test]
    fn a_text_that_nobody_reads_is_given_up_and_not_waited_for_again() {
        let (mut person, kept, path) = terminal();
        let consoles = Consoles::default();
        let page = "x".repeat(1000) + "\n";
        let began = Instant::now();
        // More than the kernel holds for a terminal.
        let whole = (0..500).filter(|_| consoles.put(&path, &page).unwrap());
        let whole = whole.count();
        let took = began.elapsed();
        assert!(whole < 400, "{whole}");
        assert!(took >= PATIENCE && took < PATIENCE * 2, "{took:?}");
        let reader = std::thread::spawn(move || read(&mut person));
        while !consoles.put(&path, "again\n").unwrap() {}
        assert!(consoles.put(&path, "end\n").unwrap());
        assert!(reader.join().unwrap().ends_with("again\r\nend\r\n"));
        drop(kept);
    }

    #[test]
    fn a_console_has_the_size_that_it_knows() {
        let (_person, kept, path) = terminal();
        let consoles = Consoles::default();
        assert_eq!(consoles.size(&path), None);
        let size = nix::pty::Winsize {
            ws_row: 25,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let ends = openpty(Some(&size), None).unwrap();
        let sized = nix::unistd::ttyname(&ends.slave).unwrap();
        assert_eq!(consoles.size(&sized), Some((25, 80)));
        assert_eq!(consoles.size(Path::new("/dev/null")), None);
        consoles.close(&sized);
        assert!(!consoles.0.lock().unwrap().contains_key(&sized));
        drop(kept);
    }

    #[test]
    fn a_terminal_that_was_hung_up_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let console = folder.path().join("tty0");
        let link = |to: &Path| {
            std::fs::remove_file(&console).unwrap_or_default();
            std::os::unix::fs::symlink(to, &console).unwrap();
        };
        let consoles = Consoles::default();
        let (person, _kept, path) = terminal();
        link(&path);
        consoles.write(&console, "before").unwrap();
        drop(person);
        assert!(consoles.write(&console, "lost").is_err());
        let (mut person, _kept, path) = terminal();
        link(&path);
        consoles.write(&console, "end").unwrap();
        assert_eq!(read(&mut person), "end\r\n");
    }
}
