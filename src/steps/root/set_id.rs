//! The packages' set-uid and set-gid files: those that a recipe names, and no others. The capabilities of a file, as those of
//! ping, are kept.

use anyhow::{Result, ensure};

use crate::layer::Entry;

/// The packages' tree, in which only the files at `kept` are set-uid or set-gid.
///
/// # Errors
/// Names the paths of `kept` at which the packages have no such file.
pub(super) fn removed(base: &[Entry], kept: &[String]) -> Result<Vec<Entry>> {
    let giving = |path: &String| {
        base.iter()
            .any(|entry| entry.path == *path && entry.gives_rights())
    };
    let absent: Vec<&String> = kept.iter().filter(|path| !giving(path)).collect();
    ensure!(
        absent.is_empty(),
        "root.set-uid names {absent:?}; expected files that the packages have there, set-uid or set-gid"
    );
    let entry = |entry: &Entry| match kept.contains(&entry.path) {
        true => entry.clone(),
        false => entry.clone().without_set_id(),
    };
    Ok(base.iter().map(entry).collect())
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
        let modes = |kept: &[&str]| -> Result<Vec<u32>> {
            let kept: Vec<String> = kept.iter().map(|path| (*path).to_owned()).collect();
            Ok(removed(&base, &kept)?.iter().map(|e| e.mode).collect())
        };
        let link = base[4].mode;
        assert_eq!(
            modes(&["/usr/bin/sudo"]).unwrap(),
            [0o2775, 0o4755, 0o755, 0o755, link]
        );
        for absent in ["/usr/bin/doas", "/var/local", "/usr/bin/sg"] {
            let error = modes(&[absent]).unwrap_err().to_string();
            assert!(error.contains(absent), "{error}");
        }
    }
}
