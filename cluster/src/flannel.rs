//! flannel, the network of pods of `cni = "flannel"`: objects with the names and rights of its own manifest
//! (<https://github.com/flannel-io/flannel/blob/v0.28.10/Documentation/kube-flannel.yml>), without what installs a plugin and a
//! configuration on the node, which has both.

use serde_json::{Value, json};

use crate::address::Subnet;
use crate::config::Config;
use crate::objects::{Object, cluster_binding, cluster_role, config_map};

/// What flannel says of this node's network once it works (`pkg/subnet/subnet.go`): lines of a name, `=` and a value.
pub const SUBNET_FILE: &str = "/run/flannel/subnet.env";
/// The line with the largest packet of pods, bytes: that of the link without VXLAN's headers.
const MTU: &str = "FLANNEL_MTU=";

const NAMESPACE: &str = "kube-flannel";
const NAME: &str = "flannel";
/// Its configuration.
const CONFIGURATION: &str = "kube-flannel-cfg";
/// The port of its health checks, on the node's own network, as in its manifest.
const HEALTH: u16 = 8081;

/// The largest packet of pods by the text of [`SUBNET_FILE`].
#[must_use]
pub fn mtu(text: &str) -> Option<u32> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix(MTU)?.trim().parse().ok())
}

/// Its objects; `image` is the reference of its image.
#[must_use]
pub fn objects(config: &Config, image: &str) -> Vec<Object> {
    let account = json!({"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE});
    let objects = [
        Object::create(json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "labels": {"pod-security.kubernetes.io/enforce": "privileged"},
                "name": NAMESPACE,
            },
        })),
        cluster_role(
            NAME,
            &json!([
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
                {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
                {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
            ]),
        ),
        cluster_binding(NAME, NAME, &account),
        Object::create(json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
        })),
        config_map(
            NAMESPACE,
            CONFIGURATION,
            &json!({"net-conf.json": network(config).to_string()}),
        ),
        daemon_set(config, image),
    ];
    let labelled = objects.into_iter().map(|mut object| {
        object.value["metadata"]["labels"]["k8s-app"] = NAME.into();
        object
    });
    labelled.collect()
}

/// Its own configuration. Its rules are nftables', as kube-proxy's are.
fn network(config: &Config) -> Value {
    let all = Subnet::parse_list(&config.cluster.networking.pod_subnet);
    let mut network = json!({"EnableNFTables": true, "Backend": {"Type": "vxlan"}});
    network["EnableIPv4"] = all.iter().any(|subnet| subnet.first.is_ipv4()).into();
    for subnet in all {
        match subnet.first.is_ipv4() {
            true => network["Network"] = subnet.to_string().into(),
            false => {
                network["EnableIPv6"] = true.into();
                network["IPv6Network"] = subnet.to_string().into();
            }
        }
    }
    network
}

fn daemon_set(config: &Config, image: &str) -> Object {
    let labels = json!({"app": NAME, "tier": "node"});
    Object::create(json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"labels": labels, "name": "kube-flannel-ds", "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": {"app": NAME}},
            "template": {"metadata": {"labels": labels}, "spec": {
                "containers": [container(config, image)],
                "hostNetwork": true,
                "nodeSelector": {"kubernetes.io/os": "linux"},
                "priorityClassName": "system-node-critical",
                "serviceAccountName": NAME,
                "tolerations": [{"effect": "NoSchedule", "operator": "Exists"}],
                "volumes": [
                    {"hostPath": {"path": "/run/flannel", "type": "DirectoryOrCreate"}, "name": "run"},
                    {"configMap": {"name": CONFIGURATION}, "name": "flannel-cfg"},
                ],
            }},
        },
    }))
}

/// It asks the API server by the endpoint of the control plane, as kube-proxy does, whose rules for the service of the API server may
/// come later; and takes the card with the address by which the cluster knows the node, which need not be that of the default route.
fn container(config: &Config, image: &str) -> Value {
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let (host, port) = config.control_plane_server();
    json!({
        "args": ["--addresses=$(NODE_ADDRESSES)", format!("--health=:{HEALTH}")],
        "command": ["/opt/bin/flanneld"],
        "env": [
            field("NODE_NAME", "spec.nodeName"),
            field("NODE_ADDRESSES", "status.hostIPs"),
            {"name": "KUBERNETES_SERVICE_HOST", "value": host},
            {"name": "KUBERNETES_SERVICE_PORT", "value": port},
        ],
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": HEALTH},
            "initialDelaySeconds": 10,
            "periodSeconds": 30,
        },
        "name": "kube-flannel",
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": HEALTH},
            "periodSeconds": 10,
        },
        "resources": {"requests": {"cpu": "100m", "memory": "50Mi"}},
        "securityContext": {"capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}, "privileged": false},
        "volumeMounts": [
            {"mountPath": "/run/flannel", "name": "run"},
            {"mountPath": "/etc/kube-flannel/", "name": "flannel-cfg"},
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mtu_is_a_line_of_the_subnets_file() {
        let text = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
        assert_eq!(mtu(text), Some(1450));
        assert_eq!(mtu("FLANNEL_MTU=\n"), None);
        assert_eq!(mtu(""), None);
    }
}
