//! The place of a control plane among etcd's members, and a control plane whose etcd has lost its data while the node kept the rest:
//! its volume was replaced, or emptied.
//!
//! An etcd that began with nothing beside a cluster that goes on would be a second cluster with the same keys: kubelets that reach it
//! find no pod of theirs, and end them. So this node asks the others for a new place, and begins a new cluster only if somebody says so.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use cluster::address;
use cluster::object::Object;
use cluster::object::balancer::Server;
use image::kubelet::ADMIN_KUBECONFIG;
use linux::world::World;

use crate::etcd_member;
use crate::journal::Journal;
use crate::object::Bootstrap;
use crate::waiting::{Limits, wait};
use crate::{balancer, control_plane};
use api::Api;

/// What somebody can do.
const REMEDY: &str = "give it its volume back, name a control plane that has them (slipway-node etcd rejoin ADDRESS), or, if none has them \
                      any more, begin the cluster anew without them (slipway-node etcd begin-anew)";

/// How long the API server of another control plane may take to answer. A busy one takes seconds.
const ANSWER: Duration = Duration::from_secs(20);

/// Whether this node's etcd had data, by the node's journal, that are not there any more.
pub(crate) fn is_lost(world: &World, object: &Object, journal: &Journal) -> bool {
    let had = match &journal.member {
        Some(member) => member.promoted,
        None => object.further.is_none() && journal.has_begun(),
    };
    had && !etcd_member::has_data(world, &object.config)
}

/// Gives the journal of a control plane a place among etcd's members, if it needs one: a further control plane that has none, and one
/// that has no data (any more). What somebody does about it meanwhile, here or on another control plane, counts at once.
///
/// # Errors
/// Why it has none, once the limits are over.
pub(crate) fn find(
    world: &World,
    object: &Object,
    journal: &mut Journal,
    limits: Limits,
) -> Result<()> {
    if !needs_place(world, object, journal) {
        return Ok(());
    }
    let what = "a place among the members of etcd";
    let (found, is_new) = wait(world, limits, what, || {
        let mut journal = Journal::read(world)?.context("the journal of this node is gone")?;
        if !needs_place(world, object, &journal) {
            return Ok((journal, false));
        }
        let server =
            reach(world, object).map_err(|error| match is_lost(world, object, &journal) {
                true => error.context(lost("no other control plane answers")),
                false => error,
            })?;
        let known = journal.member.as_ref();
        let member = etcd_member::add(world, &object.config, &server, known)?;
        let is_new = journal.member.replace(member.clone()) != Some(member);
        Ok((journal, is_new))
    })?;
    *journal = found;
    if is_new {
        journal.write(world)?;
    }
    Ok(())
}

fn needs_place(world: &World, object: &Object, journal: &Journal) -> bool {
    match journal.member.is_none() && object.further.is_none() {
        true => is_lost(world, object, journal),
        false => journal.member.is_none() || !etcd_member::has_data(world, &object.config),
    }
}

/// Why there is nobody to ask.
const NONE_KNOWN: &str = "this node knows no other control plane";

fn lost(why: &str) -> String {
    format!("etcd's data are not on this node's volume, and {why}: {REMEDY}")
}

/// Waits until this node's member of etcd votes, and then writes the static pods beside it.
///
/// # Errors
/// Why it does not vote.
pub(crate) fn promote(
    world: &World,
    bootstrap: &Bootstrap,
    journal: &mut Journal,
    limits: Limits,
) -> Result<()> {
    let object = &bootstrap.object;
    // The kubelet's preparation, which asks for the place, may have failed so far, and this unit started beside its next attempt.
    let what = "a place among the members of etcd";
    *journal = wait(world, limits, what, || {
        let journal = Journal::read(world)?.context("kubelet-prepare asks for one")?;
        if is_lost(world, object, &journal) {
            bail!(lost("kubelet-prepare asks the others for a new place"));
        }
        let has_place = journal.member.is_some() || object.further.is_none();
        ensure!(has_place, "kubelet-prepare asks for one");
        Ok(journal)
    })?;
    let Some(member) = journal.member.as_mut().filter(|member| !member.promoted) else {
        return Ok(());
    };
    let id = member.id;
    wait(world, limits, "etcd's member on this node to vote", || {
        etcd_member::promote(world, &object.config, &reach(world, object)?, id)
    })?;
    member.promoted = true;
    journal.write(world)?;
    control_plane::manifests(world, bootstrap, journal)
}

/// Why this node's etcd cannot serve, if the other control planes know it: its member was taken out.
pub(crate) fn refusal(world: &World, object: &Object) -> Option<String> {
    let server = reach(world, object).ok()?;
    let journal = Journal::read(world).ok().flatten();
    let known = journal.as_ref().and_then(|journal| journal.member.as_ref());
    let error = etcd_member::standing(world, &object.config, &server, known).err()?;
    etcd_member::refused(&error).then(|| format!("{error:#}"))
}

