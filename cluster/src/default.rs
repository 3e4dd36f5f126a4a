//! Completes `InitConfiguration` and `ClusterConfiguration` with kubeadm's defaults, and brings their values into the form
//! that kubeadm keeps.

use serde_json::{Map, Value, json};

use crate::address;
use crate::host::Host;
use crate::release::{Kubeadm, Version};
use crate::report::Report;

/// The port of the API server.
const PORT: i64 = 6443;
/// The key of a control plane's taint.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// The group that a bootstrap token authenticates as.
const NEW_NODES: &str = "system:bootstrappers:kubeadm:default-node-token";

/// Defaults of `ClusterConfiguration`'s own fields.
const CLUSTER: [(&str, &str); 6] = [
    ("certificatesDir", "/etc/kubernetes/pki"),
    ("imageRepository", "registry.k8s.io"),
    ("clusterName", "kubernetes"),
    ("encryptionAlgorithm", "RSA-2048"),
    ("certificateValidityPeriod", "8760h0m0s"),
    ("caCertificateValidityPeriod", "87600h0m0s"),
];

/// Completes `InitConfiguration`.
pub(crate) fn init(init: &mut Map<String, Value>, host: &Host, report: &mut Report) {
    let open = || json!([{"token": ""}]);
    let tokens = init.entry("bootstrapTokens").or_insert_with(open);
    for token in tokens.as_array_mut().into_iter().flatten() {
        token.as_object_mut().map(bootstrap_token);
    }
    if let Some(node) = object(init, "nodeRegistration") {
        node_registration(node, host);
    }
    if let Some(endpoint) = object(init, "localAPIEndpoint") {
        set(endpoint, "bindPort", PORT);
        advertise(endpoint, host, report);
    }
}

fn bootstrap_token(token: &mut Map<String, Value>) {
    set(token, "ttl", "24h0m0s");
    set(token, "usages", json!(["signing", "authentication"]));
    set(token, "groups", json!([NEW_NODES]));
}

fn node_registration(node: &mut Map<String, Value>, host: &Host) {
    set(node, "name", host.name.as_str());
    edit(node, "name", |name| name.trim().to_lowercase());
    set(node, "criSocket", host.cri_socket.as_str());
    edit(node, "criSocket", |socket| match socket {
        _ if socket.starts_with("unix") => socket.to_owned(),
        _ => format!("unix://{socket}"),
    });
    set(node, "imagePullPolicy", "IfNotPresent");
    set(node, "imagePullSerial", true);
    // An empty list is kept: it is how a configuration asks for a node without taints.
    if node.get("taints").is_none_or(Value::is_null) {
        let taint = json!([{"key": CONTROL_PLANE, "effect": "NoSchedule"}]);
        node.insert("taints".to_owned(), taint);
    }
}

/// The address that the API server advertises: the configuration's, else the host's.
fn advertise(endpoint: &mut Map<String, Value>, host: &Host, report: &mut Report) {
    const FIELD: &str = "localAPIEndpoint.advertiseAddress";
    let text = endpoint
        .get("advertiseAddress")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let given = address::parse(text);
    if given.is_none() && !text.is_empty() {
        report.refuse(FIELD, format!("{text:?} is not an address of IPv4 or IPv6"));
        return;
    }
    let address = given
        .filter(|address| !address.is_unspecified())
        .or(host.address);
    match address.filter(|address| address::is_global_unicast(*address)) {
        Some(address) => {
            endpoint.insert("advertiseAddress".to_owned(), address.to_string().into());
        }
        None if address.is_none() => {
            report.refuse(
                FIELD,
                "expected an address: this machine has no default route, or only a link-local address on it",
            );
        }
        None => {
            let message =
                format!("{text:?} cannot be reached by other machines; expected a unicast address");
            report.refuse(FIELD, message);
        }
    }
}

/// Completes `ClusterConfiguration`; `port` is that of the API server on this node.
pub(crate) fn cluster(
    cluster: &mut Map<String, Value>,
    port: i64,
    kubeadm: &Kubeadm,
    report: &mut Report,
) {
    for (name, value) in CLUSTER {
        set(cluster, name, value);
    }
    if let Some(networking) = object(cluster, "networking") {
        set(networking, "serviceSubnet", "10.96.0.0/12");
        set(networking, "dnsDomain", "cluster.local");
    }
    if let Some(etcd) = object(cluster, "etcd") {
        self::etcd(etcd, kubeadm);
    }
    for component in ["apiServer", "controllerManager", "scheduler"] {
        object(cluster, component).map(variables);
    }
    let server = object(cluster, "apiServer");
    let names = server.and_then(|server| server.get_mut("certSANs"));
    for name in names.and_then(Value::as_array_mut).into_iter().flatten() {
        *name = name.as_str().unwrap_or_default().to_lowercase().into();
    }
    kubernetes_version(cluster, kubeadm, report);
    endpoint(cluster, port, report);
}

