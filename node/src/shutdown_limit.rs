//! How long logind lets the kubelet hold up a shutdown (`InhibitDelayMaxSec=`, logind.conf(5)): as long as the kubelet's
//! configuration says.
//!
//! The kubelet raises the limit itself, by a file in `/etc/systemd`. In its container that is not the host's, and read-only: it
//! would log an error and end no pod before a shutdown.

use std::fs;

use anyhow::{Context, Result};
use cluster::duration::Duration;
use cluster::report::Report;
use cluster::yaml::{self, Content, Node};
use image::kubelet::{CONFIG, JOINED_CONFIG, LOGIN_UNIT, RUN_LOGIN_LIMIT, SHUTDOWN_GRACE_SECONDS};
use linux::atomic_file;
use linux::mount::folder;
use linux::world::World;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Where logind's processes are listed.
const GROUP: &str = "fs/cgroup/system.slice";

/// Sets the limit to what the kubelet's configuration wants. Without a configuration that can be read nothing changes: the
/// kubelet says what is wrong with it.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn follow(world: &World) -> Result<()> {
    let joined = world.in_initrd(JOINED_CONFIG);
    let own = world.in_initrd(CONFIG);
    let text = fs::read_to_string(if joined.exists() { joined } else { own }).unwrap_or_default();
    let Some(wanted) = grace(&text) else {
        return Ok(());
    };
    let file = world.in_run(RUN_LOGIN_LIMIT);
    let about = || format!("writing {}", file.display());
    let is_there = file.exists();
    if wanted <= SHUTDOWN_GRACE_SECONDS {
        if is_there {
            atomic_file::remove(&file).with_context(about)?;
            read_again(world);
        }
        return Ok(());
    }
    let text = format!("[Login]\nInhibitDelayMaxSec={wanted}\n");
    if is_there && fs::read_to_string(&file).is_ok_and(|found| found == text) {
        return Ok(());
    }
    folder(file.parent().context("a file in a folder")?, 0o755)?;
    atomic_file::write(&file, text.as_bytes(), 0o644).with_context(about)?;
    tracing::info!("a shutdown waits for pods up to {wanted} s");
    read_again(world);
    Ok(())
}

/// How long a configuration of the kubelet wants to hold up a shutdown, in seconds, rounded up; 0 if not at all.
fn grace(text: &str) -> Option<u64> {
    let root = yaml::document(text, 0, &mut Report::default());
    let root = root.filter(|root| matches!(root.content, Content::Map(_)))?;
    let nanoseconds = root
        .get("shutdownGracePeriod")
        .and_then(Node::text)
        .and_then(Duration::parse);
    let period = nanoseconds.map_or(0, |Duration(all)| {
        u64::try_from(all).unwrap_or(0).div_ceil(1_000_000_000)
    });
    let by_priority = match root
        .get("shutdownGracePeriodByPodPriority")
        .map(|node| &node.content)
    {
        Some(Content::List(all)) => all
            .iter()
            .filter_map(|one| match one.get("shutdownGracePeriodSeconds")?.content {
                Content::Int(seconds) => u64::try_from(seconds).ok(),
                _ => None,
            })
            .fold(0, u64::saturating_add),
        _ => 0,
    };
    Some(period.max(by_priority))
}

/// Lets logind read its files again. One that does not run yet reads them at its start.
fn read_again(world: &World) {
    let list = world.sys.join(GROUP).join(LOGIN_UNIT).join("cgroup.procs");
    let text = fs::read_to_string(list).unwrap_or_default();
    for process in text.lines().filter_map(|line| line.parse().ok()) {
        if let Err(error) = kill(Pid::from_raw(process), Signal::SIGHUP) {
            tracing::warn!("logind does not read its new limit: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use linux::world::Clock;

    use super::*;
    use crate::samples::put;

    #[test]
    fn the_time_is_the_longer_one_of_both_forms() {
        for (text, expected) in [
            ("kind: KubeletConfiguration\n", Some(0)),
            ("shutdownGracePeriod: 1m30.5s\n", Some(91)),
            ("shutdownGracePeriod: 0s\n", Some(0)),
            (
                "shutdownGracePeriodByPodPriority:\n- {priority: 0, shutdownGracePeriodSeconds: 70}\n- {priority: 9, shutdownGracePeriodSeconds: 20}\n",
                Some(90),
            ),
            ("", None),
            ("a: [", None),
        ] {
            assert_eq!(grace(text), expected, "{text}");
        }
    }

    #[test]
    fn a_longer_time_raises_loginds_limit_and_the_default_takes_it_back() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let limit = world.in_run(RUN_LOGIN_LIMIT);
        follow(&world).unwrap();
        put(&world.in_initrd(CONFIG), "shutdownGracePeriod: 45s\n");
        follow(&world).unwrap();
        assert!(!limit.exists());
        // A program in logind's place, which a SIGHUP ends, even if the tests run below nohup.
        #[allow(clippy::disallowed_methods, reason = "a program of the test's host")]
        let mut logind = std::process::Command::new("env")
            .args(["--default-signal=HUP", "sleep", "60"])
            .spawn()
            .unwrap();
        // Until then it ignores the signal as its parent may.
        let name = format!("/proc/{}/comm", logind.id());
        while fs::read_to_string(&name).unwrap() != "sleep\n" {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let list = world.sys.join(GROUP).join(LOGIN_UNIT).join("cgroup.procs");
        put(&list, &format!("{}\n", logind.id()));
        put(&world.in_initrd(JOINED_CONFIG), "shutdownGracePeriod: 2m\n");
        follow(&world).unwrap();
        assert_eq!(
            fs::read_to_string(&limit).unwrap(),
            "[Login]\nInhibitDelayMaxSec=120\n"
        );
        assert_eq!(logind.wait().unwrap().signal(), Some(1));
        put(&list, "");
        put(
            &world.in_initrd(JOINED_CONFIG),
            "shutdownGracePeriod: 30s\n",
        );
        follow(&world).unwrap();
        assert!(!limit.exists());
    }
}