/// The API servers that this node knows of, but for its own: the endpoint, those of the object, and those that the cluster gave last.
pub(crate) fn others(world: &World, object: &Object) -> Vec<Server> {
    let port = u16::try_from(object.config.init.local_api_endpoint.bind_port).ok();
    let own = object.address().zip(port);
    let is_own = |server: &Server| match (address::parse(&server.host), own) {
        (Some(found), Some((own, port))) => found == own && server.port == port,
        _ => false,
    };
    let listed = balancer::remembered(world, object).into_iter();
    let listed = listed.map(|address: SocketAddr| Server {
        host: address.ip().to_string(),
        port: address.port(),
    });
    let mut all: Vec<Server> = Vec::new();
    for server in object.known_servers().into_iter().chain(listed) {
        if !is_own(&server) && !all.contains(&server) {
            all.push(server);
        }
    }
    all
}

/// The administrator's client of the first other API server that serves.
///
/// # Errors
/// Why none does.
pub(crate) fn reach(world: &World, object: &Object) -> Result<Api> {
    let file = world.in_initrd(ADMIN_KUBECONFIG);
    let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let mut last = anyhow!(NONE_KNOWN);
    for server in others(world, object) {
        let url = format!("https://{server}");
        let api = Api::new(&text, &url).with_context(|| format!("reading {}", file.display()))?;
        let api = api.within(ANSWER);
        match api.healthy(SERVES) {
            Ok(()) => return Ok(api),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// What an API server answers with success when etcd answers it.
const SERVES: &str = "/livez/etcd";

/// Whether an error of [`SERVES`] says that no cluster is behind a server: it cannot be reached, or its etcd does not answer it. A
/// certificate that is refused, by either side, says nothing.
fn serves_not(error: &anyhow::Error) -> bool {
    api::is_unreachable(error) || api::status(error).is_some_and(|status| status.is_server_error())
}

/// Forgets the cluster that was lost, so that the next start of the kubelet begins it anew with the keys that are there.
///
/// # Errors
/// If this is not the first control plane of a cluster whose data are lost. Nothing is changed then.
pub(crate) fn begin_anew(world: &World, object: &Object) -> Result<()> {
    ensure!(
        object.further.is_none(),
        "this node joined a cluster of others, and begins none; name one of them: slipway-node etcd rejoin ADDRESS"
    );
    let mut journal = Journal::read(world)?.context("this node has no cluster yet")?;
    ensure!(
        is_lost(world, object, &journal),
        "etcd's data are on this node's volume, or were never there; nothing is changed"
    );
    for server in others(world, object) {
        let url = format!("https://{server}");
        let file = fs::read_to_string(world.in_initrd(ADMIN_KUBECONFIG));
        let api = Api::new(
            &file.context("reading the administrator's kubeconfig")?,
            &url,
        )?;
        match api.within(ANSWER).healthy(SERVES) {
            Ok(()) => bail!(
                "{server} serves this cluster; nothing is changed: slipway-node etcd rejoin {server} makes this node a member of it again"
            ),
            Err(error) if !serves_not(&error) => {
                return Err(error.context(format!(
                    "{server} answers, and may serve this cluster, which would then be there twice with the same keys; nothing is changed: \
                     find out, and stop that control plane before this one begins anew"
                )));
            }
            Err(_) => {}
        }
    }
    journal.forget();
    journal.write(world)
}

/// Notes a control plane that has the cluster's data.
///
/// # Errors
/// If it does not serve this cluster, or this node needs none. Nothing is changed then.
pub(crate) fn rejoin(world: &World, object: &Object, server: &Server) -> Result<SocketAddr> {
    let journal = Journal::read(world)?.context("this node has no cluster yet")?;
    ensure!(
        !etcd_member::has_data(world, &object.config)
            && (is_lost(world, object, &journal) || journal.member.is_some()),
        "etcd's data are on this node's volume, or were never there; nothing is changed"
    );
    let address = address::parse(&server.host)
        .with_context(|| format!("{server} is not an address; expected ADDRESS or ADDRESS:PORT"))?;
    let address = SocketAddr::new(address, server.port);
    let file = world.in_initrd(ADMIN_KUBECONFIG);
    let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let api = Api::new(&text, &format!("https://{server}"))?.within(ANSWER);
    api.healthy(SERVES)
        .with_context(|| format!("{server} does not serve this cluster; nothing is changed"))?;
    balancer::remember(world, object, address)?;
    Ok(address)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;
    use crate::samples::server;

    #[test]
    fn only_a_server_that_is_away_or_has_no_etcd_serves_no_cluster() {
        let said = |url: &str| {
            let api = Api::plain(url).unwrap().within(Duration::from_secs(5));
            serves_not(&api.healthy(SERVES).unwrap_err())
        };
        for (status, expected) in [
            (401, false),
            (403, false),
            (429, false),
            (500, true),
            (503, true),
        ] {
            let (url, _requests) = server(move |_| (status, "{}".to_owned()));
            assert_eq!(said(&url), expected, "{status}");
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        // It takes the connection and says nothing.
        let api = Api::plain(&url).unwrap().within(Duration::from_millis(300));
        assert!(!serves_not(&api.healthy(SERVES).unwrap_err()));
        drop(listener);
        assert!(said(&url));
    }
}
