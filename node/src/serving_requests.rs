//! Requests of kubelets for their serving certificates: found at the API server, checked, and approved or left.
//!
//! Nothing is denied: a request that is left may be right once its Node has its addresses, and an administrator may approve it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::SystemTime;

use anyhow::{Context, Result};
use cluster::config::Config;
use cluster::duration::{Duration, time_after};
use cluster::serving::{Cluster, Right, Wrong, check, is_pending};
use image::paths::RUN_REQUESTS;
use linux::atomic_file;
use linux::world::World;
use reqwest::StatusCode;
use serde_json::{Value, json};

use api::{Api, Event, status};

/// The requests of all signers.
pub(crate) const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
/// Those of kubelets for serving certificates.
pub(crate) const SERVING: &str = "fieldSelector=spec.signerName%3Dkubernetes.io%2Fkubelet-serving";
/// All nodes.
pub(crate) const NODES: &str = "/api/v1/nodes";
/// The reason that the condition has.
const REASON: &str = "NodeAddressesMatch";

/// A request that nobody has decided over.
#[derive(Debug)]
pub(crate) struct Pending {
    /// Its name.
    pub(crate) name: String,
    /// Whether it is right.
    pub(crate) verdict: Result<Right, Wrong>,
    object: Value,
}

impl Pending {
    /// The user who made it.
    pub(crate) fn requester(&self) -> &str {
        self.object["spec"]["username"].as_str().unwrap_or_default()
    }

    /// The names of a request that is right, with commas.
    pub(crate) fn names(right: &Right) -> String {
        let names: Vec<String> = right.names.iter().map(ToString::to_string).collect();
        names.join(", ")
    }
}

/// The requests that nobody has decided over. Nodes are asked for only if there is one.
///
/// # Errors
/// If the API server does not answer, or refuses.
pub(crate) fn pending(api: &Api, config: &Config) -> Result<Vec<Pending>> {
    Ok(pending_since(api, config)?.0)
}

/// The same, and the version of the list.
fn pending_since(api: &Api, config: &Config) -> Result<(Vec<Pending>, String)> {
    let mut all = Vec::new();
    let version = api.list(&format!("{REQUESTS}?{SERVING}"), |request| {
        if is_pending(request) {
            all.push(request.clone());
        }
    })?;
    if all.is_empty() {
        return Ok((Vec::new(), version));
    }
    let mut cluster = Cluster::new(config);
    api.list(NODES, |node| cluster.add(node))?;
    let judged = |object: Value| Pending {
        name: object["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        verdict: check(&object, &cluster),
        object,
    };
    Ok((all.into_iter().map(judged).collect(), version))
}

/// Approves a request that is right, as it was checked. Returns whether this did: somebody else may have decided meanwhile.
///
/// # Errors
/// If the API server does not answer, or refuses.
pub(crate) fn approve(
    api: &Api,
    request: &Pending,
    right: &Right,
    now: SystemTime,
) -> Result<bool> {
    let mut object = request.object.clone();
    let message = format!(
        "slipway-node: the names of the request are addresses of the node {} alone",
        right.node
    );
    let time = time_after(now, Duration(0));
    let condition = json!({
        "type": "Approved",
        "status": "True",
        "reason": REASON,
        "message": message,
        "lastTransitionTime": time,
        "lastUpdateTime": time,
    });
    // The items of a list do not say what they are.
    object["apiVersion"] = "certificates.k8s.io/v1".into();
    object["kind"] = "CertificateSigningRequest".into();
    object["status"]["conditions"] = json!([condition]);
    // With its resourceVersion: an object that was changed or made anew since it was checked is refused.
    match api.put(&format!("{REQUESTS}/{}/approval", request.name), &object) {
        Ok(_) => Ok(true),
        Err(error)
            if [Some(StatusCode::CONFLICT), Some(StatusCode::NOT_FOUND)]
                .contains(&status(&error)) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// What one look found.
#[derive(Debug)]
pub(crate) struct Look {
    /// The version of the list of requests.
    pub(crate) version: String,
    /// Whether a request is left for a reason for which it was not left before.
    pub(crate) leaves_more: bool,
}

/// Approves each request that is right. The journal has each one that is approved, and of those that are left each reason once.
///
/// # Errors
/// If the API server does not answer, or refuses; one approval that fails holds up no other.
pub(crate) fn approve_all(
    world: &World,
    api: &Api,
    config: &Config,
    now: SystemTime,
) -> Result<Look> {
    let known = left_before(world)?;
    let mut left = BTreeMap::new();
    let mut failed = None;
    let mut leaves_more = false;
    let (all, version) = pending_since(api, config)?;
    for request in all {
        let name = &request.name;
        let right = match &request.verdict {
            Ok(right) => right,
            Err(wrong) => {
                let reason = wrong.to_string();
                if known.get(name) != Some(&reason) {
                    tracing::warn!("{name} is left: {reason}");
                    leaves_more = true;
                }
                left.insert(name.clone(), reason);
                continue;
            }
        };
        match approve(api, &request, right, now) {
            Ok(true) => tracing::info!(
                "{name} is approved: the node {} is {}",
                right.node,
                Pending::names(right)
            ),
            Ok(false) => tracing::debug!("{name} was decided over meanwhile"),
            Err(error) => {
                tracing::warn!("{name} is not approved: {error:#}");
                failed = failed.or(Some(error));
            }
        }
    }
    if left != known {
        let text = serde_json::to_vec(&left).context("writing the requests as JSON")?;
        let file = world.in_run(RUN_REQUESTS);
        atomic_file::write(&file, &text, 0o600)
            .with_context(|| format!("writing {}", file.display()))?;
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(Look {
            version,
            leaves_more,
        }),
    }
}

/// Waits until somebody makes a request after this version of the list, as long as this at most.
///
/// # Errors
/// If the API server does not answer, refuses, or no longer knows what happened after this version.
pub(crate) fn wait_for_another(api: &Api, version: &str, time: std::time::Duration) -> Result<()> {
    api.watch(
        &format!("{REQUESTS}?{SERVING}"),
        version,
        time,
        |event| match event {
            Event::Kept(request) if is_pending(&request) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        },
    )
}

/// The requests that were left by the run before, with the reasons. A file that is not read costs a line of the journal.
fn left_before(world: &World) -> Result<BTreeMap<String, String>> {
    let file = world.in_run(RUN_REQUESTS);
    let text = atomic_file::read(&file).with_context(|| format!("reading {}", file.display()))?;
    let known = text.and_then(|text| serde_json::from_slice(&text).ok());
    Ok(known.unwrap_or_default())
}

#[cfg(test)]
pub(crate) mod tests;
