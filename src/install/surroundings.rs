//! Surroundings: what maintainer scripts find of a machine that no package brings. Two machines on two days, so that a second
//! installation shows what scripts make of either.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};

use crate::host::sandbox::ANOTHER_DAY;

/// Prevents the start of services during the build (the policy layer of Debian policy 9.11.1).
const POLICY: &str = "usr/sbin/policy-rc.d";
/// What every program loads first (ld.so(8)), whatever its environment: the library below.
const PRELOAD: &str = "etc/ld.so.preload";
const LIBRARY: &str = "etc/another-day.so";

/// A machine as scripts see it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Machine {
    /// The host's name.
    pub(super) host: &'static str,
    /// Its clock is that of another year, month and day.
    another_day: bool,
}

/// The machine of every installation that is used. Its name is the same on every building machine; one that scripts write down
/// is then one that every node has too.
pub(super) const FIRST: Machine = Machine {
    host: "localhost",
    another_day: false,
};
/// Another, for comparison. Its name is as long as the first one's, so that what has it in a field of fixed size differs in
/// nothing else.
pub(super) const SECOND: Machine = Machine {
    host: "elsewhere",
    another_day: true,
};

impl Machine {
    /// Writes what scripts find into a tree that has its skeleton, and no package yet.
    pub(super) fn furnish(&self, root: &Path) -> Result<()> {
        let policy = root.join(POLICY);
        if let Some(folder) = policy.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&policy, "#!/bin/sh\nexit 101\n")?;
        fs::set_permissions(&policy, Permissions::from_mode(0o755))?;
        if self.another_day {
            fs::write(root.join(LIBRARY), ANOTHER_DAY)?;
            fs::write(root.join(PRELOAD), format!("/{LIBRARY}\n"))?;
        }
        let names = match self.host == FIRST.host {
            true => FIRST.host.to_owned(),
            false => format!("{} {}", self.host, FIRST.host),
        };
        // Files that every installed system has before its packages.
        for (path, content) in [
            (
                "etc/hosts",
                format!("127.0.0.1\t{names}\n::1\t\t{names} ip6-localhost ip6-loopback\n"),
            ),
            ("etc/hostname", format!("{}\n", self.host)),
            ("etc/resolv.conf", String::new()),
        ] {
            fs::write(root.join(path), content)?;
        }
        Ok(())
    }

    /// Removes what was for the scripts alone.
    pub(super) fn clear(&self, root: &Path) -> Result<()> {
        let own: &[&str] = match self.another_day {
            true => &[PRELOAD, LIBRARY, POLICY],
            false => &[POLICY],
        };
        for path in own {
            fs::remove_file(root.join(path)).with_context(|| format!("removing /{path}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_system_has_stays() {
        for machine in [FIRST, SECOND] {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir(root.path().join("etc")).unwrap();
            machine.furnish(root.path()).unwrap();
            assert!(root.path().join(POLICY).exists());
            machine.clear(root.path()).unwrap();
            let mut left: Vec<_> = fs::read_dir(root.path().join("etc"))
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .collect();
            left.sort();
            assert_eq!(left, ["hostname", "hosts", "resolv.conf"]);
            assert!(!root.path().join(POLICY).exists());
        }
        assert_eq!(FIRST.host.len(), SECOND.host.len());
    }
}
