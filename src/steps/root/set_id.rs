//! The packages' set-uid and set-gid files: those that a recipe names, and no others. The capabilities of a file, as those of
//! ping, are kept.

use crate::layer::Entry;

/// Programs that do nothing but run others as another user: without their bit they only print an error.
const USELESS: [&str; 3] = ["/usr/bin/doas", "/usr/bin/pkexec", "/usr/bin/sudo"];

/// What a build says of programs in the packages' tree that only their set-uid bit makes useful, and that lose it.
pub(super) fn warnings(base: &[Entry], kept: &[String]) -> Vec<String> {
    let loses = |entry: &&Entry| entry.gives_rights() && !kept.contains(&entry.path);
    let useless = base.iter().filter(|entry| USELESS.contains(&&*entry.path));
    let warning = |entry: &Entry| {
        let path = &entry.path;
        format!(
            "{path} loses its set-uid bit, and makes nobody root without: set-uid = [\"{path}\"] in [root] keeps it"
        )
    };
    useless.filter(loses).map(warning).collect()
}

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

    #[test]
    fn a_sudo_that_makes_nobody_root_is_named_unless_it_keeps_its_bit() {
        let with = |path: &str, mode| {
            [
                Entry::file("/usr/bin/su", 0o4755, ""),
                Entry::file(path, mode, ""),
            ]
        };
        let sudo = with("/usr/bin/sudo", 0o4755);
        let said = warnings(&sudo, &["/usr/bin/su".to_owned()]);
        assert_eq!(
            said,
            [
                "/usr/bin/sudo loses its set-uid bit, and makes nobody root without: set-uid = [\"/usr/bin/sudo\"] in [root] keeps it"
            ]
        );
        assert_eq!(warnings(&with("/usr/bin/doas", 0o4755), &[]).len(), 1);
        for (base, kept) in [
            (&sudo, &["/usr/bin/sudo".to_owned()][..]),
            (&with("/usr/bin/sudo", 0o755), &[]),
            (&with("/usr/bin/passwd", 0o4755), &[]),
        ] {
            assert_eq!(warnings(base, kept), [""; 0]);
        }
    }
}
