//! The ports that the programs of a node listen on (<https://kubernetes.io/docs/reference/networking/ports-and-protocols/>).

use serde_json::Value;

use crate::address::url_parts;
use crate::types::{Cluster, Component, Init, argument};

/// etcd's ports, what each is for, and the argument that gives others.
const ETCD: [(i64, &str, &str); 3] = [
    (2379, "etcd's clients", "listen-client-urls"),
    (2380, "etcd's other members", "listen-peer-urls"),
    (2381, "etcd's metrics", "listen-metrics-urls"),
];

/// Those of each node, each with what has it, by the configurations of the kubelet and, where it runs, of kube-proxy.
pub(crate) fn of_every_node(kubelet: &Value, proxy: Option<&Value>) -> Vec<(i64, &'static str)> {
    let number = |name: &str, default: i64| kubelet[name].as_i64().unwrap_or(default);
    let mut all = vec![
        (number("port", 10250), "the kubelet"),
        (number("healthzPort", 10248), "the kubelet's health check"),
        (number("readOnlyPort", 0), "the kubelet's read-only API"),
    ];
    if let Some(proxy) = proxy {
        let of = |name: &str, default: i64| {
            let text = proxy[name].as_str();
            let port = text.and_then(|text| text.rsplit(':').next()?.parse().ok());
            port.unwrap_or(default)
        };
        all.push((of("healthzBindAddress", 10256), "kube-proxy's health check"));
        all.push((of("metricsBindAddress", 10249), "kube-proxy's metrics"));
    }
    all
}

/// Those that a control plane has beside them.
pub(crate) fn of_control_plane(init: &Init, cluster: &Cluster) -> Vec<(i64, &'static str)> {
    let secure = |component: &Component, default: i64| {
        let given = argument(&component.extra_args, "secure-port");
        given.and_then(|port| port.parse().ok()).unwrap_or(default)
    };
    let manager = secure(&cluster.controller_manager, 10257);
    let mut all = vec![
        (init.local_api_endpoint.bind_port, "the API server"),
        (manager, "the controller manager"),
        (secure(&cluster.scheduler, 10259), "the scheduler"),
    ];
    if let Some(local) = &cluster.etcd.local {
        for (port, whose, name) in ETCD {
            match argument(&local.extra_args, name) {
                Some(urls) => all.extend(ports(urls).map(|port| (port, whose))),
                None => all.push((port, whose)),
            }
        }
    }
    all
}

/// The ports of URLs with commas between them, as etcd takes them.
fn ports(urls: &str) -> impl Iterator<Item = i64> {
    let last = |url: &str| url_parts(url).ok()?.1.rsplit(':').next()?.parse().ok();
    urls.split(',').filter_map(move |url| last(url.trim()))
}
