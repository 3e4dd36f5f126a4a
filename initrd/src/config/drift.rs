//! Drift: a provisioned node whose config differs from the applied one.
//!
//! Only the sources that every boot can read are compared: the base config in the initramfs, and the platform's local
//! config. Nothing is requested over a network, and nothing is applied.

use anyhow::Result;

use super::{machine, source};
use crate::context::Boot;
use apply::digest::sha256;
use apply::fetched::Sources;
use linux::log::say;

/// Reports each source that differs from the applied one, on the consoles and in the log; true if any does. Best
/// effort.
pub(super) fn report(boot: &Boot, applied: Option<&Sources>) -> bool {
    let Some(applied) = applied else {
        return false;
    };
    let changed = match now(boot) {
        Ok((now, seen)) => changed(applied, &now, &seen),
        Err(error) => {
            tracing::warn!("config: {error:#}");
            return false;
        }
    };
    for name in &changed {
        let text = format!(
            "{name} differs from the config that this node was provisioned with; it is not applied"
        );
        tracing::warn!("config: {text}");
        say(&boot.world, &format!("slipway: config: {text}"));
    }
    !changed.is_empty()
}

/// The sources that this boot can read, and the names of all that it could read if they existed.
fn now(boot: &Boot) -> Result<(Sources, Vec<String>)> {
    let mut now = Sources::new();
    let mut seen = vec![source::BASE.to_owned()];
    if let Some((name, sum)) = source::base(&boot.world)?.and_then(|base| base.known()) {
        now.insert(name, sum);
    }
    let elsewhere = boot.cmdline.config_url.is_some() || boot.cmdline.config_device.is_some();
    if !elsewhere {
        seen.extend(machine::local_name(boot));
        if let Some(config) = machine::local(boot)? {
            now.insert(config.name, sha256(&config.text));
        }
    }
    Ok((now, seen))
}

/// The sources that changed, disappeared, or appeared; in order.
fn changed(applied: &Sources, now: &Sources, seen: &[String]) -> Vec<String> {
    let names = seen.iter().chain(now.keys());
    let mut out: Vec<String> = names
        .filter(|name| applied.get(*name) != now.get(*name))
        .cloned()
        .collect();
    out.sort();
    out.dedup();
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_this_boot_can_see_is_compared() {
        let sources = |all: &[(&str, &str)]| -> Sources {
            let all = all.iter();
            all.map(|(name, sum)| ((*name).to_owned(), (*sum).to_owned()))
                .collect()
        };
        let applied = sources(&[(source::BASE, "1"), ("fw_cfg", "2"), ("the disk", "3")]);
        let seen = [source::BASE.to_owned(), "fw_cfg".to_owned()];
        let differing =
            |now: &[(&str, &str)], seen: &[String]| changed(&applied, &sources(now), seen);
        let same = [(source::BASE, "1"), ("fw_cfg", "2")];
        assert!(differing(&same, &seen).is_empty());
        assert_eq!(differing(&[same[0], ("fw_cfg", "x")], &seen), ["fw_cfg"]);
        // A source that disappeared is a change if this boot could read it.
        assert_eq!(differing(&same[..1], &seen), ["fw_cfg"]);
        assert!(differing(&same[..1], &seen[..1]).is_empty());
        // A source appeared.
        let none = changed(&sources(&same[..1]), &sources(&same), &seen);
        assert_eq!(none, ["fw_cfg"]);
        assert_eq!(
            differing(&[(source::BASE, "x"), same[1]], &seen),
            [source::BASE]
        );
    }
}
