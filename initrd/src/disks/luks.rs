//! Encrypted volumes: LUKS 2, by a key file and, for `clevis.tpm2`, by the machine's TPM.
//!
//! What Ignition binds by clevis is bound by `systemd-cryptenroll` here: the running system opens it by its crypttab
//! alone, with neither a shell nor an agent. As with clevis no PCR is part of the binding: the volume opens on this
//! machine, whatever it booted.

mod key;
#[cfg(test)]
mod tests;
mod work;

use ignition::model::Luks;

use super::tool::Tool;
use crate::block::filesystem::{Found, Kind};
pub(super) use work::{close, open, open_by_tpm};

/// A volume as a config wants it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Where it stands in the config.
    pub(super) at: String,
    /// Name of the mapped device.
    pub(super) name: String,
    /// The device as the config names it.
    pub(super) device: String,
    key: Option<Vec<u8>>,
    label: Option<String>,
    uuid: Option<String>,
    options: Vec<String>,
    open_options: Vec<String>,
    discard: bool,
    wipe: bool,
    /// Whether the TPM opens it too.
    pub(super) tpm: bool,
}

/// A key is never shown.
impl std::fmt::Debug for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wanted")
            .field("name", &self.name)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is opened as it is.
    Open,
    /// It is made.
    Make,
    /// What is there is wiped and it is made.
    Remake,
}

/// What the running system must know of a volume.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Opened {
    /// Name of the mapped device.
    pub(crate) name: String,
    /// UUID of the volume.
    pub(crate) uuid: String,
    /// Its key; none if only the TPM opens it.
    pub(crate) key: Option<Vec<u8>>,
}

/// A key is never shown.
impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opened")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Wanted {
    /// Reads one; `key` is what its key file was fetched as.
    ///
    /// # Errors
    /// For what this version cannot do, by name.
    pub(super) fn of(at: &str, model: &Luks, key: Option<&[u8]>) -> Result<Self, String> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let odd = |c: char| c.is_whitespace() || c.is_control() || "/\\#".contains(c);
        if model.name.starts_with(['-', '.']) || model.name.is_empty() || model.name.contains(odd) {
            return Err(format!(
                "name: {:?} cannot stand in crypttab and on a command line",
                model.name
            ));
        }
        Ok(Self {
            at: at.to_owned(),
            name: model.name.clone(),
            device: model.device.clone().unwrap_or_default(),
            key: key.map(<[u8]>::to_vec),
            label: given(&model.label),
            uuid: given(&model.uuid),
            options: model.options.clone().unwrap_or_default(),
            open_options: model.open_options.clone().unwrap_or_default(),
            discard: model.discard == Some(true),
            wipe: model.wipe_volume == Some(true),
            tpm: wants_tpm(model)?,
        })
    }

    /// By what the device holds: `names` are all known things on it, `found` those of them that say more.
    ///
    /// # Errors
    /// If something else is there and may not be wiped: expected against found.
    pub(super) fn decide(
        &self,
        names: &[&'static str],
        found: &[Found],
    ) -> Result<Verdict, String> {
        let refuse = |expected: &str, found: String| {
            Err(format!(
                "{}: {} cannot be used as it is and wipeVolume is not set; expected {expected}; found {found}",
                self.at, self.device
            ))
        };
        if self.wipe {
            return Ok(Verdict::Remake);
        }
        if names.is_empty() {
            return Ok(Verdict::Make);
        }
        let Some(volume) = found.iter().find(|found| found.kind == Kind::Luks2) else {
            let shown: Vec<String> = found.iter().map(ToString::to_string).collect();
            let shown = match shown.as_slice() {
                [] => names.join(" and "),
                shown => shown.join(" and "),
            };
            return refuse("nothing, or a LUKS 2 volume", shown);
        };
        if self.tpm || self.key.is_none() {
            return refuse(
                "nothing: only a volume with a key file of the config and without clevis is used again",
                volume.to_string(),
            );
        }
        for (name, wanted, found) in [
            ("label", &self.label, &volume.label),
            ("UUID", &self.uuid, &volume.uuid),
        ] {
            if let Some(wanted) = wanted
                .as_ref()
                .filter(|wanted| !wanted.eq_ignore_ascii_case(found))
            {
                return refuse(&format!("the {name} {wanted:?}"), format!("{found:?}"));
            }
        }
        Ok(Verdict::Open)
    }

    /// Whether one that an earlier run of this config made can be opened again: a key that was drawn then is gone.
    pub(super) const fn opens_again(&self) -> bool {
        self.key.is_some() || self.tpm
    }

    /// Whether what is there goes.
    pub(super) const fn wipes(&self) -> bool {
        self.wipe
    }

    /// The programs that it needs of the root, in the init and on the running system.
    pub(super) fn tools(&self) -> Vec<Tool> {
        let mut out = vec![Tool::Cryptsetup, Tool::Wipefs, Tool::CryptsetupGenerator];
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
        // A key that was drawn has nothing that could be guessed, so that nothing is gained by a slow derivation.
        if self.key.is_none() && !self.options.iter().any(|o| o.starts_with("--pbkdf")) {
            out.extend(
                ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"].map(str::to_owned),
            );
        }
        out.extend(self.options.iter().cloned());
        out.push(device.to_owned());
        out
    }

    /// Flags that are kept in the volume's header, so that whoever opens it later need not know them.
    fn flags(&self) -> Vec<String> {
        let mut out = vec!["--persistent".to_owned()];
        if self.discard {
            out.push("--allow-discards".to_owned());
        }
        out.extend(self.open_options.iter().cloned());
        out
    }
}

/// Whether the TPM opens it; what else could is refused by name.
fn wants_tpm(model: &Luks) -> Result<bool, String> {
    let enabled = |cex: &ignition::model::Cex| cex.enabled == Some(true);
    if model.cex.as_ref().is_some_and(enabled) {
        return Err("cex: crypto express cards are not supported".to_owned());
    }
    let Some(clevis) = &model.clevis else {
        return Ok(false);
    };
    let only = "of clevis this version of Slipway has tpm2; keyFile works too";
    if clevis.tang.as_ref().is_some_and(|list| !list.is_empty()) {
        return Err(format!("clevis.tang: {only}"));
    }
    let is_given = |pin: &Option<String>| pin.as_ref().is_some_and(|pin| !pin.is_empty());
    if clevis
        .custom
        .as_ref()
        .is_some_and(|custom| is_given(&custom.pin))
    {
        return Err(format!("clevis.custom: {only}"));
    }
    let tpm = clevis.tpm2 == Some(true);
    match clevis.threshold {
        Some(threshold) if tpm && threshold > 1 => Err(format!(
            "clevis.threshold: {threshold} pins are to open it, and there is one, tpm2"
        )),
        _ => Ok(tpm),
    }
}
