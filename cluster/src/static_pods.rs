//! The static pods of a control plane.

mod api_server;
mod controller_manager;
mod etcd;
mod scheduler;

pub use api_server::{ADDRESS, ends_soon};
pub use etcd::{metrics_server, names_peer_urls};

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::config::Config;
use crate::host::Host;
use crate::release::Release;
use crate::yaml;

/// The folder of the manifests.
pub const FOLDER: &str = "/etc/kubernetes/manifests";

/// A file that is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its absolute path.
    pub path: String,
    /// What it holds.
    pub text: String,
}

/// The file of the API server's manifest.
pub const API_SERVER: &str = "/etc/kubernetes/manifests/kube-apiserver.yaml";
/// The file of etcd's manifest.
pub const ETCD: &str = "/etc/kubernetes/manifests/etcd.yaml";

/// The manifests.
#[must_use]
pub fn static_pods(config: &Config, host: &Host) -> Vec<File> {
    manifests(config, host)
        .into_iter()
        .map(|(path, manifest)| File {
            text: yaml::write(&manifest),
            path,
        })
        .collect()
}

/// The manifests as values, by their paths.
#[must_use]
pub fn manifests(config: &Config, host: &Host) -> Vec<(String, Value)> {
    let local = config.cluster.etcd.local.as_ref();
    let pods = [
        (local.map(|local| etcd::pod(config, local)), "etcd/local"),
        (
            Some(api_server::pod(config, host)),
            "control-plane/apiserver",
        ),
        (
            Some(controller_manager::pod(config, host)),
            "control-plane/controller-manager",
        ),
        (
            Some(scheduler::pod(config, host)),
            "control-plane/scheduler",
        ),
    ];
    let wanted = pods.into_iter().filter(|(_, phase)| !config.skips(phase));
    wanted
        .filter_map(|(pod, _)| pod)
        .map(|pod| (pod.path(), pod.manifest(config.kubeadm.release)))
        .collect()
}

/// Where the other members of etcd reach this node's.
#[must_use]
pub fn etcd_peer_url(config: &Config) -> String {
    etcd::peer_url(config)
}

/// Where clients reach this node's member of etcd.
#[must_use]
pub fn etcd_client_url(config: &Config) -> String {
    etcd::client_url(config)
}

/// What is special to one static pod.
struct Pod {
    name: &'static str,
    image: String,
    command: Vec<String>,
    annotations: BTreeMap<&'static str, String>,
    env: Vec<Value>,
    port: i64,
    /// Probes by their fields.
    probes: Vec<(&'static str, Value)>,
    requests: Value,
    mounts: Value,
    volumes: Value,
}

impl Pod {
    fn path(&self) -> String {
        format!("{FOLDER}/{}.yaml", self.name)
    }

    fn manifest(self, release: &Release) -> Value {
        let mut metadata = json!({
            "labels": {"component": self.name, "tier": "control-plane"},
            "name": self.name,
            "namespace": "kube-system",
        });
        if !self.annotations.is_empty() {
            metadata["annotations"] = json!(self.annotations);
        }
        if release.writes_empty {
            metadata["creationTimestamp"] = Value::Null;
        }
        let volumes = self.volumes.clone();
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {
                "containers": [self.container(release.named_probes)],
                "hostNetwork": true,
                "priority": 2_000_001_000,
                "priorityClassName": "system-node-critical",
                "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
                "volumes": volumes,
            },
            "status": {},
        })
    }

    fn container(self, named_probes: bool) -> Value {
        let mut container = json!({
            "command": self.command,
            "image": self.image,
            "imagePullPolicy": "IfNotPresent",
            "name": self.name,
            "resources": {"requests": self.requests},
            "volumeMounts": self.mounts,
        });
        if !self.env.is_empty() {
            container["env"] = self.env.into();
        }
        for (name, mut probe) in self.probes {
            if !named_probes {
                probe["httpGet"]["port"] = self.port.into();
            }
            container[name] = probe;
        }
        if named_probes {
            container["ports"] =
                json!([{"containerPort": self.port, "name": "probe-port", "protocol": "TCP"}]);
        }
        container
    }
}

/// The command of a component.
fn command(name: &str, arguments: Vec<String>) -> Vec<String> {
    std::iter::once(name.to_owned()).chain(arguments).collect()
}

/// The annotation with the hash of the kubeconfig that a pod reads at its start.
const CREDENTIALS: &str = "slipway.local/kubeconfig";

/// The annotations of a pod that reads a kubeconfig.
fn credentials(config: &Config, name: &str) -> BTreeMap<&'static str, String> {
    let hash = config.kubeconfigs.get(name);
    hash.map(|hash| (CREDENTIALS, hash.clone()))
        .into_iter()
        .collect()
}

/// The environment: the host's proxies under the configuration's variables, in the order of their names.
fn environment(proxies: &[(String, String)], extra: &[Value]) -> Vec<Value> {
    let name = |variable: &Value| variable["name"].as_str().unwrap_or_default().to_owned();
    let proxies = proxies
        .iter()
        .map(|(name, value)| json!({"name": name, "value": value}));
    let all = proxies.chain(extra.iter().cloned());
    let named: BTreeMap<String, Value> = all.map(|variable| (name(&variable), variable)).collect();
    named.into_values().collect()
}
