//! kube-controller-manager.

use serde_json::json;

use super::{Pod, command, credentials, environment};
use crate::arguments::{arg, merged};
use crate::config::{Arg, Config};
use crate::host::Host;
use crate::images;
use crate::probes::Target;
use crate::types::argument;
use crate::volumes::Volumes;

/// Its kubeconfig.
const KUBECONFIG: &str = "/etc/kubernetes/controller-manager.conf";

pub(super) fn pod(config: &Config, host: &Host) -> Pod {
    let manager = &config.cluster.controller_manager;
    let target =
        Target::https(argument(&manager.extra_args, "bind-address").unwrap_or("127.0.0.1"));
    let volumes = Volumes::controller_manager(config, host);
    Pod {
        name: "kube-controller-manager",
        image: images::kubernetes(config, "kube-controller-manager"),
        command: command(
            "kube-controller-manager",
            merged(own(config), &manager.extra_args),
        ),
        annotations: credentials(config, "kube-controller-manager"),
        env: environment(&host.proxies, &manager.extra_envs),
        port: 10257,
        probes: vec![
            ("livenessProbe", target.liveness("/healthz")),
            ("startupProbe", target.startup("/healthz", config)),
        ],
        requests: json!({"cpu": "200m"}),
        mounts: volumes.mounts(),
        volumes: volumes.volumes(),
    }
}

fn own(config: &Config) -> Vec<Arg> {
    let file = |name: &str| config.cluster.certificate(name);
    let mut arguments = vec![
        arg("authentication-kubeconfig", KUBECONFIG),
        arg("authorization-kubeconfig", KUBECONFIG),
        arg("bind-address", "127.0.0.1"),
        arg("client-ca-file", file("ca.crt")),
        arg("cluster-name", &config.cluster.cluster_name),
        arg("cluster-signing-cert-file", file("ca.crt")),
        arg("cluster-signing-key-file", file("ca.key")),
        arg("controllers", "*,bootstrapsigner,tokencleaner"),
        arg("kubeconfig", KUBECONFIG),
        arg("leader-elect", "true"),
        arg("requestheader-client-ca-file", file("front-proxy-ca.crt")),
        arg("root-ca-file", file("ca.crt")),
        arg("service-account-private-key-file", file("sa.key")),
        arg("use-service-account-credentials", "true"),
    ];
    let networking = &config.cluster.networking;
    if !networking.pod_subnet.is_empty() {
        arguments.push(arg("allocate-node-cidrs", "true"));
        arguments.push(arg("cluster-cidr", &networking.pod_subnet));
        arguments.push(arg("service-cluster-ip-range", &networking.service_subnet));
    }
    arguments
}
