//! Running other programs, by a chroot into the verified root before the handoff. These crates start programs nowhere else.
//!
//! The root step binds `/dev`, `/proc`, `/sys` and `/run` into the root, so a program sees the same folders as on the
//! running node; its own files are the verified ones.

#![allow(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "this is the door that the lint points to"
)]

mod running;

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use self::running::Running;
use crate::waiter::Waiter;
use crate::world::World;

/// The longest that a program may run whose work does not grow with a disk.
pub const DEADLINE: Duration = Duration::from_secs(1800);
/// How often a running program is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A root file system and the programs in it.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The machine.
    pub world: Arc<World>,
    /// Where the root is mounted.
    pub sysroot: PathBuf,
    /// Whether the root is an image's, whose recipe can add a missing program.
    pub in_image: bool,
}

impl Programs {
    /// The programs of the image whose root is mounted at the world's `sysroot`.
    #[must_use]
    pub fn of_image(world: Arc<World>) -> Self {
        Self {
            sysroot: world.sysroot.clone(),
            in_image: true,
            world,
        }
    }

    /// The programs of the system that this program itself runs in.
    #[must_use]
    pub fn of_host(world: Arc<World>) -> Self {
        Self {
            sysroot: PathBuf::from("/"),
            in_image: false,
            world,
        }
    }

    /// Whether udev serves this system: it makes links to devices, and programs have to wait for it. In our own
    /// initramfs it never does.
    #[must_use]
    pub fn has_udev(&self) -> bool {
        self.world.run.join("udev/control").exists()
    }
}

/// The result of a program: its status and output.
#[derive(Debug)]
pub struct Output {
    /// Its exit status; [`run`] returns an output for every status, [`succeed`] only for success.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// How a program is waited for.
#[derive(Clone, Copy, Debug)]
struct Wait<'a> {
    /// What messages call it.
    name: &'a str,
    /// When it is killed; none: never.
    deadline: Option<Duration>,
}

/// Runs `program` (a path inside the root) with `args` and waits for its end, whatever it is.
///
/// # Errors
/// If it cannot be started or does not end within [`DEADLINE`]; the command is shown as it would be typed.
pub fn run<A: AsRef<OsStr>>(root: &Programs, program: &str, args: &[A]) -> Result<Output> {
    let name = &typed(program, args);
    let deadline = Some(DEADLINE);
    run_as(root, program, args, Wait { name, deadline })
}

/// As [`run`], for a program that may take hours on a large disk and is therefore never killed. It feeds the watchdog while
/// it computes or the disks complete requests. `what` is what the lines on the consoles call it.
///
/// # Errors
/// If it cannot be started.
pub fn run_on_disk<A: AsRef<OsStr>>(
    root: &Programs,
    program: &str,
    args: &[A],
    what: &str,
) -> Result<Output> {
    let wait = Wait {
        name: what,
        deadline: None,
    };
    run_as(root, program, args, wait)
}

fn run_as<A: AsRef<OsStr>>(
    root: &Programs,
    program: &str,
    args: &[A],
    wait: Wait<'_>,
) -> Result<Output> {
    let name = wait.name;
    let mut running = start(root, program, args)
        .map(Running::new)
        .with_context(|| format!("starting {name}"))?;
    let mut waiter = Waiter::new(&root.world, wait.deadline);
    let mut work = None;
    let status = loop {
        if let Some(status) = running
            .look(waiter.pause(LOOK_EVERY), waiter.elapsed())
            .with_context(|| format!("waiting for {name}"))?
        {
            break status;
        }
        match wait.deadline {
            Some(_) => waiter.running(),
            // It may wait for a disk that answers no more, for ever.
            None => {
                let now = running.work(&root.world);
                if work.as_ref().is_some_and(|before| *before != now) {
                    waiter.worked();
                }
                work = Some(now);
            }
        }
        waiter.say(name);
        if waiter.is_over() {
            let seconds = waiter.elapsed().as_secs();
            return Err(match running.kill(&root.world) {
                true => anyhow!("{name} did not end within {seconds} s and was killed"),
                false => anyhow!(
                    "{name} did not end within {seconds} s and cannot be killed: it waits for a device"
                ),
            });
        }
    };
    running.reap();
    Ok(Output {
        status,
        stdout: running.outputs.text(0),
        stderr: running.outputs.text(1),
    })
}

/// As [`run`], and anything but exit code 0 is an error with the end of the program's output.
///
/// # Errors
/// See above.
pub fn succeed<A: AsRef<OsStr>>(root: &Programs, program: &str, args: &[A]) -> Result<Output> {
    succeed_without(root, program, args, &[])
}

