//! The objects of the cluster, applied in their order; what has not changed since is not sent again.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use cluster::cloud_controller;
use cluster::duration::{self, time_after};
use cluster::flannel;
use cluster::manifests::LEFT;
use cluster::object::{Cni, Object};
use cluster::objects::{Action, Moment, administrators, api_servers_readers, pod_routes};
use cluster::render::render;
use data_encoding::BASE64;
use linux::waiter::Waiter;
use linux::world::World;
use serde_json::Value;

use crate::control_plane::{authority, sha256};
use crate::journal::{Journal, SHARED};
use crate::metrics_server;
use crate::object::Bootstrap;
use crate::unset_clock::{self, Reading};
use api::{Api, MANAGER, is_temporary, path};

/// How long the API server may refuse an object that it takes later.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often it is asked again.
const AGAIN: Duration = Duration::from_millis(250);
/// The prefix of the secrets of bootstrap tokens.
const TOKEN: &str = "bootstrap-token-";

/// This moment of the bootstrap.
struct Now<'a> {
    world: &'a World,
    authority: String,
    time: SystemTime,
}

impl Moment for Now<'_> {
    fn authority(&self) -> String {
        BASE64.encode(self.authority.as_bytes())
    }

    fn expiry(&self, validity: duration::Duration) -> String {
        BASE64.encode(time_after(self.time, validity).as_bytes())
    }

    fn token(&self) -> String {
        // 32 hexadecimal digits: enough for 6 and 16.
        let digits = self.world.random_guid().map(|guid| guid.to_string());
        let digits = digits.unwrap_or_default().to_lowercase().replace('-', "");
        match (digits.get(..6), digits.get(6..22)) {
            (Some(id), Some(secret)) => format!("{id}.{secret}"),
            _ => String::new(),
        }
    }
}

/// Applies what has changed since the journal's last entry, and deletes what the object has no more. Returns how many objects were sent
/// and deleted.
///
/// What another node applied (`takes_over`) is not deleted: its object may have had more than this node's.
///
/// # Errors
/// The first object that the API server refuses for good, once all others are applied; one that it refuses for longer than two minutes.
pub(crate) fn run(
    world: &World,
    api: &Api,
    bootstrap: &Bootstrap,
    journal: &mut Journal,
    takes_over: bool,
) -> Result<usize> {
    let mut sent = 0;
    let mut refused = None;
    let mut paths = BTreeSet::new();
    let by = Reading::now(world);
    let metrics_server = metrics_server::objects(world, &bootstrap.object)?;
    for value in objects_at(world, bootstrap, by.wall, metrics_server)? {
        let made = match token(&value) {
            Some(_) if takes_over => Ok(false),
            Some(id) => make_token(world, api, journal, &by, &id, &value),
            None => {
                let path = path(&value);
                paths.insert(path.clone());
                send_changed(world, api, journal, path, &value)
            }
        };
        match made {
            Ok(is_sent) => sent += usize::from(is_sent),
            Err(error) if is_temporary(&error) => return Err(error),
            // It stays refused until somebody looks at it, and what else is to be made does not wait for that.
            Err(error) => {
                tracing::warn!("an object of the cluster is refused: {error:#}");
                refused = refused.or(Some(error));
            }
        }
    }
    let gone: Vec<String> = journal
        .applied
        .keys()
        .filter(|path| *path != SHARED && !paths.contains(*path))
        .cloned()
        .collect();
    for path in &gone {
        match takes_over {
            true => tracing::warn!(
                "left {path}: another node applied it, and the object of this one does not have it"
            ),
            false => delete(world, api, path)?,
        }
        journal.applied.remove(path);
    }
    metrics_server::forget(world, &bootstrap.object)?;
    if sent + gone.len() > 0 || takes_over {
        journal.write(world)?;
    }
    match refused {
        Some(error) => Err(error),
        None => Ok(sent + gone.len()),
    }
}

/// Sends an object unless it is the one that was applied last. Returns whether it was sent.
fn send_changed(
    world: &World,
    api: &Api,
    journal: &mut Journal,
    path: String,
    value: &Value,
) -> Result<bool> {
    let hash = sha256(value.to_string().as_bytes());
    if journal.applied.get(&path) == Some(&hash) {
        return Ok(false);
    }
    send(world, api, &path, value)?;
    journal.applied.insert(path, hash);
    Ok(true)
}

/// Makes the bootstrap tokens that were not made before, and nothing else. Returns how many were sent.
///
/// # Errors
/// As [`run`].
pub(crate) fn tokens(
    world: &World,
    api: &Api,
    bootstrap: &Bootstrap,
    journal: &mut Journal,
) -> Result<usize> {
    let mut sent = 0;
    let by = Reading::now(world);
    for value in objects_at(world, bootstrap, by.wall, Vec::new())? {
        if let Some(id) = token(&value) {
            sent += usize::from(make_token(world, api, journal, &by, &id, &value)?);
        }
    }
    Ok(sent)
}

/// The id of a bootstrap token, if the object is one.
fn token(object: &Value) -> Option<String> {
    let name = object["metadata"]["name"].as_str()?;
    name.strip_prefix(TOKEN).map(str::to_owned)
}

