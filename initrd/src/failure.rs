//! Failure: the plain report, the ledger, and the policy after it.
//!
//! There is one way out of a failed boot: [`end`]. It shows the report on every active console, says
//! it once more as one line for machines, writes the ledger when there is one, and then reboots or
//! stays up with the report.

use std::convert::Infallible;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use image::paths;
use image::report::{LINE, Report};
use nix::sys::reboot::{RebootMode, reboot};
use serde::{Deserialize, Serialize};

use crate::context::Early;
use image::fault::Fault;
use linux::firmware;
use linux::log::say;
use linux::refusal::report;
use linux::world::World;

/// How long a report stands before the reboot.
const SHOWN: Duration = Duration::from_secs(10);
/// How often a node that stays up repeats its report.
const REPEATED: Duration = Duration::from_secs(300);
/// How many reboots for one reason are enough.
const ENOUGH: usize = 3;

/// One line of the ledger: a failed boot, or one that came to its handoff.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    /// Seconds since 1970, as far as the clock was right.
    time: u64,
    /// The failed report; none for a boot that came to its handoff.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    report: Option<Report>,
}

/// How many boots in a row, up to now, ended with the same step and sentence as `report`.
fn in_a_row(ledger: &str, report: &Report) -> usize {
    ledger
        .lines()
        .rev()
        .filter_map(|line| serde_json::from_str::<Entry>(line).ok())
        .take_while(|entry| {
            entry
                .report
                .as_ref()
                .is_some_and(|old| old.step == report.step && old.what == report.what)
        })
        .count()
}

/// What is done after a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Reboot,
    StayUp,
}

/// The policy of DESIGN.md: with a readable ledger the third failure in a row for one reason stays up; without one the
/// boot counter decides, and where there is none left the node stays up.
fn policy(ledger: Option<usize>, tries_left: Option<u32>) -> Policy {
    match (ledger, tries_left) {
        (Some(count), _) if count < ENOUGH => Policy::Reboot,
        (None, Some(1..)) => Policy::Reboot,
        _ => Policy::StayUp,
    }
}

/// How often the boot loader will still try this image; none without boot counting.
///
/// The variable names the boot entry's file with its counter, as `\EFI\Linux\demo+2-1.efi`
/// (<https://systemd.io/AUTOMATIC_BOOT_ASSESSMENT/>).
fn tries_left(path: &str) -> Option<u32> {
    let stem = path.rsplit_once('.')?.0;
    let counter = stem.rsplit_once('+')?.1;
    counter.split('-').next()?.parse().ok()
}

/// Ends a failed boot. Never returns.
pub(crate) fn end(early: &Early, error: &anyhow::Error) -> Infallible {
    let world = &early.world;
    let step = &early.timeline.current();
    tracing::error!("{step}: {error:#}");
    let report = report(step, error);
    let places = [
        world.in_sysroot(paths::STATE),
        world.in_run(crate::state::EARLY),
    ];
    let ledger = places.iter().find_map(|state| note(state, &report));
    let tries = firmware::loader_variable(world, "LoaderBootCountPath");
    let policy = policy(ledger, tries.as_deref().and_then(tries_left));
    show(world, &report, policy);
    crate::report::send(early, &report);
    match policy {
        Policy::Reboot => {
            world.sleep(SHOWN);
            nix::unistd::sync();
            let Err(error) = reboot(RebootMode::RB_AUTOBOOT);
            say(world, &format!("slipway: the reboot failed: {error}"));
        }
        Policy::StayUp => {}
    }
    nix::unistd::sync();
    loop {
        let mut left = REPEATED;
        while !left.is_zero() {
            world.sleep(Duration::from_secs(5));
            left -= Duration::from_secs(5);
        }
        show(world, &report, Policy::StayUp);
    }
}

/// A panic of the init is a failed boot like any other: it gets its report and the policy after it.
pub(crate) fn catch_panics(early: &Early) {
    let early = early.clone();
    std::panic::set_hook(Box::new(move |panic| {
        let fault = Fault::new("the init has a mistake of its own")
            .found(panic.to_string().replace('\n', " "))
            .fix("report this line to the makers of slipway");
        end(&early, &fault.into());
    }));
}

/// Writes a failure to the ledger in `state`; gives how many in a row it makes, none if there is no ledger yet.
fn note(state: &Path, report: &Report) -> Option<usize> {
    let path = state.join(paths::STATE_LEDGER);
    // The folder also stands in the read-only root; only a mounted `state` has this mark.
    if !state.join(crate::state::MARK).exists() {
        return None;
    }
    let entry = Entry {
        time: now(),
        report: Some(report.clone()),
    };
    append(&path, &entry).ok()?;
    Some(in_a_row(&fs::read_to_string(path).ok()?, report))
}

