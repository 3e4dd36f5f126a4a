//! Discovery of a cluster by a worker: without trust, by the token's signature, by the pinned authority, with the token
//! (<https://kubernetes.io/docs/reference/setup-tools/kubeadm/kubeadm-join/>).

use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use cluster::discovery::{ClusterInfo, cluster_info};
use cluster::object::{Join, Object};
use cluster::release::Version;

use api::{Api, Trust};

/// What a cluster shows to everybody.
pub(crate) const INFO: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
/// The configuration of its kubelets, for nodes and those that join.
pub(crate) const KUBELET: &str = "/api/v1/namespaces/kube-system/configmaps/kubelet-config";
/// The node of a name, which is to follow.
pub(crate) const NODE: &str = "/api/v1/nodes/";
/// The version of an API server.
pub(crate) const VERSION: &str = "/version";

/// What a worker needs of its cluster.
#[derive(Debug)]
pub(crate) struct Discovered {
    /// The control plane and its authority.
    pub(crate) info: ClusterInfo,
    /// The configuration of all kubelets, YAML.
    pub(crate) kubelet: String,
    /// The version of the API server; none if it does not say one.
    pub(crate) version: Option<Version>,
}

/// Whose the name is under which this node joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// This node's: it has a certificate of the cluster for it.
    Own,
    /// Perhaps another machine's.
    Unproven,
}

/// Asks the control plane once whether this node may join, at the endpoint or else at the other servers that the object names; each request
/// may take so long. The token goes to a server of the pinned authority alone. A name that is this node's own may be that of a Ready node.
///
/// # Errors
/// The first reason not to trust or not to join the cluster.
pub(crate) fn discover(
    object: &Object,
    join: &Join,
    timeout: Duration,
    name: Name,
) -> Result<Discovered> {
    let endpoint = object.config.control_plane_url();
    let unproven = match name {
        Name::Own => None,
        Name::Unproven => Some(object.config.init.node_registration.name.as_str()),
    };
    let others = object.balancer.servers.iter();
    let others = others.map(|server| format!("https://{server}"));
    let mut reasons = Vec::new();
    for url in std::iter::once(endpoint.clone()).chain(others) {
        match discover_at(&url, url == endpoint, unproven, join, timeout) {
            Ok(found) => return Ok(found),
            Err(error) => reasons.push(error),
        }
    }
    // One reason stays as it is: remedies are known by their words.
    let reason = reasons
        .into_iter()
        .reduce(|all, next| anyhow!("{all:#}; {next:#}"));
    Err(reason.unwrap_or_else(|| anyhow!("no API server is known")))
}

/// Asks one server, the endpoint or another one that the object names; `unproven` is a name that no Ready node may have.
fn discover_at(
    endpoint: &str,
    is_endpoint: bool,
    unproven: Option<&str>,
    join: &Join,
    timeout: Duration,
) -> Result<Discovered> {
    let unverified = Api::without_certificate(endpoint, Trust::Anybody, timeout)?;
    let info = info(&unverified, join)?;
    let pinned = Trust::Authority(&info.pinned);
    let verified = Api::without_certificate(endpoint, pinned, timeout)?;
    let again = self::info(&verified, join).context("by TLS with the pinned authority")?;
    ensure!(
        again.kubeconfig == info.kubeconfig,
        "cluster-info is another one by TLS with the pinned authority: somebody changed it on the way, or it has just changed"
    );
    let authority = Trust::Authority(&info.authority);
    // Another server was asked since the endpoint does not answer.
    let server = match is_endpoint {
        true => info.server.as_str(),
        false => endpoint,
    };
    let api = Api::without_certificate(server, authority, timeout)?.with_token(&join.token);
    let map = api.get(KUBELET)?;
    let kubelet = map.as_ref().and_then(|map| map["data"]["kubelet"].as_str());
    let kubelet = kubelet.context("the cluster has no map kube-system/kubelet-config")?;
    if let Some(name) = unproven {
        refuse_ready(&api, name)?;
    }
    Ok(Discovered {
        kubelet: kubelet.to_owned(),
        version: version(&api),
        info,
    })
}

/// Refuses a name that a Ready node has, as kubeadm does: the control plane would give this machine that node's certificate, whose
/// pods would run here. One that is not Ready is this machine's own of before.
fn refuse_ready(api: &Api, name: &str) -> Result<()> {
    let node = api.get(&format!("{NODE}{name}"));
    let node = node.with_context(|| format!("asking whether there is a node {name:?}"))?;
    let conditions = node
        .as_ref()
        .and_then(|node| node["status"]["conditions"].as_array());
    let is_ready = conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
    ensure!(
        !is_ready,
        "the cluster has a node {name:?} that is Ready: another machine has this name, or this one was installed anew a moment ago"
    );
    Ok(())
}

/// Best effort: a cluster may have taken the right to ask for it away.
fn version(api: &Api) -> Option<Version> {
    match api.get(VERSION) {
        Ok(answer) => Version::parse(answer?["gitVersion"].as_str()?),
        Err(error) => {
            tracing::warn!("the API server does not say its version: {error:#}");
            None
        }
    }
}

fn info(api: &Api, join: &Join) -> Result<ClusterInfo> {
    let map = api.get(INFO)?;
    let map = map.context("the cluster has no map kube-public/cluster-info")?;
    Ok(cluster_info(&map, &join.token, &join.pins)?)
}
