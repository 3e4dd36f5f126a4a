//! systemd's private socket, as far as Ignition uses it: each unit that it starts is started at once.
//!
//! Before Ignition uses a device, it asks systemd to start the device's unit and waits for the end of the job. The loop
//! device exists already, so each job succeeds; the time of systemd and udev is not counted against Ignition.
//! Format: the D-Bus specification, message protocol and authentication; `org.freedesktop.systemd1(5)`.

use std::io::{self, BufRead, BufReader, Error, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Name of the socket in systemd's folder.
const SOCKET: &str = "private";
/// Types of messages.
const RETURN: u8 = 2;
const SIGNAL: u8 = 4;
/// Codes of header fields.
const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const REPLY_SERIAL: u8 = 5;
const SIGNATURE: u8 = 8;
/// Maximum size of a message, bytes; Ignition's are far smaller.
const MOST: usize = 1 << 16;
/// Object path of jobs, each with its number.
const JOBS: &str = "/org/freedesktop/systemd1/job";

/// All connections get the signal of a job's end: Ignition calls on one and listens on another.
type Listeners = Arc<Mutex<Vec<UnixStream>>>;

/// Answers in `folder`, which a sandbox binds at `/run/systemd`, until this program ends.
pub(crate) fn serve(folder: &Path) -> io::Result<()> {
    let listener = UnixListener::bind(folder.join(SOCKET))?;
    let listeners = Listeners::default();
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let listeners = listeners.clone();
            // A client that closes the connection or sends an invalid message reports the failure itself.
            thread::spawn(move || drop(serve_connection(connection, &listeners)));
        }
    });
    Ok(())
}

fn serve_connection(connection: UnixStream, listeners: &Listeners) -> io::Result<()> {
    let mut input = BufReader::new(connection.try_clone()?);
    authenticate(&mut input, &connection)?;
    lock(listeners).push(connection.try_clone()?);
    while let Some(call) = Call::read(&mut input)? {
        let answered = (REPLY_SERIAL, Value::Number(call.serial));
        // One message at a time on each connection, the reply before the signal.
        let mut all = lock(listeners);
        if call.member == "StartUnit" {
            static JOB: AtomicU32 = AtomicU32::new(1);
            let number = JOB.fetch_add(1, Ordering::Relaxed);
            let job = format!("{JOBS}/{number}");
            let fields = [answered, (SIGNATURE, Value::Signature("o"))];
            (&connection).write_all(&message(RETURN, &fields, &text(&job)))?;
            let ended = job_removed(number, &job, &call.first_text()?);
            all.retain_mut(|listener| listener.write_all(&ended).is_ok());
        } else {
            (&connection).write_all(&message(RETURN, &[answered], &[]))?;
        }
    }
    Ok(())
}

fn lock(listeners: &Listeners) -> std::sync::MutexGuard<'_, Vec<UnixStream>> {
    listeners.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The server's side of the authentication; access is limited by the socket's folder.
fn authenticate(input: &mut impl BufRead, mut output: impl Write) -> io::Result<()> {
    loop {
        let mut line = String::new();
        if input.take(1024).read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        // The first byte of the connection is a zero.
        let answer = match line.trim_start_matches('\0').trim_end() {
            "BEGIN" => return Ok(()),
            external if external.starts_with("AUTH EXTERNAL") => {
                "OK 00000000000000000000000000000001\r\n"
            }
            "AUTH" => "REJECTED EXTERNAL\r\n",
            _ => "ERROR\r\n",
        };
        output.write_all(answer.as_bytes())?;
    }
}

/// A method call.
#[derive(Debug)]
struct Call {
    serial: u32,
    member: String,
    body: Vec<u8>,
}

impl Call {
    /// The next call; none at the end of the connection.
    fn read(input: &mut impl Read) -> io::Result<Option<Self>> {
        let mut head = [0; 16];
        match input.read_exact(&mut head) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            other => other?,
        }
        let wrong = || Error::new(ErrorKind::InvalidData, "no little-endian D-Bus message");
        let number = |at| number(&head, at).ok_or_else(wrong);
        let (body, serial, fields) = (number(4)?, number(8)?, number(12)?);
        let length = |length| usize::try_from(length).ok().filter(|n| *n <= MOST);
        let (Some(body), Some(fields), b'l') = (length(body), length(fields), head[0]) else {
            return Err(wrong());
        };
        let mut bytes = vec![0; fields.next_multiple_of(8) + body];
        input.read_exact(&mut bytes)?;
        Ok(Some(Self {
            serial,
            member: member(&bytes[..fields]).ok_or_else(wrong)?,
            body: bytes.split_off(fields.next_multiple_of(8)),
        }))
    }

    /// The first argument, if it is a string.
    fn first_text(&self) -> io::Result<String> {
        text_at(&self.body, 0)
            .map(|(text, _)| text.to_owned())
            .ok_or_else(|| Error::new(ErrorKind::InvalidData, "StartUnit names no unit"))
    }
}

/// The little-endian number at an offset.
fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes(four.try_into().ok()?))
}

/// The string at an offset, and its end.
fn text_at(bytes: &[u8], at: usize) -> Option<(&str, usize)> {
    let from = at.next_multiple_of(4);
    let to = from + 4 + usize::try_from(number(bytes, from)?).ok()?;
    Some((std::str::from_utf8(bytes.get(from + 4..to)?).ok()?, to + 1))
}

