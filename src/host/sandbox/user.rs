//! Makes an ordinary user root of a user namespace, once, at the start of the program.
#![allow(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "part of the door: beside credential helpers, newuidmap and newgidmap are the only programs of the host that are ever started"
)]

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Gid, Pid, Uid, User, fork, setgroups, setresgid, setresuid};

/// The ids that a Debian system uses, `nobody` (65534) included.
const NEEDED: u32 = 65_535;
const REMEDY_IDS: &str =
    "have root run `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 NAME`";

/// Kernel settings that forbid user namespaces: their path below `/proc/sys`, the value that forbids, one that allows.
const FORBIDDING: [(&str, &str, &str); 3] = [
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
    ("kernel/unprivileged_userns_clone", "0", "1"),
    // The kernel's default on a machine of 4 GiB.
    ("user/max_user_namespaces", "0", "15000"),
];

/// Makes a user root of a user namespace, in which the user's id is 0 and the subordinate ids are 1 and up. Has no
/// effect for root. Call it before any thread is started.
///
/// # Errors
/// If the host forbids it; the error has the remedy.
pub fn become_root_of_namespace() -> Result<()> {
    let user = Uid::effective();
    if user.is_root() {
        return Ok(());
    }
    let name = User::from_uid(user)?.map_or_else(|| user.to_string(), |found| found.name);
    let uids = range("/etc/subuid", &name, user.as_raw())?;
    let gids = range("/etc/subgid", &name, user.as_raw())?;
    let group = Gid::effective();
    let (mut ready, mut tell) = std::io::pipe()?;
    let this = Pid::this();
    // SAFETY: called before any thread is started, so the child may do anything.
    let helper = match unsafe { fork() }.context("forking")? {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            drop(tell);
            let mapped = ready
                .read_exact(&mut [0])
                .map_err(anyhow::Error::new)
                .and_then(|()| {
                    map("newuidmap", this, user.as_raw(), uids)?;
                    map("newgidmap", this, group.as_raw(), gids)
                });
            let code = match mapped {
                Ok(()) => 0,
                Err(error) => {
                    let line = format!("slipway: mapping subordinate ids: {error:#}\n");
                    // Without stderr the message has no reader; the exit code reports the failure.
                    drop(std::io::stderr().write_all(line.as_bytes()));
                    1
                }
            };
            // SAFETY: ends the helper without running exit handlers that belong to its parent.
            unsafe { nix::libc::_exit(code) }
        }
    };
    drop(ready);
    let unshared = unshare(CloneFlags::CLONE_NEWUSER);
    if unshared.is_ok() {
        tell.write_all(b"!")?;
    }
    drop(tell);
    let status = waitpid(helper, None)?;
    unshared.map_err(|errno| refused(errno, "a user namespace"))?;
    ensure!(
        matches!(status, WaitStatus::Exited(_, 0)),
        "subordinate ids could not be mapped; the line above says why"
    );
    // With AppArmor's restriction the user namespace is granted, and what needs a capability in it is refused.
    let as_root = |errno| refused(errno, "this process root of a user namespace");
    setresgid(Gid::from_raw(0), Gid::from_raw(0), Gid::from_raw(0)).map_err(as_root)?;
    setgroups(&[Gid::from_raw(0)]).map_err(as_root)?;
    setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0)).map_err(as_root)?;
    unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| refused(errno, "a mount namespace"))
}

fn refused(errno: Errno, what: &str) -> anyhow::Error {
    let remedy = forbidding_sysctl(Path::new("/proc/sys")).unwrap_or_else(|| {
        "a container or a security policy forbids it: run as root there, or allow user namespaces"
            .to_owned()
    });
    anyhow::anyhow!("making {what} was refused ({errno}); {remedy}")
}

/// The setting below `sysctls` that forbids user namespaces, if any, and the command that allows them.
#[must_use]
pub fn forbidding_sysctl(sysctls: &Path) -> Option<String> {
    FORBIDDING.into_iter().find_map(|(path, bad, good)| {
        let value = fs::read_to_string(sysctls.join(path)).ok()?;
        let name = path.replace('/', ".");
        let remedy =
            format!("this kernel has {name}={bad}: have root run `sysctl -w {name}={good}`");
        (value.trim() == bad).then_some(remedy)
    })
}

/// For each file of subordinate ids that gives a user too few of them: what it lacks.
#[must_use]
pub fn without_subordinate_ids(user: Uid, name: &str) -> Vec<String> {
    let mut all = Vec::new();
    for file in ["/etc/subuid", "/etc/subgid"] {
        match fs::read_to_string(file) {
            Err(error) => all.push(format!("{file}: {error}")),
            Ok(text) if find_range(&text, name, user.as_raw()).is_none() => {
                all.push(format!(
                    "{file} gives {name} no range of at least {NEEDED} ids"
                ));
            }
            Ok(_) => {}
        }
    }
    all
}

/// The first range of a subordinate id file with enough ids, as (first, count).
fn range(file: &str, name: &str, id: u32) -> Result<(u32, u32)> {
    let text = fs::read_to_string(file)
        .with_context(|| format!("reading {file}: {}", REMEDY_IDS.replace("NAME", name)))?;
    match find_range(&text, name, id) {
        Some(found) => Ok(found),
        None => bail!(
            "{file} gives {name} no range of at least {NEEDED} ids; {}",
            REMEDY_IDS.replace("NAME", name)
        ),
    }
}

fn find_range(text: &str, name: &str, id: u32) -> Option<(u32, u32)> {
    text.lines().find_map(|line| {
        let mut fields = line.trim().split(':');
        let owner = fields.next()?;
        let first = fields.next()?.parse().ok()?;
        let count = fields.next()?.parse().ok()?;
        ((owner == name || owner == id.to_string()) && count >= NEEDED).then_some((first, count))
    })
}

fn map(program: &str, process: Pid, own: u32, (first, count): (u32, u32)) -> Result<()> {
    let status = Command::new(program)
        .arg(process.to_string())
        .args(["0", &own.to_string(), "1"])
        .args(["1", &first.to_string(), &count.to_string()])
        .status()
        .with_context(|| {
            format!("starting {program}: the host needs it, in Debian by the package `uidmap`")
        })?;
    ensure!(status.success(), "{program}: {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_that_forbids_namespaces_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("kernel")).unwrap();
        let path = folder
            .path()
            .join("kernel/apparmor_restrict_unprivileged_userns");
        fs::write(&path, "0\n").unwrap();
        assert_eq!(forbidding_sysctl(folder.path()), None);
        fs::write(&path, "1\n").unwrap();
        let remedy = forbidding_sysctl(folder.path()).unwrap();
        assert!(
            remedy.contains("sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"),
            "{remedy}"
        );
    }

    #[test]
    fn the_first_range_that_is_big_enough_is_taken() {
        let text = "other:1:70000\nme:100:10\nme:100000:65536\n1000:200000:65536\n";
        assert_eq!(find_range(text, "me", 5), Some((100_000, 65_536)));
        assert_eq!(find_range(text, "x", 1000), Some((200_000, 65_536)));
        assert_eq!(find_range(text, "x", 1), None);
    }
}
