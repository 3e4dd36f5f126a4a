//! This node as a member of its cluster's etcd: added as a learner, promoted once it has caught up
//! (<https://etcd.io/docs/v3.6/learning/design-learner/>).

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use cluster::config::Config;
use cluster::etcd_members::{
    ADD, LIST, PROMOTE, Refusal, Step, UPDATE, answering, at, initial_cluster, learner, members,
    of_member, step,
};
use cluster::static_pods::{etcd_client_url, etcd_peer_url, names_peer_urls};
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

/// Whether this node can be what it is, by the members that the API server shows; `known` is the member that its journal has. Once.
///
/// # Errors
/// Why it cannot, or why it is not known: [`refused`] says which.
pub(crate) fn standing(
    world: &World,
    config: &Config,
    server: &Api,
    known: Option<&Member>,
) -> Result<()> {
    let all = members(&ask(&clients(world, config, server)?, LIST, &json!({}))?);
    let (name, peer) = (&config.init.node_registration.name, etcd_peer_url(config));
    let known = known.map(|member| member.id);
    step(&all, name, &peer, has_data(world, config), known)?;
    Ok(())
}

/// Makes this node a member that does not vote yet, unless it is one; `known` is the member that its journal has. Once.
///
/// # Errors
/// Why it is not one: [`refused`] says whether for good.
pub(crate) fn add(
    world: &World,
    config: &Config,
    server: &Api,
    known: Option<&Member>,
) -> Result<Member> {
    ensure!(
        config.cluster.etcd.local.is_some(),
        "the cluster's etcd is not on its control planes"
    );
    let clients = clients(world, config, server)?;
    let (name, peer) = (&config.init.node_registration.name, etcd_peer_url(config));
    let mut all = members(&ask(&clients, LIST, &json!({}))?);
    let known = known.map(|member| member.id);
    let own = match step(&all, name, &peer, has_data(world, config), known)? {
        Step::Resume(own) => own,
        Step::Move(own) => {
            all = members(&ask(&clients, UPDATE, &at(own.id, &peer))?);
            tracing::info!(
                "etcd has this node as a learner, {:x}, at {peer} now",
                own.id
            );
            own
        }
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

/// Lets this node's member say where it is, if the machine's address is another one than when it was added: the others would look for it
/// at the earlier one, and a member that is added later could not start. Returns whether it was elsewhere. Addresses that the object names
/// stay.
///
/// # Errors
/// If the member does not answer, or the cluster's etcd does not take it now.
pub(crate) fn follow_address(world: &World, config: &Config) -> Result<bool> {
    if config.cluster.etcd.local.is_none() || names_peer_urls(config) {
        return Ok(false);
    }
    let own = client(world, config, &etcd_client_url(config))?;
    follow(&own, &etcd_peer_url(config))
}

/// The same of the member that this client asks.
fn follow(own: &Api, peer: &str) -> Result<bool> {
    let answer = own.post(LIST, &json!({}))?;
    let id = answering(&answer).context("etcd does not say which member it is")?;
    let member = members(&answer).into_iter().find(|member| member.id == id);
    // One that was taken out is not listed any more, and ends by itself.
    let Some(member) = member.filter(|member| !member.peers.iter().any(|known| known == peer))
    else {
        return Ok(false);
    };
    own.post(UPDATE, &at(id, peer))?;
    tracing::info!(
        "etcd's other members reach this node's at {peer} from now on, in place of {}",
        member.peers.join(", ")
    );
    Ok(true)
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
    let peer = etcd_peer_url(config);
    if !own.peers.contains(&peer) && !names_peer_urls(config) {
        // The leader sends its log to where the member is said to be.
        ask(&clients, UPDATE, &at(id, &peer))?;
        tracing::info!("etcd's member on this node is at {peer} now");
    }
    ensure!(
        !own.name.is_empty(),
        "etcd's member on this node has not started yet"
    );
    ask(&clients, PROMOTE, &of_member(id))?;
    tracing::info!("etcd's member on this node votes");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::server;

    const PEER: &str = "https://10.0.0.8:2380";

    /// The others would look for it at the address of before, and one that joins later could not start.
    #[test]
    fn a_member_says_where_it_is_if_it_is_not_where_it_was_added() {
        for (before, moves) in [("https://10.0.0.9:2380", true), (PEER, false)] {
            let answer = json!({
                "header": {"member_id": "255"},
                "members": [
                    {"ID": "7", "name": "cp1", "peerURLs": ["https://10.0.0.7:2380"]},
                    {"ID": "255", "name": "cp2", "peerURLs": [before]},
                ],
            });
            let (url, asked) = server(move |_| (200, answer.to_string()));
            assert_eq!(follow(&Api::plain(&url).unwrap(), PEER).unwrap(), moves);
            let updates: Vec<_> = asked
                .try_iter()
                .filter(|request| request.line == format!("POST {UPDATE}"))
                .map(|request| request.body)
                .collect();
            let expected = format!("{{\"ID\":\"255\",\"peerURLs\":[\"{PEER}\"]}}");
            assert_eq!(updates, vec![expected; usize::from(moves)], "{before}");
        }
        // One that was taken out, and one that does not say which it is.
        for (header, is_error) in [(json!({"member_id": "3"}), false), (json!({}), true)] {
            let answer = json!({"header": header, "members": []});
            let (url, asked) = server(move |_| (200, answer.to_string()));
            let followed = follow(&Api::plain(&url).unwrap(), PEER);
            assert_eq!(followed.is_err(), is_error);
            assert_eq!(asked.try_iter().count(), 1);
        }
    }
}
