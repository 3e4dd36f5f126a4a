//! Recovery: the one way out of a failed boot, [`end`]. It shows the report on every active console, writes the ledger
//! when there is one, sends the report to its receivers, and then reboots or stays up.

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
use linux::kernel_call;
use linux::log::say;
use linux::refusal::report;
use linux::waiter::Waiter;
use linux::world::World;
use nix::sys::reboot::{RebootMode, reboot};

use self::policy::{Policy, counter, policy};
use self::screen::{SHOWN_SECONDS, show};
use crate::context::Early;
use crate::{loader, vendor};

/// How often a node that stays up repeats its report.
const REPEATED: Duration = Duration::from_secs(300);

/// Ends a failed boot. Never returns.
pub(crate) fn end(early: &Early, error: &anyhow::Error) -> Infallible {
    let world = &early.world;
    let step = &early.timeline.current();
    tracing::error!("{step}: {error:#}");
    let report = report(step, error);
    let places = [world.in_sysroot(STATE), world.in_run(RUN_STATE)];
    let ledger = places.iter().find_map(|state| ledger::note(state, &report));
    let entry = loader::counted_entry(world);
    let policy = policy(ledger, entry.as_deref().and_then(counter));
    show(world, &report, policy);
    send::send(early, &report);
    // A boot that comes again may go better.
    if policy == Policy::StayUp {
        report_to_vendor(early, &report);
    }
    match policy {
        Policy::Reboot => {
            Waiter::until(world, Duration::from_secs(SHOWN_SECONDS)).count_down(|_| ());
            sync(world);
            world.consoles.release();
            let Err(error) = reboot(RebootMode::RB_AUTOBOOT);
            say(world, &format!("slipway: the reboot failed: {error}"));
        }
        Policy::StayUp => {}
    }
    sync(world);
    loop {
        Waiter::until(world, REPEATED).count_down(|_| ());
        show(world, &report, Policy::StayUp);
    }
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

fn sync(world: &World) {
    kernel_call::on_disks(world, "the disks to write everything", nix::unistd::sync);
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
