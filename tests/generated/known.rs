//! Files of which nobody looks whether they differ, since they follow from the packages: a second installation of packages that
//! make them, on another day and under another name, has them alike.

use anyhow::{Result, ensure};
use slipway::install::{self, Options};
use slipway::recipe::SET_ROOT;

use super::{Place, has};

const PACKAGES: &[&str] = &[
    "apparmor",
    "ca-certificates",
    "locales",
    "mdadm",
    "netbase",
    "openssh-server",
    "systemd",
    "tcpd",
    "udev",
];
/// Some that they make.
const KNOWN: &[&str] = &[
    "/etc/apparmor.d/tunables/home.d/ubuntu",
    "/etc/default/mdadm",
    "/etc/hosts.allow",
    "/etc/ld.so.cache",
    "/etc/locale.gen",
    "/etc/networks",
    "/etc/pam.d/common-auth",
    "/etc/passwd",
    "/etc/shadow",
    "/etc/ssl/certs/ca-certificates.crt",
    "/usr/lib/udev/hwdb.bin",
];

pub(super) fn another_day() -> Result<()> {
    let place = Place::new(PACKAGES, "");
    let locked = place.locked()?;
    let debs = locked.packages(&place.session, SET_ROOT)?;
    let options = Options {
        epoch: locked.lock.epoch,
        named: PACKAGES.iter().map(|&name| name.to_owned()).collect(),
        ..Options::default()
    };
    let rootfs = install::install(&place.session, "rootfs", &debs, &options)?;
    for path in KNOWN {
        ensure!(has(&rootfs, path), "nothing makes {path}");
    }
    let found = install::generated(&place.session, "generated", &debs, &options, &rootfs)?;
    let differs: Vec<&str> = found
        .iter()
        .filter(|made| !made.host_name && !made.path.starts_with("/var/cache/"))
        .map(|made| made.path.as_str())
        .collect();
    ensure!(differs.is_empty(), "{differs:?} differ");
    Ok(())
}
