//! Files of a config that are larger than the memory for them.

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use anyhow::{Context, Result, bail, ensure};
use image::paths::SPOOL;
use image::report::HANDOFF_LINE;
use qemu_tests::http::{self, Request};
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::random::Random;
use qemu_tests::running::Running;
use qemu_tests::timeouts;
use serde_json::json;
use sha2::{Digest, Sha512};
use slipway::vm::channel::Waited;

const MIB: usize = 1 << 20;
/// The machine's memory, MiB.
const MEMORY: u32 = 640;
/// Size of the file, MiB: more than half of that memory, less than the disk.
const SIZE: usize = 336;
/// Path of the file on the node.
const PATH: &str = "/var/lib/large";

/// What a request is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The last byte is another one.
    Wrong,
    /// What the config's hash says.
    Right,
}

/// An answer that the node took to its last byte.
#[derive(Clone, Copy, Debug)]
struct Served {
    answer: Answer,
    /// The last write to the system disk at the end of the answer.
    disk: SystemTime,
}

/// What the server does, and what it has done.
#[derive(Debug, Default)]
struct Shelf {
    /// Whether the file is corrected.
    corrected: bool,
    served: Vec<Served>,
    /// Requests, those that the node broke off among them.
    requests: usize,
}

impl Shelf {
    /// Wrong until it is corrected; then right, once wrong for the second fetch, and right again.
    fn next(&self) -> Answer {
        let all = || self.served.iter();
        let right = all().filter(|one| one.answer == Answer::Right).count();
        match (self.corrected, right) {
            (false, _) => Answer::Wrong,
            (true, 1) if all().last().is_some_and(|one| one.answer == Answer::Right) => {
                Answer::Wrong
            }
            (true, _) => Answer::Right,
        }
    }
}

/// A server on the host with one large file.
struct Server {
    url: String,
    shelf: Arc<Mutex<Shelf>>,
}

impl Server {
    /// Serves until the test ends; `disk` is the node's.
    fn start(disk: PathBuf) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://10.0.2.2:{}/large", listener.local_addr()?.port());
        let shelf = Arc::<Mutex<Shelf>>::default();
        let kept = Arc::clone(&shelf);
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let (shelf, disk) = (Arc::clone(&kept), disk.clone());
                // A node that finds the file too large for its memory ends the connection.
                std::thread::spawn(move || drop(serve(connection, &shelf, &disk)));
            }
        });
        Ok(Self { url, shelf })
    }

    fn look<T>(&self, work: impl FnOnce(&mut Shelf) -> T) -> Result<T> {
        match self.shelf.lock() {
            Ok(mut shelf) => Ok(work(&mut shelf)),
            Err(_) => bail!("the server has panicked"),
        }
    }
}

/// Answers one request, and notes it if the node takes all of the answer.
fn serve(mut connection: TcpStream, shelf: &Mutex<Shelf>, disk: &Path) -> Result<()> {
    let lock = || shelf.lock().map_err(|_| anyhow::anyhow!("a panic"));
    Request::read(&mut connection)?;
    let answer = {
        let mut shelf = lock()?;
        shelf.requests += 1;
        shelf.next()
    };
    http::answer_head(&mut connection, "200 OK", SIZE * MIB)?;
    let last = each_piece(|piece| Ok(connection.write_all(piece)?))?;
    let last = match answer {
        Answer::Wrong => !last,
        Answer::Right => last,
    };
    let disk = fs::metadata(disk)?.modified()?;
    connection.write_all(&[last])?;
    lock()?.served.push(Served { answer, disk });
    Ok(())
}

