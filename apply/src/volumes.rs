//! Encrypted volumes: LUKS 2, unlocked by a key file, by the machine's TPM, or by a pin of clevis.
//!
//! A volume that Ignition binds to a TPM alone by clevis is bound by `systemd-cryptenroll` here: the running system
//! opens it by its crypttab alone, with neither a shell nor an agent. As with clevis no PCR is part of the binding: the
//! volume opens on this machine, whatever it booted. Clevis binds all other pins.

mod clevis;
mod cryptsetup;
pub(crate) mod crypttab;
mod key_file;
#[cfg(test)]
mod tests;

use ignition::model::Luks;
use serde::{Deserialize, Serialize};

use crate::content::Held;
use crate::fetched::VolumeKeys;
use clevis::Pin;
pub use cryptsetup::{close, open, open_by_tpm};
use linux::filesystem::Kind;
use linux::tools::Tool;

/// A volume of a config.
#[derive(Clone, PartialEq, Eq)]
pub struct VolumeSpec {
    /// Its JSON path in the config.
    pub at: String,
    /// Name of the mapped device.
    pub name: String,
    /// The device as the config names it.
    pub device: String,
    key: Option<Vec<u8>>,
    label: Option<String>,
    uuid: Option<String>,
    options: Vec<String>,
    open_options: Vec<String>,
    discard: bool,
    wipe: bool,
    /// Whether the TPM opens it too, without clevis.
    tpm: bool,
    /// The pin by which clevis opens it too.
    clevis: Option<Pin>,
}

/// A key is never shown.
impl std::fmt::Debug for VolumeSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VolumeSpec")
            .field("name", &self.name)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

/// The action on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeAction {
    /// The volume is opened and not changed.
    Open,
    /// The volume is made.
    Make,
    /// The existing content is wiped and the volume is made.
    Remake,
}

/// An open volume, with the data that the running system needs. Ignition's stages pass it on in a file.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Opened {
    /// Name of the mapped device.
    pub name: String,
    /// UUID of the volume.
    pub uuid: String,
    /// How it is unlocked at later boots.
    pub by: Unlock,
}

/// How a volume is unlocked.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Unlock {
    /// A key.
    Key(Vec<u8>),
    /// The machine's TPM.
    Tpm,
    /// Clevis, whose pin may need the network.
    Clevis {
        /// Whether the pin needs the network.
        network: bool,
    },
}

/// A key is never shown.
impl std::fmt::Debug for Unlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Key(_) => "Key",
            Self::Tpm => "Tpm",
            Self::Clevis { .. } => "Clevis",
        })
    }
}

