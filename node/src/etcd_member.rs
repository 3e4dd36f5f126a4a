//! This node as a member of its cluster's etcd: added as a learner, promoted once it has caught up
//! (<https://etcd.io/docs/v3.6/learning/design-learner/>).

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use cluster::config::Config;
use cluster::etcd_members::{
    ADD, LIST, PROMOTE, Refusal, Step, initial_cluster, learner, members, of_member, step,
};
use cluster::static_pods::{etcd_client_url, etcd_peer_url};
use linux::world::World;
use serde_json::{Value, json};

use crate::journal::Member;
use api::Api;

/// The static pods of etcd. Each has its member's URL in an annotation, as kubeadm's has.
pub(crate) const PODS: &str =
    "/api/v1/namespaces/kube-system/pods?labelSelector=component%3Detcd%2Ctier%3Dcontrol-plane";
const URL: &str = "kubeadm.kubernetes.io/etcd.advertise-client-urls";
/// The certificate and key of the API server's client, below the folder of certificates.
const CLIENT: &str = "apiserver-etcd-client";
/// How long a request may take: a member without a leader does not answer, and the next one is asked.
const REQUEST: Duration = Duration::from_secs(10);
/// The folder of etcd's data below its `data-dir`.
const DATA: &str = "member";

/// The clients of the other members that the API server shows, in its order.
///
/// # Errors
/// If it shows none, or this node's certificates cannot be read.
fn clients(world: &World, config: &Config, server: &Api) -> Result<Vec<Api>> {
    let pods = server.get(PODS)?.unwrap_or_default();
    let pods = pods["items"].as_array().into_iter().flatten();
    let own = etcd_client_url(config);
    let urls = pods
        .filter_map(|pod| pod["metadata"]["annotations"][URL].as_str())
        .filter(|url| *url != own);
    let clients: Vec<Api> = urls
        .map(|url| client(world, config, url))
        .collect::<Result<_>>()?;
    ensure!(
        !clients.is_empty(),
        "the API server shows no pod of another member of etcd"
    );
    Ok(clients)
}

/// The client of the member at this URL.
///
/// # Errors
/// If this node's certificates cannot be read.
pub(crate) fn client(world: &World, config: &Config, url: &str) -> Result<Api> {
    let read = |name: &str| {
        let file = world.in_initrd(&format!("{}/{name}", config.cluster.certificates_dir));
        fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))
    };
    let (certificate, key) = (
        read(&format!("{CLIENT}.crt"))?,
        read(&format!("{CLIENT}.key"))?,
    );
    let client = Api::with_certificate(url, &read("etcd/ca.crt")?, &certificate, &key)?;
    Ok(client.within(REQUEST))
}

/// What the first member that answers says to a request.
fn ask(clients: &[Api], path: &str, body: &Value) -> Result<Value> {
    let mut last = anyhow!("etcd has no members");
    for client in clients {
        match client.post(path, body) {
            Ok(answer) => return Ok(answer),
            // Another member would say the same, but for one that has no leader or is a learner (503).
            Err(error) if api::status(&error).is_some_and(|status| !status.is_server_error()) => {
                return Err(error);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Whether this node has a member's data; so it is where etcd is not on the control planes.
pub(crate) fn has_data(world: &World, config: &Config) -> bool {
    let local = config.cluster.etcd.local.as_ref();
    local.is_none_or(|local| world.in_initrd(&local.data_dir).join(DATA).exists())
}

/// Whether this node can be what it is, by the members that the API server shows. Once.
///
/// # Errors
/// Why it cannot, or why it is not known: [`refused`] says which.
pub(crate) fn standing(world: &World, config: &Config, server: &Api) -> Result<()> {
    let all = members(&ask(&clients(world, config, server)?, LIST, &json!({}))?);
    let (name, peer) = (&config.init.node_registration.name, etcd_peer_url(config));
    step(&all, name, &peer, has_data(world, config))?;
    Ok(())
}

/// Makes this node a member that does not vote yet, unless it is one. Once.
///
/// # Errors
/// Why it is not one: [`refused`] says whether for good.
pub(crate) fn add(world: &World, config: &Config, server: &Api) -> Result<Member> {
    ensure!(
        config.cluster.etcd.local.is_some(),
        "the cluster's etcd is not on its control planes"
    );
    let clients = clients(world, config, server)?;
    let (name, peer) = (&config.init.node_registration.name, etcd_peer_url(config));
    let mut all = members(&ask(&clients, LIST, &json!({}))?);
    let own = match step(&all, name, &peer, has_data(world, config))? {
        Step::Resume(own) => own,
        Step::Add => {
            let answer = ask(&clients, ADD, &learner(&peer))?;
            all = members(&answer);
            let own = all.iter().find(|member| member.peers.contains(&peer));
            let own = own.context("etcd added a member and does not list it")?;
            tracing::info!("etcd has this node as a learner, {:x}", own.id);
            own.clone()
        }
    };
    Ok(Member {
        id: own.id,
        initial_cluster: initial_cluster(&all, name),
        promoted: false,
    })
}

/// Whether an error of [`add`] stays until somebody does something.
pub(crate) fn refused(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<Refusal>()
        .is_some_and(|refusal| !refusal.passes())
}

/// Makes this node's member one that votes, unless it is one. Once.
///
/// # Errors
/// Why it is not: etcd promotes a learner that has nearly all of the leader's log.
pub(crate) fn promote(world: &World, config: &Config, server: &Api, id: u64) -> Result<()> {
    let clients = clients(world, config, server)?;
    let all = members(&ask(&clients, LIST, &json!({}))?);
    let own = all.into_iter().find(|member| member.id == id);
    let Some(own) = own else {
        bail!("etcd has no member {id:x} any more: somebody removed it");
    };
    if !own.learner {
        return Ok(());
    }
    ensure!(
        !own.name.is_empty(),
        "etcd's member on this node has not started yet"
    );
    ask(&clients, PROMOTE, &of_member(id))?;
    tracing::info!("etcd's member on this node votes");
    Ok(())
}
