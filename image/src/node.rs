//! Node settings (`/etc/slipway/node.toml`), and the record that the etcd gate checks.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::fault::Fault;
use crate::guid::Guid;
use crate::paths::NODE_SETTINGS;

/// What a node is for.
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
    /// A name of the disk in `/dev/disk/by-id`, or one of Azure's in `/dev/disk`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub id: Option<String>,
    /// Label of the file system.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub label: Option<String>,
    /// Label of the GPT partition.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub partlabel: Option<String>,
    /// Whether a blank disk may be formatted.
    #[serde(default)]
    pub format: EtcdFormat,
    /// Name of the cluster that the data belongs to; kept in the identity file. A control plane has none without it:
    /// see [`NodeSettings::control_plane`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cluster: Option<String>,
    /// Name of the etcd member that the data belongs to; kept in the identity file. Without it, any member's data of the
    /// cluster is accepted by a node that has no volume yet.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub member: Option<String>,
    /// The volume that a node takes in place of its own, once.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub adopt: Option<EtcdAdopt>,
    /// The smallest disk that may be formatted, in bytes.
    #[serde(default = "default_minimum")]
    pub minimum_size: u64,
}

const fn default_minimum() -> u64 {
    1 << 30
}

impl NodeSettings {
    /// The etcd settings and the cluster's name of a control plane; none of a worker.
    ///
    /// # Errors
    /// What a control plane lacks.
    pub fn control_plane(&self) -> Result<Option<(&EtcdSettings, &str)>, Fault> {
        if self.role == Role::Worker {
            return Ok(None);
        }
        let lacks = |expected: &str, found: &str| {
            Fault::new("the node settings of a control plane are incomplete")
                .expected(format!("{expected}, in {NODE_SETTINGS}"))
                .found(found)
                .fix("complete [etcd] in the node settings, or make the node a worker")
        };
        let etcd = self.etcd.as_ref().ok_or_else(|| {
            lacks(
                "[etcd] with cluster, and one of serial, id, label and partlabel",
                "role = \"control-plane\" without [etcd]",
            )
        })?;
        etcd.find()
            .map_err(|found| lacks("exactly one of serial, id, label and partlabel", &found))?;
        // A default would make every cluster's data look alike.
        match etcd.cluster.as_deref() {
            Some(cluster) if !cluster.is_empty() => Ok(Some((etcd, cluster))),
            _ => Err(lacks(
                "[etcd] cluster = \"NAME\", the cluster that the data belongs to",
                "role = \"control-plane\" without a name of the cluster",
            )),
        }
    }
}

impl EtcdSettings {
    /// The name by which the disk is found.
    ///
    /// # Errors
    /// If not exactly one of `serial`, `id`, `label` and `partlabel` is given.
    pub fn find(&self) -> Result<EtcdFind, String> {
        match (&self.serial, &self.id, &self.label, &self.partlabel) {
            (Some(serial), None, None, None) => Ok(EtcdFind::Serial(serial.clone())),
            (None, Some(id), None, None) => Ok(EtcdFind::Id(id.clone())),
            (None, None, Some(label), None) => Ok(EtcdFind::Label(label.clone())),
            (None, None, None, Some(label)) => Ok(EtcdFind::Partlabel(label.clone())),
            _ => Err("etcd: give exactly one of serial, id, label and partlabel".to_owned()),
        }
    }
}

/// The stable names by which a disk may be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EtcdFind {
    /// Serial number of the disk (virtio, NVMe and SCSI alike).
    Serial(String),
    /// A name of the disk in `/dev/disk/by-id`, or one of Azure's in `/dev/disk`.
    Id(String),
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

/// Consent to another volume than the node's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum EtcdAdopt {
    /// A blank disk, for an etcd member that begins anew.
    Blank,
    /// The etcd volume whose file system has this UUID.
    Filesystem(Guid),
}

impl fmt::Display for EtcdAdopt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blank => f.write_str("blank"),
            Self::Filesystem(uuid) => uuid.fmt(f),
        }
    }
}

impl FromStr for EtcdAdopt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "blank" => Ok(Self::Blank),
            _ => text.parse().map(Self::Filesystem).map_err(|_| {
                format!("{text:?} is neither \"blank\" nor the UUID of a file system")
            }),
        }
    }
}

impl TryFrom<String> for EtcdAdopt {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<EtcdAdopt> for String {
    fn from(adopt: EtcdAdopt) -> Self {
        adopt.to_string()
    }
}

/// The identity file at the root of the etcd file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EtcdIdentity {
    /// Version of this file's form: 1.
    pub version: u32,
    /// The cluster that the data belongs to.
    pub cluster: String,
    /// The etcd member that it belongs to, if the settings named one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub member: Option<String>,
    /// UUID of the file system, which ties the file to this very disk.
    pub filesystem: String,
    /// When it was made, seconds since 1970.
    pub created: u64,
    /// Machine id of the node that made it.
    pub machine_id: String,
}

/// The etcd volume of a node, kept in its `state`: it formats nothing and accepts nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EtcdVolume {
    /// Version of this file's form: 1.
    pub version: u32,
    /// UUID of the file system.
    pub filesystem: String,
    /// The cluster that the data belongs to.
    pub cluster: String,
    /// The etcd member that it belongs to, if the settings named one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub member: Option<String>,
    /// The consent that was spent on this volume: it does not count again until the settings name another one, or none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub adopted: Option<EtcdAdopt>,
}

/// What the kubelet's gate must find in mountinfo before the kubelet starts.
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