/// The name of the method among the header fields.
fn member(fields: &[u8]) -> Option<String> {
    let mut at = 0;
    while at < fields.len() {
        at = at.next_multiple_of(8);
        // Each field: a code, then a variant, which is the length of its signature, the signature (one letter in a
        // header), a zero, and the value.
        let (code, letter) = (*fields.get(at)?, *fields.get(at + 2)?);
        at += 4;
        at = match letter {
            b's' | b'o' => {
                let (text, end) = text_at(fields, at)?;
                if code == MEMBER {
                    return Some(text.to_owned());
                }
                end
            }
            b'g' => at + 2 + usize::from(*fields.get(at)?),
            b'u' => at.next_multiple_of(4) + 4,
            _ => return None,
        };
    }
    None
}

/// Value of a header field.
#[derive(Clone, Copy, Debug)]
enum Value {
    /// A string or an object path, with its type code.
    Text(u8, &'static str),
    Signature(&'static str),
    Number(u32),
}

fn message(kind: u8, fields: &[(u8, Value)], body: &[u8]) -> Vec<u8> {
    static SERIAL: AtomicU32 = AtomicU32::new(1);
    let mut out = Vec::new();
    for (code, value) in fields {
        align(&mut out, 8);
        let letter = match value {
            Value::Text(letter, _) => *letter,
            Value::Signature(_) => b'g',
            Value::Number(_) => b'u',
        };
        out.extend([*code, 1, letter, 0]);
        match value {
            Value::Text(_, value) => out.extend(text(value)),
            // A signature's length has one byte.
            Value::Signature(value) => {
                let text = text(value);
                out.push(text[0]);
                out.extend(&text[4..]);
            }
            Value::Number(value) => out.extend(value.to_le_bytes()),
        }
    }
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let mut all = vec![b'l', kind, 0, 1];
    for value in [length(body), serial, length(&out)] {
        all.extend(value.to_le_bytes());
    }
    all.extend(out);
    align(&mut all, 8);
    all.extend(body);
    all
}

/// The signal that a unit's job has succeeded.
fn job_removed(number: u32, job: &str, unit: &str) -> Vec<u8> {
    let mut body = number.to_le_bytes().to_vec();
    for value in [job, unit, "done"] {
        align(&mut body, 4);
        body.extend(text(value));
    }
    let fields = [
        (PATH, Value::Text(b'o', "/org/freedesktop/systemd1")),
        (
            INTERFACE,
            Value::Text(b's', "org.freedesktop.systemd1.Manager"),
        ),
        (MEMBER, Value::Text(b's', "JobRemoved")),
        (SIGNATURE, Value::Signature("uoss")),
    ];
    message(SIGNAL, &fields, &body)
}

fn text(value: &str) -> Vec<u8> {
    let mut out = length(value.as_bytes()).to_le_bytes().to_vec();
    out.extend(value.as_bytes());
    out.push(0);
    out
}

fn length(bytes: &[u8]) -> u32 {
    // Answers are shorter than calls, which have at most `MOST` bytes.
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

fn align(out: &mut Vec<u8>, to: usize) {
    out.resize(out.len().next_multiple_of(to), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_started_on_one_connection_and_its_end_signalled_on_another() {
        let folder = tempfile::tempdir().unwrap();
        serve(folder.path()).unwrap();
        let connect = || {
            let mut connection = UnixStream::connect(folder.path().join(SOCKET)).unwrap();
            connection
                .write_all(b"\0AUTH EXTERNAL 30\r\nBEGIN\r\n")
                .unwrap();
            let mut answer = [0; 37];
            connection.read_exact(&mut answer).unwrap();
            assert!(answer.starts_with(b"OK ") && answer.ends_with(b"\r\n"));
            connection
        };
        let call = |name, body: &[u8]| message(1, &[(MEMBER, Value::Text(b's', name))], body);
        let (mut asks, mut listens) = (connect(), connect());
        // Its reply shows that it is registered as a listener.
        listens.write_all(&call("AddMatch", &text("x"))).unwrap();
        let mut head = [0; 16];
        listens.read_exact(&mut head).unwrap();
        assert_eq!((head[1], number(&head, 4)), (RETURN, Some(0)));
        listens.read_exact(&mut [0; 8]).unwrap();
        let mut jobs = Vec::new();
        for unit in ["dev-loop0.device", "dev-loop0p1.device"] {
            let start = call("StartUnit", &text(unit));
            asks.write_all(&start).unwrap();
            asks.read_exact(&mut head).unwrap();
            assert_eq!(head[1], RETURN);
            let fields = usize::try_from(number(&head, 12).unwrap()).unwrap();
            let body = usize::try_from(number(&head, 4).unwrap()).unwrap();
            let mut rest = vec![0; fields.next_multiple_of(8) + body];
            asks.read_exact(&mut rest).unwrap();
            assert_eq!(number(&rest, 4), number(&start, 8), "of this call");
            let (started, _) = text_at(&rest[fields.next_multiple_of(8)..], 0).unwrap();
            let signal = Call::read(&mut listens).unwrap().unwrap();
            assert_eq!(signal.member, "JobRemoved");
            let (job, end) = text_at(&signal.body, 4).unwrap();
            let (named, end) = text_at(&signal.body, end).unwrap();
            let (how, _) = text_at(&signal.body, end).unwrap();
            assert_eq!((job, named, how), (started, unit, "done"));
            jobs.push(job.to_owned());
            // The connection that made the call gets the signal too.
            assert!(Call::read(&mut asks).unwrap().is_some());
        }
        assert_ne!(jobs[0], jobs[1]);
    }

    #[test]
    fn an_invalid_message_ends_the_connection() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            &[b'l', 1, 0, 1, 0, 0, 0, 0xff, 1, 0, 0, 0, 0, 0, 0, 0],
            &[b'l', 1, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
        ] {
            assert!(Call::read(&mut &bytes[..]).is_err(), "{bytes:?}");
        }
        assert!(Call::read(&mut &b"l"[..]).unwrap().is_none());
    }
}
