//! The packages' set-uid and set-gid files: those that a recipe names, and no others. The capabilities of a file, as those of
//! ping, are kept.

use crate::layer::Entry;

/// The packages' tree, in which only the files at `kept` are set-uid or set-gid.
pub(super) fn removed(base: &[Entry], kept: &[String]) -> Vec<Entry> {
    let entry = |entry: &Entry| match kept.contains(&entry.path) {
        true => entry.clone(),
        false => entry.clone().without_set_id(),
    };
    base.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_files_give_rights() {
        let base = [
            Entry::directory("/var/local", 0o2775),
            Entry::file("/usr/bin/sudo", 0o4755, ""),
            Entry::file("/usr/bin/su", 0o4755, ""),
            Entry::file("/usr/bin/chage", 0o2755, ""),
            Entry::symlink("/usr/bin/sg", "newgrp"),
        ];
        let kept = ["/usr/bin/sudo".to_owned()];
        let modes: Vec<u32> = removed(&base, &kept).iter().map(|e| e.mode).collect();
        let link = base[4].mode;
        assert_eq!(modes, [0o2775, 0o4755, 0o755, 0o755, link]);
    }
}
