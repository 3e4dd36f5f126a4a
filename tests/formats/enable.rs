//! Units are enabled and disabled as `systemctl --root` does it: every unit of many packages, one by one, and one of a recipe.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use slipway::host::progress::Kind;
use slipway::host::session::Session;
use slipway::install;
use slipway::layer::{Entry, Layer};
use slipway::lock;
use slipway::recipe::{Recipe, SetRequest, load};
use slipway::steps::layers::{disabled, enabled};

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
/// A unit of a recipe with a drop-in, by which it is enabled elsewhere, under a second name and with another unit.
const OWN: [(&str, &str); 2] = [
    (
        OWN_UNIT,
        "[Service]\nExecStart=/usr/bin/true\n[Install]\nWantedBy=multi-user.target\n",
    ),
    (
        "own.service.d/50-more.conf",
        "[Install]\nWantedBy=\nWantedBy=timers.target\nAlias=another.service\nAlso=rpcbind.service\n",
    ),
];
const OWN_UNIT: &str = "own.service";
const OWN_ALIAS: &str = "another.service";
/// Enables a unit; then disables it where `disabled/etc` has links already. Ends as the first of both does.
const SCRIPT: &str = "cd /enable; systemctl --root=/enable enable \"$1\"; code=$?; \
     mv etc enabled/; mv disabled/etc .; systemctl --root=/enable disable \"$1\"; exit $code";
/// The target that is reached once the network is there, and the package with the unit that waits for it.
const ONLINE: &str = "/etc/systemd/system/network-online.target.wants/";
const NETWORKD: &[&str] = &["systemd"];

/// Links by their paths from the root.
type Links = BTreeMap<String, String>;

/// The links of a folder and those below it: path from the root, and target.
fn links(root: &Path, folder: &str, all: &mut Links) -> Result<()> {
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

/// Makes the folder of links, with the recipe's unit and these links.
fn lay(root: &Path, made: &Links) -> Result<()> {
    let folder = root.join(ENABLED);
    let files = OWN.map(|(name, text)| (folder.join(name), text));
    for (path, text) in files {
        fs::create_dir_all(path.parent().context("a file is in a folder")?)?;
        fs::write(path, text)?;
    }
    for (link, target) in made {
        let path = root.join(link.trim_start_matches('/'));
        fs::create_dir_all(path.parent().context("a link is in a folder")?)?;
        symlink(target, path)?;
    }
    Ok(())
}

/// The recipe's unit and its drop-in.
fn own() -> impl Iterator<Item = Entry> {
    let entry = |(name, text): (&str, &str)| Entry::file(format!("/{ENABLED}/{name}"), 0o644, text);
    OWN.into_iter().map(entry)
}

/// What has a section `[Install]` of its own and the aliases of such units, with an instance of each template beside it; and last the
/// recipe's unit, and its second name, which is there once the unit is enabled.
fn candidates(root: &Path) -> Result<Vec<String>> {
    let mut units = Vec::new();
    for entry in fs::read_dir(root.join(UNITS))? {
        let entry = entry?;
        let name = entry.file_name().into_string().ok().context("a name")?;
        let mut path = entry.path();
        if entry.file_type()?.is_symlink() {
            // `/dev/null` has no unit of its name.
            let target = fs::read_link(&path)?;
            path = root
                .join(UNITS)
                .join(target.file_name().unwrap_or_default());
        }
        if !fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file()) {
            continue;
        }
        let text = fs::read_to_string(path)?;
        if text.lines().any(|line| line.trim() == "[Install]") {
            if name.contains("@.") {
                units.push(name.replacen('@', "@one", 1));
            }
            units.push(name);
        }
    }
    units.sort();
    units.extend([OWN_UNIT, OWN_ALIAS].map(str::to_owned));
    Ok(units)
}

/// A recipe of this repository.
fn recipe(name: &str) -> Result<Recipe> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes");
    load(&path.join(name)).map_err(|mistakes| anyhow::anyhow!("{mistakes}"))
}

/// The units of packages, below a root.
struct Units {
    place: tempfile::TempDir,
    entries: Vec<Entry>,
}

impl Units {
    fn of(packages: &[&str]) -> Result<Self> {
        let session = Session::open(Kind::Quiet)?;
        let request = SetRequest {
            name: "units".into(),
            packages: packages.iter().map(|name| (*name).to_owned()).collect(),
            dependencies: false,
            essential: false,
            recommends: false,
            backports: Vec::new(),
        };
        let locked = lock::resolve(
            &session,
            &recipe("demo.toml")?,
            std::slice::from_ref(&request),
        )?;
        let debs = locked.fetch(&session, &request.name)?;
        let place = tempfile::tempdir()?;
        let (unpacked, root) = (place.path().join("packages"), place.path().join("root"));
        install::unpack_only(&debs, &unpacked)?;
        let units = root.join(UNITS);
        fs::create_dir_all(units.parent().context("a folder has a parent")?)?;
        fs::rename(unpacked.join(UNITS), &units)?;
        let entries = Layer::from_tree(&session.cache, &root, "")?.entries;
        Ok(Self { place, entries })
    }

