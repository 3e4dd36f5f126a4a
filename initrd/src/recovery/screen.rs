//! The report on the consoles: for people, and as one line for programs.

use std::fs;
use std::time::Duration;

use image::report::{LINE, Report};
use linux::log::say;
use linux::waiter::Waiter;
use linux::world::World;

use super::policy::Policy;

/// Time that the report is shown before the reboot, seconds.
pub(super) const SHOWN_SECONDS: u64 = 10;
/// The same where nothing counts the reboots, and a person may come meanwhile.
pub(super) const SHOWN_LONG: Duration = Duration::from_secs(600);
const MINUTE: Duration = Duration::from_secs(60);

/// Shows the report with the kernel's own messages held back, so that they do not break its lines.
pub(super) fn show(world: &World, report: &Report, policy: Policy) {
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

/// Shows for [`SHOWN_LONG`] how much of that is left, once a minute.
pub(super) fn count_down(world: &World) {
    let mut shown = SHOWN_LONG;
    Waiter::until(world, SHOWN_LONG).count_down(|left| {
        if left + MINUTE <= shown {
            shown = left;
            let seconds = left.as_secs();
            say(world, &format!("slipway: this node reboots in {seconds} s"));
        }
    });
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
        Policy::Reboot => format!("The node reboots in {SHOWN_SECONDS} s."),
        Policy::RebootLater => format!(
            "This image has booted before, so that the cause may pass: the node reboots in {} minutes.",
            SHOWN_LONG.as_secs() / 60
        ),
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
    use image::fault::Fault;
    use linux::refusal::report;
    use linux::world::Clock;

    use super::*;

    #[test]
    fn the_screen_says_what_comes() {
        let report = report("root", &anyhow!("no root"));
        for (policy, words) in [
            (Policy::Reboot, "The node reboots in 10 s."),
            (Policy::RebootLater, ": the node reboots in 10 minutes."),
            (
                Policy::StayUp,
                "The node stays up with this report and does not reboot.",
            ),
        ] {
            let lines = lines(&report, policy);
            let found = lines.iter().filter(|line| line.ends_with(words));
            assert_eq!(found.count(), 1, "{lines:?}");
        }
    }

    #[test]
    fn the_long_wait_is_counted_down_by_minutes() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::Fake(std::sync::atomic::AtomicI64::new(0));
        let world = World::below(folder.path(), clock);
        std::fs::create_dir_all(&world.dev).unwrap();
        std::fs::write(world.dev.join("console"), "").unwrap();
        count_down(&world);
        assert_eq!(world.micros(), 600_000_000);
        let console = std::fs::read_to_string(world.dev.join("console")).unwrap();
        let seconds: Vec<&str> = console
            .lines()
            .filter_map(|line| line.strip_prefix("slipway: this node reboots in "))
            .collect();
        assert_eq!(
            seconds,
            [
                "540 s", "480 s", "420 s", "360 s", "300 s", "240 s", "180 s", "120 s", "60 s"
            ]
        );
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
