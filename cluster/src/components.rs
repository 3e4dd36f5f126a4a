//! The configurations of the kubelet and of kube-proxy, with kubeadm's defaults.

use serde_json::{Map, Value, json};

use crate::address;
use crate::duration::Duration;
use crate::types::{Cluster, Init};
use crate::yaml::{Content, Node};

/// How long the kubelet holds up a shutdown: for all pods, of that for critical ones, and in place of both by the pods' priorities.
const SHUTDOWN: &str = "shutdownGracePeriod";
const CRITICAL: &str = "shutdownGracePeriodCriticalPods";
const BY_PRIORITY: &str = "shutdownGracePeriodByPodPriority";

/// The configuration of a component of nodes.
#[derive(Clone, Debug)]
pub struct ComponentConfig {
    /// The whole document, with `apiVersion` and `kind`.
    pub value: Value,
    /// Whether a document of the user's had it. What kubeadm made alone is signed with a hash of it.
    pub supplied: bool,
}

/// Completes the kubelet's configuration; `resolved` says whether systemd-resolved runs.
pub(crate) fn kubelet(
    mut config: Map<String, Value>,
    document: Option<&Node>,
    cluster: &Cluster,
    resolved: bool,
) -> ComponentConfig {
    // An empty list is kept: it is how a configuration asks for pods without a name server.
    let own_dns = document.and_then(|node| node.get("clusterDNS"));
    let own_dns = own_dns.is_some_and(|node| matches!(node.content, Content::List(_)));
    let dns = address::service_address(&cluster.networking.service_subnet, 10);
    let dns = dns.map_or_else(|| "10.96.0.10".to_owned(), |dns| dns.to_string());
    set(&mut config, &["staticPodPath"], "/etc/kubernetes/manifests");
    if !own_dns {
        set(&mut config, &["clusterDNS"], json!([dns]));
    }
    set(
        &mut config,
        &["clusterDomain"],
        cluster.networking.dns_domain.as_str(),
    );
    let authority = cluster.certificate("ca.crt");
    set(
        &mut config,
        &["authentication", "x509", "clientCAFile"],
        authority,
    );
    set(
        &mut config,
        &["authentication", "anonymous", "enabled"],
        false,
    );
    set(&mut config, &["authorization", "mode"], "Webhook");
    set(&mut config, &["authentication", "webhook", "enabled"], true);
    set(&mut config, &["healthzBindAddress"], "127.0.0.1");
    set(&mut config, &["healthzPort"], 10248);
    set(&mut config, &["cgroupDriver"], "systemd");
    // kubeadm cannot tell false from nothing here, and sets it in any case.
    config.insert("rotateCertificates".to_owned(), true.into());
    if resolved {
        set(
            &mut config,
            &["resolvConf"],
            "/run/systemd/resolve/resolv.conf",
        );
    }
    complete_document(
        config,
        document.is_some(),
        "kubelet.config.k8s.io/v1beta1",
        "KubeletConfiguration",
    )
}

/// Whether a value that this system has for a field of the kubelet's configuration goes with the other fields, which `given` says. With one
/// of the two periods beside periods by priority, and with one for critical pods that is longer than the whole, a kubelet ends at its start
/// (`ValidateKubeletConfiguration` of `pkg/kubelet/apis/config/validation`).
pub(crate) fn goes_with(name: &str, value: &Value, given: impl Fn(&str) -> Option<Value>) -> bool {
    if ![SHUTDOWN, CRITICAL].contains(&name) {
        return true;
    }
    let is_list = |value: &Value| value.as_array().is_some_and(|all| !all.is_empty());
    if given(BY_PRIORITY).is_some_and(|value| is_list(&value)) {
        return false;
    }
    let period = |value: &Value| Duration::parse(value.as_str()?);
    let whole = given(SHUTDOWN).and_then(|value| period(&value));
    match (name, whole, period(value)) {
        (CRITICAL, Some(whole), Some(critical)) => critical <= whole,
        _ => true,
    }
}

/// Completes kube-proxy's configuration.
pub(crate) fn kube_proxy(
    mut config: Map<String, Value>,
    document: Option<&Node>,
    init: &Init,
    cluster: &Cluster,
) -> ComponentConfig {
    let v6 = init.local_api_endpoint.advertise_address.contains(':');
    set(
        &mut config,
        &["bindAddress"],
        if v6 { "::" } else { "0.0.0.0" },
    );
    set(
        &mut config,
        &["clusterCIDR"],
        cluster.networking.pod_subnet.as_str(),
    );
    let kubeconfig = "/var/lib/kube-proxy/kubeconfig.conf";
    set(&mut config, &["clientConnection", "kubeconfig"], kubeconfig);
    complete_document(
        config,
        document.is_some(),
        "kubeproxy.config.k8s.io/v1alpha1",
        "KubeProxyConfiguration",
    )
}

fn complete_document(
    mut config: Map<String, Value>,
    supplied: bool,
    version: &str,
    kind: &str,
) -> ComponentConfig {
    config.insert("apiVersion".to_owned(), version.into());
    config.insert("kind".to_owned(), kind.into());
    ComponentConfig {
        value: config.into(),
        supplied,
    }
}

/// Sets a field that is not there, or is empty text.
fn set(config: &mut Map<String, Value>, path: &[&str], value: impl Into<Value>) {
    let [name] = path else {
        let inner = path.split_first().and_then(|(name, rest)| {
            let inner = config.get_mut(*name)?.as_object_mut()?;
            Some((inner, rest))
        });
        if let Some((inner, rest)) = inner {
            set(inner, rest, value);
        }
        return;
    };
    let empty = match config.get(*name) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    };
    if empty {
        config.insert((*name).to_owned(), value.into());
    }
}
