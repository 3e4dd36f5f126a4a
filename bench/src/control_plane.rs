//! What the comparisons with `kubeadm init` share: its configuration for the images that the image brings, and when a node is
//! Ready.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use image::container_images::REGISTRY;
use serde_json::Value;

/// The peer.
pub(crate) const PEER: &str = "kubeadm";
/// What part of a first start's time a second one may take.
pub(crate) const OF_FIRST: f64 = 0.7;
/// Where the network of pods is configured.
pub(crate) const NETWORK_FILE: &str = "/etc/cni/net.d/10-bench.conflist";
/// The network of pods, which is there before kubeadm begins: a node is not Ready without one.
pub(crate) const NETWORK: &str = r#"{"cniVersion":"1.0.0","name":"bench","plugins":[{"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.244.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}"#;
/// kubeadm's configuration on the node.
pub(crate) const KUBEADM_FILE: &str = "/etc/kubeadm.yaml";
/// What kubeadm is started with. Preflight checks and addons are left out to its favour.
pub(crate) const KUBEADM: &str =
    "kubeadm init --config /etc/kubeadm.yaml --skip-phases preflight,addon";
/// What kubeadm changes in its manifest of etcd.
pub(crate) const PATCH_FILE: &str = "/etc/patches/etcd+json.yaml";
/// From 1.36 on kubeadm writes flags for etcd that only 3.6 has; Debian's etcd is 3.5.
pub(crate) const PATCH_FOR_35: &str = "- { op: remove, path: /spec/containers/0/command/19 }\n- { op: remove, path: /spec/containers/0/command/5 }\n";

/// The node that kubeadm makes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KubeadmNode<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// Its IPv4 address.
    pub(crate) address: &'a str,
    /// A field of `InitConfiguration` with its line's end, or nothing.
    pub(crate) more: &'a str,
    /// Further documents, each with its `---`.
    pub(crate) documents: &'a str,
}

/// The configuration of `kubeadm init` for the images of the image with this manifest.
///
/// # Errors
/// If the manifest cannot be read, or names no version or no etcd.
pub(crate) fn kubeadm_config(manifest: &Path, node: &KubeadmNode<'_>) -> Result<String> {
    let text = fs::read(manifest).with_context(|| format!("reading {}", manifest.display()))?;
    let read: Value = serde_json::from_slice(&text)?;
    let kubernetes = &read["kubernetes"];
    let version = kubernetes["version"].as_str().context("no version")?;
    let etcd = kubernetes["images"]["etcd"].as_str();
    let tag = etcd.and_then(|name| name.rsplit_once(':'));
    let (_, tag) = tag.context("the image brings no etcd")?;
    let KubeadmNode {
        name,
        address,
        more,
        documents,
    } = node;
    Ok(format!(
        "apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {{ advertiseAddress: {address} }}
patches: {{ directory: /etc/patches }}
{more}nodeRegistration: {{ name: {name}, taints: [], kubeletExtraArgs: [{{ name: node-ip, value: {address} }}] }}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: {version}
imageRepository: {REGISTRY}
networking: {{ podSubnet: 10.244.0.0/16 }}
etcd: {{ local: {{ imageTag: {tag} }} }}
{documents}"
    ))
}

/// Whether a node is Ready, by a report since this time (RFC 3339): at a second start that of the first is still there.
pub(crate) fn is_ready_since(node: &Value, begun: &str) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let ready = conditions.find(|condition| condition["type"] == "Ready");
    let reported = ready.filter(|ready| ready["status"] == "True");
    let reported = reported.and_then(|ready| ready["lastHeartbeatTime"].as_str());
    reported.is_some_and(|reported| reported >= begun)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_report_of_an_earlier_start_does_not_count() {
        let node = |status: &str| {
            json!({"status": {"conditions": [
                {"type": "MemoryPressure", "status": "True", "lastHeartbeatTime": "2026-11-25T12:00:09Z"},
                {"type": "Ready", "status": status, "lastHeartbeatTime": "2026-11-25T12:00:05Z"},
            ]}})
        };
        for (status, begun, ready) in [
            ("True", "2026-11-25T12:00:05Z", true),
            ("True", "2026-11-25T12:00:06Z", false),
            ("False", "2026-11-25T12:00:05Z", false),
        ] {
            assert_eq!(
                is_ready_since(&node(status), begun),
                ready,
                "{status} {begun}"
            );
        }
        assert!(!is_ready_since(&Value::Null, "2026-11-25T12:00:05Z"));
    }

    #[test]
    fn the_configuration_names_the_images_of_the_image() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = folder.path().join("manifest.json");
        let node = KubeadmNode {
            name: "bench",
            address: "192.0.2.1",
            more: "timeouts: {}\n",
            documents: "---\nkind: KubeletConfiguration\n",
        };
        fs::write(
            &manifest,
            r#"{"kubernetes": {"version": "v1.36.3", "images": {}}}"#,
        )
        .unwrap();
        let error = kubeadm_config(&manifest, &node).unwrap_err().to_string();
        assert!(error.contains("no etcd"), "{error}");
        let text = r#"{"kubernetes": {"version": "v1.36.3", "images": {"etcd": "slipway.local/etcd:3.5.16-0"}}}"#;
        fs::write(&manifest, text).unwrap();
        let config = kubeadm_config(&manifest, &node).unwrap();
        for line in [
            "kubernetesVersion: v1.36.3\n",
            "etcd: { local: { imageTag: 3.5.16-0 } }\n---\nkind: KubeletConfiguration\n",
            "\ntimeouts: {}\nnodeRegistration: { name: bench, ",
        ] {
            assert!(config.contains(line), "{line:?} is not in {config}");
        }
    }
}
