//! The OCI runtime specification as far as the kubelet's container needs it, and the spec itself.
//!
//! Format: <https://github.com/opencontainers/runtime-spec/blob/v1.1.0/config.md>.

use serde::{Deserialize, Serialize};

use crate::kubelet::{self, MOUNTS, PROGRAM, Source};
use crate::paths::KUBELET_ROOTFS;

/// `config.json` of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// Version of the specification.
    pub oci_version: String,
    /// What runs.
    pub process: Process,
    /// The root file system.
    pub root: Root,
    /// The mounts, in their order.
    pub mounts: Vec<Mount>,
    /// What only Linux has.
    pub linux: Linux,
}

/// What runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Process {
    /// Who it runs as.
    pub user: User,
    /// Program and arguments.
    pub args: Vec<String>,
    /// `NAME=value`.
    pub env: Vec<String>,
    /// Working folder.
    pub cwd: String,
    /// What it may do.
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
    /// In force.
    pub effective: Vec<String>,
    /// May be put in force.
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
    /// Where.
    pub destination: String,
    /// Type of the file system; `bind` for a bind.
    #[serde(rename = "type")]
    pub kind: String,
    /// What.
    pub source: String,
    /// How.
    pub options: Vec<String>,
}

/// What only Linux has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Linux {
    /// Namespaces of its own; the host's are used for the rest.
    pub namespaces: Vec<Namespace>,
    /// How mounts cross the container's root.
    pub rootfs_propagation: String,
    /// Limits by control group; the devices that may be used.
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
    /// What: letters of `rwm`.
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

/// The spec of the kubelet's container. `arguments` follow the program; `present` says whether the host has a path,
/// which decides over optional mounts.
#[must_use]
pub fn kubelet(arguments: &[String], present: &dyn Fn(&str) -> bool) -> Spec {
    let all: Vec<String> = CAPABILITIES.iter().map(|name| (*name).to_owned()).collect();
    Spec {
        oci_version: "1.1.0".to_owned(),
        process: Process {
            user: User::default(),
            args: std::iter::once(PROGRAM.to_owned())
                .chain(arguments.iter().cloned())
                .collect(),
            env: vec![
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin".to_owned(),
                // crun itself must not see it: it would mount below /run, which is bound.
                format!("NOTIFY_SOCKET={NOTIFY_SOCKET}"),
            ],
            cwd: "/".to_owned(),
            capabilities: Capabilities {
                bounding: all.clone(),
                effective: all.clone(),
                permitted: all,
            },
            no_new_privileges: false,
            rlimits: vec![Rlimit {
                kind: "RLIMIT_NOFILE".to_owned(),
                hard: 1_048_576,
                soft: 1_048_576,
            }],
        },
        root: Root {
            path: KUBELET_ROOTFS.to_owned(),
            readonly: true,
        },
        mounts: MOUNTS
            .iter()
            .filter(|mount| match mount.source {
                Source::Folder(path) | Source::File(path) => !mount.optional || present(path),
                Source::New(..) => true,
            })
            .map(mount)
            .collect(),
        linux: Linux {
            namespaces: vec![Namespace {
                kind: "mount".to_owned(),
            }],
            // With anything less the kubelet's mounts never reach the host, whatever the bind says.
            rootfs_propagation: "rshared".to_owned(),
            resources: Resources {
                devices: vec![DeviceRule {
                    allow: true,
                    access: "rwm".to_owned(),
                }],
            },
            masked_paths: Vec::new(),
            readonly_paths: Vec::new(),
        },
    }
}

/// systemd's notify socket, reached through the bound `/run`.
pub const NOTIFY_SOCKET: &str = "/run/systemd/notify";

fn mount(mount: &kubelet::Mount) -> Mount {
    let access = if mount.read_only { "ro" } else { "rw" };
    let (kind, source, mut options) = match mount.source {
        Source::Folder(path) => ("bind", path, vec!["rbind"]),
        Source::File(path) => ("bind", path, vec!["bind"]),
        Source::New(kind, options) => (kind, kind, options.to_vec()),
    };
    if kind == "bind" {
        options.extend([mount.propagation.option(), access]);
    }
    Mount {
        destination: mount.target.to_owned(),
        kind: kind.to_owned(),
        source: source.to_owned(),
        options: options.into_iter().map(str::to_owned).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_mounts_need_their_source() {
        let targets = |present: bool| {
            kubelet(&[], &|_| present)
                .mounts
                .into_iter()
                .map(|m| m.destination)
                .collect::<Vec<_>>()
        };
        assert_eq!(targets(true).len(), MOUNTS.len());
        assert!(targets(true).contains(&"/etc/nfs.conf".to_owned()));
        assert!(!targets(false).contains(&"/etc/nfs.conf".to_owned()));
        assert!(targets(false).contains(&"/var/lib/kubelet".to_owned()));
    }

    #[test]
    fn the_text_is_read_back() {
        let spec = kubelet(&["--v=2".to_owned()], &|_| true);
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<Spec>(&text).unwrap(), spec);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["process"]["noNewPrivileges"], false);
        assert_eq!(value["linux"]["rootfsPropagation"], "rshared");
        assert_eq!(
            value["mounts"][7]["options"],
            serde_json::json!(["rbind", "rshared", "rw"])
        );
    }
}