/// As [`succeed`]; `hidden` texts, such as keys, are replaced in every message.
///
/// # Errors
/// See above.
pub fn succeed_without<A: AsRef<OsStr>>(
    root: &Programs,
    program: &str,
    args: &[A],
    hidden: &[&str],
) -> Result<Output> {
    let name = &hide(typed(program, args), hidden);
    let deadline = Some(DEADLINE);
    let output = run_as(root, program, args, Wait { name, deadline })?;
    succeeded(output, name, hidden)
}

/// As [`run_on_disk`], and anything but exit code 0 is an error with the command and the end of its output.
///
/// # Errors
/// See above.
pub fn succeed_on_disk<A: AsRef<OsStr>>(
    root: &Programs,
    program: &str,
    args: &[A],
    what: &str,
) -> Result<Output> {
    let output = run_on_disk(root, program, args, what)?;
    succeeded(output, &typed(program, args), &[])
}

fn hide(text: String, hidden: &[&str]) -> String {
    let given = hidden.iter().filter(|hidden| !hidden.is_empty());
    given.fold(text, |text, hidden| text.replace(hidden, "…"))
}

fn succeeded(output: Output, typed: &str, hidden: &[&str]) -> Result<Output> {
    if !output.status.success() {
        let text = hide(
            [output.stdout.trim(), output.stderr.trim()].join("\n"),
            hidden,
        );
        let from = text.char_indices().rev().nth(800).map_or(0, |(at, _)| at);
        bail!(
            "{typed} ended with {}: {}",
            output.status,
            text[from..].trim()
        );
    }
    Ok(output)
}

fn start<A: AsRef<OsStr>>(root: &Programs, program: &str, args: &[A]) -> Result<Child> {
    let folder = std::ffi::CString::new(root.sysroot.as_os_str().as_encoded_bytes())?;
    let mut command = Command::new(program);
    command
        .args(args)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LANG", "C.UTF-8")
        // The root is read-only, and nothing is at its /tmp yet.
        .env("TMPDIR", "/run")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Its children are in the same group, and are killed with it. No control group: in another system's initrd these
        // are systemd's. No namespace of processes: as its first process a program would ignore signals, and the ids that
        // it writes into lock files would be others than those that /proc shows.
        .process_group(0);
    if !root.has_udev() {
        // Without these mdadm and device mapper wait for udev to make their nodes.
        command
            .env("MDADM_NO_UDEV", "1")
            .env("DM_DISABLE_UDEV", "1");
    }
    if folder.as_c_str() == c"/" {
        // The same without a privilege.
        command.current_dir("/");
        return Ok(command.spawn()?);
    }
    // SAFETY: between fork and exec only async-signal-safe calls are made (chroot and chdir are plain system
    // calls), and `folder` was allocated before the fork.
    unsafe {
        command.pre_exec(move || {
            nix::unistd::chroot(folder.as_c_str())?;
            nix::unistd::chdir(c"/")?;
            Ok(())
        });
    }
    Ok(command.spawn()?)
}

