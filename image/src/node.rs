//! Node settings (`/etc/slipway/node.toml`), and the record that the etcd gate checks.

use serde::{Deserialize, Serialize};

/// The role of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Runs etcd; only this role has the etcd gate.
    ControlPlane,
    /// Runs workloads only.
    #[default]
    Worker,
}

/// The node's settings. The recipe gives the defaults; the config's file replaces field by field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NodeSettings {
    /// The node's role.
    #[serde(default)]
    pub role: Role,
    /// The etcd disk of a control plane.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub etcd: Option<EtcdSettings>,
}

/// How the etcd disk is found and what may be done to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct EtcdSettings {
    /// Serial number of the disk (virtio, NVMe and SCSI alike). Exactly one of the three names is given;
    /// a device name is not among them, since those change between boots.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub serial: Option<String>,
    /// Label of the file system.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub label: Option<String>,
    /// Label of the GPT partition.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub partlabel: Option<String>,
    /// Whether a blank disk may be formatted.
    #[serde(default)]
    pub format: EtcdFormat,
    /// Name of the cluster that the data belongs to; kept in the identity file.
    #[serde(default = "default_cluster")]
    pub cluster: String,
    /// The smallest disk that may be formatted, in bytes.
    #[serde(default = "default_minimum")]
    pub minimum_size: u64,
}

fn default_cluster() -> String {
    "default".to_owned()
}

const fn default_minimum() -> u64 {
    1 << 30
}

impl EtcdSettings {
    /// The name by which the disk is found.
    ///
    /// # Errors
    /// If not exactly one of `serial`, `label` and `partlabel` is given.
    pub fn find(&self) -> Result<EtcdFind, String> {
        match (&self.serial, &self.label, &self.partlabel) {
            (Some(serial), None, None) => Ok(EtcdFind::Serial(serial.clone())),
            (None, Some(label), None) => Ok(EtcdFind::Label(label.clone())),
            (None, None, Some(label)) => Ok(EtcdFind::Partlabel(label.clone())),
            _ => Err("etcd: give exactly one of serial, label and partlabel".to_owned()),
        }
    }
}

/// The stable names by which a disk may be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EtcdFind {
    /// Serial number of the disk (virtio, NVMe and SCSI alike).
    Serial(String),
    /// Label of the file system.
    Label(String),
    /// Label of the GPT partition.
    Partlabel(String),
}

/// Consent to format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EtcdFormat {
    /// Refuse a blank disk.
    #[default]
    Never,
    /// Format a disk that is provably blank.
    IfBlank,
}

/// The identity file at the root of the etcd file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EtcdIdentity {
    /// Version of this file's form: 1.
    pub version: u32,
    /// The cluster that the data belongs to.
    pub cluster: String,
    /// UUID of the file system, which ties the file to this very disk.
    pub filesystem: String,
    /// When it was made, seconds since 1970.
    pub created: u64,
    /// Machine id of the node that made it.
    pub machine_id: String,
}

/// What the kubelet's gate must find in mountinfo before the kubelet starts. Written by the init, read by the gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EtcdGate {
    /// Whether this node's role has an etcd volume at all.
    pub required: bool,
    /// `major:minor` of the file system that must be mounted at [`crate::paths::ETCD`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub device: Option<String>,
    /// UUID of that file system.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub filesystem: Option<String>,
    /// Why there is no volume, for the console.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
}