/// Gives the file's content piece by piece, but its last byte, which is returned.
fn each_piece(mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<u8> {
    let mut random = Random::new(1);
    let mut piece: Vec<u8> = (0..MIB / 8)
        .flat_map(|_| random.bits().to_le_bytes())
        .collect();
    for number in 0..SIZE {
        // No two pieces are the same.
        piece[..8].copy_from_slice(&(number as u64).to_le_bytes());
        let whole = number + 1 < SIZE;
        take(&piece[..MIB - usize::from(!whole)])?;
    }
    Ok(piece[MIB - 1])
}

/// SHA-512 of the file as the config names it, hexadecimal.
fn digest() -> Result<String> {
    let mut hasher = Sha512::new();
    let last = each_piece(|piece| {
        hasher.update(piece);
        Ok(())
    })?;
    hasher.update([last]);
    let digest = hasher.finalize();
    Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// On a machine with little memory: a file with a wrong hash is refused by its path, and nothing is written. Once it is corrected it
/// is verified before the first write, and fetched again onto `/var`; if that is not what was verified it is refused, and no file is
/// written. The node has the right one in the end, and nothing of the spool.
pub(crate) fn a_file_larger_than_memory_is_verified_before_the_first_write(
    lab: &mut Lab,
) -> Result<()> {
    let node = lab.node()?;
    let server = Server::start(node.system())?;
    let (url, digest) = (server.url.clone(), digest()?);
    let config = json!({
        "ignition": { "version": "3.4.0" },
        "storage": { "files": [{ "path": PATH, "contents": {
            "source": url,
            "verification": { "hash": format!("sha512-{digest}") },
        }}]},
    });
    let written = || -> Result<SystemTime> { Ok(fs::metadata(node.system())?.modified()?) };
    let before = written()?;
    let mut machine = lab.machine(&node, &BootOptions::default())?;
    machine.memory = MEMORY;
    let running = lab.start(&node, machine, Some(config))?;
    let wrong = [
        "config: $.storage.files.0.contents",
        "the hash that the config gives",
        "nothing was written",
    ];
    says(&running, &wrong).context("of a wrong hash")?;
    ensure!(written()? == before, "the disk was written to");
    server.look(|shelf| shelf.corrected = true)?;

    let another = ["the hash that the config gives", "no file was written"];
    says(&running, &another).context("of a file that changes")?;
    running.wait_handoff(timeouts::HANDOFF)?;
    let (served, requests) = server.look(|shelf| (shelf.served.clone(), shelf.requests))?;
    verified_before_the_first_write(&served, before)?;
    running.wait_agent()?;
    for (script, expected) in [
        (format!("sha512sum {PATH} | cut -d' ' -f1"), digest.as_str()),
        (format!("test -e {SPOOL} || echo none"), "none"),
        (
            "journalctl -b -k -o cat | grep -c 'do not fit into memory: they are verified, and fetched again onto /var'".to_owned(),
            "1",
        ),
    ] {
        let found = running.run(&script)?;
        ensure!(found == expected, "`{script}` gave {found:?}");
    }
    let later = server.look(|shelf| shelf.requests)?;
    ensure!(later == requests, "the running node fetched it again");
    Ok(())
}

/// Waits until the console has these words.
fn says(running: &Running, words: &[&str]) -> Result<()> {
    let console = running.vm.console();
    let found = console.wait(timeouts::HANDOFF, |text| {
        let all = words.iter().all(|word| text.contains(word));
        (all || text.contains(HANDOFF_LINE)).then_some(all)
    });
    ensure!(
        found == Waited::Found(true),
        "{words:?} are not on the console: {found:?}"
    );
    Ok(())
}

/// The disk was as before when the first right answer came to its end, and had been written to when the next one did.
fn verified_before_the_first_write(served: &[Served], before: SystemTime) -> Result<()> {
    let first = served.iter().position(|one| one.answer == Answer::Right);
    let first = first.context("the file was never right")?;
    for one in &served[..=first] {
        ensure!(one.disk == before, "the disk was written to before {one:?}");
    }
    let answers: Vec<Answer> = served[first..].iter().map(|one| one.answer).collect();
    ensure!(
        answers == [Answer::Right, Answer::Wrong, Answer::Right],
        "{served:?}"
    );
    ensure!(
        served[first + 1..].iter().all(|one| one.disk > before),
        "{served:?}"
    );
    Ok(())
}
