//! A channel from the guest: a console or a virtio serial port, recorded completely and searchable.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// How long a search lets output gather: a serial line gives a few bytes at a time, and each search reads all text anew.
const GATHER: Duration = Duration::from_millis(20);

/// A function of the host for each piece of bytes as it arrives.
pub type Sink = Box<dyn FnMut(&[u8]) + Send>;

/// The output of the guest on one channel so far. Clones share it.
#[derive(Clone)]
pub struct Channel {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").finish_non_exhaustive()
    }
}

struct Shared {
    said: Mutex<Said>,
    more: Condvar,
    socket: UnixStream,
}

#[derive(Default)]
struct Said {
    bytes: Vec<u8>,
    closed: bool,
}

/// The result of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waited<T> {
    /// The value that the wait found.
    Found(T),
    /// The channel closed first: the machine ended.
    Closed,
    /// The timeout expired.
    Late,
}

impl Channel {
    /// Reads a connected socket in a separate thread, passing each piece to the sink as well.
    ///
    /// # Errors
    /// If the socket cannot be shared with the thread.
    pub fn attach(socket: UnixStream, mut sink: Option<Sink>) -> Result<Self> {
        socket.set_nonblocking(false)?;
        let mut reader = socket.try_clone().context("sharing a channel's socket")?;
        let shared = Arc::new(Shared {
            said: Mutex::default(),
            more: Condvar::new(),
            socket,
        });
        let theirs = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("channel".into())
            .spawn(move || {
                let mut piece = [0; 4096];
                loop {
                    let count = match reader.read(&mut piece) {
                        Ok(count) => count,
                        Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                        Err(_) => 0,
                    };
                    if let Some(sink) = &mut sink {
                        sink(&piece[..count]);
                    }
                    let mut said = theirs.said();
                    said.bytes.extend_from_slice(&piece[..count]);
                    said.closed = count == 0;
                    theirs.more.notify_all();
                    if count == 0 {
                        return;
                    }
                }
            })
            .context("starting a channel's thread")?;
        Ok(Self { shared })
    }

    /// All text so far. Bytes that are not UTF-8 are replaced, and terminal control sequences are removed.
    #[must_use]
    pub fn text(&self) -> String {
        plain(&self.shared.said().bytes)
    }

    /// Whether the other side has closed the channel.
    #[must_use]
    pub fn closed(&self) -> bool {
        self.shared.said().closed
    }

    /// Waits until `find` finds a value in the text so far.
    pub fn wait<T>(
        &self,
        patience: Duration,
        mut find: impl FnMut(&str) -> Option<T>,
    ) -> Waited<T> {
        let end = Instant::now() + patience;
        let mut said = self.shared.said();
        loop {
            let (length, closed) = (said.bytes.len(), said.closed);
            let text = plain(&said.bytes);
            // The search runs without the lock, so that the reader never waits for it.
            drop(said);
            if let Some(found) = find(&text) {
                return Waited::Found(found);
            }
            if closed {
                return Waited::Closed;
            }
            said = self.shared.said();
            while said.bytes.len() == length && !said.closed {
                let Some(left) = end.checked_duration_since(Instant::now()) else {
                    return Waited::Late;
                };
                said = self
                    .shared
                    .more
                    .wait_timeout(said, left)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
            if Instant::now() >= end {
                return Waited::Late;
            }
            if !said.closed {
                drop(said);
                std::thread::sleep(GATHER);
                said = self.shared.said();
            }
        }
    }

    /// Sends bytes to the guest.
    ///
    /// # Errors
    /// If the machine has ended.
    pub fn say(&self, bytes: &[u8]) -> Result<()> {
        (&self.shared.socket)
            .write_all(bytes)
            .context("writing to the guest")
    }
}

impl Shared {
    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Text without carriage returns and terminal control sequences (ECMA-48: `ESC [ … final`,
/// `ESC ] … BEL`, and `ESC` with one more).
#[must_use]
pub fn plain(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&byte, after)) = rest.split_first() {
        rest = match (byte, after.first()) {
            (0x1b, Some(b'[')) => skip(after, |b| (0x40..=0x7e).contains(&b) && b != b'['),
            (0x1b, Some(b']')) => skip(after, |b| b == 0x07 || b == b'\\'),
            (0x1b, Some(_)) => &after[1..],
            (0x1b | b'\r', _) => after,
            _ => {
                out.push(byte);
                after
            }
        };
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn skip(bytes: &[u8], last: impl Fn(u8) -> bool) -> &[u8] {
    bytes
        .iter()
        .position(|&b| last(b))
        .map_or(&[], |at| &bytes[at + 1..])
}

/// Listening socket that QEMU connects to at its start: bound before, so that no output is lost.
pub(super) struct Listener {
    socket: UnixListener,
}

impl Listener {
    /// Binds `name` in a folder. The name is bound through the folder's descriptor, since a socket's path has at most
    /// 107 bytes and a cache may be deep (`unix(7)`).
    pub(super) fn bind(folder: &Path, name: &str) -> Result<Self> {
        let handle =
            std::fs::File::open(folder).with_context(|| format!("opening {}", folder.display()))?;
        let path = format!("/proc/self/fd/{}/{name}", handle.as_raw_fd());
        let socket = UnixListener::bind(path)
            .with_context(|| format!("binding {}", folder.join(name).display()))?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket })
    }

    /// The connection, if QEMU has already made it.
    pub(super) fn accept(&self) -> Result<Option<UnixStream>> {
        match self.socket.accept() {
            Ok((stream, _)) => Ok(Some(stream)),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error).context("accepting QEMU's connection"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_sequences_are_taken_out() {
        assert_eq!(
            plain(b"\x1b[2J\x1b[01;01Ha\x1b[0mb\r\n\x1b]0;title\x07c\x1b=d"),
            "ab\ncd"
        );
        assert_eq!(plain(b"cut \x1b[3"), "cut ");
    }

    #[test]
    fn a_wait_ends_by_finding_by_closing_and_by_time() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let channel = Channel::attach(theirs, None).unwrap();
        (&ours).write_all(b"one\n").unwrap();
        let find = |word: &'static str| move |text: &str| text.contains(word).then_some(());
        assert_eq!(
            channel.wait(Duration::from_secs(10), find("one")),
            Waited::Found(())
        );
        assert_eq!(
            channel.wait(Duration::from_millis(20), find("two")),
            Waited::Late
        );
        drop(ours);
        assert_eq!(
            channel.wait(Duration::from_secs(10), find("two")),
            Waited::Closed
        );
    }

    #[test]
    fn output_in_small_pieces_is_not_searched_at_each() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let channel = Channel::attach(theirs, None).unwrap();
        let writer = std::thread::spawn(move || {
            for _ in 0..1000 {
                (&ours).write_all(b"x").unwrap();
                std::thread::sleep(Duration::from_micros(100));
            }
            (&ours).write_all(b"end").unwrap();
            ours
        });
        let begin = Instant::now();
        let mut searches = 0;
        let found = channel.wait(Duration::from_secs(30), |text| {
            searches += 1;
            text.ends_with("end").then_some(())
        });
        assert_eq!(found, Waited::Found(()));
        let most = begin.elapsed().as_millis() / GATHER.as_millis() + 2;
        assert!(searches <= most, "{searches} searches, at most {most}");
        drop(writer.join());
    }

    #[test]
    fn sockets_are_bound_in_deep_folders() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        Listener::bind(&deep, "console.sock").unwrap();
        assert!(deep.join("console.sock").exists());
    }
}
