//! The configs, the root that they are applied to, and the expected result.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::loop_device::LoopDevice;
use crate::servers::delayed_http;

/// The newest version that Debian's Ignition supports.
const VERSION: &str = "3.3.0";
/// Number of files from the server.
const REMOTE: usize = 20;
/// Labels and mount points of the file systems, in the order of their partitions.
const FILESYSTEMS: [(&str, &str); 2] = [("ONE", "/srv/one"), ("TWO", "/var/lib/two")];
/// A file on the first of these file systems.
const ON_DISK: &str = "/srv/one/file";
/// Files of the root. Debian's Ignition has SELinux support, and its files stage fails without a policy.
const ROOT: &[(&str, &str)] = &[
    ("etc/passwd", "root:x:0:0:root:/root:/bin/bash\n"),
    ("etc/group", "root:x:0:\n"),
    ("etc/selinux/config", "SELINUXTYPE=targeted\n"),
    (
        "etc/selinux/targeted/contexts/files/file_contexts",
        "/.* system_u:object_r:root_t:s0\n",
    ),
];
const UNIT: &str = "[Unit]\nDescription=One\n[Service]\nExecStart=/usr/bin/true\n[Install]\nWantedBy=multi-user.target\n";

/// A measured config.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// Three files, a directory, a link, two units.
    Files,
    /// The same, and a disk with two partitions that get an ext4 each.
    Disks,
    /// Files from a server that delays its answers.
    Remote,
}

impl Case {
    /// The config.
    pub(crate) fn config(self, disk: Option<&LoopDevice>, server: SocketAddr) -> Value {
        let mut config = json!({
            "ignition": { "version": VERSION },
            "storage": {
                "files": (1..=3).map(|n| json!({
                    "path": local(n), "mode": 0o644, "contents": { "source": format!("data:,file%20{n}") },
                })).collect::<Vec<_>>(),
                "directories": [{ "path": "/etc/bench/folder", "mode": 0o700 }],
                "links": [{ "path": "/etc/bench/link", "target": local(1) }],
            },
            "systemd": { "units": [
                { "name": "one.service", "enabled": true, "contents": UNIT },
                { "name": "two.service", "enabled": true, "contents": UNIT },
            ] },
        });
        match self {
            Self::Files => {}
            Self::Remote => {
                let files = (1..=REMOTE).map(|n| {
                    let source = format!("http://{server}/{n}");
                    json!({ "path": remote(n), "mode": 0o644, "contents": { "source": source } })
                });
                config = json!({
                    "ignition": { "version": VERSION },
                    "storage": { "files": files.collect::<Vec<_>>() },
                });
            }
            Self::Disks => {
                let device = disk.map_or("/dev/none", LoopDevice::path);
                let storage = &mut config["storage"];
                storage["disks"] = json!([{ "device": device, "wipeTable": true, "partitions": [
                    { "number": 1, "label": "one", "sizeMiB": 128 }, { "number": 2, "label": "two" },
                ] }]);
                let filesystems = FILESYSTEMS.iter().zip(1..).map(|((label, path), number)| {
                    json!({ "device": format!("{device}p{number}"), "format": "ext4", "label": label, "path": path })
                });
                storage["filesystems"] = filesystems.collect();
                let file = json!({ "path": ON_DISK, "contents": { "source": "data:,there" } });
                if let Some(files) = storage["files"].as_array_mut() {
                    files.push(file);
                }
            }
        }
        config
    }

    /// Fails unless the config was applied to the root and the disk.
    ///
    /// # Errors
    /// The first difference.
    pub(crate) fn expect(self, root: &Root, disk: Option<&LoopDevice>) -> Result<()> {
        if self == Self::Remote {
            return (1..=REMOTE)
                .try_for_each(|n| root.expect(&remote(n), &delayed_http::content(&n.to_string())));
        }
        for n in 1..=3 {
            root.expect(&local(n), &format!("file {n}"))?;
        }
        for unit in ["one", "two"] {
            root.expect(&format!("/etc/systemd/system/{unit}.service"), UNIT)?;
        }
        let link = fs::read_link(root.at("/etc/bench/link")).context("reading the link")?;
        ensure!(link == Path::new(&local(1)), "the link has another target");
        ensure!(
            root.at("/etc/bench/folder").is_dir(),
            "the folder is missing"
        );
        if let Some(disk) = disk {
            for ((label, _), number) in FILESYSTEMS.iter().zip(1..) {
                disk.expect_ext4(number, label)?;
            }
            ensure!(!root.at(ON_DISK).exists(), "the disk was not mounted");
        }
        Ok(())
    }
}

fn local(n: usize) -> String {
    format!("/etc/bench/file-{n}")
}

fn remote(n: usize) -> String {
    format!("/var/lib/bench/remote-{n}")
}

/// The folder of one run.
#[derive(Debug)]
pub(crate) struct Root {
    folder: PathBuf,
}

impl Root {
    /// Creates it, with a config.
    pub(crate) fn make(folder: &Path, config: &Value) -> Result<Self> {
        slipway::host::cache::remove(folder)?;
        for (name, text) in ROOT {
            let path = folder.join("root").join(name);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::write(path, text)?;
        }
        fs::write(folder.join("config.ign"), config.to_string())?;
        Ok(Self {
            folder: folder.to_owned(),
        })
    }

    /// The folder that the stages work in.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.join("root").join(path.trim_start_matches('/'))
    }

    fn expect(&self, path: &str, text: &str) -> Result<()> {
        let found = fs::read_to_string(self.at(path)).with_context(|| format!("reading {path}"))?;
        ensure!(found == text, "{path} has other content");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_without_the_config_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let server = ([127, 0, 0, 1], 80).into();
        for case in [Case::Files, Case::Disks, Case::Remote] {
            let place = folder.path().join("run");
            let root = Root::make(&place, &case.config(None, server)).unwrap();
            let error = case.expect(&root, None).unwrap_err();
            assert!(error.to_string().contains("reading /"), "{error:#}");
        }
    }
}