/// An addon whose phase is left out is off in the configuration that the cluster keeps, so that no upgrade installs it.
pub(crate) fn addons(cluster: &mut Map<String, Value>, skipped: &[String]) {
    for (field, phase) in [("dns", "addon/coredns"), ("proxy", "addon/kube-proxy")] {
        let skips = skipped.iter().any(|name| name == phase || name == "addon");
        let addon = object(cluster, field).filter(|_| skips);
        if let Some(addon) = addon {
            addon.insert("disabled".to_owned(), true.into());
        }
    }
}

fn etcd(etcd: &mut Map<String, Value>, kubeadm: &Kubeadm) {
    if etcd.is_empty() {
        etcd.insert("local".to_owned(), json!({}));
    }
    if let Some(local) = object(etcd, "local") {
        set(local, "dataDir", "/var/lib/etcd");
        variables(local);
    }
    let Some(external) = object(etcd, "external") else {
        return;
    };
    let endpoints = external["endpoints"].clone();
    let some = endpoints.as_array().is_some_and(|all| !all.is_empty());
    if some && kubeadm.release.http_endpoints {
        set(external, "httpEndpoints", endpoints);
    }
}

/// A field of the pod from which a variable is taken is one of version v1, if no other is named.
fn variables(component: &mut Map<String, Value>) {
    let all = component.get_mut("extraEnvs").and_then(Value::as_array_mut);
    for variable in all.into_iter().flatten() {
        let field = variable.pointer_mut("/valueFrom/fieldRef");
        if let Some(field) = field.and_then(Value::as_object_mut) {
            set(field, "apiVersion", "v1");
        }
    }
}

/// The endpoint of the control plane with a port: that of the API server on this node, if it has none.
fn endpoint(cluster: &mut Map<String, Value>, port: i64, report: &mut Report) {
    edit(cluster, "controlPlaneEndpoint", |endpoint| {
        match address::host_and_port(endpoint) {
            Ok((host, "")) => return address::join(host, port),
            Err(message) if !endpoint.is_empty() => {
                report.refuse("controlPlaneEndpoint", message);
            }
            _ => {}
        }
        endpoint.to_owned()
    });
}

/// The version of Kubernetes with a `v`. A label (`stable-1`) is kubeadm's own version, as without a network.
fn kubernetes_version(cluster: &mut Map<String, Value>, kubeadm: &Kubeadm, report: &mut Report) {
    const FIELD: &str = "kubernetesVersion";
    let text = cluster
        .get(FIELD)
        .and_then(Value::as_str)
        .unwrap_or_default();
    let released = text.strip_prefix("release/").unwrap_or(text);
    let version = if text.is_empty() || is_label(released) {
        Some(kubeadm.version.clone())
    } else {
        Version::parse(released)
    };
    let Some(version) = version else {
        report.refuse(
            FIELD,
            format!(
                "{text:?} is not a version; expected one like v1.{}.0",
                kubeadm.release.minor
            ),
        );
        return;
    };
    let oldest = kubeadm.release.minor - 1;
    if !version.at_least([1, oldest, 0]) {
        let message = format!(
            "{version} is below v1.{oldest}.0, the oldest that kubeadm 1.{} deploys",
            kubeadm.release.minor
        );
        report.refuse(FIELD, message);
    }
    cluster.insert(FIELD.to_owned(), version.to_string().into());
}

/// Whether this names the newest version of a kind: `stable` or `latest`, perhaps with the version that it is of (`stable-1.36`).
fn is_label(text: &str) -> bool {
    let (kind, version) = match text.split_once('-') {
        Some((kind, version)) => (kind, Some(version)),
        None => (text, None),
    };
    // A digit that is not zero, or two digits of which the first is none.
    let number = |text: &str| {
        let digits = text.bytes().all(|digit| digit.is_ascii_digit());
        digits && (1..3).contains(&text.len()) && !text.starts_with('0')
    };
    let version = version.is_none_or(|version| {
        let (major, minor) = match version.split_once('.') {
            Some((major, minor)) => (major, Some(minor)),
            None => (version, None),
        };
        major.len() == 1 && number(major) && minor.is_none_or(number)
    });
    matches!(kind, "stable" | "latest") && version
}

fn object<'a>(map: &'a mut Map<String, Value>, name: &str) -> Option<&'a mut Map<String, Value>> {
    map.get_mut(name).and_then(Value::as_object_mut)
}

/// Sets a field that is not there, or is empty.
fn set(map: &mut Map<String, Value>, name: &str, value: impl Into<Value>) {
    let empty = match map.get(name) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    };
    if empty {
        map.insert(name.to_owned(), value.into());
    }
}

/// Changes a text, if it is there.
fn edit(map: &mut Map<String, Value>, name: &str, change: impl FnOnce(&str) -> String) {
    if let Some(Value::String(text)) = map.get_mut(name) {
        *text = change(text);
    }
}