fn typed<A: AsRef<OsStr>>(program: &str, args: &[A]) -> String {
    let mut text = program.to_owned();
    for arg in args {
        text.push(' ');
        text.push_str(&arg.as_ref().to_string_lossy());
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::world::Clock;

    /// A chroot into `/` is the only root in a test that has programs.
    fn root(world: &Path) -> Programs {
        Programs {
            world: Arc::new(World::below(world, Clock::Real)),
            sysroot: "/".into(),
            in_image: false,
        }
    }

    #[test]
    fn a_failure_shows_the_command_and_its_output() {
        if !crate::host::is_root() {
            assert!(run(&root(Path::new("/nowhere")), "/bin/true", &[] as &[&str]).is_err());
            return;
        }
        let root = root(Path::new("/nowhere"));
        let error = succeed(&root, "/bin/ls", &["/does/not/exist"]).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("/bin/ls /does/not/exist ended"), "{text}");
        assert!(text.contains("No such file"), "{text}");
        let hidden = ["/does/not", ""];
        let error = succeed_without(&root, "/bin/ls", &["/does/not/exist"], &hidden).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("/bin/ls …/exist ended"), "{text}");
        assert!(!text.contains("/does/not"), "{text}");
        let output = succeed(&root, "/bin/echo", &["a", "b"]).unwrap();
        assert_eq!(output.stdout, "a b\n");
    }

    /// The ids of processes whose command line has this word.
    fn with_word(word: &str) -> Vec<String> {
        crate::block::entries(Path::new("/proc"))
            .into_iter()
            .filter(|id| {
                let text = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
                String::from_utf8_lossy(&text)
                    .split('\0')
                    .any(|argument| argument == word)
            })
            .collect()
    }

    /// A program at its deadline with a child, one that has left its process group, and one whose parent has ended.
    #[test]
    fn what_is_killed_is_killed_with_its_children_and_reaped() {
        if !crate::host::is_root() {
            return;
        }
        // As process 1, this process adopts them.
        nix::sys::prctl::set_child_subreaper(true).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut root = root(folder.path());
        let world = Arc::get_mut(&mut root.world).unwrap();
        world.proc = "/proc".into();
        std::fs::create_dir_all(&world.dev).unwrap();
        std::fs::write(world.dev.join("console"), "").unwrap();
        let word = format!("3{}.5", std::process::id());
        let script =
            format!("sleep {word} & setsid sleep {word} & (sleep {word} &) & echo begun; wait");
        let begun = std::time::Instant::now();
        let wait = Wait {
            name: "a script",
            deadline: Some(Duration::from_secs(6)),
        };
        let seen = std::thread::spawn({
            let word = word.clone();
            move || {
                std::thread::sleep(Duration::from_secs(2));
                with_word(&word).len()
            }
        });
        let error = run_as(&root, "/bin/sh", &["-c", &script], wait).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a script did not end within 6 s and was killed"
        );
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert_eq!(seen.join().unwrap(), 3);
        assert_eq!(with_word(&word), Vec::<String>::new());
        // None is left as a zombie either: their parent is this process by now.
        let own = std::process::id().to_string();
        let zombies: Vec<String> = crate::block::entries(Path::new("/proc"))
            .into_iter()
            .filter_map(|id| std::fs::read_to_string(format!("/proc/{id}/stat")).ok())
            .filter(|stat| {
                let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split(' ').collect();
                stat.contains("(sleep)") && fields[1] == "Z" && fields[2] == own
            })
            .collect();
        assert_eq!(zombies, Vec::<String>::new());
        // Before that a line said what is waited for.
        let console = std::fs::read_to_string(root.world.dev.join("console")).unwrap();
        assert_eq!(console, "slipway: waiting for a script (5 s of 6 s)\n");
    }

    /// How often a program on a disk feeds the watchdog. No disk completes anything.
    fn fed(script: &str) -> u64 {
        let folder = tempfile::tempdir().unwrap();
        let mut root = root(folder.path());
        let world = Arc::get_mut(&mut root.world).unwrap();
        world.proc = "/proc".into();
        std::fs::create_dir_all(&world.dev).unwrap();
        let watchdog = world.dev.join("watchdog0");
        std::fs::write(&watchdog, "").unwrap();
        world.watchdog.want(Duration::from_secs(120));
        world.watchdog.arm(&world.dev, &world.sys).unwrap();
        let before = std::fs::metadata(&watchdog).unwrap().len();
        run_on_disk(&root, "/bin/sh", &["-c", script], "a script").unwrap();
        std::fs::metadata(&watchdog).unwrap().len() - before
    }

    #[test]
    fn a_program_on_a_disk_feeds_while_it_computes_and_one_that_waits_does_not() {
        if !crate::host::is_root() {
            return;
        }
        let waits = std::thread::spawn(|| fed("sleep 5"));
        assert!(fed("timeout 5 sh -c 'while :; do :; done'; true") > 1);
        assert_eq!(waits.join().unwrap(), 0);
    }

    /// What it started holds its output, and lives on.
    #[test]
    fn a_program_that_has_ended_is_not_waited_for_because_of_its_children() {
        if !crate::host::is_root() {
            return;
        }
        let begun = std::time::Instant::now();
        let script = "echo done; sleep 30 & echo $! >&2";
        let root = root(Path::new("/nowhere"));
        let output = run(&root, "/bin/sh", &["-c", script]).unwrap();
        assert_eq!(output.stdout, "done\n");
        assert!(begun.elapsed() < Duration::from_secs(10));
        let id = nix::unistd::Pid::from_raw(output.stderr.trim().parse().unwrap());
        nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGKILL).unwrap();
        let output = run(
            &root,
            "/bin/sh",
            &["-c", "exec >&- 2>&-; sleep 0.2; exit 3"],
        )
        .unwrap();
        assert_eq!(output.status.code(), Some(3));
    }

    #[test]
    fn programs_wait_for_udev_only_where_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let root = root(folder.path());
        if !crate::host::is_root() {
            assert!(!root.has_udev());
            return;
        }
        let without = || {
            let output = succeed(&root, "/usr/bin/env", &[] as &[&str]).unwrap();
            let lines = output.stdout.lines();
            lines.filter(|line| line.contains("UDEV=1")).count()
        };
        assert_eq!(without(), 2);
        std::fs::create_dir_all(folder.path().join("run/udev")).unwrap();
        std::fs::write(folder.path().join("run/udev/control"), "").unwrap();
        assert_eq!(without(), 0);
    }
}
