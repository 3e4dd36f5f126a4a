//! The OCI runtime spec of the kubelet's container.

use crate::kubelet::{self, MOUNTS, PROGRAM, Source};
use crate::runtime_spec::{
    CAPABILITIES, Capabilities, DeviceRule, Linux, Mount, Namespace, Process, Resources, Rlimit,
    Root, Spec, User,
};

/// The spec of the kubelet's container, whose root file system is at `root`. `arguments` follow the program; `present` says whether the host has a path,
/// which decides over optional mounts.
#[must_use]
pub fn kubelet(root: &str, arguments: &[String], present: &dyn Fn(&str) -> bool) -> Spec {
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
            path: root.to_owned(),
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
            // With anything less the kubelet's mounts never reach the host, whatever the bind's own propagation is.
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
    use crate::paths::KUBELET_ROOTFS;

    #[test]
    fn optional_mounts_need_their_source() {
        let targets = |present: bool| {
            kubelet(KUBELET_ROOTFS, &[], &|_| present)
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
        let spec = kubelet(KUBELET_ROOTFS, &["--v=2".to_owned()], &|_| true);
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<Spec>(&text).unwrap(), spec);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["process"]["noNewPrivileges"], false);
        assert_eq!(value["linux"]["rootfsPropagation"], "rshared");
        let mounts = value["mounts"].as_array().unwrap();
        let state = mounts
            .iter()
            .find(|mount| mount["destination"] == "/var/lib/kubelet");
        assert_eq!(
            state.unwrap()["options"],
            serde_json::json!(["rbind", "rshared", "rw"])
        );
    }
}