    fn root(&self) -> PathBuf {
        self.place.path().join("root")
    }

    /// The units with the recipe's and these links.
    fn with(&self, made: &Links) -> Vec<Entry> {
        let links = made
            .iter()
            .map(|(link, target)| Entry::symlink(link, target));
        self.entries
            .iter()
            .cloned()
            .chain(own())
            .chain(links)
            .collect()
    }
}

impl Bench {
    /// The links of every unit are those that systemctl makes; what it refuses makes none here. Of a unit's links and those of the
    /// unit before it, disabling it removes the same ones.
    pub(super) fn enable(&self) -> Result<()> {
        let units = Units::of(PACKAGES)?;
        let candidates = candidates(&units.root())?;
        ensure!(candidates.len() > 100, "only {} units", candidates.len());
        let (mut wrong, mut refused, mut compared, mut kept) = (Vec::new(), 0, 0, 0);
        let (plain, mut before) = (units.with(&Links::new()), Links::new());
        for unit in &candidates {
            let found = enabled(plain.clone(), unit, &[])?;
            let mut made = before.clone();
            made.extend(found.iter().flatten().map(|(a, b)| (a.clone(), b.clone())));
            let (said, expected, left) = self.systemctl(&units.root(), unit, &made)?;
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
            kept += left.len();
            if found != expected {
                wrong.push(format!(
                    "{unit}: expected {expected:#?}\nfound {found:#?}\nsystemctl: {said:?}"
                ));
            }
            let gone = disabled(units.with(&made), unit)?;
            let stays: BTreeSet<&String> =
                made.keys().filter(|link| !gone.contains(*link)).collect();
            if stays != left.keys().collect() {
                wrong.push(format!(
                    "{unit}: disabled, expected {left:#?}\nfound {stays:#?}\nsystemctl: {said:?}"
                ));
            }
            before = found;
        }
        println!(
            "  {} units of {} packages: {compared} links, {refused} refused by both; {kept} links stay",
            candidates.len(),
            PACKAGES.len()
        );
        ensure!(compared > candidates.len(), "only {compared} links");
        ensure!(kept > candidates.len() / 2, "only {kept} links stay");
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    }

    /// What systemctl says when it enables a unit, the links that it makes, and those that are left of `made` when it disables the
    /// unit.
    fn systemctl(
        &self,
        root: &Path,
        unit: &str,
        made: &Links,
    ) -> Result<(Result<Vec<u8>>, Links, Links)> {
        let (enabled, disabled) = (root.join("enabled"), root.join("disabled"));
        for folder in [&root.join("etc"), &enabled, &disabled] {
            fs::remove_dir_all(folder).ok();
        }
        fs::create_dir(&enabled)?;
        lay(root, &Links::new())?;
        lay(&disabled, made)?;
        let said = self
            .tools
            .sandbox()
            .bind(root, ROOT)
            .command("/bin/sh")
            .args(["-c", SCRIPT, "sh", unit])
            .run();
        let (mut expected, mut left) = (Links::new(), Links::new());
        links(&enabled, ENABLED, &mut expected)?;
        links(root, ENABLED, &mut left)?;
        Ok((said, expected, left))
    }

    /// On a node of the base recipe `network-online.target` waits for a link: a unit is enabled that it wants, with the recipe's
    /// drop-in.
    pub(super) fn network() -> Result<()> {
        let recipe = recipe("node.toml")?;
        let units = Units::of(NETWORKD)?;
        let off = recipe.units.disable.iter().chain(&recipe.units.mask);
        let off: Vec<&str> = off.map(String::as_str).collect();
        let mut made = Links::new();
        for unit in &recipe.units.enable {
            // A unit of another package has no links here.
            let links = enabled(units.entries.clone(), unit, &off)?;
            made.extend(links.map_err(anyhow::Error::msg)?);
        }
        let wanted = made.iter().find(|(link, _)| link.starts_with(ONLINE));
        let (_, unit) = wanted
            .with_context(|| format!("network-online.target waits for nothing: {made:#?}"))?;
        ensure!(
            units.entries.iter().any(|entry| entry.path == *unit),
            "{unit} is not there"
        );
        let drop_ins = format!("{unit}.d/");
        ensure!(
            recipe
                .files
                .iter()
                .any(|file| file.path.starts_with(&drop_ins)),
            "the recipe has no drop-in of {unit}: it waits for every link"
        );
        Ok(())
    }
}
