//! The kernel command line: every key that the init honours, its writer and its reader.
//!
//! | key | meaning |
//! |---|---|
//! | `roothash=` | SHA-256 root hash of the verified root; names both partitions; required |
//! | `slipway.root=` | URL of the root (EROFS followed by its hash tree) for a boot without a disk |
//! | `ignition.config.url=` | where the node's config is fetched from |
//! | `ignition.config.device=` | label of the file system that holds the node's config |
//! | `ignition.config.path=` | path of the config on that file system |
//! | `ignition.platform.id=` | the platform; else one of the recipe's, by the firmware's tables |
//! | `slipway.report.url=` | where a failure report is posted |
//! | `slipway.etcd.adopt=` | the etcd volume that this node takes in place of its own, once: a UUID, or `blank` |
//! | `slipway.reset=` | the GUID of a partition `state` or `var` that is made anew, or its first eight digits |
//! | `ip=`, `vlan=`, `bond=`, `ifname=`, `rd.route=`, `nameserver=` | the network, see [`crate::network`] |
//! | `slipway.debug` | debug messages in the kernel's log |
//! | `systemd.watchdog_sec=` | the watchdog's time, here as for systemd: seconds, with `s`, `min` or `h` behind them as unit; `0` or `off`: none is armed |
//! | `MODULE.OPTION=`, `modprobe.blacklist=`, `rd.driver.blacklist=` | kernel modules, see [`crate::module_words`] |
//!
//! All other words are ignored: they are the kernel's or systemd's. Some loaders put the image's name
//! first (`vmlinuz …`), so an unknown word is never an error.

use std::fmt;
use std::str::FromStr;

use crate::guid::Guid;
use crate::network::Network;
use crate::node::EtcdAdopt;
use crate::platform::PlatformId;
use crate::verity::RootHash;

/// `roothash=`
pub const ROOTHASH: &str = "roothash";
/// `slipway.root=`
pub const ROOT_URL: &str = "slipway.root";
/// `ignition.config.url=`
pub const CONFIG_URL: &str = "ignition.config.url";
/// `ignition.config.device=`
pub const CONFIG_DEVICE: &str = "ignition.config.device";
/// `ignition.config.path=`
pub const CONFIG_PATH: &str = "ignition.config.path";
/// `ignition.platform.id=`
pub const PLATFORM_ID: &str = "ignition.platform.id";
/// `slipway.report.url=`
pub const REPORT_URL: &str = "slipway.report.url";
/// `slipway.etcd.adopt=`
pub const ETCD_ADOPT: &str = "slipway.etcd.adopt";
/// `slipway.reset=`
pub const RESET: &str = "slipway.reset";
/// `slipway.debug`
pub const DEBUG: &str = "slipway.debug";
/// `systemd.watchdog_sec=`: systemd's own word, which replaces its `RuntimeWatchdogSec=` (kernel-command-line(7)).
pub const WATCHDOG: &str = "systemd.watchdog_sec";

/// The kernel's word by which it takes the backup of a GPT whose primary copy is damaged, as after a power cut while the table
/// was written (`Documentation/admin-guide/kernel-parameters.txt`). Without it such a disk has no partitions.
pub const BACKUP_GPT: &str = "gpt";

/// The kernel reads this many bytes of its command line, the final NUL included (x86 and arm64: `COMMAND_LINE_SIZE`).
pub const LIMIT: usize = 2048;

/// The command line, parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cmdline {
    /// The verified root. `None` when absent: the step `root` fails then.
    pub roothash: Option<RootHash>,
    /// Where the root is fetched from when it is on no disk.
    pub root_url: Option<String>,
    /// Where the config is fetched from.
    pub config_url: Option<String>,
    /// Label of the file system that the config is on.
    pub config_device: Option<String>,
    /// Path of the config there.
    pub config_path: Option<String>,
    /// The platform's id. The crate `platform` checks that it exists.
    pub platform: Option<PlatformId>,
    /// Where failures are posted.
    pub report_url: Option<String>,
    /// The etcd volume that the node takes in place of its own; before the settings' one.
    pub etcd_adopt: Option<EtcdAdopt>,
    /// Which partition is made anew on purpose.
    pub reset: Option<Reset>,
    /// The network before the handoff.
    pub network: Network,
    /// Whether debug messages are logged.
    pub debug: bool,
    /// The watchdog's time in seconds; 0: none is armed.
    pub watchdog: Option<u32>,
}

