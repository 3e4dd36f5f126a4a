//! Running other programs, by a chroot into the verified root. These crates start programs nowhere else.
//!
//! The root step binds `/dev`, `/proc`, `/sys` and `/run` into the root, so a program sees the same folders as on the
//! running node; its own files are the verified ones.

#![allow(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "this is the door that the lint points to"
)]

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::waiter::Waiter;
use crate::world::World;

/// The time limit of a program: an fsck of a disk with terabytes under emulation ends earlier.
pub const DEADLINE: Duration = Duration::from_secs(1800);

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

/// Runs `program` (a path inside the root) with `args` and waits for its end, whatever its status is.
///
/// # Errors
/// If it cannot be started or does not end within [`DEADLINE`]; the command is shown as it would be typed.
pub fn run<A: AsRef<OsStr>>(root: &Programs, program: &str, args: &[A]) -> Result<Output> {
    run_as(root, program, args, &typed(program, args))
}

fn run_as<A: AsRef<OsStr>>(
    root: &Programs,
    program: &str,
    args: &[A],
    typed: &str,
) -> Result<Output> {
    let mut child = start(root, program, args).with_context(|| format!("starting {typed}"))?;
    let done = collect(&mut child);
    let mut waiter = Waiter::until(&root.world, DEADLINE);
    let mut parts = (None, None);
    while parts.0.is_none() || parts.1.is_none() {
        match done.recv_timeout(waiter.pause(DEADLINE)) {
            Ok((false, text)) => parts.0 = Some(text),
            Ok((true, text)) => parts.1 = Some(text),
            Err(RecvTimeoutError::Timeout) => {
                // An open pipe is held by the program or by one that it started.
                waiter.running();
                if let Some(waited) = waiter.line() {
                    tracing::info!("{typed}: running for {waited}");
                }
                if waiter.is_over() {
                    child.kill().with_context(|| format!("ending {typed}"))?;
                    bail!("{typed} did not end within {} s", DEADLINE.as_secs());
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let status = child
        .wait()
        .with_context(|| format!("waiting for {typed}"))?;
    Ok(Output {
        status,
        stdout: parts.0.unwrap_or_default(),
        stderr: parts.1.unwrap_or_default(),
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
    let hide = |text: String| {
        let given = hidden.iter().filter(|hidden| !hidden.is_empty());
        given.fold(text, |text, hidden| text.replace(hidden, "…"))
    };
    let typed = hide(typed(program, args));
    let output = run_as(root, program, args, &typed)?;
    if !output.status.success() {
        let text = hide([output.stdout.trim(), output.stderr.trim()].join("\n"));
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
        .stderr(Stdio::piped());
    if !root.has_udev() {
        // Without these mdadm and device mapper wait for udev to make their nodes.
        command
            .env("MDADM_NO_UDEV", "1")
            .env("DM_DISABLE_UDEV", "1");
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

/// Reads both pipes to their ends on threads of their own: (is it stderr, text).
fn collect(child: &mut Child) -> Receiver<(bool, String)> {
    let (send, receive) = channel();
    let pipes: [(bool, Option<Box<dyn Read + Send>>); 2] = [
        (false, child.stdout.take().map(|p| Box::new(p) as _)),
        (true, child.stderr.take().map(|p| Box::new(p) as _)),
    ];
    for (is_stderr, pipe) in pipes {
        let send = send.clone();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe
                && let Err(error) = pipe.read_to_end(&mut bytes)
            {
                tracing::warn!("reading a program's output: {error}");
            }
            // The receiver is gone only if the program was killed at its deadline.
            send.send((is_stderr, String::from_utf8_lossy(&bytes).into_owned()))
                .unwrap_or_default();
        });
    }
    receive
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
        if !nix::unistd::geteuid().is_root() {
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

    #[test]
    fn programs_wait_for_udev_only_where_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let root = root(folder.path());
        if !nix::unistd::geteuid().is_root() {
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
