//! The OCI runtime specification as far as the kubelet's container needs it.
//!
//! Format: <https://github.com/opencontainers/runtime-spec/blob/v1.1.0/config.md>.

use serde::{Deserialize, Serialize};

/// `config.json` of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// Version of the specification.
    pub oci_version: String,
    /// The process.
    pub process: Process,
    /// The root file system.
    pub root: Root,
    /// The mounts, in their order.
    pub mounts: Vec<Mount>,
    /// The part for Linux.
    pub linux: Linux,
}

/// The process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Process {
    /// User and group of the process.
    pub user: User,
    /// Program and arguments.
    pub args: Vec<String>,
    /// `NAME=value`.
    pub env: Vec<String>,
    /// Working folder.
    pub cwd: String,
    /// Its capabilities.
    pub capabilities: Capabilities,
    /// Whether set-user-ID programs (mount helpers) stay without effect.
    pub no_new_privileges: bool,
    /// Limits of resources.
    pub rlimits: Vec<Rlimit>,
}

/// User and group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Sets of capabilities.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capabilities {
    /// Limit for everything that the process starts.
    pub bounding: Vec<String>,
    /// The effective set.
    pub effective: Vec<String>,
    /// The permitted set.
    pub permitted: Vec<String>,
}

/// One limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rlimit {
    /// Name, as `RLIMIT_NOFILE`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The hard limit.
    pub hard: u64,
    /// The soft limit.
    pub soft: u64,
}

/// The root file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Root {
    /// Its folder.
    pub path: String,
    /// Whether it is read-only.
    pub readonly: bool,
}

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// The target.
    pub destination: String,
    /// Type of the file system; `bind` for a bind.
    #[serde(rename = "type")]
    pub kind: String,
    /// The source.
    pub source: String,
    /// Mount options.
    pub options: Vec<String>,
}

/// The part for Linux.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Linux {
    /// New namespaces; for all other types the host's are used.
    pub namespaces: Vec<Namespace>,
    /// How mounts cross the container's root.
    pub rootfs_propagation: String,
    /// Limits by control group, and rules for devices.
    pub resources: Resources,
    /// Paths that are hidden.
    pub masked_paths: Vec<String>,
    /// Paths that cannot be written.
    pub readonly_paths: Vec<String>,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Namespace {
    /// Which, as `mount`.
    #[serde(rename = "type")]
    pub kind: String,
}

/// Limits by control group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// Rules for devices.
    pub devices: Vec<DeviceRule>,
}

/// A rule for devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceRule {
    /// Allow or forbid.
    pub allow: bool,
    /// Kinds of access: letters of `rwm`.
    pub access: String,
}

/// Every capability that Linux 6.12 knows, by number (`include/uapi/linux/capability.h`).
pub const CAPABILITIES: &[&str] = &[
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];