/// A key is never shown.
impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opened")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl VolumeSpec {
    /// Reads the entry of a config; `keys` are its fetched keys.
    ///
    /// # Errors
    /// For a key that this version does not support, by its path.
    pub fn of(at: &str, model: &Luks, keys: &VolumeKeys) -> Result<Self, String> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let odd = |c: char| c.is_whitespace() || c.is_control() || "/\\#".contains(c);
        if model.name.starts_with(['-', '.']) || model.name.is_empty() || model.name.contains(odd) {
            return Err(format!(
                "name: {:?} is not valid in crypttab and on a command line",
                model.name
            ));
        }
        let enabled = |cex: &ignition::model::Cex| cex.enabled == Some(true);
        if model.cex.as_ref().is_some_and(enabled) {
            return Err("cex: crypto express cards are not supported".to_owned());
        }
        let clevis = model.clevis.as_ref();
        let pin = clevis
            .map(|clevis| Pin::of(clevis, keys))
            .transpose()?
            .flatten();
        Ok(Self {
            at: at.to_owned(),
            name: model.name.clone(),
            device: model.device.clone().unwrap_or_default(),
            key: keys.file.clone(),
            label: given(&model.label),
            uuid: given(&model.uuid),
            options: model.options.clone().unwrap_or_default(),
            open_options: model.open_options.clone().unwrap_or_default(),
            discard: model.discard == Some(true),
            wipe: model.wipe_volume == Some(true),
            tpm: pin.is_none() && clevis.is_some_and(|clevis| clevis.tpm2 == Some(true)),
            clevis: pin,
        })
    }

    /// By the content of the device, which messages call `stable` too.
    ///
    /// # Errors
    /// If the device has other content, known or not, and may not be wiped: expected against found.
    pub fn decide(&self, held: &Held, stable: &str) -> Result<VolumeAction, String> {
        let refuse = |expected: &str, found: String| {
            Err(format!(
                "{}: {} ({stable}) cannot be used as it is and wipeVolume is not set; expected {expected}; found {found}; \
                 `wipeVolume: true` gives it up",
                self.at, self.device
            ))
        };
        if self.wipe {
            return Ok(VolumeAction::Remake);
        }
        if held.is_blank() {
            return Ok(VolumeAction::Make);
        }
        let volume = held.found.iter().find(|found| found.kind == Kind::Luks2);
        let Some(volume) = volume else {
            return refuse("a blank device, or a LUKS 2 volume", held.describe());
        };
        if self.is_bound() || self.key.is_none() {
            return refuse(
                "nothing: only a volume with a key file of the config and without clevis is reused",
                volume.to_string(),
            );
        }
        for (name, spec, found, any_case) in [
            ("label", &self.label, &volume.label, false),
            ("UUID", &self.uuid, &volume.uuid, true),
        ] {
            let differs = |spec: &&String| match any_case {
                true => !spec.eq_ignore_ascii_case(found),
                false => *spec != found,
            };
            if let Some(spec) = spec.as_ref().filter(differs) {
                return refuse(&format!("the {name} {spec:?}"), format!("{found:?}"));
            }
        }
        Ok(VolumeAction::Open)
    }

    /// Whether a volume that an earlier run of this config made can be opened again: a randomly generated key is lost,
    /// and a server may be unreachable.
    pub fn can_reopen(&self) -> bool {
        self.key.is_some() || self.tpm || self.clevis.as_ref().is_some_and(Pin::opens_now)
    }

    /// Whether it has another binding besides a key.
    const fn is_bound(&self) -> bool {
        self.tpm || self.clevis.is_some()
    }

    /// Whether clevis opens it at later boots.
    pub const fn needs_clevis(&self) -> bool {
        self.clevis.is_some()
    }

    /// Whether it is bound to the machine's TPM.
    pub fn needs_tpm(&self) -> bool {
        self.tpm || self.clevis.as_ref().is_some_and(Pin::needs_tpm)
    }

    /// Whether the existing content may be wiped.
    pub const fn wipes(&self) -> bool {
        self.wipe
    }

    /// The programs of the root that it needs, in the init and on the running system.
    pub fn tools(&self) -> Vec<Tool> {
        let mut out = vec![Tool::Cryptsetup, Tool::Wipefs, Tool::CryptsetupGenerator];
        if let Some(pin) = &self.clevis {
            out.extend(pin.tools());
        }
        if self.tpm {
            out.extend([
                Tool::Cryptenroll,
                Tool::SystemdCryptsetup,
                Tool::TssEsys,
                Tool::TssRc,
            ]);
        }
        out
    }

    fn format(&self, device: &str, key: &str) -> Vec<String> {
        let mut out: Vec<String> = ["luksFormat", "--type", "luks2", "--key-file", key]
            .map(str::to_owned)
            .into();
        for (flag, value) in [("--label", &self.label), ("--uuid", &self.uuid)] {
            if let Some(value) = value {
                out.extend([flag.to_owned(), value.clone()]);
            }
        }
        // A random key cannot be guessed, so a slow key derivation gains nothing.
        if self.key.is_none() && !self.options.iter().any(|o| o.starts_with("--pbkdf")) {
            out.extend(
                ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"].map(str::to_owned),
            );
        }
        out.extend(self.options.iter().cloned());
        out.push(device.to_owned());
        out
    }

    /// Flags that are kept in the volume's header, so that they apply at every later opening.
    fn flags(&self) -> Vec<String> {
        let mut out = vec!["--persistent".to_owned()];
        if self.discard {
            out.push("--allow-discards".to_owned());
        }
        out.extend(self.open_options.iter().cloned());
        out
    }
}
