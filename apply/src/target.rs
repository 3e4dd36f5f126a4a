//! The target of a config: a root, its programs, and the rules of the system that the root belongs to.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use image::paths::VAR_LINKS;
use linux::modules::Modules;
use linux::programs::Programs;
use linux::timeline::Timeline;

/// The target of a config.
#[derive(Clone, Debug)]
pub struct Target {
    /// The root to write to.
    pub root: PathBuf,
    /// The programs for disks: the image's, or those of the initrd that this program runs in.
    pub programs: Programs,
    /// Kernel modules that are loaded when a device is missing.
    pub modules: Arc<Modules>,
    /// The record of this boot.
    pub timeline: Timeline,
    /// The rules of the system.
    pub rules: Rules,
}

/// The differences between a Slipway node and a system whose initrd runs Ignition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Folders that a config may write to; `/` for the complete root.
    pub writable: &'static [&'static str],
    /// Links at the root that stand for folders below `/var`: link, target.
    pub var_links: &'static [(&'static str, &'static str)],
    /// The file of a user's ssh keys below the home: folders and file.
    pub key_file: (&'static [&'static str], &'static str),
    /// Whether all units are in the root, so that enabling another one is a mistake. Otherwise units may be added
    /// later.
    pub has_all_units: bool,
    /// Whether `state` records the file system at `/var`, which every boot then opens before the network is up.
    pub remembers_var: bool,
    /// Whether a journal records what an earlier run made. Without one, the devices' metadata alone decides.
    pub has_journal: bool,
    /// Whether this program serves the kernel's requests for modules; our initramfs has no other modprobe.
    pub answers_modprobe: bool,
    /// How long a device that the config names may take to appear.
    pub device_deadline: Duration,
}

impl Rules {
    /// A node of Slipway: the verified root, with `/etc` and `/var` writable.
    pub const NODE: Self = Self {
        writable: &["/etc", "/var"],
        var_links: VAR_LINKS,
        key_file: KEY_FRAGMENT,
        has_all_units: true,
        remembers_var: true,
        has_journal: true,
        answers_modprobe: true,
        device_deadline: Duration::from_secs(120),
    };

    /// A system whose initrd runs Ignition. With `key_fragment` ssh keys go to a separate file.
    #[must_use]
    pub const fn ignition(key_fragment: bool) -> Self {
        Self {
            writable: &["/"],
            var_links: &[],
            key_file: match key_fragment {
                true => KEY_FRAGMENT,
                false => (&[".ssh"], "authorized_keys"),
            },
            has_all_units: false,
            remembers_var: false,
            has_journal: false,
            answers_modprobe: false,
            // As long as Ignition waits for a device (`internal/systemd`).
            device_deadline: Duration::from_secs(90),
        }
    }

    /// Whether a config may write at this path, which must have no links.
    #[must_use]
    pub fn may_write(&self, path: &str) -> bool {
        self.writable.iter().any(|folder| {
            let rest = path.strip_prefix(folder.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }
}

/// A file that sshd reads in addition to the one that people edit.
const KEY_FRAGMENT: (&[&str], &str) = (&[".ssh", "authorized_keys.d"], "ignition");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_writable_below_etc_and_var_and_another_system_everywhere() {
        for (path, node) in [
            ("/etc", true),
            ("/etc/x", true),
            ("/var/lib/a", true),
            ("/etcetera", false),
            ("/usr/bin/x", false),
            ("/", false),
        ] {
            assert_eq!(Rules::NODE.may_write(path), node, "{path}");
            assert!(Rules::ignition(true).may_write(path), "{path}");
        }
    }
}
