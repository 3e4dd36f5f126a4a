//! Recovery: the one way out of a failed boot, [`end`]. It shows the report on every active console, writes the ledger
//! when there is one, sends the report to its receivers, and then reboots, at once or after a while, or stays up.

pub(crate) mod ledger;
mod policy;
mod screen;
mod send;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use crate::loader::of_running_kernel;
use image::fault::Fault;
use image::paths::{RUN_STATE, STATE};
use image::report::Report;
use linux::kernel_log;
use linux::log::say;
use linux::refusal::report;
use linux::waiter::Waiter;
use linux::world::World;
use nix::errno::Errno;

use self::policy::{Policy, policy};
use self::screen::{SHOWN_SECONDS, show};
use crate::context::Early;
use crate::deadline::within;
use crate::restart::{restart, write_everything};
use crate::{loader, vendor};

/// How often a node that stays up repeats its report.
const REPEATED: Duration = Duration::from_secs(300);

/// How long the ledger holds the report up at most. Its disk may be the one that does not answer.
const LEDGER: Duration = Duration::from_secs(15);

/// Ends a failed boot. Never returns.
pub(crate) fn end(early: &Early, error: &anyhow::Error) -> Infallible {
    let world = &early.world;
    let step = &early.timeline.current();
    tracing::error!("{step}: {error:#}");
    let report = with_failed_disks(world, error, report(step, error));
    let policy = policy(noted(world, &report, LEDGER), loader::entry(world));
    show(world, &report, policy);
    send::send(early, &report);
    // A boot that comes again may go better.
    if policy == Policy::StayUp {
        report_to_vendor(early, &report);
    }
    match policy {
        Policy::Reboot => {
            Waiter::until(world, Duration::from_secs(SHOWN_SECONDS)).count_down(|_| ());
            reboot(world);
        }
        Policy::RebootLater => {
            screen::count_down(world);
            reboot(world);
        }
        Policy::StayUp => {}
    }
    // The node stays up, and the watchdog is fed, although a disk does not answer.
    write_everything(world);
    loop {
        Waiter::until(world, REPEATED).count_down(|_| ());
        show(world, &report, Policy::StayUp);
    }
}

/// Reboots. Returns only if that fails.
fn reboot(world: &World) {
    let error = restart(world);
    say(world, &format!("slipway: the reboot failed: {error:#}"));
}

/// Writes the failure to the ledger, for which it waits for `limit` at most; returns how many in a row it makes, none if there
/// is no ledger or its disk does not answer.
fn noted(world: &World, report: &Report, limit: Duration) -> Option<usize> {
    let places = [world.in_sysroot(STATE), world.in_run(RUN_STATE)];
    let report = report.clone();
    let note = move || Ok(places.iter().find_map(|state| ledger::note(state, &report)));
    within(world, "the ledger of failed boots", limit, note).unwrap_or_else(|error| {
        tracing::warn!("{error:#}");
        None
    })
}

/// The report of an error, with the kernel's words about the disks that failed if the error may be theirs: a path in a file
/// system names none.
fn with_failed_disks(world: &World, error: &anyhow::Error, mut report: Report) -> Report {
    if !is_of_a_disk(error) {
        return report;
    }
    let lines = kernel_log::lines(world);
    let disks = kernel_log::failed_disks(&lines);
    if !disks.is_empty() {
        let said = format!("the kernel says: {}", disks.join("; "));
        report.found = Some(match report.found {
            Some(found) => format!("{found}; {said}"),
            None => said,
        });
        report
            .fix
            .get_or_insert_with(|| "examine the disk and its cables, or replace it".to_owned());
    }
    report
}

/// Whether a disk may be the cause: it failed a request, or the kernel gave a file system up after that.
fn is_of_a_disk(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let errno = cause.downcast_ref::<Errno>().copied().or_else(|| {
            let error = cause.downcast_ref::<std::io::Error>()?;
            error.raw_os_error().map(Errno::from_raw)
        });
        matches!(
            errno,
            Some(Errno::EIO | Errno::EROFS | Errno::ENOSPC | Errno::EUCLEAN)
        )
    })
}

