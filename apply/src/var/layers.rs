//! The layers below the file system at `/var`: later boots, which read no config, start them before the root's system
//! runs. All other arrays and volumes are started by that system: by udev's rules and `/etc/crypttab`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use image::paths::STATE_KEYS as KEYS;
use serde::{Deserialize, Serialize};

use crate::arrays;
use crate::device;
use crate::plan::{DeviceRef, DiskPlan};
use crate::volumes;
use crate::volumes::{Opened, Unlock};
use image::fault::Fault;
use linux::atomic_file;
use linux::block;
use linux::disk_answers::with_silent;
use linux::modules::Modules;
use linux::mount;
use linux::programs::Programs;
use linux::tools::load_module;

/// One layer to start.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum VarLayer {
    /// A RAID array.
    Array {
        /// Its name, below `/dev/md`.
        name: String,
        /// Its UUID, as mdadm writes it.
        uuid: String,
    },
    /// An encrypted volume.
    Volume {
        /// Name of the mapped device.
        name: String,
        /// UUID of the volume.
        uuid: String,
        /// Whether the TPM opens it; else a key in `state`.
        tpm: bool,
        /// The key, until it is stored.
        #[serde(skip)]
        key: Option<Vec<u8>>,
    },
}

/// A key is never shown.
impl std::fmt::Debug for VarLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Removes the keys in `state` except those of these layers: keys of an interrupted attempt with another config, or of
/// the node that this one is a copy of.
///
/// # Errors
/// If a key cannot be removed.
pub fn remove_keys_except(state: &Path, layers: &[VarLayer]) -> Result<()> {
    let folder = state.join(KEYS);
    for file in block::entries(&folder) {
        let opens = |layer: &VarLayer| matches!(layer, VarLayer::Volume { name, tpm: false, .. } if *name == file);
        if !layers.iter().any(opens) {
            fs::remove_file(folder.join(&file))
                .with_context(|| format!("removing the key {file}"))?;
        }
    }
    Ok(())
}

/// All layers below a target, the lowest first.
///
/// # Errors
/// If mdadm gives no UUID for an array.
pub(crate) fn layers_below(
    plan: &DiskPlan,
    root: &Programs,
    opened: &[Opened],
    target: &DeviceRef,
) -> Result<Vec<VarLayer>> {
    let mut out = Vec::new();
    let mut here = target;
    loop {
        match here {
            DeviceRef::Volume(name) => {
                let volume = plan.volumes.iter().find(|v| v.spec.name == *name);
                let volume = volume.with_context(|| format!("no volume {name}"))?;
                let opened = opened.iter().find(|opened| opened.name == *name);
                let opened = opened.with_context(|| format!("the volume {name} is not open"))?;
                let key = match &opened.by {
                    Unlock::Key(key) => Some(key.clone()),
                    Unlock::Tpm => None,
                    Unlock::Clevis { .. } => bail!("/var is on {name}, which clevis opens"),
                };
                out.push(VarLayer::Volume {
                    name: name.clone(),
                    uuid: opened.uuid.clone(),
                    tpm: key.is_none(),
                    key,
                });
                here = &volume.target;
            }
            DeviceRef::Array(name) => {
                let uuid = arrays::uuid(root, &arrays::node(&root.world, name)?)?;
                out.push(VarLayer::Array {
                    name: name.clone(),
                    uuid,
                });
                break;
            }
            DeviceRef::Device(_) | DeviceRef::Partition(..) => break,
        }
    }
    out.reverse();
    Ok(out)
}

