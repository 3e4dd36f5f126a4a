//! The tested cluster: a control plane and a worker of the image, in namespaces of this host, both for pods.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use image::kubelet::ADMIN_KUBECONFIG;
use namespace_tests::hub::Hub;
use namespace_tests::lab::Lab;
use namespace_tests::node::Node;

use crate::images::Images;

/// The recipe of nodes that have a registry beside them.
pub const RECIPE: &str = "conformance/nodes.toml";
/// What the page says of them.
pub const DESCRIPTION: &str = "a control plane without taints and a worker of `recipes/cluster.toml` (the kubelet in its container, the bring-up) with \
                               `containerd.release = \"2.2\"` in namespaces of one host, with the image's network `bridge`, kube-proxy and CoreDNS, \
                               and a registry of the tests' images beside them";
/// Time for a node to be Ready, with seven others at work on the host.
const READY: Duration = Duration::from_secs(300);
/// Time to import the images.
const IMPORT: Duration = Duration::from_secs(600);
/// Where the archive of images is on a node, removed after the import.
const ARCHIVE: &str = "/var/tmp/images.tar";
/// Two nodes that take pods: some specs want two.
const CONTROL_PLANE: &str = "name = \"conformance\"\n\n[node]\ntaints = []\n";

/// The running nodes; they end with this value.
#[derive(Debug)]
pub struct Nodes<'a> {
    nodes: [Node; 2],
    hub: &'a Hub,
}

impl<'a> Nodes<'a> {
    /// Starts the nodes and waits until they are Ready.
    ///
    /// # Errors
    /// If one does not become Ready; with its logs.
    pub fn start(lab: &'a mut Lab) -> Result<Self> {
        let mut control_plane = lab.control_plane("tested1", 11, CONTROL_PLANE)?;
        control_plane.start(&lab.hub)?;
        control_plane.wait_ready(READY)?;
        let join = control_plane.run(&format!(
            "kubeadm --kubeconfig {ADMIN_KUBECONFIG} token create --print-join-command"
        ))?;
        let mut worker = lab.worker("tested2", 12, &worker(&join)?)?;
        worker.start(&lab.hub)?;
        worker.wait_ready(READY)?;
        Ok(Self {
            nodes: [control_plane, worker],
            hub: &lab.hub,
        })
    }

    /// Gives every node the images.
    ///
    /// # Errors
    /// If a node does not import them.
    pub fn import(&self, images: &Images) -> Result<()> {
        for node in &self.nodes {
            let inside = node.below_var(ARCHIVE);
            if let Some(folder) = inside.parent() {
                fs::create_dir_all(folder)
                    .with_context(|| format!("making {}", folder.display()))?;
            }
            images.export(&inside).context("giving a node the images")?;
            node.run_within(&format!("ctr -n k8s.io images import {ARCHIVE}"), IMPORT)?;
            fs::remove_file(&inside).context("removing the images' archive")?;
        }
        Ok(())
    }

    /// Writes the administrator's credentials to a file of `folder`; gives its path.
    ///
    /// # Errors
    /// If the control plane has none.
    pub fn kubeconfig(&self, folder: &Path) -> Result<PathBuf> {
        let [control_plane, _] = &self.nodes;
        let text = control_plane.run(&format!("cat {ADMIN_KUBECONFIG}"))?;
        let path = folder.join("kubeconfig");
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// Does `work` in a thread that is in the network of the nodes.
    ///
    /// # Errors
    /// If the network is refused, or what `work` gives.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let hub = self.hub;
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                hub.enter()?;
                work()
            });
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// The object of a worker, from what kubeadm prints for one.
fn worker(join: &str) -> Result<String> {
    let words: Vec<&str> = join.split_whitespace().collect();
    let after = |word: &str| {
        let at = words.iter().position(|found| *found == word);
        let value = at.and_then(|at| words.get(at + 1));
        value.with_context(|| format!("kubeadm prints no {word}: {join}"))
    };
    let (endpoint, token) = (after("join")?, after("--token")?);
    let hash = after("--discovery-token-ca-cert-hash")?;
    Ok(format!(
        "name = \"conformance\"\nendpoint = \"{endpoint}\"\n\n[join]\ntoken = \"{token}\"\nca-hashes = [\"{hash}\"]\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_joins_as_kubeadm_prints() {
        let join = "kubeadm join 10.77.0.11:6443 --token abcdef.0123456789abcdef --discovery-token-ca-cert-hash sha256:aa \n";
        let object = worker(join).unwrap();
        for line in [
            "endpoint = \"10.77.0.11:6443\"",
            "token = \"abcdef.0123456789abcdef\"",
            "ca-hashes = [\"sha256:aa\"]",
        ] {
            assert!(object.lines().any(|found| found == line), "{object}");
        }
        assert!(worker("kubeadm join").is_err());
    }
}
