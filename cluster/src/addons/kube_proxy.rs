//! kube-proxy: the way to services on each node.

use serde_json::{Value, json};

use crate::config::Config;
use crate::images;
use crate::objects::{
    NEW_NODES, Object, cluster_binding, config_map, group, reader, service_account, sign,
};
use crate::yaml;

/// Its name.
const NAME: &str = "kube-proxy";

pub(super) fn objects(config: &Config) -> Vec<Object> {
    let mut objects = vec![
        configuration(config),
        daemon_set(config),
        Object::create(json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": NAME, "namespace": "kube-system"},
        })),
        cluster_binding(
            "kubeadm:node-proxier",
            "system:node-proxier",
            &service_account(NAME),
        ),
    ];
    let nodes = [group(NEW_NODES)];
    objects.extend(reader("kube-system", NAME, NAME, &nodes));
    objects
}

fn configuration(config: &Config) -> Object {
    let text = yaml::write(&config.kube_proxy.value);
    let data = json!({
        "config.conf": text.trim_end_matches('\n'),
        "kubeconfig.conf": kubeconfig(&config.control_plane_url()),
    });
    let mut map = config_map("kube-system", NAME, &data);
    map.value["metadata"]["labels"] = json!({"app": NAME});
    sign(&mut map.value, &config.kube_proxy);
    map
}

/// The kubeconfig of its service account. It is text of kubeadm's, in an order of its own.
fn kubeconfig(server: &str) -> String {
    let account = "/var/run/secrets/kubernetes.io/serviceaccount";
    format!(
        "apiVersion: v1
kind: Config
clusters:
- cluster:
    certificate-authority: {account}/ca.crt
    server: {server}
  name: default
contexts:
- context:
    cluster: default
    namespace: default
    user: default
  name: default
current-context: default
users:
- name: default
  user:
    tokenFile: {account}/token"
    )
}

fn daemon_set(config: &Config) -> Object {
    let labels = json!({"k8s-app": NAME});
    Object::create(json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"labels": labels, "name": NAME, "namespace": "kube-system"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod(config)},
            "updateStrategy": {"type": "RollingUpdate"},
        },
        "status": {
            "currentNumberScheduled": 0,
            "desiredNumberScheduled": 0,
            "numberMisscheduled": 0,
            "numberReady": 0,
        },
    }))
}

fn pod(config: &Config) -> Value {
    json!({
        "containers": [container(config)],
        "hostNetwork": true,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "priorityClassName": "system-node-critical",
        "serviceAccountName": NAME,
        "tolerations": [{"operator": "Exists"}],
        "volumes": [
            {"configMap": {"name": NAME}, "name": NAME},
            {"hostPath": {"path": "/run/xtables.lock", "type": "FileOrCreate"}, "name": "xtables-lock"},
            {"hostPath": {"path": "/lib/modules"}, "name": "lib-modules"},
        ],
    })
}

fn container(config: &Config) -> Value {
    let image = config.proxy_image.clone();
    let image = image.unwrap_or_else(|| images::kubernetes(config, NAME));
    let node =
        json!({"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}});
    json!({
        "command": [
            "/usr/local/bin/kube-proxy",
            "--config=/var/lib/kube-proxy/config.conf",
            "--hostname-override=$(NODE_NAME)",
        ],
        "env": [node],
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "name": NAME,
        "resources": {},
        "securityContext": {"privileged": true},
        "volumeMounts": [
            {"mountPath": "/var/lib/kube-proxy", "name": NAME},
            {"mountPath": "/run/xtables.lock", "name": "xtables-lock"},
            {"mountPath": "/lib/modules", "name": "lib-modules", "readOnly": true},
        ],
    })
}