/// Reports the failure to the platform's vendor, if it waits for the end of this boot.
fn report_to_vendor(early: &Early, report: &Report) {
    let Some(provider) = early.awaiting.get() else {
        return;
    };
    let found = report.found.as_ref();
    let why = [Some(&report.what), found].into_iter().flatten();
    let why: Vec<&str> = why.map(String::as_str).collect();
    match of_running_kernel(&early.world) {
        Ok(modules) => {
            let (world, modules) = (&early.world, Arc::new(modules));
            vendor::report(
                world,
                &early.network,
                modules,
                provider,
                Some(why.join(": ")),
            );
        }
        Err(error) => tracing::warn!("no report to {provider}: {error:#}"),
    }
}

/// A panic of the init is a failed boot like any other: it gets its report and the policy after it.
pub(crate) fn catch_panics(early: &Early) {
    let early = early.clone();
    std::panic::set_hook(Box::new(move |panic| {
        let fault = Fault::new("slipway-init panicked (a bug in Slipway)")
            .found(panic.to_string().replace('\n', " "))
            .fix("report this line as an issue of Slipway");
        end(&early, &fault.into());
    }));
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;

    use super::*;
    use anyhow::{Context as _, anyhow};
    use image::paths::{STATE_LEDGER, STATE_MARK};
    use linux::world::Clock;
    use nix::sys::stat::Mode;

    #[test]
    fn a_ledger_that_does_not_answer_keeps_no_report_back() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let report = report("config", &anyhow!("broken"));
        let long = Duration::from_secs(30);
        assert_eq!(noted(&world, &report, long), None, "no state yet");
        let state = world.in_run(RUN_STATE);
        fs::create_dir_all(&state).unwrap();
        fs::write(state.join(STATE_MARK), "").unwrap();
        assert_eq!(noted(&world, &report, long), Some(1));
        assert_eq!(noted(&world, &report, long), Some(2));

        // A full pipe takes a write as a disk does that does not answer.
        let ledger = state.join(STATE_LEDGER);
        fs::remove_file(&ledger).unwrap();
        nix::unistd::mkfifo(&ledger, Mode::S_IRWXU).unwrap();
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        options.custom_flags(nix::libc::O_NONBLOCK);
        let mut pipe = options.open(&ledger).unwrap();
        while let Ok(1..) = pipe.write(&[0; 4096]) {}
        assert_eq!(noted(&world, &report, Duration::from_millis(200)), None);
    }

    #[test]
    fn a_report_of_an_error_of_a_disk_has_the_kernels_words_about_it() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        std::fs::create_dir_all(&world.dev).unwrap();
        let said = "I/O error, dev vda, sector 8 op 0x1:(WRITE)";
        std::fs::write(world.dev.join("kmsg"), format!("3,9,6,-;{said}\n")).unwrap();
        let shown = |error: anyhow::Error| with_failed_disks(&world, &error, report("var", &error));
        for errno in [Errno::EIO, Errno::EROFS] {
            let io = std::io::Error::from(errno);
            let written = Err::<(), _>(io).context("writing /var/lib/x").unwrap_err();
            let report = shown(written);
            assert_eq!(report.found, Some(format!("the kernel says: {said}")));
            assert!(report.what.starts_with("writing /var/lib/x: "));
            assert!(report.fix.is_some());
        }
        let fault = Err::<(), _>(Errno::EIO)
            .context(Fault::new("var does not mount").fix("repair it"))
            .unwrap_err();
        let report = shown(fault);
        assert_eq!(report.fix.as_deref(), Some("repair it"));
        assert!(report.found.unwrap().ends_with(said));
        let other = shown(Errno::ENOENT.into());
        assert_eq!((other.found, other.fix), (None, None));
    }
}
