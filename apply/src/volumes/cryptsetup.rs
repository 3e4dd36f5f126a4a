//! Operations on an encrypted volume: made, opened, bound, closed, by programs of the root.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::key_file::{self, KeyFile};
use super::{Opened, Unlock, VolumeAction, VolumeSpec, clevis};
use linux::programs;
use linux::programs::Output;
use linux::programs::Programs;
use linux::tools::{Tool, load_module};

/// Options of a volume that the TPM opens. `headless`: a node has no console to ask for a passphrase.
const BY_TPM: &str = "luks,tpm2-device=auto,headless=true";

impl VolumeSpec {
    /// Makes and opens the volume, or only opens it.
    ///
    /// # Errors
    /// The command that failed and its output, without a key.
    pub fn apply(&self, root: &Programs, action: VolumeAction, device: &Path) -> Result<Opened> {
        let path = device.to_string_lossy();
        load_module(root, "dm_crypt")?;
        let by = match (action, &self.key) {
            (VolumeAction::Open, Some(key)) => {
                self.check_discards(root, &path)?;
                open(root, &self.name, &path, key, &self.flags())?;
                self.unlock(key)
            }
            (VolumeAction::Open, None) => {
                self.open_bound(root, &path)?;
                self.binding()
            }
            (VolumeAction::Make | VolumeAction::Remake, given) => {
                if action == VolumeAction::Remake {
                    programs::succeed(root, &Tool::Wipefs.find(root)?, &["-a", &path])?;
                }
                let key = given.clone().map_or_else(key_file::draw, Ok)?;
                self.make(root, &path, &key)?;
                self.unlock(&key)
            }
        };
        self.opened(root, &path, by)
    }

    /// Checks a volume that an earlier run left open: it must have the state in which [`VolumeSpec::apply`] would open
    /// it.
    ///
    /// # Errors
    /// If its flags differ, or another key opens it.
    pub fn check_open(&self, root: &Programs, device: &Path) -> Result<Opened> {
        let path = device.to_string_lossy();
        tracing::info!("disks: the encrypted volume {} is already open", self.name);
        let key = self
            .key
            .as_deref()
            .with_context(|| format!("the volume {} is open and has no key file", self.name))?;
        self.check_discards(root, &path)?;
        let file = KeyFile::new(root, &format!("{}.open", self.name), key)?;
        let arguments = [
            "luksOpen",
            "--test-passphrase",
            &path,
            "--key-file",
            &file.path,
        ];
        cryptsetup(root, &self.name, &arguments)?;
        self.opened(root, &path, self.unlock(key))
    }

    fn opened(&self, root: &Programs, path: &str, by: Unlock) -> Result<Opened> {
        let uuid = cryptsetup(root, &self.name, &["luksUUID", path])?;
        Ok(Opened {
            name: self.name.clone(),
            uuid: uuid.stdout.trim().to_lowercase(),
            by,
        })
    }

    /// How later boots unlock the volume, which this key opens now. Beside a binding a key is only another slot, as for
    /// Ignition: kept in a file it would make the binding worthless.
    pub(super) fn unlock(&self, key: &[u8]) -> Unlock {
        match self.is_bound() {
            true => self.binding(),
            false => Unlock::Key(key.to_vec()),
        }
    }

    /// How a volume with a binding is unlocked.
    fn binding(&self) -> Unlock {
        match &self.clevis {
            Some(pin) => Unlock::Clevis {
                network: pin.needs_network(),
            },
            None => Unlock::Tpm,
        }
    }

    /// Opens the volume by the TPM or by clevis.
    fn open_bound(&self, root: &Programs, path: &str) -> Result<()> {
        match &self.clevis {
            Some(_) => clevis::open(root, &self.name, path),
            None => open_by_tpm(root, &self.name, path),
        }
    }

