//! A configuration, read, complete and valid.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::address;
pub use crate::components::ComponentConfig;
use crate::documents::{Documents, documents};
use crate::fields::{CLUSTER, INIT, KUBE_PROXY, KUBELET};
use crate::host::Host;
use crate::release::{EtcdFlags, Kubeadm, Version};
use crate::report::{Mistake, Position, Report};
use crate::schema::{Rules, decode};
pub use crate::types::{
    Arg, Cluster, Component, Dns, Endpoint, Etcd, ExternalEtcd, Init, LocalEtcd, Networking,
    NodeRegistration, Proxy, Timeouts, Token, Volume,
};
use crate::{components, default, validate};

/// When the mistakes of a configuration are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reported {
    /// After the first step that finds some, as by kubeadm, and of kubeadm's rules alone.
    ByStep,
    /// After all steps: for those that follow, a field that could not be read has its default. A node is to run by it, so that the rules of
    /// its components count too.
    AtOnce,
}

/// A configuration that can be rendered.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node.
    pub init: Init,
    /// The cluster.
    pub cluster: Cluster,
    /// `ClusterConfiguration` as the cluster keeps it.
    pub uploaded: Value,
    /// The kubelet's configuration.
    pub kubelet: ComponentConfig,
    /// kube-proxy's configuration.
    pub kube_proxy: ComponentConfig,
    /// The version of kubeadm whose way is taken.
    pub kubeadm: Kubeadm,
    /// The version of Kubernetes.
    pub kubernetes: Version,
    /// The flags of etcd.
    pub etcd_flags: EtcdFlags,
    /// The members, as `NAME=URL,…`, of an etcd that this node's joins; none if it is the first member.
    pub etcd_members: Option<String>,
    /// The image of kube-proxy, where that is not the one of the repository and the version.
    pub proxy_image: Option<String>,
    /// The addresses of the Service of CoreDNS; none if it has kubeadm's, the tenth one of the first subnet of services.
    pub dns_addresses: Vec<IpAddr>,
    /// Names of static pods to a hash of the kubeconfig that each reads once, at its start: with another one the kubelet makes the
    /// pod anew.
    pub kubeconfigs: BTreeMap<&'static str, String>,
    /// What a cloud calls this node's machine, for the kubelet to say it; none if the cluster is of no cloud.
    pub provider_id: Option<String>,
    /// What kubeadm takes with a warning.
    pub warnings: Vec<Mistake>,
}

/// Reads a configuration of YAML documents as this version of kubeadm reads it on this host.
///
/// # Errors
/// All mistakes of the first step that finds some, each with its field and position: reading, completing, or validating,
/// whose rules depend on the version that the step before has found.
pub fn read(text: &str, kubeadm: &str, host: &Host) -> Result<Config, Report> {
    let mut report = Report::default();
    let Some(kubeadm) = Kubeadm::of_configuration(kubeadm) else {
        let message = format!(
            "version {kubeadm:?} of kubeadm is not known; expected 1.32 from 1.32.13 on, 1.33 from 1.33.13 on, \
             1.34, 1.35 or 1.36 with a patch version"
        );
        report.refuse("", message);
        return Err(report);
    };
    let documents = documents(text, &mut report);
    match complete(&documents, &kubeadm, host, Reported::ByStep, &mut report) {
        Some(config) if report.mistakes.is_empty() => Ok(config),
        _ => Err(report),
    }
}

