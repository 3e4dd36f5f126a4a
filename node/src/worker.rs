//! A worker's way to Ready: its certificate, its node, the network of its pods.

use std::fs;

use anyhow::{Context, Result, anyhow};
use cluster::identity::{requester, user};
use cluster::kubeconfigs;
use cluster::object::Join;
use data_encoding::BASE64;
use image::kubelet::BOOTSTRAP_KUBECONFIG;
use linux::atomic_file;
use linux::world::World;
use serde_json::Value;

use crate::identity::{self, Identity};
use crate::join::{self, REQUEST};
use crate::journal::Journal;
use crate::object::Bootstrap;
use crate::steps::step;
use crate::waiting::{Limits, wait};
use crate::{kubelet_server, own_node};
use api::{Api, Server, Trust};

/// The requests of kubelets for their certificates.
pub(crate) const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests\
    ?fieldSelector=spec.signerName%3Dkubernetes.io%2Fkube-apiserver-client-kubelet";
/// The control plane is asked about the certificate's request less often than its file is looked for.
const ASK_EVERY: u32 = 10;

/// Waits until the node of this worker is Ready.
///
/// # Errors
/// What was waited for, and the last reason why it is not there.
pub(crate) fn bring_up(
    world: &World,
    bootstrap: &Bootstrap,
    join: &Join,
    limits: Limits,
) -> Result<()> {
    let object = &bootstrap.object;
    let journal = Journal::read(world)?;
    // What keeps the node from joining is said here too: this unit is the one that people look at.
    join::refuse_another(world, object, join, journal.as_ref())?;
    journal
        .filter(|journal| journal.authority.is_some())
        .context("this node has not joined its cluster yet: kubelet-prepare does it")?;
    let name = &object.config.init.node_registration.name;
    let identity = step(world, "certificate", || {
        identified(world, limits, name, join)
    })?;
    // Nobody needs the token here any more.
    let credentials = world.in_initrd(BOOTSTRAP_KUBECONFIG);
    atomic_file::remove(&credentials)
        .with_context(|| format!("removing {}", credentials.display()))?;
    kubelet_server::redirect(world, object)?;
    let api = identity.api()?;
    own_node::registered(world, limits, &api, name)?;
    own_node::up(world, limits, &api, object)
}

/// Waits for the certificate that the kubelet requests.
fn identified(world: &World, limits: Limits, name: &str, join: &Join) -> Result<Identity> {
    let what = format!("the certificate of node {name}");
    let (mut looks, mut reason) = (0, String::new());
    wait(world, limits, &what, || {
        let absent = match identity::read(world, name)? {
            Ok(identity) => return Ok(identity),
            Err(absent) => absent,
        };
        if looks % ASK_EVERY == 0 {
            reason = match requested(world, name, join) {
                Ok(state) => state,
                Err(error) => format!("{absent}; {error:#}"),
            };
        }
        looks += 1;
        Err(anyhow!(reason.clone()))
    })
}

/// The client of the control plane with the token, as the kubelet has it until it has a certificate.
///
/// # Errors
/// If there are no credentials.
pub(crate) fn bootstrap_api(world: &World, join: &Join) -> Result<Api> {
    let file = world.in_initrd(BOOTSTRAP_KUBECONFIG);
    let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let given = kubeconfigs::read(&text).context("not a kubeconfig")?;
    let authority = given.authority.unwrap_or_default();
    let server = Server {
        url: &given.server,
        name: given.server_name.as_deref(),
    };
    let api = Api::without_certificate(server, Trust::Authority(&authority), REQUEST)?;
    Ok(api.with_token(&join.token))
}

/// The state of this node's request for a certificate.
///
/// # Errors
/// If the control plane does not say it.
pub(crate) fn requested(world: &World, name: &str, join: &Join) -> Result<String> {
    let mut own = Vec::new();
    bootstrap_api(world, join)?.list(REQUESTS, |request| {
        if is_of(request, name) {
            own.push(request.clone());
        }
    })?;
    Ok(state(&own))
}

/// Whether a node made this request.
fn is_of(request: &Value, node: &str) -> bool {
    let text = request["spec"]["request"].as_str().unwrap_or_default();
    let text = BASE64.decode(text.as_bytes()).ok();
    let text = text.and_then(|text| String::from_utf8(text).ok());
    text.and_then(|text| requester(&text)) == Some(user(node))
}

/// The state of the last of a node's requests.
fn state(requests: &[Value]) -> String {
    let time = |request: &&Value| request["metadata"]["creationTimestamp"].to_string();
    let Some(request) = requests.iter().max_by_key(time) else {
        return "the kubelet has not requested one".to_owned();
    };
    let name = request["metadata"]["name"].as_str().unwrap_or_default();
    let conditions = request["status"]["conditions"].as_array();
    let condition = |kind: &str| {
        let mut all = conditions.into_iter().flatten();
        all.find(|condition| condition["type"] == kind)
    };
    let said = |condition: &Value| {
        let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
        format!("{}: {}", text("reason"), text("message"))
    };
    match (
        condition("Denied"),
        condition("Failed"),
        condition("Approved"),
    ) {
        (Some(denied), ..) => format!("its request {name} is denied: {}", said(denied)),
        (_, Some(failed), _) => format!("its request {name} has failed: {}", said(failed)),
        (.., Some(_)) => {
            format!("its request {name} is approved; the kubelet has not taken it yet")
        }
        _ => format!("its request {name} is not approved yet"),
    }
}

#[cfg(test)]
mod tests;