/// Notes that this boot comes to its handoff, if the ledger has failures; an empty ledger stays unwritten.
pub(crate) fn succeeded(state: &Path) {
    let path = state.join(paths::STATE_LEDGER);
    let Ok(ledger) = fs::read_to_string(&path) else {
        return;
    };
    let last = ledger.lines().last();
    let failed = last
        .and_then(|line| serde_json::from_str::<Entry>(line).ok())
        .is_some_and(|entry| entry.report.is_some());
    let good = Entry {
        time: now(),
        report: None,
    };
    if failed && let Err(error) = append(&path, &good) {
        tracing::warn!("writing the ledger: {error}");
    }
}

fn append(path: &Path, entry: &Entry) -> std::io::Result<()> {
    let mut line = serde_json::to_string(entry)?;
    line.push('\n');
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    file.write_all(line.as_bytes())?;
    file.sync_all()
}

fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}

/// Shows the report with the kernel's own messages held back, so that no line is torn.
fn show(world: &World, report: &Report, policy: Policy) {
    let printk = world.proc.join("sys/kernel/printk");
    let before = fs::read_to_string(&printk);
    fs::write(&printk, "1\n").unwrap_or_default();
    for line in lines(report, policy) {
        say(world, &line);
    }
    if let Ok(before) = before {
        fs::write(&printk, before).unwrap_or_default();
    }
}

fn lines(report: &Report, policy: Policy) -> Vec<String> {
    let rule = "=".repeat(72);
    let mut out = vec![
        String::new(),
        rule.clone(),
        format!("Slipway could not start this node. Step: {}", report.step),
        String::new(),
        format!("  What failed  {}", report.what),
    ];
    for (name, text) in [
        ("Expected   ", &report.expected),
        ("Found      ", &report.found),
        ("How to fix ", &report.fix),
    ] {
        if let Some(text) = text {
            out.push(format!("  {name}  {text}"));
        }
    }
    out.push(String::new());
    out.push(match policy {
        Policy::Reboot => format!("The node reboots in {} s.", SHOWN.as_secs()),
        Policy::StayUp => "The node stays up with this report and does not reboot.".to_owned(),
    });
    out.push(rule);
    let json = serde_json::to_string(report).unwrap_or_default();
    out.push(format!("{LINE}{json}"));
    out
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn the_third_failure_for_one_reason_stays_up() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(crate::state::MARK), "").unwrap();
        let one = report("config", &anyhow!("broken"));
        let other = report("config", &anyhow!("otherwise"));
        let mut seen = Vec::new();
        for report in [&one, &one, &other, &one, &one, &one] {
            seen.push(policy(note(folder.path(), report), None));
        }
        let (r, s) = (Policy::Reboot, Policy::StayUp);
        assert_eq!(seen, [r, r, r, r, r, s]);
        succeeded(folder.path());
        assert_eq!(policy(note(folder.path(), &one), None), Policy::Reboot);
    }

    #[test]
    fn without_a_ledger_the_boot_counter_decides() {
        let folder = tempfile::tempdir().unwrap();
        let report = report("root", &anyhow!("broken"));
        assert_eq!(note(folder.path(), &report), None);
        for (path, expected) in [
            ("\\EFI\\Linux\\demo_1+2-1.efi", Policy::Reboot),
            ("\\EFI\\Linux\\demo_1+3.efi", Policy::Reboot),
            ("\\EFI\\Linux\\demo_1+0-3.efi", Policy::StayUp),
            ("\\EFI\\Linux\\demo_1.efi", Policy::StayUp),
        ] {
            assert_eq!(policy(None, tries_left(path)), expected, "{path}");
        }
    }

    #[test]
    fn a_fault_keeps_its_fields_through_context() {
        let fault = Fault::new("mounting the root")
            .expected("erofs")
            .fix("write the image again");
        let inner = anyhow!(std::io::Error::other("I/O error")).context(fault);
        let error = Err::<(), _>(inner).context("opening the root").unwrap_err();
        let report = report("root", &error);
        assert_eq!(report.what, "mounting the root");
        assert_eq!(report.expected.as_deref(), Some("erofs"));
        assert_eq!(report.found.as_deref(), Some("I/O error"));
        let lines = lines(&report, Policy::StayUp);
        let machine = lines.last().unwrap().strip_prefix(LINE).unwrap();
        assert_eq!(serde_json::from_str::<Report>(machine).unwrap(), report);
    }
}