/// Makes a bootstrap token that was not made before, with an end by this reading of the clock. Returns whether it was sent.
fn make_token(
    world: &World,
    api: &Api,
    journal: &mut Journal,
    by: &Reading,
    id: &str,
    token: &Value,
) -> Result<bool> {
    if journal.tokens.contains(id) {
        return Ok(false);
    }
    let path = path(token);
    let _alone = unset_clock::alone(world)?;
    // A cut between the token and its entry leaves it here: made once more it would end later than it was given.
    let is_new = !is_there(world, api, &path, token)?;
    if is_new {
        unset_clock::note(world, by, &path, token, None)?;
        send(world, api, &path, token)?;
    }
    // Written at once: a token that is made anew is valid for longer than it was given.
    journal.tokens.insert(id.to_owned());
    journal.write(world)?;
    Ok(is_new)
}

/// Deletes an object that this program applied, unless its kind has contents of others, or nobody knows it as this program's any more.
fn delete(world: &World, api: &Api, path: &str) -> Result<()> {
    patiently(world, &format!("the deletion of {path}"), || {
        let Some(object) = api.get(path)? else {
            return Ok(());
        };
        let managers = object["metadata"]["managedFields"].as_array();
        let managers = managers.map_or(&[][..], Vec::as_slice);
        // An object that is nothing but its name (a service account) has no field that anybody manages.
        let ours = managers.is_empty() || managers.iter().any(|entry| entry["manager"] == MANAGER);
        let kind = object["kind"].as_str().unwrap_or_default();
        if !ours || LEFT.contains(&kind) {
            tracing::warn!(
                "left {path}: the cluster object has it no more; what is in it, or who has it now, would be hurt"
            );
            return Ok(());
        }
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        api.delete(path, uid)?;
        tracing::info!("deleted {path}: the cluster object has it no more");
        Ok(())
    })
}

/// The objects, for who has to know which they are: first what makes `admin.conf` work. Those of metrics-server have no certificate, which
/// is made where they are applied; the addons' unit may not write it.
pub(crate) fn objects(world: &World, bootstrap: &Bootstrap) -> Result<Vec<Value>> {
    let metrics_server = metrics_server::known(&bootstrap.object);
    objects_at(world, bootstrap, SystemTime::now(), metrics_server)
}

fn objects_at(
    world: &World,
    bootstrap: &Bootstrap,
    time: SystemTime,
    metrics_server: Vec<cluster::objects::Object>,
) -> Result<Vec<Value>> {
    let Bootstrap { object, host } = bootstrap;
    let file = world.in_initrd(&authority(object));
    let authority =
        fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let now = Now {
        world,
        authority,
        time,
    };
    let rendered = render(&object.config, host, &now).objects.into_iter();
    let bridge = (object.cni == Cni::Bridge).then(pod_routes);
    let flannel = (object.cni == Cni::Flannel)
        .then(|| flannel::objects(&object.config, &object.flannel_image));
    let cloud = object.cloud_controller.as_ref();
    let cloud = cloud.map(|controller| cloud_controller::objects(&object.config, controller));
    let all = std::iter::once(administrators())
        .chain(rendered)
        .chain(api_servers_readers())
        .chain(bridge.into_iter().flatten())
        .chain(flannel.into_iter().flatten())
        .chain(cloud.into_iter().flatten())
        .chain(metrics_server);
    let made = all.filter(|object| object.action == Action::Create);
    Ok(made.map(|object| applied(object.value)).collect())
}

/// An object as it is applied: without its status, and without fields that are nothing.
fn applied(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    without_nulls(&mut object);
    object
}

fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(without_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

fn send(world: &World, api: &Api, path: &str, object: &Value) -> Result<()> {
    let what = format!("the API server to take {path}");
    patiently(world, &what, || api.apply(path, object))
}

/// Whether the API server has a bootstrap token with this secret.
fn is_there(world: &World, api: &Api, path: &str, token: &Value) -> Result<bool> {
    let what = format!("the API server to look for {path}");
    let found = patiently(world, &what, || api.get(path))?;
    let secret = |of: &Value| of["data"]["token-secret"].clone();
    Ok(found.is_some_and(|found| secret(&found) == secret(token)))
}

/// Tries until it succeeds, fails for good, or two minutes are over.
fn patiently<T>(world: &World, what: &str, attempt: impl Fn() -> Result<T>) -> Result<T> {
    let mut waiter = Waiter::until(world, PATIENCE);
    loop {
        match attempt() {
            Err(error) if is_temporary(&error) && !waiter.is_over() => {
                waiter.say(&format!("{what}: {error:#}"));
                waiter.attempted();
                waiter.sleep(AGAIN);
            }
            result => return result,
        }
    }
}

/// The change that gives a node the labels and taints of a control plane; none if it has them.
pub(crate) fn marks(object: &Object, node: &Value) -> Option<Value> {
    let marks = cluster::objects::marks(&object.config);
    let mut labels = serde_json::Map::new();
    let own = object
        .labels
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    for (name, value) in marks.labels.iter().map(|name| (*name, "")).chain(own) {
        if node["metadata"]["labels"][name] != value {
            labels.insert(name.to_owned(), value.into());
        }
    }
    let mut taints = node["spec"]["taints"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let before = taints.len();
    for taint in &marks.taints {
        let same =
            |other: &Value| other["key"] == taint["key"] && other["effect"] == taint["effect"];
        if !taints.iter().any(same) {
            taints.push(taint.clone());
        }
    }
    let mut change =
        serde_json::json!({"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}});
    if labels.is_empty() && taints.len() == before {
        return None;
    }
    if !labels.is_empty() {
        change["metadata"]["labels"] = labels.into();
    }
    if taints.len() > before {
        change["spec"]["taints"] = taints.into();
    }
    Some(change)
}

#[cfg(test)]
mod tests;
