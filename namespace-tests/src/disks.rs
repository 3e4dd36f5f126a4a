//! The disks of a node: its files, and what the init and a config leave on them.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use image::paths::{CLUSTER, ETC_UPPER, ETC_WORK, ETCD, FACTORY, HOSTNAME};

use crate::image_root::ImageRoot;
use crate::mounts::{memory_disk, remove_memory_disk};

/// The disks of a node, which outlast a power cut. The one of etcd is in memory, for as long as this value lives.
#[derive(Debug)]
pub(crate) struct Disks {
    /// The folder of all of them.
    pub(crate) folder: PathBuf,
    /// Whether `/var` is in memory too.
    small: bool,
}

impl Disks {
    /// New disks in an own folder; `var` is the size of a `/var` that can be full, MiB.
    ///
    /// # Errors
    /// If they cannot be made.
    pub(crate) fn make(folder: &Path, var: Option<u32>) -> Result<Self> {
        for below in ["mount", "var", "etcd"] {
            let folder = folder.join(below);
            fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        }
        let disks = Self {
            folder: folder.to_owned(),
            small: var.is_some(),
        };
        // The gate of the kubelet proves that the volume is a file system, and not a folder of one.
        memory_disk(&disks.etcd(), None)?;
        if var.is_some() {
            memory_disk(&disks.folder.join("var"), var)?;
        }
        Ok(disks)
    }

    /// The etcd volume.
    pub(crate) fn etcd(&self) -> PathBuf {
        self.folder.join("etcd")
    }

    /// Empties the etcd volume.
    ///
    /// # Errors
    /// If something of it cannot be removed.
    pub(crate) fn empty_etcd(&self) -> Result<()> {
        let folder = self.etcd();
        let about = || format!("emptying {}", folder.display());
        for entry in fs::read_dir(&folder).with_context(about)? {
            fs::remove_dir_all(entry.with_context(about)?.path()).with_context(about)?;
        }
        Ok(())
    }

    /// `major:minor` of the etcd volume, as mountinfo has it.
    ///
    /// # Errors
    /// If it is not there.
    pub(crate) fn etcd_device(&self) -> Result<String> {
        let number = fs::metadata(self.etcd()).context("reading the etcd volume")?;
        let number = number.dev();
        let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
        Ok(format!("{major}:{minor}"))
    }

    /// A path of the node's `/var` on this host.
    pub(crate) fn below_var(&self, path: &str) -> PathBuf {
        self.folder.join(path.trim_start_matches('/'))
    }

    /// Fills `/var` and the upper layer of `/etc`, as the init and a config do: `host` is the node's name and address.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub(crate) fn seed(
        &self,
        image: &ImageRoot,
        (hostname, address): (&str, &str),
        object: Option<&str>,
    ) -> Result<()> {
        let factory = image.tree.join(FACTORY.trim_start_matches('/'));
        copy_folders(&factory.join("var"), &self.folder.join("var"))?;
        for path in [ETC_UPPER, ETC_WORK, ETCD] {
            fs::create_dir_all(self.below_var(path)).with_context(|| format!("making {path}"))?;
        }
        let id: String = fs::read_to_string("/proc/sys/kernel/random/uuid")
            .context("making a machine id")?
            .trim()
            .replace('-', "");
        self.write_etc(HOSTNAME, &format!("{hostname}\n"))?;
        self.write_etc("/etc/machine-id", &format!("{id}\n"))?;
        let hosts = format!("127.0.0.1 localhost\n{address} {hostname}\n");
        self.write_etc("/etc/hosts", &hosts)?;
        self.configure_containerd(image)?;
        match object {
            Some(object) => self.write_etc(CLUSTER, object),
            None => Ok(()),
        }
    }

    /// Writes this lab's form of the image's configuration of containerd.
    ///
    /// # Errors
    /// If the image's cannot be read or has another form, or the file cannot be written.
    pub(crate) fn configure_containerd(&self, image: &ImageRoot) -> Result<()> {
        self.write_etc("/etc/containerd/config.toml", &containerd(image)?)
    }

    /// Writes a file of the node's `/etc`, as a config does before the handoff.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn write_etc(&self, path: &str, text: &str) -> Result<()> {
        let below = path.trim_start_matches("/etc/");
        let file = self.below_var(ETC_UPPER).join(below);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
        }
        fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
    }

    /// The newest log of each container of a pod.
    pub(crate) fn newest_pod_logs(&self) -> Vec<PathBuf> {
        let entries = |folder: &Path| {
            let all = fs::read_dir(folder).into_iter().flatten().flatten();
            let mut paths: Vec<PathBuf> = all.map(|entry| entry.path()).collect();
            paths.sort();
            paths
        };
        let pods = entries(&self.below_var("/var/log/pods")).into_iter();
        let containers = pods.flat_map(|pod| entries(&pod));
        containers
            .filter_map(|container| entries(&container).pop())
            .collect()
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        let var = self.small.then(|| self.folder.join("var"));
        for disk in var.into_iter().chain([self.etcd()]) {
            if let Err(error) = remove_memory_disk(&disk) {
                eprintln!("ending {}: {error:#}", self.folder.display());
            }
        }
    }
}

/// The image's configuration of containerd but for two words: there is no systemd that makes control groups, and a host
/// may have no CAP_SYS_RESOURCE to give a pod's process a lower score.
fn containerd(image: &ImageRoot) -> Result<String> {
    let file = image.tree.join("etc/containerd/config.toml");
    let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let section = "[plugins.\"io.containerd.grpc.v1.cri\"]\n";
    ensure!(
        text.contains(section) && text.contains("SystemdCgroup = true"),
        "{} has another form than this lab knows",
        file.display()
    );
    Ok(text
        .replace("SystemdCgroup = true", "SystemdCgroup = false")
        .replace(
            section,
            &format!("{section}restrict_oom_score_adj = true\n"),
        ))
}

/// Copies a tree of folders and files, with their modes.
fn copy_folders(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("making {}", to.display()))?;
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            copy_folders(&entry.path(), &target)?;
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path())?, &target)?;
        } else {
            fs::copy(entry.path(), &target)
                .with_context(|| format!("copying {}", entry.path().display()))?;
        }
    }
    Ok(())
}