impl Cmdline {
    /// Reads `/proc/cmdline` text. The last of a repeated key wins, as in the kernel.
    ///
    /// # Errors
    /// All values of our keys that are malformed, each with what was found and expected.
    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        let mut out = Self::default();
        let mut wrong = Vec::new();
        for word in words(text) {
            let (key, value) = word.split_once('=').unwrap_or((&word, ""));
            let mut url = |slot: &mut Option<String>| match value.split_once("://") {
                Some((scheme, rest)) if !scheme.is_empty() && !rest.is_empty() => {
                    *slot = Some(value.to_owned())
                }
                _ => wrong.push(format!(
                    "{key}: {value:?} is not a URL; expected scheme://…"
                )),
            };
            match key {
                ROOTHASH => match value.parse() {
                    Ok(hash) => out.roothash = Some(hash),
                    Err(error) => wrong.push(format!("{key}: {error}")),
                },
                ROOT_URL => url(&mut out.root_url),
                CONFIG_URL => url(&mut out.config_url),
                REPORT_URL => url(&mut out.report_url),
                CONFIG_DEVICE if !value.is_empty() => out.config_device = Some(value.to_owned()),
                CONFIG_PATH if !value.is_empty() => out.config_path = Some(value.to_owned()),
                CONFIG_DEVICE | CONFIG_PATH => wrong.push(format!("{key}: the value is empty")),
                PLATFORM_ID => match value.parse() {
                    Ok(platform) => out.platform = Some(platform),
                    Err(error) => wrong.push(format!("{key}: {error}")),
                },
                ETCD_ADOPT => match value.parse() {
                    Ok(adopt) => out.etcd_adopt = Some(adopt),
                    Err(error) => wrong.push(format!("{key}: {error}")),
                },
                RESET => match value.parse() {
                    Ok(reset) => out.reset = Some(reset),
                    Err(error) => wrong.push(format!("{key}: {error}")),
                },
                DEBUG => out.debug = value != "0",
                // systemd takes both signs for one (`proc_cmdline_key_streq` in its `src/basic/proc-cmdline.c`).
                key if key.replace('-', "_") == WATCHDOG => out.watchdog = seconds(value),
                key if Network::owns(key) => {
                    wrong.extend(out.network.take(key, value).err());
                }
                _ => {}
            }
        }
        if out.config_device.is_some() != out.config_path.is_some() {
            wrong.push(format!(
                "{CONFIG_DEVICE} and {CONFIG_PATH} are required together; found only one of them"
            ));
        }
        if wrong.is_empty() {
            Ok(out)
        } else {
            Err(wrong)
        }
    }

    /// Where failures are posted. Parsed separately from the rest, for the report of a command line that does not
    /// parse.
    #[must_use]
    pub fn report_url_of(text: &str) -> Option<String> {
        let word = words(text).into_iter().rev().find_map(|word| {
            let (key, value) = word.split_once('=')?;
            (key == REPORT_URL).then(|| value.to_owned())
        })?;
        word.contains("://").then_some(word)
    }

    /// The words that [`Cmdline::parse`] reads back to the same value, in a fixed order.
    #[must_use]
    pub fn to_words(&self) -> Vec<String> {
        let text = |key: &str, value: &Option<String>| {
            value
                .as_ref()
                .map(|value| format!("{key}={}", quote(value)))
        };
        [
            self.roothash.map(|hash| format!("{ROOTHASH}={hash}")),
            text(ROOT_URL, &self.root_url),
            text(CONFIG_URL, &self.config_url),
            text(CONFIG_DEVICE, &self.config_device),
            text(CONFIG_PATH, &self.config_path),
            self.platform
                .as_ref()
                .map(|id| format!("{PLATFORM_ID}={id}")),
            text(REPORT_URL, &self.report_url),
            self.etcd_adopt.map(|adopt| format!("{ETCD_ADOPT}={adopt}")),
            self.reset.as_ref().map(ToString::to_string),
            self.debug.then(|| DEBUG.to_owned()),
            self.watchdog.map(|seconds| format!("{WATCHDOG}={seconds}")),
        ]
        .into_iter()
        .flatten()
        .chain(self.network.words.iter().cloned())
        .collect()
    }
}

/// Seconds of a time as systemd reads it, in its simple forms; none for others and for `default`. No mistake is reported:
/// the word is systemd's, and systemd passes over what it does not understand.
fn seconds(text: &str) -> Option<u32> {
    if text == "off" {
        return Some(0);
    }
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let number: u32 = text[..text.len() - unit.len()].parse().ok()?;
    let factor = match unit.trim() {
        "" | "s" | "sec" => 1,
        "m" | "min" => 60,
        "h" | "hr" => 3600,
        _ => return None,
    };
    number.checked_mul(factor)
}

/// The partition that `slipway.reset=` names: the begin of its GUID. A partition that was made anew has another GUID, so
/// the word acts once and is harmless on every boot after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset(String);

impl Reset {
    /// Digits of a GUID's first group: enough to tell the partitions of a disk apart, few enough to type at a boot loader.
    const LEAST: usize = 8;

