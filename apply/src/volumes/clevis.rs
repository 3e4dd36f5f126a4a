//! Volumes that clevis opens: by tang servers, by several pins of which some suffice, by a custom pin of the config
//! (`clevis-luks-bind(1)`, `clevis-encrypt-sss(1)`, `clevis-encrypt-tang(1)`).
//!
//! On the running system an agent of clevis answers systemd's requests for such a volume's key, so a server that is
//! late, or a network, can be waited for there.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ignition::model::{Clevis, Tang};
use image::paths::{RESOLV_CONF, RUN_RESOLVER};
use serde_json::{Map, Value, json};

use crate::fetched::VolumeKeys;
use linux::mount;
use linux::programs;
use linux::programs::Programs;
use linux::tools::Tool;

/// The pin that combines others.
const SSS: &str = "sss";
const TANG: &str = "tang";
const TPM: &str = "tpm2";
/// Links that shells and their programs expect in `/dev`; on a running system udev makes them.
const STREAMS: [(&str, &str); 4] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// A pin of clevis, and its config.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Pin {
    name: String,
    pub(super) config: String,
    tang: bool,
    tpm: bool,
    network: bool,
    offline: bool,
}

impl Pin {
    /// The pin of a config; none for a TPM alone, which systemd binds, and for no pin.
    ///
    /// # Errors
    /// For a key of the config that is not valid, by its path.
    pub(super) fn of(clevis: &Clevis, keys: &VolumeKeys) -> Result<Option<Self>, String> {
        if let Some(pin) = Self::custom(clevis)? {
            return Ok(Some(pin));
        }
        let servers = clevis.tang.as_deref().unwrap_or_default();
        let tpm = clevis.tpm2 == Some(true);
        let threshold = clevis.threshold.filter(|number| *number > 0).unwrap_or(1);
        let pins = servers.len() + usize::from(tpm);
        if pins > 0 && usize::try_from(threshold).is_ok_and(|threshold| threshold > pins) {
            return Err(format!(
                "clevis.threshold: expected at most {pins}, the number of pins; found {threshold}"
            ));
        }
        if servers.is_empty() {
            return Ok(None);
        }
        let servers = servers.iter().enumerate().map(|(i, server)| {
            let fetched = keys.advertisements.get(i).and_then(Option::as_deref);
            tang(server, fetched).map_err(|why| format!("clevis.tang.{i}: {why}"))
        });
        let mut pins = Map::new();
        pins.insert(TANG.to_owned(), servers.collect::<Result<_, _>>()?);
        if tpm {
            pins.insert(TPM.to_owned(), json!({}));
        }
        Ok(Some(Self {
            name: SSS.to_owned(),
            config: json!({ "t": threshold, "pins": pins }).to_string(),
            tang: true,
            tpm,
            network: true,
            offline: keys.advertisements.iter().any(Option::is_none),
        }))
    }

    /// A custom pin, with clevis's own configuration.
    fn custom(clevis: &Clevis) -> Result<Option<Self>, String> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let Some(custom) = &clevis.custom else {
            return Ok(None);
        };
        let Some(name) = given(&custom.pin) else {
            return Ok(None);
        };
        let odd = |c: char| !c.is_ascii_alphanumeric() && c != '-';
        if name.contains(odd) || name.starts_with('-') {
            return Err(format!(
                "clevis.custom.pin: {name:?} is not the name of a pin"
            ));
        }
        let config = given(&custom.config).unwrap_or_default();
        // The pin sss combines others, which its config names.
        let names = |pin: &str| name == pin || config.contains(pin);
        Ok(Some(Self {
            tang: names(TANG),
            tpm: names(TPM),
            network: custom.needs_network == Some(true),
            offline: false,
            name,
            config,
        }))
    }

    /// Whether it needs the network at every boot.
    pub(super) const fn needs_network(&self) -> bool {
        self.network
    }

    /// Whether it needs the machine's TPM.
    pub(super) const fn needs_tpm(&self) -> bool {
        self.tpm
    }

    /// Whether everything that it needs was reachable when the config was fetched.
    pub(super) const fn opens_now(&self) -> bool {
        !self.offline
    }

    /// The programs that it needs, in the init and on the running system.
    pub(super) fn tools(&self) -> Vec<Tool> {
        let mut out = vec![Tool::Clevis, Tool::ClevisLuks, Tool::ClevisAgent];
        for (tool, needed) in [
            (Tool::ClevisSss, self.name == SSS),
            (Tool::ClevisTang, self.tang),
            (Tool::ClevisTpm2, self.tpm),
        ] {
            out.extend(needed.then_some(tool));
        }
        out
    }

    /// Binds a volume that the key in this file opens.
    ///
    /// # Errors
    /// The command and its output, without the pin's config.
    pub(super) fn bind(
        &self,
        root: &Programs,
        volume: &str,
        device: &str,
        key: &str,
    ) -> Result<()> {
        let arguments = [
            "luks",
            "bind",
            "-y",
            "-k",
            key,
            "-d",
            device,
            &self.name,
            &self.config,
        ];
        run(root, &arguments, &[&self.config])
            .with_context(|| format!("binding the volume {volume} by clevis"))
    }
}

/// A server's part of the pin's config. With `adv` clevis does not contact the server itself: the advertisement was
/// fetched and is checked by its thumbprint (`clevis-encrypt-tang(1)`).
fn tang(server: &Tang, fetched: Option<&[u8]>) -> Result<Value, String> {
    let given = server.advertisement.as_deref().unwrap_or_default();
    let read = serde_json::from_slice(fetched.unwrap_or(given.as_bytes())).ok();
    let advertisement = read
        .filter(|read: &Value| read.get("payload").is_some())
        .ok_or("its advertisement is invalid; expected JSON with a payload and signatures")?;
    Ok(json!({ "url": server.url, "thp": server.thumbprint, "adv": advertisement }))
}

/// Opens a volume.
pub(super) fn open(root: &Programs, volume: &str, device: &str) -> Result<()> {
    run(root, &["luks", "unlock", "-d", device, "-n", volume], &[])
        .with_context(|| format!("opening the volume {volume} by clevis"))
}

/// Runs clevis; messages show the `secret` arguments as dots.
fn run(root: &Programs, arguments: &[&str], secret: &[&str]) -> Result<()> {
    for (name, target) in STREAMS {
        match symlink(target, root.world.dev.join(name)) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("making /dev/{name}"));
            }
            _ => {}
        }
    }
    let _resolver = Resolver::lend(root)?;
    programs::succeed_without(root, &Tool::Clevis.find(root)?, arguments, secret).map(drop)
}

/// A copy of the init's `resolv.conf` where programs of the root look for it; removed when this value is dropped.
#[derive(Debug)]
struct Resolver(Option<PathBuf>);

impl Resolver {
    fn lend(root: &Programs) -> Result<Self> {
        let ours = root.world.in_initrd(RESOLV_CONF);
        let theirs = root.world.in_run(RUN_RESOLVER);
        // A surrounding system has its own resolv.conf.
        if !root.in_image || theirs.exists() || !ours.exists() {
            return Ok(Self(None));
        }
        if let Some(folder) = theirs.parent() {
            mount::folder(folder, 0o755)?;
        }
        fs::copy(&ours, &theirs).with_context(|| format!("writing {}", theirs.display()))?;
        Ok(Self(Some(theirs)))
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        let Some(file) = &self.0 else { return };
        let folder = file.parent().unwrap_or(Path::new("/"));
        if let Err(error) = fs::remove_file(file).and_then(|()| fs::remove_dir(folder)) {
            tracing::warn!("removing {}: {error}", file.display());
        }
    }
}
