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
//! | `ip=`, `vlan=`, `bond=`, `ifname=`, `rd.route=`, `nameserver=` | the network, see [`crate::network`] |
//! | `slipway.debug` | debug messages in the kernel's log |
//!
//! All other words are ignored: they are the kernel's or systemd's. Some loaders put the image's name
//! first (`vmlinuz …`), so an unknown word is never an error.

use crate::network::Network;
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
/// `slipway.debug`
pub const DEBUG: &str = "slipway.debug";

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
    /// The network before the handoff.
    pub network: Network,
    /// Whether debug messages are logged.
    pub debug: bool,
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
                DEBUG => out.debug = value != "0",
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
            self.debug.then(|| DEBUG.to_owned()),
        ]
        .into_iter()
        .flatten()
        .chain(self.network.words.iter().cloned())
        .collect()
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
            debug: true,
        };
        let text = format!(
            "vmlinuz quiet {} ro console=ttyS0",
            cmdline.to_words().join(" ")
        );
        assert_eq!(Cmdline::parse(&text).unwrap(), cmdline);
    }

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let text =
            "roothash=12 slipway.root=foo ip=dhpc ignition.platform.id=GCE ignition.config.path=/a";
        let wrong = Cmdline::parse(text).unwrap_err();
        assert_eq!(wrong.len(), 5, "{wrong:?}");
    }

    #[test]
    fn the_last_of_a_repeated_key_wins() {
        let cmdline = Cmdline::parse("ignition.platform.id=aws ignition.platform.id=qemu").unwrap();
        assert_eq!(cmdline.platform, Some(PlatformId::of("qemu")));
    }
}