/// The configuration, unless mistakes are reported by step and a step before the validation found some.
pub(crate) fn complete(
    documents: &Documents,
    kubeadm: &Kubeadm,
    host: &Host,
    reported: Reported,
    report: &mut Report,
) -> Option<Config> {
    let before = report.mistakes.len();
    let rules = match reported {
        Reported::ByStep => Rules::Types,
        Reported::AtOnce => Rules::Components,
    };
    let mut decoded = |fields, node| decode(fields, node, kubeadm.release.minor, rules, report);
    let mut init = decoded(INIT, documents.init.as_ref());
    let mut cluster = decoded(CLUSTER, documents.cluster.as_ref());
    let kubelet = decoded(KUBELET, documents.kubelet.as_ref());
    let proxy = decoded(KUBE_PROXY, documents.proxy.as_ref());
    let unread = before..report.mistakes.len();
    sound(reported, report)?;
    default::init(&mut init, host, report);
    let init: Init = typed(init, report)?;
    default::cluster(
        &mut cluster,
        init.local_api_endpoint.bind_port,
        kubeadm,
        report,
    );
    sound(reported, report)?;
    default::addons(&mut cluster, &init.skip_phases);
    let uploaded = uploaded(&cluster);
    let cluster: Cluster = typed(cluster, report)?;
    validate::validate(&init, &cluster, kubeadm.release, report);
    name_once(report, unread);
    Some(Config {
        kubelet: components::kubelet(kubelet, documents.kubelet.as_ref(), &cluster, host.resolved),
        kube_proxy: components::kube_proxy(proxy, documents.proxy.as_ref(), &init, &cluster),
        kubernetes: Version::parse(&cluster.kubernetes_version)?,
        init,
        cluster,
        uploaded,
        kubeadm: kubeadm.clone(),
        etcd_flags: kubeadm.release.etcd_flags,
        etcd_members: None,
        proxy_image: None,
        dns_addresses: Vec::new(),
        kubeconfigs: BTreeMap::new(),
        provider_id: None,
        warnings: report.warnings.clone(),
    })
}

/// Nothing if there are mistakes, and they are reported by step.
fn sound(reported: Reported, report: &Report) -> Option<()> {
    (reported == Reported::AtOnce || report.mistakes.is_empty()).then_some(())
}

/// Takes out what later steps found where a value could not be read: they saw another value in its place.
fn name_once(report: &mut Report, unread: Range<usize>) {
    let later = report.mistakes.split_off(unread.end);
    let places: Vec<Option<Position>> = report.mistakes[unread].iter().map(|one| one.at).collect();
    let new = later
        .into_iter()
        .filter(|one| one.at.is_none() || !places.contains(&one.at));
    report.mistakes.extend(new);
}

/// The checked type of a decoded document. The fields' kinds are those of the type, so that only a mistake of ours fails.
fn typed<T: DeserializeOwned>(map: Map<String, Value>, report: &mut Report) -> Option<T> {
    let wrong = |error| format!("a mistake in Slipway's table of fields: {error}");
    let typed = serde_json::from_value(map.into()).map_err(wrong);
    typed.map_err(|message| report.refuse("", message)).ok()
}

fn uploaded(cluster: &Map<String, Value>) -> Value {
    let mut uploaded = cluster.clone();
    uploaded.insert("apiVersion".to_owned(), "kubeadm.k8s.io/v1beta4".into());
    uploaded.insert("kind".to_owned(), "ClusterConfiguration".into());
    uploaded.into()
}

impl Config {
    /// Whether a feature gate is on.
    #[must_use]
    pub fn gate(&self, name: &str) -> bool {
        let default = self
            .kubeadm
            .release
            .gates
            .iter()
            .find(|(known, _)| *known == name);
        let set = self.cluster.feature_gates.get(name).copied();
        set.unwrap_or_else(|| default.is_some_and(|(_, on)| *on))
    }

    /// Whether a phase of `kubeadm init` is left out, by its own name or that of the phase around it.
    #[must_use]
    pub fn skips(&self, phase: &str) -> bool {
        let group = phase.split('/').next().unwrap_or(phase);
        let skipped = &self.init.skip_phases;
        skipped.iter().any(|name| name == phase || name == group)
    }

    /// The URL of the whole control plane: of its endpoint, else of the API server on this node.
    #[must_use]
    pub fn control_plane_url(&self) -> String {
        match self.cluster.control_plane_endpoint.as_str() {
            "" => self.init.local_api_endpoint.url(),
            endpoint => match address::host_and_port(endpoint) {
                // Without brackets that the host does not need.
                Ok((host, port)) => format!("https://{}", address::join(host, port)),
                Err(_) => format!("https://{endpoint}"),
            },
        }
    }

    /// Host, without brackets, and port of that URL: what a pod asks that may run before kube-proxy has the rules for the Service of the API
    /// servers.
    pub(crate) fn control_plane_server(&self) -> (String, String) {
        let url = self.control_plane_url();
        let endpoint = url.trim_start_matches("https://");
        let (host, port) = address::host_and_port(endpoint).unwrap_or((endpoint, ""));
        let port = match port {
            "" => self.init.local_api_endpoint.bind_port.to_string(),
            port => port.to_owned(),
        };
        (host.to_owned(), port)
    }
}
