//! The bodies of answers are those of a real systemd: `failed.body` and `gettys.body`, of the units of `UNITS`.
//!
//! `SLIPWAY_SYSTEMD=FOLDER cargo test -p node systemd` asks the systemd whose socket is `FOLDER/systemd/private`, with these
//! units started, and writes them anew (as `systemd --user`, with `XDG_RUNTIME_DIR=FOLDER`).

use std::env;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;

use linux::world::Clock;

use super::*;

/// What was started there: name, description, active, sub.
const UNITS: [(&str, &str, &str, &str); 3] = [
    (
        "again.service",
        "A unit that fails again and again",
        "activating",
        "auto-restart",
    ),
    ("broken.service", "A unit that fails", "failed", "failed"),
    (
        "serial-getty@ttyS0.service",
        "Serial Getty on ttyS0",
        "active",
        "running",
    ),
];

fn recorded(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/systemd")
        .join(name)
}

/// The body of the answer to a question, from the file, after asking the real systemd if there is one.
fn body(name: &str, states: &[&str], names: &[&str]) -> Vec<u8> {
    let file = recorded(name);
    if let Some(folder) = env::var_os("SLIPWAY_SYSTEMD") {
        let socket = Path::new(&folder).join("systemd/private");
        let mut peer = Peer::connect(UnixStream::connect(socket).unwrap()).unwrap();
        let call = call(1, "ListUnitsByPatterns", &[states, names]);
        peer.stream.get_mut().write_all(&call).unwrap();
        let answer = loop {
            let (head, body) = peer.message().unwrap();
            if head.reply_to == Some(1) {
                assert_eq!(head.kind, Kind::Return);
                break body;
            }
        };
        fs::write(&file, answer).unwrap();
    }
    fs::read(&file).unwrap()
}

fn shown(units: &[Unit]) -> Vec<(&str, &str, &str, &str)> {
    let mut shown: Vec<_> = units
        .iter()
        .map(|unit| {
            (
                unit.name.as_str(),
                unit.description.as_str(),
                unit.active.as_str(),
                unit.sub.as_str(),
            )
        })
        .collect();
    shown.sort_unstable();
    shown
}

/// A message of a peer, with these fields: code, signature, bytes.
fn message(kind: u8, fields: &[(u8, &str, Vec<u8>)], body: &[u8]) -> Vec<u8> {
    let number = |number: usize| u32::try_from(number).unwrap().to_le_bytes();
    let mut array = Vec::new();
    for (code, signature, value) in fields {
        array.resize(array.len().next_multiple_of(8), 0);
        array.extend([*code, 1, signature.as_bytes()[0], 0]);
        array.extend(value);
    }
    let mut message = vec![b'l', kind, 1, 1];
    message.extend(number(body.len()));
    message.extend(number(77));
    message.extend(number(array.len()));
    message.extend(array);
    message.resize(message.len().next_multiple_of(8), 0);
    message.extend(body);
    message
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = u32::try_from(text.len()).unwrap().to_le_bytes().to_vec();
    bytes.extend(text.bytes());
    bytes.push(0);
    bytes
}

fn world(folder: &Path) -> World {
    fs::create_dir_all(folder.join("run/systemd")).unwrap();
    World::below(folder, Clock::Real)
}

/// A systemd that answers each call by the next of these; the rest of a message after a hello and a line is a call.
fn answering(world: &World, answers: Vec<Vec<u8>>) -> thread::JoinHandle<()> {
    let listener = UnixListener::bind(world.in_run(SOCKET)).unwrap();
    thread::spawn(move || {
        let mut stream = BufReader::new(listener.accept().unwrap().0);
        let mut line = Vec::new();
        stream.read_until(b'\n', &mut line).unwrap();
        assert!(line.starts_with(b"\0AUTH EXTERNAL "), "{line:?}");
        stream.get_mut().write_all(b"OK 0123\r\n").unwrap();
        line.clear();
        stream.read_until(b'\n', &mut line).unwrap();
        assert_eq!(line, b"BEGIN\r\n");
        for answer in answers {
            let mut start = [0; HEADER];
            stream.read_exact(&mut start).unwrap();
            let (fields, body) = rest(&start).unwrap();
            let mut call = vec![0; fields + body];
            stream.read_exact(&mut call).unwrap();
            stream.get_mut().write_all(&answer).unwrap();
        }
    })
}

