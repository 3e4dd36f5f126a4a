//! Accounts that scripts of packages make, by adduser, systemd-sysusers and useradd.

use std::collections::BTreeMap;

use anyhow::Result;
use slipway::install::Rootfs;

use super::Place;

/// Names and numbers of the system accounts in a root.
fn numbers_in(rootfs: &Rootfs, file: &str) -> Result<BTreeMap<String, u32>> {
    let text = String::from_utf8(rootfs.read(file)?)?;
    let numbers = text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        Some((fields.next()?.to_owned(), fields.nth(1)?.parse().ok()?))
    });
    Ok(numbers.collect())
}

/// Packages whose accounts are made before and between those of others change none of their numbers, nor the owner of any file; and the
/// recipe fixes a number.
pub(super) fn numbers() -> Result<()> {
    let few = Place::new(&["systemd", "dbus", "openssh-server"], "").install()?;
    let fixed = "[users.uuidd]\nuid = 333\n";
    let more = [
        "postfix",
        "uuid-runtime",
        "systemd-resolved",
        "tcpdump",
        "chrony",
    ];
    let many = [&["systemd", "dbus", "openssh-server"][..], &more].concat();
    let many = Place::new(&many, fixed).install()?;
    for file in ["/etc/passwd", "/etc/group"] {
        let (before, after) = (numbers_in(&few, file)?, numbers_in(&many, file)?);
        assert!(after.len() > before.len() + 3, "{after:?}");
        for (name, number) in before {
            assert_eq!(after.get(&name), Some(&number), "{name} in {file}");
        }
    }
    assert_eq!(numbers_in(&many, "/etc/passwd")?["uuidd"], 333);
    assert_eq!(numbers_in(&many, "/etc/group")?["uuidd"], 333);
    let after: BTreeMap<&str, (u32, u32)> = many
        .entries()
        .iter()
        .map(|entry| (entry.path.as_str(), (entry.uid, entry.gid)))
        .collect();
    let mut owned = 0;
    for entry in few.entries() {
        if let Some(owner) = after.get(entry.path.as_str()) {
            assert_eq!(*owner, (entry.uid, entry.gid), "{}", entry.path);
            owned += u32::from(entry.gid > 100);
        }
    }
    // dbus's helper and ssh's agent.
    assert!(owned >= 2, "{owned}");
    Ok(())
}