    /// The shortest word that names this partition.
    #[must_use]
    pub fn of(guid: &Guid) -> Self {
        let mut digits = guid.to_string();
        digits.truncate(Self::LEAST);
        Self(digits)
    }

    /// Whether this partition is meant.
    #[must_use]
    pub fn names(&self, guid: &Guid) -> bool {
        guid.to_string().starts_with(&self.0)
    }
}

impl FromStr for Reset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.to_lowercase();
        let is_guid = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
        if digits.len() >= Self::LEAST && digits.bytes().all(is_guid) {
            return Ok(Self(digits));
        }
        Err(format!(
            "{text:?} names no partition; expected its GUID, or the first {} digits of it",
            Self::LEAST
        ))
    }
}

/// As it is written on the command line.
impl fmt::Display for Reset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{RESET}={}", self.0)
    }
}

/// Splits as the kernel does (`next_arg` in lib/cmdline.c): at white space outside double quotes, which are removed.
#[must_use]
pub fn words(text: &str) -> Vec<String> {
    let (mut out, mut word, mut quoted, mut any) = (Vec::new(), String::new(), false, false);
    for c in text.chars() {
        match c {
            '"' => {
                quoted = !quoted;
                any = true;
            }
            c if c.is_whitespace() && !quoted => {
                if any || !word.is_empty() {
                    out.push(std::mem::take(&mut word));
                }
                any = false;
            }
            c => word.push(c),
        }
    }
    if any || !word.is_empty() {
        out.push(word);
    }
    out
}

fn quote(value: &str) -> String {
    if value.contains(char::is_whitespace) {
        format!("\"{value}\"")
    } else {
        value.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guid::Guid;

    #[test]
    fn writer_and_reader_agree() {
        let mut network = Network::default();
        network.take("ip", "192.0.2.7:::24::eth0:off").unwrap();
        network.take("nameserver", "192.0.2.53").unwrap();
        let cmdline = Cmdline {
            network,
            roothash: Some(RootHash([0xab; 32])),
            root_url: Some("http://10.0.2.2:8080/root".into()),
            config_url: Some("http://10.0.2.2/a b".into()),
            config_device: Some("my data".into()),
            config_path: Some("/config.ign".into()),
            platform: Some(PlatformId::of("qemu")),
            report_url: Some("http://10.0.2.2/report".into()),
            etcd_adopt: Some(EtcdAdopt::Filesystem(Guid([0xab; 16]))),
            reset: Some("1A2b3c4d-0001".parse().unwrap()),
            debug: true,
            watchdog: Some(20),
        };
        let text = format!(
            "vmlinuz quiet {} ro console=ttyS0",
            cmdline.to_words().join(" ")
        );
        assert_eq!(Cmdline::parse(&text).unwrap(), cmdline);
    }

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let text = "roothash=12 slipway.root=foo ip=dhpc ignition.platform.id=GCE ignition.config.path=/a slipway.reset=var";
        let wrong = Cmdline::parse(text).unwrap_err();
        assert_eq!(wrong.len(), 6, "{wrong:?}");
    }

    #[test]
    fn a_reset_names_one_partition_by_the_begin_of_its_guid() {
        let guid: Guid = "1a2b3c4d-0001-4002-8003-000000000004".parse().unwrap();
        let other: Guid = "1a2b3c4e-0001-4002-8003-000000000004".parse().unwrap();
        assert_eq!(Reset::of(&guid).to_string(), "slipway.reset=1a2b3c4d");
        for text in ["1A2B3C4D", "1a2b3c4d-00", &guid.to_string()] {
            let reset: Reset = text.parse().unwrap();
            assert!(reset.names(&guid) && !reset.names(&other), "{text}");
        }
        for text in ["", "1a2b3c4", "state,var"] {
            assert!(text.parse::<Reset>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_watchdogs_time_is_read_as_by_systemd() {
        for (value, expected) in [
            ("20", Some(20)),
            ("20s", Some(20)),
            ("2min", Some(120)),
            ("1h", Some(3600)),
            ("0", Some(0)),
            ("off", Some(0)),
            ("default", None),
            ("1min 30s", None),
            ("soon", None),
            ("", None),
        ] {
            for key in [WATCHDOG, "systemd.watchdog-sec"] {
                let cmdline = Cmdline::parse(&format!("{key}=\"{value}\"")).unwrap();
                assert_eq!(cmdline.watchdog, expected, "{key} {value}");
            }
        }
    }

    #[test]
    fn the_last_of_a_repeated_key_wins() {
        let cmdline = Cmdline::parse("ignition.platform.id=aws ignition.platform.id=qemu").unwrap();
        assert_eq!(cmdline.platform, Some(PlatformId::of("qemu")));
    }
}
