//! Amazon's cloud controller, for `[cloud] provider = "aws"`: objects with the names and rights of its own manifest
//! (<https://github.com/kubernetes/cloud-provider-aws/tree/v1.36.2/examples/existing-cluster/base>), and the cluster's name as its
//! configuration.

use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::config::Config;
use crate::object::CloudController;
use crate::objects::{
    Object, authentication_reader, cluster_binding, cluster_role, config_map, service_account,
};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "aws-cloud-controller-manager";
/// Its account and its rights have a name that is no cloud's.
const ACCOUNT: &str = "cloud-controller-manager";
/// Its configuration, as a file.
const CONFIGURATION: &str = "aws-cloud-controller-manager";
const FOLDER: &str = "/etc/cloud";
const FILE: &str = "cloud.conf";
/// Where the node has the authorities that Amazon's certificates are of.
const AUTHORITIES: &str = "/etc/ssl/certs";
/// The port of its health checks, on the node's own network.
const HEALTH: u16 = 10258;
/// Who it runs as: nobody's number on a node.
const USER: u32 = 65532;

/// Its objects.
#[must_use]
pub fn objects(config: &Config, controller: &CloudController) -> Vec<Object> {
    let account = service_account(ACCOUNT);
    let role = format!("system:{ACCOUNT}");
    let text = configuration(config, controller);
    let objects = [
        Object::create(json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": ACCOUNT, "namespace": NAMESPACE},
        })),
        cluster_role(&role, &rules()),
        cluster_binding(&role, &role, &account),
        authentication_reader(
            &format!("{ACCOUNT}:apiserver-authentication-reader"),
            &account,
        ),
        config_map(NAMESPACE, CONFIGURATION, &json!({FILE: text})),
        daemon_set(config, &controller.image, &text),
    ];
    let labelled = objects.into_iter().map(|mut object| {
        object.value["metadata"]["labels"]["k8s-app"] = NAME.into();
        object
    });
    labelled.collect()
}

/// By the cluster's name it finds what of the account is the cluster's: tags `kubernetes.io/cluster/NAME` on subnets and security groups. Without
/// it the instance on which it runs would need that tag. What an object adds comes behind it, and counts more.
fn configuration(config: &Config, controller: &CloudController) -> String {
    let mut text = format!(
        "[Global]\nKubernetesClusterID={}\n",
        quoted(&config.cluster.cluster_name)
    );
    text += &controller.config;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// A value of its configuration, whose language is that of Git's.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Its loops have accounts of their own, to which the API server gives their rights; these are what it needs to become them.
fn rules() -> Value {
    let rule = |group: &str, resource: &str, verbs: &[&str]| json!({"apiGroups": [group], "resources": [resource], "verbs": verbs});
    json!([
        rule("", "events", &["create", "patch", "update"]),
        rule("", "nodes", &["*"]),
        rule("", "nodes/status", &["patch"]),
        rule("", "services", &["list", "patch", "update", "watch"]),
        rule("", "services/status", &["list", "patch", "update", "watch"]),
        rule("", "serviceaccounts", &["create", "get", "list", "watch"]),
        rule("", "persistentvolumes", &["get", "list", "update", "watch"]),
        rule(
            "",
            "endpoints",
            &["create", "get", "list", "watch", "update"]
        ),
        rule(
            "coordination.k8s.io",
            "leases",
            &["create", "get", "list", "watch", "update"]
        ),
        rule("", "serviceaccounts/token", &["create"]),
    ])
}

/// On each control plane, before anything else that is no static pod: it takes away the taint that keeps all others off. Where several run, one
/// of them leads.
fn daemon_set(config: &Config, image: &str, text: &str) -> Object {
    let labels = json!({"k8s-app": NAME});
    let taint = |key: &str| json!({"effect": "NoSchedule", "key": key, "operator": "Exists"});
    Object::create(json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {
                    // It reads its configuration once.
                    "annotations": {"slipway.local/configuration": HEXLOWER.encode(&Sha256::digest(text))},
                    "labels": labels,
                },
                "spec": {
                    "containers": [container(config, image)],
                    "dnsPolicy": "Default",
                    "hostNetwork": true,
                    "nodeSelector": {"kubernetes.io/os": "linux", "node-role.kubernetes.io/control-plane": ""},
                    "priorityClassName": "system-cluster-critical",
                    "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
                    "serviceAccountName": ACCOUNT,
                    "tolerations": [
                        taint("node.cloudprovider.kubernetes.io/uninitialized"),
                        taint("node-role.kubernetes.io/control-plane"),
                        taint("node.kubernetes.io/not-ready"),
                    ],
                    "volumes": [
                        {"configMap": {"name": CONFIGURATION}, "name": "configuration"},
                        {"hostPath": {"path": AUTHORITIES, "type": "DirectoryOrCreate"}, "name": "authorities"},
                    ],
                },
            },
            "updateStrategy": {"type": "RollingUpdate"},
        },
    }))
}

/// It asks the API server by the endpoint of the control plane, since kube-proxy's rules for its Service may come later.
fn container(config: &Config, image: &str) -> Value {
    let (host, port) = config.control_plane_server();
    json!({
        "args": [
            "--v=2",
            "--cloud-provider=aws",
            format!("--cloud-config={FOLDER}/{FILE}"),
            "--use-service-account-credentials=true",
            // The network of pods has its own.
            "--configure-cloud-routes=false",
            "--bind-address=127.0.0.1",
            format!("--secure-port={HEALTH}"),
        ],
        "env": [
            {"name": "KUBERNETES_SERVICE_HOST", "value": host},
            {"name": "KUBERNETES_SERVICE_PORT", "value": port},
        ],
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "livenessProbe": {
            "failureThreshold": 8,
            "httpGet": {"host": "127.0.0.1", "path": "/healthz", "port": HEALTH, "scheme": "HTTPS"},
            "initialDelaySeconds": 30,
            "periodSeconds": 10,
            "timeoutSeconds": 15,
        },
        "name": NAME,
        "resources": {"requests": {"cpu": "200m"}},
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
            "runAsNonRoot": true,
            "runAsUser": USER,
        },
        "volumeMounts": [
            {"mountPath": FOLDER, "name": "configuration", "readOnly": true},
            {"mountPath": AUTHORITIES, "name": "authorities", "readOnly": true},
        ],
    })
}
