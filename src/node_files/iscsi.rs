//! iSCSI on the host, for recipes with its package: the node's name is made on the node, once.
//!
//! The package's script makes the name when it is configured, which is when the image is built: every node would have it.

use image::iscsi::{INITIATOR, NAME_UNIT};

use crate::layer::Entry;

/// The units that read the name.
const READERS: [&str; 2] = ["iscsid.service", "open-iscsi.service"];

/// The files of the host.
pub(super) fn entries() -> Vec<Entry> {
    let units = "/usr/lib/systemd/system";
    let mut entries = vec![
        Entry::remove(INITIATOR),
        Entry::file(format!("{units}/{NAME_UNIT}"), 0o644, unit()),
    ];
    for reader in READERS {
        let folder = format!("{units}/{reader}.d");
        let text = include_str!("iscsi/iscsid.conf").replace("@UNIT@", NAME_UNIT);
        entries.extend([
            Entry::directory(folder.as_str(), 0o755),
            Entry::file(format!("{folder}/50-slipway.conf"), 0o644, text),
        ]);
    }
    entries
}

fn unit() -> String {
    include_str!("iscsi/slipway-iscsi-name.service").replace("@INITIATOR@", INITIATOR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::Kind;

    #[test]
    fn no_image_has_the_name_of_a_node() {
        let entries = entries();
        let of = |path: &str| entries.iter().find(|entry| entry.path == path).unwrap();
        assert_eq!(of(INITIATOR).kind, Kind::Remove);
        for reader in READERS {
            of(&format!(
                "/usr/lib/systemd/system/{reader}.d/50-slipway.conf"
            ));
        }
        let unit = unit();
        assert!(!unit.replace("@system-service", "").contains('@'), "{unit}");
        assert!(unit.contains("ConditionPathExists=!/etc/iscsi/initiatorname.iscsi\n"));
    }

    /// The unit's own words, with systemd's `%%` and `$$` as it reads them, and a program in the place of `iscsi-iname`.
    #[test]
    fn a_name_is_made_whole_and_for_root_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("initiatorname.iscsi");
        let unit = unit()
            .replace(INITIATOR, &file.display().to_string())
            .replace("/etc/iscsi", &folder.path().display().to_string());
        let start = unit
            .lines()
            .find_map(|line| line.strip_prefix("ExecStart=/bin/sh -c '"));
        let script = start.unwrap().strip_suffix('\'').unwrap();
        let script = script.replace("$$", "$");
        // systemd unquotes `\\` once before the shell reads it.
        let script = script.replace("%%", "%").replace("\\\\", "\\");
        let tool = folder.path().join("iscsi-iname");
        std::fs::write(&tool, "#!/bin/sh\necho iqn.2005-03.org.open-iscsi:1a2b\n").unwrap();
        std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
        #[allow(clippy::disallowed_methods, reason = "the shell of the test's host")]
        let status = std::process::Command::new("/bin/sh")
            .args(["-c", &script])
            .env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()))
            .status()
            .unwrap();
        assert!(status.success());
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text, "InitiatorName=iqn.2005-03.org.open-iscsi:1a2b\n");
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
