//! kube-apiserver.

use std::collections::BTreeMap;

use serde_json::json;

use super::{Pod, command, environment};
use crate::address;
use crate::arguments::{arg, merged};
use crate::config::{Arg, Config};
use crate::flags;
use crate::host::Host;
use crate::images;
use crate::probes::Target;
use crate::types::argument;
use crate::volumes::Volumes;

/// The authorizers that kubeadm takes from the configuration.
const MODES: [&str; 6] = [
    "Node",
    "RBAC",
    "Webhook",
    "ABAC",
    "AlwaysAllow",
    "AlwaysDeny",
];

/// The argument with which the server ends once the requests that it has are answered.
const RETRY_AFTER: &str = "shutdown-send-retry-after";

/// Makes the API server end within seconds of the signal to do so. With kubeadm's arguments it waits one minute for open watches, which
/// clients close only when the server is gone: 70 s were measured with a kubelet and the controllers connected, 5 s with this argument. A
/// request that comes during the shutdown is answered with a time to repeat it (`GenericAPIServer.ShutdownSendRetryAfter`). A value in the
/// configuration is kept.
pub fn ends_soon(config: &mut Config) {
    let minor = config.kubernetes.minor();
    let arguments = &mut config.cluster.api_server.extra_args;
    if flags::has("kube-apiserver", minor, RETRY_AFTER)
        && argument(arguments, RETRY_AFTER).is_none()
    {
        arguments.push(arg(RETRY_AFTER, "true"));
    }
}

/// The annotation of the API server's manifest with its address and port, which `kubeadm` reads.
pub const ADDRESS: &str = "kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint";

pub(super) fn pod(config: &Config, host: &Host) -> Pod {
    let endpoint = &config.init.local_api_endpoint;
    let server = &config.cluster.api_server;
    let target = Target::https(&endpoint.advertise_address);
    let volumes = Volumes::api_server(config, host);
    let mut arguments = own(config);
    arguments.extend(etcd(config));
    if argument(&server.extra_args, "authorization-config").is_none() {
        arguments.push(arg("authorization-mode", modes(&server.extra_args)));
    }
    let address = ADDRESS;
    Pod {
        name: "kube-apiserver",
        image: images::kubernetes(config, "kube-apiserver"),
        command: command("kube-apiserver", merged(arguments, &server.extra_args)),
        annotations: BTreeMap::from([(address, endpoint.host_and_port())]),
        env: environment(&host.proxies, &server.extra_envs),
        port: endpoint.bind_port,
        probes: vec![
            ("livenessProbe", target.liveness("/livez")),
            ("readinessProbe", target.readiness("/readyz")),
            ("startupProbe", target.startup("/livez", config)),
        ],
        requests: json!({"cpu": "250m"}),
        mounts: volumes.mounts(),
        volumes: volumes.volumes(),
    }
}

fn own(config: &Config) -> Vec<Arg> {
    let endpoint = &config.init.local_api_endpoint;
    let networking = &config.cluster.networking;
    let file = |name: &str| config.cluster.certificate(name);
    let issuer = format!("https://kubernetes.default.svc.{}", networking.dns_domain);
    vec![
        arg("advertise-address", &endpoint.advertise_address),
        arg("allow-privileged", "true"),
        arg("client-ca-file", file("ca.crt")),
        arg("enable-admission-plugins", "NodeRestriction"),
        arg("enable-bootstrap-token-auth", "true"),
        arg(
            "kubelet-client-certificate",
            file("apiserver-kubelet-client.crt"),
        ),
        arg("kubelet-client-key", file("apiserver-kubelet-client.key")),
        arg(
            "kubelet-preferred-address-types",
            "InternalIP,ExternalIP,Hostname",
        ),
        arg("proxy-client-cert-file", file("front-proxy-client.crt")),
        arg("proxy-client-key-file", file("front-proxy-client.key")),
        arg("requestheader-allowed-names", "front-proxy-client"),
        arg("requestheader-client-ca-file", file("front-proxy-ca.crt")),
        arg("requestheader-extra-headers-prefix", "X-Remote-Extra-"),
        arg("requestheader-group-headers", "X-Remote-Group"),
        arg("requestheader-username-headers", "X-Remote-User"),
        arg("secure-port", endpoint.bind_port.to_string()),
        arg("service-account-issuer", issuer),
        arg("service-account-key-file", file("sa.pub")),
        arg("service-account-signing-key-file", file("sa.key")),
        arg("service-cluster-ip-range", &networking.service_subnet),
        arg("tls-cert-file", file("apiserver.crt")),
        arg("tls-private-key-file", file("apiserver.key")),
    ]
}

/// Where etcd is, and with which certificates.
fn etcd(config: &Config) -> Vec<Arg> {
    let file = |name: &str| config.cluster.certificate(name);
    let Some(external) = &config.cluster.etcd.external else {
        let local = address::join(config.init.local_api_endpoint.loopback(), 2379);
        let extra = config
            .cluster
            .etcd
            .local
            .as_ref()
            .map(|local| &local.extra_args[..]);
        let advertised = argument(extra.unwrap_or_default(), "advertise-client-urls");
        let servers = advertised.map_or_else(|| format!("https://{local}"), str::to_owned);
        return vec![
            arg("etcd-servers", servers),
            arg("etcd-cafile", file("etcd/ca.crt")),
            arg("etcd-certfile", file("apiserver-etcd-client.crt")),
            arg("etcd-keyfile", file("apiserver-etcd-client.key")),
        ];
    };
    let endpoints = external.endpoints.clone().unwrap_or_default().join(",");
    let mut arguments = vec![arg("etcd-servers", endpoints)];
    if !external.ca_file.is_empty() {
        arguments.push(arg("etcd-cafile", &external.ca_file));
    }
    if !external.cert_file.is_empty() && !external.key_file.is_empty() {
        arguments.push(arg("etcd-certfile", &external.cert_file));
        arguments.push(arg("etcd-keyfile", &external.key_file));
    }
    arguments
}

/// Those of the configuration's authorizers that are known, else the nodes' and roles.
fn modes(extra: &[Arg]) -> String {
    let wanted = argument(extra, "authorization-mode").unwrap_or_default();
    let known: Vec<&str> = wanted
        .split(',')
        .filter(|mode| MODES.contains(mode))
        .collect();
    if known.is_empty() {
        "Node,RBAC".to_owned()
    } else {
        known.join(",")
    }
}
