//! The report on the consoles: for people, and as one line for programs.

use std::fs;

use image::report::{LINE, Report};
use linux::log::say;
use linux::world::World;

use super::policy::Policy;

/// Time that the report is shown before the reboot, seconds.
pub(super) const SHOWN_SECONDS: u64 = 10;

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

    use super::*;

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