    fn make(&self, root: &Programs, path: &str, key: &[u8]) -> Result<()> {
        tracing::info!("disks: making the encrypted volume {} on {path}", self.name);
        let file = KeyFile::new(root, &self.name, key)?;
        // With `--integrity` it writes all of the device.
        programs::succeed_on_disk(
            root,
            &Tool::Cryptsetup.find(root)?,
            &self.format(path, &file.path),
            &format!("cryptsetup luksFormat of {path}"),
        )
        .with_context(|| format!("the volume {}", self.name))?;
        open(root, &self.name, path, key, &self.flags())?;
        match &self.clevis {
            Some(pin) => pin.bind(root, &self.name, path, &file.path)?,
            None if self.tpm => enroll(root, &self.name, path, &file.path)?,
            None => return Ok(()),
        }
        if self.key.is_none() {
            cryptsetup(
                root,
                &self.name,
                &["luksRemoveKey", "--batch-mode", path, &file.path],
            )?;
        }
        // With an advertisement in the config, the server need not be reachable yet.
        if self.clevis.as_ref().is_some_and(|pin| !pin.opens_now()) {
            return Ok(());
        }
        // It is opened by its binding now: a volume that fails here would fail at the next boot, with data on it.
        close(root, &self.name)?;
        self.open_bound(root, path)
    }

    /// Checks that the volume passes discards as the config wants: the header keeps that flag.
    fn check_discards(&self, root: &Programs, path: &str) -> Result<()> {
        let dump = cryptsetup(
            root,
            &self.name,
            &["luksDump", "--dump-json-metadata", path],
        )?;
        let found = allows_discards(&dump.stdout)?;
        ensure!(
            found == self.discard,
            "the volume {} does not match; expected discard {}; found {found}",
            self.name,
            self.discard
        );
        Ok(())
    }
}

/// The flag in the header's JSON (LUKS2 On-Disk Format, "Config Object").
pub(super) fn allows_discards(header: &str) -> Result<bool> {
    let header: serde_json::Value =
        serde_json::from_str(header).context("reading the volume's header")?;
    let flags = header["config"]["flags"].as_array();
    Ok(flags.is_some_and(|flags| flags.iter().any(|flag| flag == "allow-discards")))
}

fn cryptsetup<A: AsRef<std::ffi::OsStr>>(
    root: &Programs,
    name: &str,
    arguments: &[A],
) -> Result<Output> {
    programs::succeed(root, &Tool::Cryptsetup.find(root)?, arguments)
        .with_context(|| format!("the volume {name}"))
}

/// Opens a volume by its key.
///
/// # Errors
/// If the key does not open it.
pub fn open(root: &Programs, name: &str, device: &str, key: &[u8], flags: &[String]) -> Result<()> {
    let file = KeyFile::new(root, &format!("{name}.open"), key)?;
    let mut arguments = ["luksOpen", device, name, "--key-file", &file.path]
        .map(str::to_owned)
        .to_vec();
    arguments.extend(flags.iter().cloned());
    cryptsetup(root, name, &arguments).map(drop)
}

/// Enrolls the TPM with another key of the volume, which this key opens.
fn enroll(root: &Programs, name: &str, device: &str, key: &str) -> Result<()> {
    let arguments = [
        &format!("--unlock-key-file={key}"),
        "--tpm2-device=auto",
        "--tpm2-pcrs=",
        device,
    ];
    programs::succeed(root, &Tool::Cryptenroll.find(root)?, &arguments)
        .with_context(|| format!("binding the volume {name} to the TPM"))
        .map(drop)
}

/// Opens a volume by the TPM.
///
/// # Errors
/// If the TPM is not the one that the volume is bound to.
pub fn open_by_tpm(root: &Programs, name: &str, device: &str) -> Result<()> {
    let arguments = ["attach", name, device, "none", BY_TPM];
    programs::succeed(root, &Tool::SystemdCryptsetup.find(root)?, &arguments)
        .with_context(|| format!("opening the volume {name} by the TPM"))
        .map(drop)
}

/// Closes a volume.
///
/// # Errors
/// If it is in use.
pub fn close(root: &Programs, name: &str) -> Result<()> {
    cryptsetup(root, name, &["luksClose", name])
        .context("closing it")
        .map(drop)
}
