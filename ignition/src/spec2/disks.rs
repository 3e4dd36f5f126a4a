//! Disks with their partitions, and arrays.

use std::collections::BTreeSet;

use super::fields::{copy, copy_filled, copy_once, is_filled, list, object, put};
use super::{Entry, Translation};
use crate::tree::{Node, Value};

impl Translation {
    pub(super) fn disks(&mut self, storage: Option<&Node>, new: &mut Node) {
        let Some(storage) = storage else {
            return;
        };
        let mut disks = Vec::new();
        for entry in Entry::all(Some(storage), "disks", "$.storage") {
            disks.push(self.disk(&entry));
        }
        let raid = storage.items("raid").iter().map(|old| {
            let mut array = object(old);
            copy(old, &mut array, &["name", "level", "options"]);
            copy_filled(old, &mut array, &["spares"]);
            copy_once(old, &mut array, &["devices"]);
            array
        });
        for (name, items) in [("disks", disks), ("raid", raid.collect())] {
            let at = storage.get(name).and_then(|node| node.at.clone());
            put(new, name, list(at, items));
        }
    }

    fn disk(&mut self, entry: &Entry<'_>) -> Node {
        let old = entry.node;
        let mut disk = object(old);
        copy(old, &mut disk, &["device"]);
        copy_filled(old, &mut disk, &["wipeTable"]);
        let mut partitions = Vec::new();
        for partition in Entry::all(Some(old), "partitions", &entry.path) {
            partitions.push(self.partition(&partition));
        }
        if old.flag("wipeTable") == Some(true) {
            number_the_nameless(&mut partitions);
        }
        let at = old.get("partitions").and_then(|node| node.at.clone());
        put_partitions(&mut disk, at, partitions);
        disk
    }

    fn partition(&mut self, entry: &Entry<'_>) -> Node {
        for (name, instead) in [("size", "sizeMiB"), ("start", "startMiB")] {
            if entry.node.get(name).is_some_and(is_filled) {
                let message = format!(
                    "{name} counts sectors, whose size only the disk knows; write {instead} in a config of version 2.3.0"
                );
                self.refuse(entry, name, message);
            }
        }
        let mut partition = object(entry.node);
        let numbers = ["number", "sizeMiB", "startMiB", "shouldExist"];
        copy(entry.node, &mut partition, &numbers);
        // Until 2.2 the label is a text that is always there.
        match self.minor {
            0..=2 => copy_filled(entry.node, &mut partition, &["label"]),
            _ => copy(entry.node, &mut partition, &["label"]),
        }
        let filled = ["guid", "typeGuid", "wipePartitionEntry"];
        copy_filled(entry.node, &mut partition, &filled);
        partition
    }
}

/// A list of partitions may consist of one without any field, which has a meaning.
fn put_partitions(disk: &mut Node, at: Option<crate::report::Position>, partitions: Vec<Node>) {
    if !partitions.is_empty() {
        disk.put("partitions", list(at, partitions));
    }
}

/// On a wiped disk, a single partition with neither number nor label is the next one by its number: 3 wants to read the
/// number.
fn number_the_nameless(partitions: &mut [Node]) {
    let number = |node: &Node| node.number("number").unwrap_or(0);
    let taken: BTreeSet<i64> = partitions.iter().map(number).collect();
    let free = (1..=128).find(|number| !taken.contains(number));
    let mut open = partitions.iter_mut().filter(|node| number(node) == 0);
    if let (Some(partition), None, Some(free)) = (open.next(), open.next(), free)
        && partition.get("label").is_none()
    {
        let at = partition.at.clone();
        let value = Value::Number(free);
        partition.put("number", Node { at, value });
    }
}
