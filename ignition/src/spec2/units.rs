//! Units of systemd.

use super::fields::{copy, copy_filled, flag, list, object, put};
use super::{Entry, Translation};
use crate::schema::{DROPIN, UNIT};
use crate::tree::Node;

impl Translation {
    pub(super) fn systemd(&mut self, old: Option<&Node>) -> Node {
        let Some(systemd) = old else {
            return Node::empty();
        };
        let mut new = object(systemd);
        let entries = Entry::all(old, "units", "$.systemd").into_iter();
        let units = entries.map(|entry| (entry.path, unit(entry.node)));
        let units = Self::joined(units.collect(), "name", &UNIT);
        let at = systemd.get("units").and_then(|node| node.at.clone());
        let units = self.list("$.systemd.units", at, units);
        put(&mut new, "units", units);
        new
    }
}

/// `enabled` wins over the older `enable`, which cannot disable.
fn unit(old: &Node) -> Node {
    let mut new = object(old);
    copy(old, &mut new, &["name", "enabled"]);
    copy_filled(old, &mut new, &["mask", "contents"]);
    if let Some(enable) = old.get("enable")
        && old.flag("enable") == Some(true)
        && old.get("enabled").is_none()
    {
        new.put("enabled", flag(true, enable));
    }
    let dropins = old.items("dropins").iter().map(|old| {
        let mut dropin = object(old);
        copy(old, &mut dropin, &["name"]);
        copy_filled(old, &mut dropin, &["contents"]);
        (String::new(), dropin)
    });
    let dropins = Translation::joined(dropins.collect(), "name", &DROPIN);
    let at = old.get("dropins").and_then(|node| node.at.clone());
    let dropins = dropins.into_iter().map(|(_, dropin)| dropin).collect();
    put(&mut new, "dropins", list(at, dropins));
    new
}
