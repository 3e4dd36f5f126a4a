//! CoreDNS: the cluster's name server.

use serde_json::{Value, json};

use crate::address;
use crate::config::Config;
use crate::images;
use crate::objects::{Object, cluster_binding, cluster_role, config_map, service_account};

/// The common name of its roles.
const ROLE: &str = "system:coredns";

pub(super) fn objects(config: &Config) -> Vec<Object> {
    vec![
        config_map(
            "kube-system",
            "coredns",
            &json!({"Corefile": corefile(config)}),
        ),
        cluster_role(
            ROLE,
            &json!([
                {
                    "apiGroups": [""],
                    "resources": ["endpoints", "services", "pods", "namespaces"],
                    "verbs": ["list", "watch"],
                },
                {
                    "apiGroups": ["discovery.k8s.io"],
                    "resources": ["endpointslices"],
                    "verbs": ["list", "watch"],
                },
            ]),
        ),
        cluster_binding(ROLE, ROLE, &service_account("coredns")),
        Object::create(json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "coredns", "namespace": "kube-system"},
        })),
        deployment(config),
        service(config),
    ]
}

/// The configuration of CoreDNS.
fn corefile(config: &Config) -> String {
    let domain = &config.cluster.networking.dns_domain;
    format!(
        ".:53 {{
    errors
    health {{
       lameduck 5s
    }}
    ready
    kubernetes {domain} in-addr.arpa ip6.arpa {{
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }}
    prometheus :9153
    forward . /etc/resolv.conf {{
       max_concurrent 1000
    }}
    cache 30 {{
       disable success {domain}
       disable denial {domain}
    }}
    loop
    reload
    loadbalance
}}
"
    )
}

fn deployment(config: &Config) -> Object {
    let labels = json!({"k8s-app": "kube-dns"});
    Object::create(json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"labels": labels, "name": "coredns", "namespace": "kube-system"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "strategy": {"rollingUpdate": {"maxUnavailable": 1}, "type": "RollingUpdate"},
            "template": {"metadata": {"labels": labels}, "spec": pod(config)},
        },
        "status": {},
    }))
}

fn pod(config: &Config) -> Value {
    let volume = json!({
        "configMap": {"items": [{"key": "Corefile", "path": "Corefile"}], "name": "coredns"},
        "name": "config-volume",
    });
    json!({
        "affinity": affinity(),
        "containers": [container(config)],
        "dnsPolicy": "Default",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "priorityClassName": "system-cluster-critical",
        "serviceAccountName": "coredns",
        "tolerations": [
            {"key": "CriticalAddonsOnly", "operator": "Exists"},
            {"effect": "NoSchedule", "key": "node-role.kubernetes.io/control-plane"},
        ],
        "volumes": [volume],
    })
}

/// Its pods are on different nodes, where there are some.
fn affinity() -> Value {
    let expression = json!({"key": "k8s-app", "operator": "In", "values": ["kube-dns"]});
    let term = json!({
        "labelSelector": {"matchExpressions": [expression]},
        "topologyKey": "kubernetes.io/hostname",
    });
    let preferred = json!([{"podAffinityTerm": term, "weight": 100}]);
    json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}})
}

fn container(config: &Config) -> Value {
    let named = config.kubeadm.release.named_probes;
    let port = |name: &str, number: u16| match named {
        true => Value::from(name),
        false => number.into(),
    };
    let (liveness, readiness) = (port("liveness-probe", 8080), port("readiness-probe", 8181));
    json!({
        "args": ["-conf", "/etc/coredns/Corefile"],
        "image": images::coredns(config),
        "imagePullPolicy": "IfNotPresent",
        "livenessProbe": {
            "failureThreshold": 5,
            "httpGet": {"path": "/health", "port": liveness, "scheme": "HTTP"},
            "initialDelaySeconds": 60,
            "successThreshold": 1,
            "timeoutSeconds": 5,
        },
        "name": "coredns",
        "ports": ports(named),
        "readinessProbe": {
            "httpGet": {"path": "/ready", "port": readiness, "scheme": "HTTP"},
        },
        "resources": {
            "limits": {"memory": "170Mi"},
            "requests": {"cpu": "100m", "memory": "70Mi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
        },
        "volumeMounts": [{"mountPath": "/etc/coredns", "name": "config-volume", "readOnly": true}],
    })
}

fn ports(named_probes: bool) -> Value {
    let all = [
        (53, "dns", "UDP"),
        (53, "dns-tcp", "TCP"),
        (9153, "metrics", "TCP"),
        (8080, "liveness-probe", "TCP"),
        (8181, "readiness-probe", "TCP"),
    ];
    let port = |(port, name, protocol): &(u16, &str, &str)| json!({"containerPort": port, "name": name, "protocol": protocol});
    let count = if named_probes { all.len() } else { 3 };
    all[..count].iter().map(port).collect()
}

fn service(config: &Config) -> Object {
    let port = |name: &str, port: u16, protocol: &str| json!({"name": name, "port": port, "protocol": protocol, "targetPort": port});
    let mut spec = json!({
        "ports": [port("dns", 53, "UDP"), port("dns-tcp", 53, "TCP"), port("metrics", 9153, "TCP")],
        "selector": {"k8s-app": "kube-dns"},
    });
    set_addresses(&mut spec, config);
    Object::create(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "annotations": {"prometheus.io/port": "9153", "prometheus.io/scrape": "true"},
            "labels": {
                "k8s-app": "kube-dns",
                "kubernetes.io/cluster-service": "true",
                "kubernetes.io/name": "CoreDNS",
            },
            "name": "kube-dns",
            "namespace": "kube-system",
            // The API server refuses a new object with any other.
            "resourceVersion": "0",
        },
        "spec": spec,
        "status": {"loadBalancer": {}},
    }))
}

/// The addresses of the Service: without a choice kubeadm's, the tenth one of the first subnet of services.
fn set_addresses(spec: &mut Value, config: &Config) {
    let kubeadms = address::service_address(&config.cluster.networking.service_subnet, 10);
    let chosen = config.dns_addresses.first().copied();
    let address = chosen.or(kubeadms).map(|address| address.to_string());
    spec["clusterIP"] = address.unwrap_or_default().into();
    if let [_, _] = config.dns_addresses[..] {
        // The API server takes two addresses by this policy only.
        let all: Vec<String> = config
            .dns_addresses
            .iter()
            .map(ToString::to_string)
            .collect();
        spec["clusterIPs"] = all.into();
        spec["ipFamilyPolicy"] = "RequireDualStack".into();
    }
}
