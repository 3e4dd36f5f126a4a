//! Units are enabled as `systemctl --root` enables them: every unit of many packages, one by one.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use slipway::host::progress::Kind;
use slipway::host::session::Session;
use slipway::install;
use slipway::layer::Layer;
use slipway::lock;
use slipway::recipe::{SetRequest, load};
use slipway::steps::layers::enabled;

use super::Bench;

/// Packages with units of all kinds: templates, sockets, timers, paths, units that are installed with others.
const PACKAGES: &[&str] = &[
    "acpid",
    "anacron",
    "apt",
    "at",
    "avahi-daemon",
    "bluez",
    "chrony",
    "containerd",
    "cron",
    "cups-daemon",
    "dbus",
    "dnsmasq",
    "dpkg",
    "e2fsprogs",
    "exim4-base",
    "fail2ban",
    "haproxy",
    "ifupdown",
    "irqbalance",
    "iwd",
    "keepalived",
    "lldpd",
    "logrotate",
    "lvm2",
    "man-db",
    "mdadm",
    "memcached",
    "monit",
    "multipath-tools",
    "network-manager",
    "nfs-common",
    "nfs-kernel-server",
    "nftables",
    "nginx-common",
    "open-iscsi",
    "openssh-server",
    "openvpn",
    "plocate",
    "polkitd",
    "postfix",
    "qemu-guest-agent",
    "redis-server",
    "rpcbind",
    "rsync",
    "rsyslog",
    "smartmontools",
    "sysstat",
    "systemd",
    "systemd-container",
    "systemd-journal-remote",
    "systemd-oomd",
    "systemd-resolved",
    "systemd-timesyncd",
    "udev",
    "ufw",
    "unattended-upgrades",
    "unbound",
    "util-linux",
    "wireguard-tools",
    "wpasupplicant",
];
/// Where units are, below a root.
const UNITS: &str = "usr/lib/systemd/system";
const ENABLED: &str = "etc/systemd/system";
/// The root in the sandbox.
const ROOT: &str = "/enable";

/// The links of a folder and those below it: path from the root, and target.
fn links(root: &Path, folder: &str, all: &mut BTreeMap<String, String>) -> Result<()> {
    let Ok(entries) = fs::read_dir(root.join(folder)) else {
        return Ok(());
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let path = format!("{folder}/{}", name.to_str().context("a name is not UTF-8")?);
        if entry.file_type()?.is_symlink() {
            let target = fs::read_link(entry.path())?;
            all.insert(format!("/{path}"), target.display().to_string());
        } else if entry.file_type()?.is_dir() {
            links(root, &path, all)?;
        }
    }
    Ok(())
}

/// What has a section `[Install]` of its own, with an instance of each template beside it.
fn candidates(root: &Path) -> Result<Vec<String>> {
    let mut units = Vec::new();
    for entry in fs::read_dir(root.join(UNITS))? {
        let entry = entry?;
        let name = entry.file_name().into_string().ok().context("a name")?;
        if !entry.file_type()?.is_file() {
            continue;
        }
        let text = fs::read_to_string(entry.path())?;
        if text.lines().any(|line| line.trim() == "[Install]") {
            if name.contains("@.") {
                units.push(name.replacen('@', "@one", 1));
            }
            units.push(name);
        }
    }
    units.sort();
    Ok(units)
}

impl Bench {
    /// The links of every unit are those that systemctl makes; what it refuses makes none here.
    pub(super) fn enable(&self) -> Result<()> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let recipe = load(&folder.join("recipes/demo.toml"))
            .map_err(|mistakes| anyhow::anyhow!("{mistakes}"))?;
        let session = Session::open(Kind::Quiet)?;
        let request = SetRequest {
            name: "units",
            packages: PACKAGES.iter().map(|name| (*name).to_owned()).collect(),
            dependencies: false,
            essential: false,
            recommends: false,
            backports: Vec::new(),
        };
        let locked = lock::resolve(&session, &recipe, std::slice::from_ref(&request))?;
        let debs = locked.fetch(&session, request.name)?;
        let place = tempfile::tempdir()?;
        let (packages, root) = (place.path().join("packages"), place.path().join("root"));
        install::unpack_only(&debs, &packages)?;
        let units = root.join(UNITS);
        fs::create_dir_all(units.parent().context("a folder has a parent")?)?;
        fs::rename(packages.join(UNITS), &units)?;
        let entries = Layer::from_tree(&session.cache, &root, "")?.entries;
        let candidates = candidates(&root)?;
        ensure!(candidates.len() > 100, "only {} units", candidates.len());
        let (mut wrong, mut refused, mut compared) = (Vec::new(), 0, 0);
        for unit in &candidates {
            fs::remove_dir_all(root.join("etc")).ok();
            let said = self
                .tools
                .sandbox()
                .bind(&root, ROOT)
                .command("systemctl")
                .args([&format!("--root={ROOT}"), "enable", unit])
                .run();
            let mut expected = BTreeMap::new();
            links(&root, ENABLED, &mut expected)?;
            let found = enabled(entries.clone(), unit)?;
            let found = match (found, &said) {
                (Ok(found), _) => found,
                // Both refuse it.
                (Err(_), Err(_)) => {
                    refused += 1;
                    continue;
                }
                (Err(why), Ok(_)) => {
                    wrong.push(format!("{unit}: refused: {why}"));
                    continue;
                }
            };
            compared += expected.len();
            if found != expected {
                wrong.push(format!(
                    "{unit}: expected {expected:#?}\nfound {found:#?}\nsystemctl: {said:?}"
                ));
            }
        }
        println!(
            "  {} units of {} packages: {compared} links, {refused} refused by both",
            candidates.len(),
            PACKAGES.len()
        );
        ensure!(compared > candidates.len(), "only {compared} links");
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    }
}
