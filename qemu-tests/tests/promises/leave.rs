//! The end of `slipway run`.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use qemu_tests::lab::Lab;
use serde_json::{Value, json};
use slipway::host::progress::Kind;
use slipway::host::session::Session;

/// How long the tool may take to end.
const LEAVING: Duration = Duration::from_secs(30);
/// How long the tool's children may run after it.
const ENDING: Duration = Duration::from_secs(1);
/// How long a node that switches itself off may take, from its first byte.
const POWER_OFF: Duration = Duration::from_secs(240);
/// How long the machine may take to print its first byte.
const FIRST_WORD: Duration = Duration::from_secs(120);

/// `slipway run` ends by Ctrl-A X, by Ctrl-C, SIGTERM and SIGHUP, by the guest's power-off, and when QEMU or it itself is killed;
/// no process of it remains, and no file but those of a killed one, which the next run removes.
pub(crate) fn slipway_run_leaves_no_process_and_no_disk(lab: &mut Lab) -> Result<()> {
    let program = program()?;
    let config = lab.folder().join("power-off.ign");
    fs::write(&config, power_off().to_string()).context("writing a config")?;
    let cache = lab.session().cache.root().to_owned();
    for way in [
        Way::Keys,
        Way::Signal(Signal::SIGINT),
        Way::Signal(Signal::SIGTERM),
        Way::Signal(Signal::SIGHUP),
        Way::Crash,
        Way::PowerOff,
        Way::Signal(Signal::SIGKILL),
    ] {
        let said = lab.folder().join("run.console");
        let config = (way == Way::PowerOff).then_some(&*config);
        let mut child = start(&program, &lab.image.out, config, &said)?;
        let result = leave(&mut child, &way, &said, &cache);
        if result.is_err() {
            child.kill().ok();
            child.wait().ok();
        }
        let had = result.with_context(|| format!("leaving by {way:?}"))?;
        no_process(&had.processes).with_context(|| format!("after {way:?}"))?;
        if way == Way::Signal(Signal::SIGKILL) {
            // Only the next one can remove its files.
            drop(Session::open(Kind::Quiet)?);
        }
        let left: Vec<_> = had.scratch.iter().filter(|path| path.exists()).collect();
        ensure!(left.is_empty(), "after {way:?} it left {left:?}");
    }
    Ok(())
}

/// The program `slipway` beside the tests. Cargo builds it for `cargo test --workspace`, not for this package alone: one that is
/// older than its source would prove nothing.
pub(crate) fn program() -> Result<PathBuf> {
    let tests = std::env::current_exe()?;
    let mut places = tests.ancestors().map(|folder| folder.join("slipway"));
    let program = places.find(|path| path.is_file());
    let program = program.context(
        "finding the program slipway beside the tests; `cargo test --workspace` builds it",
    )?;
    let made = program.metadata()?;
    let folder = tests.parent().context("finding the tests' folder")?;
    let sources = sources(folder, made.ino())?;
    ensure!(
        sources.iter().any(|path| path.ends_with("src/main.rs")),
        "the sources of {} are not known: {sources:?}",
        program.display()
    );
    for source in sources {
        // Of a file that was renamed since, an older list remains.
        let Ok(meta) = fs::metadata(&source) else {
            continue;
        };
        ensure!(
            meta.modified()? <= made.modified()?,
            "{} is older than {}; build it with `cargo build --release`",
            program.display(),
            source.display()
        );
    }
    Ok(program)
}

/// The sources of the program with this inode and of its package's library, as cargo lists them beside what it builds.
fn sources(folder: &Path, program: u64) -> Result<Vec<PathBuf>> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with("slipway-") || !name.ends_with(".d") {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        let is_program = fs::metadata(path.with_extension("")).is_ok_and(|it| it.ino() == program);
        if is_program || text.contains(".rlib:") {
            let listed = text.lines().filter_map(|line| line.strip_suffix(".rs:"));
            found.extend(listed.map(|path| top.join(format!("{path}.rs"))));
        }
    }
    Ok(found)
}

/// A config whose node switches itself off.
fn power_off() -> Value {
    json!({
        "ignition": { "version": "3.4.0" },
        "systemd": { "units": [{
            "name": "off.service",
            "enabled": true,
            "contents": "[Unit]\nSuccessAction=poweroff-immediate\n[Service]\nType=oneshot\nExecStart=/bin/true\n[Install]\nWantedBy=sysinit.target\n",
        }]},
    })
}

/// None of these processes runs any more, or shortly.
fn no_process(had: &[Process]) -> Result<()> {
    ensure!(
        had.iter()
            .any(|process| process.line.contains("qemu-system")),
        "no emulator ran: {had:?}"
    );
    let until = Instant::now() + ENDING;
    let mut left = still_running(had)?;
    while !left.is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
        left = still_running(had)?;
    }
    ensure!(left.is_empty(), "these still run: {left:?}");
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Way {
    /// Ctrl-A X.
    Keys,
    /// A signal to the tool.
    Signal(Signal),
    /// QEMU is killed.
    Crash,
    /// The guest switches itself off.
    PowerOff,
}

#[allow(
    clippy::disallowed_methods,
    reason = "the tool itself is what is tested here, as a user starts it"
)]
fn start(program: &Path, out: &Path, config: Option<&Path>, said: &Path) -> Result<Child> {
    Command::new(program)
        .arg("run")
        .arg(out)
        .args(["--accel", "tcg", "--direct"])
        .args(config.map(|_| "--ignition"))
        .args(config)
        .stdin(Stdio::piped())
        .stdout(fs::File::create(said)?)
        .stderr(fs::File::create(said.with_extension("stderr"))?)
        .spawn()
        .context("starting slipway run")
}

