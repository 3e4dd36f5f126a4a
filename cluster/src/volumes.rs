//! The volumes of the host that the components of the control plane mount.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::config::{Config, ExternalEtcd, Volume};
use crate::host::{CA_FOLDERS, Host};
use crate::types::argument;

/// The certificates that the system trusts.
const CERTIFICATES: &str = "/etc/ssl/certs";
/// The plugins of FlexVolume, where the controller manager looks for them.
const FLEXVOLUME: &str = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec";
const FOLDER: &str = "DirectoryOrCreate";
const FILE: &str = "FileOrCreate";

/// Volumes by their names: one that the configuration gives replaces kubeadm's of that name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Volumes(BTreeMap<String, Volume>);

impl Volumes {
    /// What the API server mounts.
    pub(crate) fn api_server(config: &Config, host: &Host) -> Self {
        let mut volumes = Self::default();
        volumes.certificates(config, host);
        if let Some(external) = &config.cluster.etcd.external {
            let folders = etcd_folders(external, &config.cluster.certificates_dir);
            for (number, folder) in folders.iter().enumerate() {
                volumes.read_only(&format!("etcd-certs-{number}"), folder, FOLDER);
            }
        }
        volumes.extra(&config.cluster.api_server.extra_volumes)
    }

    /// What the controller manager mounts.
    pub(crate) fn controller_manager(config: &Config, host: &Host) -> Self {
        let mut volumes = Self::default();
        volumes.certificates(config, host);
        volumes.read_only(
            "kubeconfig",
            "/etc/kubernetes/controller-manager.conf",
            FILE,
        );
        let component = &config.cluster.controller_manager;
        if config.kubeadm.release.flexvolume {
            let folder = argument(&component.extra_args, "flex-volume-plugin-dir");
            volumes.add(
                "flexvolume-dir",
                folder.unwrap_or(FLEXVOLUME),
                FOLDER,
                false,
            );
        }
        volumes.extra(&component.extra_volumes)
    }

    /// What the scheduler mounts.
    pub(crate) fn scheduler(config: &Config) -> Self {
        let mut volumes = Self::default();
        volumes.read_only("kubeconfig", "/etc/kubernetes/scheduler.conf", FILE);
        volumes.extra(&config.cluster.scheduler.extra_volumes)
    }

    fn certificates(&mut self, config: &Config, host: &Host) {
        self.read_only("k8s-certs", &config.cluster.certificates_dir, FOLDER);
        self.read_only("ca-certs", CERTIFICATES, FOLDER);
        for folder in &host.ca_folders {
            self.read_only(&folder[1..].replace('/', "-"), folder, FOLDER);
        }
    }

    fn extra(mut self, volumes: &[Volume]) -> Self {
        let named = |volume: &Volume| (volume.name.clone(), volume.clone());
        self.0.extend(volumes.iter().map(named));
        self
    }

    fn read_only(&mut self, name: &str, path: &str, path_type: &str) {
        self.add(name, path, path_type, true);
    }

    fn add(&mut self, name: &str, path: &str, path_type: &str, read_only: bool) {
        let volume = Volume {
            name: name.to_owned(),
            host_path: path.to_owned(),
            mount_path: path.to_owned(),
            read_only,
            path_type: path_type.to_owned(),
        };
        self.0.insert(name.to_owned(), volume);
    }

    /// The mounts of the container.
    pub(crate) fn mounts(&self) -> Value {
        self.0.values().map(mount).collect()
    }

    /// The volumes of the pod.
    pub(crate) fn volumes(&self) -> Value {
        self.0.values().map(volume).collect()
    }
}

/// A folder that etcd may write, as a volume and its mount.
pub(crate) fn writable(name: &str, path: &str) -> (Value, Value) {
    let mut volumes = Volumes::default();
    volumes.add(name, path, FOLDER, false);
    (volumes.volumes()[0].take(), volumes.mounts()[0].take())
}

fn mount(volume: &Volume) -> Value {
    let mut mount = json!({"mountPath": volume.mount_path, "name": volume.name});
    if volume.read_only {
        mount["readOnly"] = true.into();
    }
    mount
}

fn volume(volume: &Volume) -> Value {
    let path = json!({"path": volume.host_path, "type": volume.path_type});
    json!({"hostPath": path, "name": volume.name})
}

/// The folders of an external etcd's certificates, without those that are mounted anyway and those in another of them.
fn etcd_folders(etcd: &ExternalEtcd, certificates: &str) -> BTreeSet<String> {
    let mut folders = BTreeSet::new();
    for file in [&etcd.ca_file, &etcd.cert_file, &etcd.key_file] {
        let Some((folder, _)) = file.rsplit_once('/') else {
            continue;
        };
        let folder = if folder.is_empty() { "/" } else { folder };
        let mut mounted = CA_FOLDERS.iter().chain([&CERTIFICATES]);
        if mounted.any(|path| folder.starts_with(path)) || folder.starts_with(certificates) {
            continue;
        }
        folders.retain(|other: &String| !other.starts_with(folder));
        if !folders
            .iter()
            .any(|other| folder.starts_with(other.as_str()))
        {
            folders.insert(folder.to_owned());
        }
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_within_another_is_not_mounted_twice() {
        let folders = |ca: &str, cert: &str, key: &str| {
            let etcd = ExternalEtcd {
                ca_file: ca.to_owned(),
                cert_file: cert.to_owned(),
                key_file: key.to_owned(),
                ..ExternalEtcd::default()
            };
            let folders = etcd_folders(&etcd, "/etc/kubernetes/pki");
            folders.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(folders("/a/ca", "/a/b/c", "/d/k"), ["/a", "/d"]);
        assert_eq!(folders("/a/b/ca", "/a/c", ""), ["/a"]);
        assert!(folders("/etc/ssl/certs/ca", "/etc/kubernetes/pki/etcd/c", "").is_empty());
    }
}
