//! Usage: how many bytes each folder of a tree holds, without what is too small to be seen.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::{Entry, Kind, Source};

/// Paths with less than this share of the tree stand together: one in so many.
const SHARE: u64 = 1000;
/// The name of such paths together.
const REST: &str = "…";

/// A folder or a file with the bytes of its content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Its name in its folder; empty for the root.
    pub name: String,
    /// Bytes of all files in it, before compression. A file with several names counts once, at its first name.
    pub bytes: u64,
    /// What it holds, the largest first; empty for a file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Usage>,
}

/// A folder while the entries are counted.
#[derive(Default)]
struct Folder {
    bytes: u64,
    parts: BTreeMap<String, Folder>,
}

impl Usage {
    /// Counts the files of a merged tree.
    ///
    /// # Errors
    /// If a file of the host cannot be looked at.
    pub fn of(entries: &[Entry]) -> Result<Self> {
        let mut root = Folder::default();
        let mut seen: HashSet<(&Path, u64)> = HashSet::new();
        for entry in entries {
            let bytes = match &entry.kind {
                Kind::File(Source::Bytes(bytes)) => bytes.len() as u64,
                Kind::File(Source::Path(path)) if seen.insert((path, u64::MAX)) => {
                    let meta = std::fs::metadata(path);
                    meta.with_context(|| format!("looking at {}", path.display()))?
                        .len()
                }
                Kind::File(Source::Hashed(file)) if seen.insert((&file.path, u64::MAX)) => {
                    file.size
                }
                Kind::File(Source::Range { file, offset, size })
                    if seen.insert((file, *offset)) =>
                {
                    *size
                }
                _ => continue,
            };
            let mut at = &mut root;
            at.bytes += bytes;
            for part in entry.path.split('/').filter(|part| !part.is_empty()) {
                at = at.parts.entry(part.to_owned()).or_default();
                at.bytes += bytes;
            }
        }
        let least = (root.bytes / SHARE).max(1);
        Ok(root.seen("", least))
    }
}

impl Folder {
    /// The folder without paths of fewer than `least` bytes.
    fn seen(&self, name: &str, least: u64) -> Usage {
        let large = self.parts.iter().filter(|(_, part)| part.bytes >= least);
        let mut parts: Vec<Usage> = large.map(|(name, part)| part.seen(name, least)).collect();
        let shown: u64 = parts.iter().map(|part| part.bytes).sum();
        let small = self.parts.values().map(|part| part.bytes).sum::<u64>() - shown;
        if small > 0 && !parts.is_empty() {
            parts.push(Usage {
                name: REST.to_owned(),
                bytes: small,
                parts: Vec::new(),
            });
        }
        parts.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        Usage {
            name: name.to_owned(),
            bytes: self.bytes,
            parts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(path: &str, offset: u64, size: u64) -> Entry {
        let mut entry = Entry::file(path, 0o644, "");
        entry.kind = Kind::File(Source::Range {
            file: "/tar".into(),
            offset,
            size,
        });
        entry
    }

    #[test]
    fn folders_hold_the_sum_of_their_files_and_small_ones_stand_together() {
        let entries = [
            Entry::directory("/usr", 0o755),
            range("/usr/bin/large", 0, 6000),
            // Another name of the same bytes.
            range("/usr/bin/same", 0, 6000),
            range("/usr/lib/one", 6000, 3000),
            range("/usr/lib/two", 9000, 5),
            range("/usr/lib/three", 9500, 4),
            Entry::file("/etc/hosts", 0o644, "x"),
            Entry::symlink("/bin", "usr/bin"),
        ];
        let usage = Usage::of(&entries).unwrap();
        assert_eq!(usage.bytes, 9010);
        let names = |usage: &Usage| -> Vec<(String, u64)> {
            let parts = usage.parts.iter();
            parts.map(|part| (part.name.clone(), part.bytes)).collect()
        };
        assert_eq!(
            names(&usage),
            [("usr".to_owned(), 9009), (REST.to_owned(), 1)]
        );
        assert_eq!(
            names(&usage.parts[0]),
            [("bin".to_owned(), 6000), ("lib".to_owned(), 3009)]
        );
        assert_eq!(
            names(&usage.parts[0].parts[1]),
            [("one".to_owned(), 3000), (REST.to_owned(), 9)]
        );
    }

    #[test]
    fn an_empty_tree_holds_nothing() {
        assert_eq!(Usage::of(&[]).unwrap(), Usage::default());
    }
}