impl VarLayer {
    /// The array's or the volume's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Array { name, .. } | Self::Volume { name, .. } => name,
        }
    }

    /// Stores its key, if it has one, in `state`; it is on the disk when this returns.
    ///
    /// # Errors
    /// If `state` cannot be written.
    pub fn store_key(&self, state: &Path) -> Result<()> {
        let Self::Volume {
            name,
            key: Some(key),
            ..
        } = self
        else {
            return Ok(());
        };
        tracing::warn!(
            "disks: /var is on the volume {name}: its key is kept on the partition state, which is not encrypted"
        );
        let folder = state.join(KEYS);
        mount::folder(&folder, 0o700)?;
        atomic_file::write(&folder.join(name), key, 0o600)
            .with_context(|| format!("keeping the key of the volume {name}"))
    }

    /// Starts the layer, `on` the layer below it if there is one; returns its node.
    ///
    /// # Errors
    /// If its devices do not appear, or it does not open.
    pub fn start(
        &self,
        modules: &Modules,
        root: &Programs,
        state: &Path,
        on: Option<PathBuf>,
    ) -> Result<PathBuf> {
        match self {
            Self::Array { name, uuid } => arrays::start(modules, root, name, uuid),
            Self::Volume {
                name, uuid, tpm, ..
            } => {
                let device = match on {
                    Some(device) => device,
                    None => wait_for_volume(root, modules, name, uuid)?,
                };
                load_module(root, "dm_crypt")?;
                let device = device.to_string_lossy();
                match tpm {
                    true => volumes::open_by_tpm(root, name, &device)?,
                    false => {
                        let path = state.join(KEYS).join(name);
                        let key = fs::read(&path)
                            .with_context(|| format!("reading the key of the volume {name}"))?;
                        volumes::open(root, name, &device, &key, &[])?;
                    }
                }
                device::mapped(&root.world, name)
            }
        }
    }
}

/// Waits for the device of an encrypted volume.
fn wait_for_volume(
    root: &Programs,
    modules: &Modules,
    volume: &str,
    uuid: &str,
) -> Result<PathBuf> {
    let what = format!("the encrypted volume {volume}, UUID {uuid}");
    device::wait_for_uuid(root, modules, &what, uuid)?.ok_or_else(|| {
        let fault = Fault::new(format!(
            "the volume {volume}, which /var is on, was not found"
        ))
        .expected(format!("LUKS 2 with UUID {uuid}"))
        .found("no device with it")
        .fix("attach its disk again");
        with_silent(&root.world, fault).into()
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn volume(key: Option<&[u8]>) -> VarLayer {
        VarLayer::Volume {
            name: "vault".to_owned(),
            uuid: "abab".to_owned(),
            tpm: key.is_none(),
            key: key.map(<[u8]>::to_vec),
        }
    }

    #[test]
    fn a_key_is_kept_in_a_file_of_its_own_and_nowhere_else() {
        let state = tempfile::tempdir().unwrap();
        let layer = volume(Some(b"SECRET"));
        for _ in 0..2 {
            layer.store_key(state.path()).unwrap();
        }
        let path = state.path().join("keys/vault");
        assert_eq!(fs::read(&path).unwrap(), b"SECRET");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        let text = serde_json::to_string(&layer).unwrap();
        assert_eq!(
            text,
            r#"{"kind":"volume","name":"vault","uuid":"abab","tpm":false}"#
        );
        assert!(!format!("{layer:?}").contains("SECRET"));
        volume(None).store_key(state.path()).unwrap();
    }

    #[test]
    fn keys_of_other_volumes_go() {
        let state = tempfile::tempdir().unwrap();
        let keys = state.path().join("keys");
        remove_keys_except(state.path(), &[]).unwrap();
        let layer = volume(Some(b"SECRET"));
        layer.store_key(state.path()).unwrap();
        for left in ["vault.new", "earlier"] {
            fs::write(keys.join(left), "SECRET").unwrap();
        }
        remove_keys_except(state.path(), std::slice::from_ref(&layer)).unwrap();
        assert_eq!(block::entries(&keys), ["vault"]);
        // The TPM opens the volume now.
        remove_keys_except(state.path(), &[volume(None)]).unwrap();
        assert!(block::entries(&keys).is_empty());
    }

    #[test]
    fn layers_are_read_as_they_are_written() {
        let layers = vec![
            VarLayer::Array {
                name: "pair".to_owned(),
                uuid: "1:2:3:4".to_owned(),
            },
            volume(None),
        ];
        let text = serde_json::to_string(&layers).unwrap();
        assert_eq!(
            serde_json::from_str::<Vec<VarLayer>>(&text).unwrap(),
            layers,
            "{text}"
        );
        // The record of a node that was provisioned by a version without layers.
        let plain = r#"{"format":"ext4","uuid":"abab","options":[]}"#;
        let var: crate::var::VarFilesystem = serde_json::from_str(plain).unwrap();
        assert!(var.layers.is_empty());
        assert_eq!(serde_json::to_string(&var).unwrap(), plain);
    }
}