/// What the tool had when it was told to end.
struct Had {
    /// The processes below it.
    processes: Vec<Process>,
    /// Its scratch folders in the cache.
    scratch: Vec<PathBuf>,
}

/// Waits for output of the machine and ends the tool; returns what it had.
fn leave(child: &mut Child, way: &Way, said: &Path, cache: &Path) -> Result<Had> {
    let until = Instant::now() + FIRST_WORD;
    while fs::metadata(said)?.len() == 0 {
        if let Some(status) = child.try_wait()? {
            let stderr = fs::read_to_string(said.with_extension("stderr"))?;
            anyhow::bail!("slipway run ended with {status}: {stderr}");
        }
        ensure!(Instant::now() < until, "the machine printed nothing");
        std::thread::sleep(Duration::from_millis(100));
    }
    let had = Had {
        processes: descendants(child.id())?,
        scratch: scratch(child.id(), cache)?,
    };
    match way {
        Way::Keys => {
            let stdin = child.stdin.as_mut().context("taking its input")?;
            stdin.write_all(b"\x01x")?;
        }
        Way::Signal(signal) => kill(pid(child.id())?, *signal)?,
        Way::Crash => {
            let emulator = had.processes.iter().rfind(|process| process.is_emulator());
            let emulator = emulator.context("finding the emulator")?;
            kill(pid(emulator.id)?, Signal::SIGKILL)?;
        }
        Way::PowerOff => {}
    }
    let patience = match way {
        Way::PowerOff => POWER_OFF,
        _ => LEAVING,
    };
    let until = Instant::now() + patience;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        ensure!(
            Instant::now() < until,
            "it still runs {} s later",
            patience.as_secs()
        );
        std::thread::sleep(Duration::from_millis(50));
    };
    let (code, signal) = match way {
        Way::Keys | Way::PowerOff => (Some(0), None),
        Way::Signal(Signal::SIGKILL) => (None, Some(Signal::SIGKILL as i32)),
        Way::Signal(_) => (Some(130), None),
        Way::Crash => (Some(1), None),
    };
    ensure!(
        (status.code(), status.signal()) == (code, signal),
        "it ended with {status}; expected exit code {code:?} or signal {signal:?}"
    );
    if *way == Way::Crash {
        let error = fs::read_to_string(said.with_extension("stderr"))?;
        ensure!(error.contains("QEMU failed"), "it said {error:?}");
    }
    Ok(had)
}

fn pid(id: u32) -> Result<Pid> {
    Ok(Pid::from_raw(i32::try_from(id)?))
}

/// A process. Its start time distinguishes it from a later one with the same number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Process {
    id: u32,
    parent: u32,
    /// Clock ticks since the host's boot.
    started: u64,
    line: String,
}

impl Process {
    /// Whether it is QEMU itself, not a process around it.
    fn is_emulator(&self) -> bool {
        let program = self.line.split(' ').next().unwrap_or_default();
        program.ends_with("qemu-system-x86_64")
    }
}

/// All running processes that are visible here. A process in state `Z` has ended and waits for the host's process 1 to
/// reap it, which some do only every two seconds; it does not count.
fn processes() -> Result<Vec<Process>> {
    let entries = fs::read_dir("/proc")?.collect::<Result<Vec<_>, _>>()?;
    // A process may end while it is read.
    Ok(entries
        .iter()
        .filter_map(|entry| process(&entry.path()))
        .collect())
}

/// Reads the fields of proc_pid_stat(5) after the closing bracket of the name.
fn process(folder: &Path) -> Option<Process> {
    let id = folder.file_name()?.to_str()?.parse().ok()?;
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    if fields.first() == Some(&"Z") {
        return None;
    }
    let line = fs::read(folder.join("cmdline")).ok()?;
    Some(Process {
        id,
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        line: String::from_utf8_lossy(&line).replace('\0', " "),
    })
}

/// A process's children, theirs, and so on.
fn descendants(of: u32) -> Result<Vec<Process>> {
    let all = processes()?;
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![of];
    while let Some(parent) = parents.pop() {
        for child in all.iter().filter(|process| process.parent == parent) {
            parents.push(child.id);
            found.push(child.clone());
        }
    }
    Ok(found)
}

/// The processes among them that still run.
fn still_running(of: &[Process]) -> Result<Vec<String>> {
    let now = processes()?;
    let runs = |old: &&Process| {
        now.iter()
            .any(|p| (p.id, p.started) == (old.id, old.started))
    };
    Ok(of.iter().filter(runs).map(|old| old.line.clone()).collect())
}

/// The scratch folders of the process with this number, by the locks that it holds on them: other programs have theirs in the
/// same cache, and make and remove them at any time.
fn scratch(process: u32, cache: &Path) -> Result<Vec<PathBuf>> {
    let locks = cache.canonicalize()?.join("locks");
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{process}/fd"))? {
        // A file may be closed while the list is read.
        let Ok(target) = fs::read_link(entry?.path()) else {
            continue;
        };
        let Ok(name) = target.strip_prefix(&locks) else {
            continue;
        };
        let folder = cache.join("tmp").join(name);
        ensure!(folder.is_dir(), "{} is no folder", folder.display());
        found.push(folder);
    }
    ensure!(
        !found.is_empty(),
        "it has no scratch folder in {}",
        cache.display()
    );
    Ok(found)
}
