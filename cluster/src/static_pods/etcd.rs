//! etcd.

use std::collections::BTreeMap;

use serde_json::json;

use super::{Pod, command, environment};
use crate::address;
use crate::arguments::{arg, merged};
use crate::config::{Arg, Config, LocalEtcd};
use crate::images;
use crate::probes::Target;
use crate::release::{EtcdFlags, Version};
use crate::types::argument;
use crate::volumes::writable;

/// The port of clients.
const CLIENTS: u16 = 2379;
/// The port of other members.
const PEERS: u16 = 2380;
/// The port of metrics, and of the probes.
const METRICS: u16 = 2381;
/// The argument with the URLs at which other members reach this one.
const ADVERTISED: &str = "initial-advertise-peer-urls";

/// Where other members reach this one.
pub(super) fn peer_url(config: &Config) -> String {
    url(config, PEERS)
}

/// Whether the configuration names the URLs at which other members reach this one, whatever the node's address is.
#[must_use]
pub fn names_peer_urls(config: &Config) -> bool {
    let local = config.cluster.etcd.local.as_ref();
    local.is_some_and(|local| argument(&local.extra_args, ADVERTISED).is_some())
}

/// Where clients reach it.
pub(super) fn client_url(config: &Config) -> String {
    url(config, CLIENTS)
}

pub(super) fn pod(config: &Config, local: &LocalEtcd) -> Pod {
    let certificates = format!("{}/etcd", config.cluster.certificates_dir);
    let (data_volume, data_mount) = writable("etcd-data", &local.data_dir);
    let (certificates_volume, certificates_mount) = writable("etcd-certs", &certificates);
    let (target, port) = target(config, local);
    let advertised = "kubeadm.kubernetes.io/etcd.advertise-client-urls";
    Pod {
        name: "etcd",
        image: images::etcd(config),
        command: command("etcd", merged(own(config, local), &local.extra_args)),
        annotations: BTreeMap::from([(advertised, url(config, CLIENTS))]),
        env: environment(&[], &local.extra_envs),
        port,
        probes: vec![
            ("livenessProbe", target.liveness("/livez")),
            ("readinessProbe", target.readiness("/readyz")),
            ("startupProbe", target.startup("/readyz", config)),
        ],
        requests: json!({"cpu": "100m", "memory": "100Mi"}),
        mounts: json!([data_mount, certificates_mount]),
        volumes: json!([certificates_volume, data_volume]),
    }
}

/// A URL of this member.
fn url(config: &Config, port: u16) -> String {
    let address = &config.init.local_api_endpoint.advertise_address;
    format!("https://{}", address::join(address, port))
}

fn own(config: &Config, local: &LocalEtcd) -> Vec<Arg> {
    let file = |name: &str| config.cluster.certificate(&format!("etcd/{name}"));
    let loopback = config.init.local_api_endpoint.loopback();
    let name = &config.init.node_registration.name;
    let (clients, peers) = (url(config, CLIENTS), url(config, PEERS));
    let initial_cluster = match &config.etcd_members {
        Some(members) => members.clone(),
        None => format!("{name}={peers}"),
    };
    let mut arguments = vec![
        arg("advertise-client-urls", &clients),
        arg("cert-file", file("server.crt")),
        arg("client-cert-auth", "true"),
        arg("data-dir", &local.data_dir),
        arg(ADVERTISED, &peers),
        arg("initial-cluster", initial_cluster),
        arg("key-file", file("server.key")),
        arg(
            "listen-client-urls",
            format!("https://{},{clients}", address::join(loopback, CLIENTS)),
        ),
        arg(
            "listen-metrics-urls",
            format!("http://{}", address::join(loopback, METRICS)),
        ),
        arg("listen-peer-urls", &peers),
        arg("name", name),
        arg("peer-cert-file", file("peer.crt")),
        arg("peer-client-cert-auth", "true"),
        arg("peer-key-file", file("peer.key")),
        arg("peer-trusted-ca-file", file("ca.crt")),
        arg("snapshot-count", "10000"),
        arg("trusted-ca-file", file("ca.crt")),
    ];
    if config.etcd_members.is_some() {
        arguments.push(arg("initial-cluster-state", "existing"));
    }
    arguments.extend(checks(config));
    arguments
}

/// The flags for etcd's own checks: below 3.6 they were experimental.
fn checks(config: &Config) -> [Arg; 2] {
    let version = Version::parse(images::etcd_tag(config));
    let below = version.is_none_or(|version| version.numbers < [3, 6, 0]);
    let experimental = match config.etcd_flags {
        EtcdFlags::Current => false,
        EtcdFlags::ByTag => below,
        EtcdFlags::Experimental => true,
    };
    if experimental {
        [
            arg("experimental-initial-corrupt-check", "true"),
            arg("experimental-watch-progress-notify-interval", "5s"),
        ]
    } else {
        [
            arg("feature-gates", "InitialCorruptCheck=true"),
            arg("watch-progress-notify-interval", "5s"),
        ]
    }
}

/// The server at which etcd's own health can be asked without a certificate, `http://HOST:PORT`, as its probes do; none if etcd is
/// external, or serves its metrics by TLS alone.
#[must_use]
pub fn metrics_server(config: &Config) -> Option<String> {
    let (target, port) = target(config, config.cluster.etcd.local.as_ref()?);
    let port = u16::try_from(port).ok()?;
    // Where it stands for all addresses, loopback is one of them.
    let host = match target.host.as_str() {
        "0.0.0.0" | "::" => config.init.local_api_endpoint.loopback(),
        host => host,
    };
    (target.scheme == "HTTP").then(|| format!("http://{}", address::join(host, port)))
}

/// Where the probes ask: at the first URL of metrics, with its host as it is written, also where it stands for all addresses. What it
/// lacks, and all of what Go's `url.Parse` does not take, is that of etcd without an argument.
fn target(config: &Config, local: &LocalEtcd) -> (Target, i64) {
    let urls = argument(&local.extra_args, "listen-metrics-urls").unwrap_or_default();
    let url = urls.split(',').next().unwrap_or_default();
    let (scheme, authority) = address::url_parts(url).unwrap_or_default();
    let authority = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port),
        _ => (authority, ""),
    };
    let host = match host.trim_start_matches('[').trim_end_matches(']') {
        "" => config.init.local_api_endpoint.loopback(),
        host => host,
    };
    let port = port.parse().ok().filter(|port| (1..=65535).contains(port));
    let is_secure = scheme.eq_ignore_ascii_case("https");
    let target = Target {
        host: host.to_owned(),
        scheme: if is_secure { "HTTPS" } else { "HTTP" },
    };
    (target, port.unwrap_or(METRICS.into()))
}