fn reply(serial: u32, body: &[u8]) -> Vec<u8> {
    let fields = [
        (5, "u", serial.to_le_bytes().to_vec()),
        (7, "s", text(":1.1")),
        (8, "g", b"\x0da(ssssssouso)\0".to_vec()),
    ];
    message(2, &fields, body)
}

#[test]
fn units_that_failed_and_gettys_are_read_from_systemds_answers() {
    let failed = body("failed.body", &FAILED, &[]);
    let gettys = body("gettys.body", &[], &GETTYS);
    assert_eq!(shown(&message::units(&failed).unwrap()), UNITS[..2]);
    assert_eq!(shown(&message::units(&gettys).unwrap()), UNITS[2..]);
    // An answer that is cut is refused at each place.
    for end in 0..failed.len() {
        assert_eq!(message::units(&failed[..end]), None, "{end}");
    }
    let folder = tempfile::tempdir().unwrap();
    let world = world(folder.path());
    let signal = message(4, &[(1, "o", text("/org")), (3, "s", text("JobNew"))], b"");
    let systemd = answering(
        &world,
        vec![
            [signal.clone(), signal, reply(1, &failed)].concat(),
            reply(2, &gettys),
        ],
    );
    let units = units(&world).unwrap();
    assert_eq!(shown(&units.failed), UNITS[..2]);
    assert_eq!(units.gettys, ["ttyS0"]);
    systemd.join().unwrap();
}

#[test]
fn a_getty_has_its_console_from_the_job_that_starts_it_until_it_ends() {
    let unit = |name: &str, active: &str, job: &str| Unit {
        name: name.to_owned(),
        description: String::new(),
        active: active.to_owned(),
        sub: String::new(),
        job: job.to_owned(),
    };
    for (name, active, job, expected) in [
        ("getty@tty1.service", "active", "", Some("tty1")),
        ("getty@tty1.service", "inactive", "start", Some("tty1")),
        ("getty@tty1.service", "inactive", "", None),
        ("getty@tty1.service", "failed", "", None),
        (
            "serial-getty@ttyS0.service",
            "activating",
            "",
            Some("ttyS0"),
        ),
        ("console-getty.service", "active", "", Some("console")),
        ("serial-getty@usb-0.service", "active", "", Some("usb/0")),
    ] {
        let found = terminal(&unit(name, active, job));
        assert_eq!(found.as_deref(), expected, "{name} {active} {job}");
    }
}

#[test]
fn a_systemd_that_refuses_or_breaks_off_is_named() {
    let refusal = [
        (4, "s", text("org.freedesktop.DBus.Error.AccessDenied")),
        (5, "u", 1_u32.to_le_bytes().to_vec()),
    ];
    let endless = [b"l\x02\x01\x01".as_slice(), &[0xff; 12]].concat();
    for (answer, expected) in [
        (
            message(3, &refusal, b""),
            "systemd refuses: org.freedesktop.DBus.Error.AccessDenied",
        ),
        (reply(1, &[1, 0, 0]), "the answer is not a list of units"),
        (reply(1, &[0; 8])[..20].to_vec(), "failed to fill"),
        (b"HTTP/1.1 400 Bad".to_vec(), "not a message of D-Bus"),
        (endless, "expected 4194304 at most"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let world = world(folder.path());
        let systemd = answering(&world, vec![answer]);
        let error = format!("{:#}", units(&world).unwrap_err());
        assert!(error.starts_with("asking systemd at "), "{error}");
        assert!(error.contains(expected), "{error}");
        systemd.join().unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let error = format!("{:#}", units(&world(folder.path())).unwrap_err());
    assert!(error.contains("No such file"), "{error}");
}
