//! metrics-server, which `kubectl top` and the autoscaler of pods ask: objects with the names and rights of its own manifests
//! (<https://github.com/kubernetes-sigs/metrics-server/tree/v0.9.0/manifests/base>), with certificates that are checked both ways.

use serde_json::{Value, json};

use crate::objects::{
    Object, authentication_reader, cluster_binding, cluster_role, service_account,
};

/// The name at which the API server asks it: a Service's, by which the certificate is checked.
pub const HOST: &str = "metrics-server.kube-system.svc";

const NAMESPACE: &str = "kube-system";
const NAME: &str = "metrics-server";
/// The Secret with the certificate of its server.
const CERTIFICATE: &str = "metrics-server-tls";
/// Where its pod has that.
const FOLDER: &str = "/etc/metrics-server";
/// Its port, and the port's name.
const PORT: (u16, &str) = (10250, "https");
/// Who it runs as: nobody's number on a node.
const USER: u32 = 1000;
/// The cluster's authority in every pod, which the controller manager keeps: kubelets' certificates are of it.
const AUTHORITY: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

/// What the API server trusts it by.
#[derive(Clone, Copy, Debug)]
pub struct Credentials<'a> {
    /// The certificate of its server, for [`HOST`]: PEM in base 64. The API server trusts this one alone.
    pub certificate: &'a str,
    /// Its private key: PEM in base 64.
    pub key: &'a str,
}

/// Its objects; `image` is the reference of its image.
#[must_use]
pub fn objects(image: &str, credentials: Credentials<'_>) -> Vec<Object> {
    let account = service_account(NAME);
    let own = format!("system:{NAME}");
    let delegator = "system:auth-delegator";
    let objects = [
        Object::create(json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
        })),
        readers(),
        cluster_role(
            &own,
            &json!([
                {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
                {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]},
            ]),
        ),
        authentication_reader(&format!("{NAME}-auth-reader"), &account),
        cluster_binding(&format!("{NAME}:{delegator}"), delegator, &account),
        cluster_binding(&own, &own, &account),
        Object::create(json!({
            "apiVersion": "v1",
            "data": {"tls.crt": credentials.certificate, "tls.key": credentials.key},
            "kind": "Secret",
            "metadata": {"name": CERTIFICATE, "namespace": NAMESPACE},
            "type": "kubernetes.io/tls",
        })),
        service(),
        deployment(image),
        api_service(credentials.certificate),
    ];
    let labelled = objects.into_iter().map(|mut object| {
        object.value["metadata"]["labels"]["k8s-app"] = NAME.into();
        object
    });
    labelled.collect()
}

/// Whoever may read the cluster's objects may read how much they use.
fn readers() -> Object {
    let rule = json!({"apiGroups": ["metrics.k8s.io"], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]});
    let mut role = cluster_role("system:aggregated-metrics-reader", &json!([rule]));
    let roles = ["view", "edit", "admin"];
    role.value["metadata"]["labels"] = roles
        .map(|role| {
            let name = format!("rbac.authorization.k8s.io/aggregate-to-{role}");
            (name, "true".into())
        })
        .into_iter()
        .collect::<serde_json::Map<_, _>>()
        .into();
    role
}

fn service() -> Object {
    let (_, port) = PORT;
    Object::create(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "ports": [{"appProtocol": "https", "name": port, "port": 443, "protocol": "TCP", "targetPort": port}],
            "selector": {"k8s-app": NAME},
        },
    }))
}

/// The API server asks the Service, and trusts the one certificate that the Secret has: whoever has another one, of the cluster's
/// authority too, cannot take its place.
fn api_service(certificate: &str) -> Object {
    Object::create(json!({
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1beta1.metrics.k8s.io"},
        "spec": {
            "caBundle": certificate,
            "group": "metrics.k8s.io",
            "groupPriorityMinimum": 100,
            "service": {"name": NAME, "namespace": NAMESPACE},
            "version": "v1beta1",
            "versionPriority": 100,
        },
    }))
}

fn deployment(image: &str) -> Object {
    let labels = json!({"k8s-app": NAME});
    Object::create(json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": labels},
            "strategy": {"rollingUpdate": {"maxUnavailable": 0}},
            "template": {"metadata": {"labels": labels}, "spec": {
                "containers": [container(image)],
                "nodeSelector": {"kubernetes.io/os": "linux"},
                "priorityClassName": "system-cluster-critical",
                "securityContext": {"fsGroup": USER},
                "serviceAccountName": NAME,
                // As CoreDNS has them, and upstream has not: a cluster may have control planes alone.
                "tolerations": [
                    {"key": "CriticalAddonsOnly", "operator": "Exists"},
                    {"effect": "NoSchedule", "key": "node-role.kubernetes.io/control-plane"},
                ],
                "volumes": [{"name": "tls", "secret": {"defaultMode": 0o440, "secretName": CERTIFICATE}}],
            }},
        },
    }))
}

/// Its own certificate would be one that nobody knows, made at each start; it reads the files of the Secret again when they change.
fn container(image: &str) -> Value {
    let (port, name) = PORT;
    let probe = |path: &str| json!({"failureThreshold": 3, "httpGet": {"path": path, "port": name, "scheme": "HTTPS"}, "periodSeconds": 10});
    let mut ready = probe("/readyz");
    // It is ready with the second look at the kubelets.
    ready["initialDelaySeconds"] = 20.into();
    json!({
        "args": [
            format!("--secure-port={port}"),
            format!("--tls-cert-file={FOLDER}/tls.crt"),
            format!("--tls-private-key-file={FOLDER}/tls.key"),
            "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
            "--kubelet-use-node-status-port",
            format!("--kubelet-certificate-authority={AUTHORITY}"),
            "--metric-resolution=15s",
        ],
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "livenessProbe": probe("/livez"),
        "name": NAME,
        "ports": [{"containerPort": port, "name": name, "protocol": "TCP"}],
        "readinessProbe": ready,
        "resources": {"requests": {"cpu": "100m", "memory": "200Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
            "runAsNonRoot": true,
            "runAsUser": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [{"mountPath": FOLDER, "name": "tls", "readOnly": true}],
    })
}
