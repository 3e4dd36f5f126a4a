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
mod tests {
    use cluster::manifests::identity;
    use serde_json::json;

    use super::*;
    use crate::samples::{Request, machine, server};
    use crate::{control_plane, object};

    #[test]
    fn objects_have_the_paths_of_their_kinds() {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "kube-system"}});
        assert_eq!(path(&map), "/api/v1/namespaces/kube-system/configmaps/a");
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "kubeadm:get-nodes"}});
        assert_eq!(
            path(&role),
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/kubeadm:get-nodes"
        );
    }

    #[test]
    fn an_object_is_applied_without_status_and_without_nulls() {
        let object = json!({"kind": "DaemonSet", "status": {"a": 0}, "spec": {"b": null, "c": [{"d": null, "e": 1}]}});
        let expected = json!({"kind": "DaemonSet", "spec": {"c": [{"e": 1}]}});
        assert_eq!(applied(object), expected);
    }

    const OBJECT: &str = "tokens = [\"abcdef.0123456789abcdef\"]\n[node]\naddress = \"10.0.0.7\"\nlabels = { zone = \"a\" }\n";

    /// An API server whose namespaces and default roles appear late, and that is overloaded once.
    fn late() -> impl FnMut(&Request) -> (u16, String) + Send {
        let mut answers = vec![
            (503, String::new()),
            (
                403,
                "{\"message\": \"clusterrole cluster-admin not found\"}".to_owned(),
            ),
            (
                404,
                "{\"message\": \"namespaces kube-public not found\"}".to_owned(),
            ),
            (429, "busy".to_owned()),
        ];
        move |_| match answers.is_empty() {
            true => (200, "{}".to_owned()),
            false => answers.remove(0),
        }
    }

    fn begun(root: &std::path::Path) -> (World, Bootstrap, Journal) {
        let world = machine(root, OBJECT);
        let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
        control_plane::prepare(&world, &bootstrap, |_| Ok(())).unwrap();
        let journal = Journal::read(&world).unwrap().unwrap();
        (world, bootstrap, journal)
    }

    #[test]
    fn objects_are_applied_in_order_and_what_has_not_changed_is_not_sent_again() {
        let folder = tempfile::tempdir().unwrap();
        let (world, bootstrap, mut journal) = begun(folder.path());
        let (url, requests) = server(late());
        let api = Api::plain(&url).unwrap();
        let sent = run(&world, &api, &bootstrap, &mut journal, false).unwrap();
        let (asked, all): (Vec<Request>, Vec<Request>) = requests
            .try_iter()
            .partition(|request| request.line.starts_with("GET "));
        // The token alone is looked for before it is made.
        let looks = asked.iter().map(|request| request.line.as_str());
        let token = "GET /api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef";
        assert!(looks.eq([token]), "{asked:#?}");
        assert_eq!(all.len(), sent + 4);
        // The same object is tried until it is taken; it is the one that admin.conf works by.
        let first = "PATCH /apis/rbac.authorization.k8s.io/v1/clusterrolebindings/kubeadm:cluster-admins\
                     ?fieldManager=slipway&force=true";
        assert!(
            all[..5].iter().all(|request| request.line == first),
            "{all:#?}"
        );
        assert!(
            all.iter()
                .all(|request| request.kind == "application/apply-patch+yaml")
        );
        let info = all
            .iter()
            .find(|request| request.line.contains("/cluster-info?"))
            .unwrap();
        let authority = fs::read(world.in_initrd("/etc/kubernetes/pki/ca.crt")).unwrap();
        assert!(
            info.body.contains(&BASE64.encode(&authority)),
            "{}",
            info.body
        );
        // Beyond kubeadm's: nodes read the list of the API servers, for their balancers.
        let role = all
            .iter()
            .find(|request| request.line.contains("/default/roles/slipway:api-servers?"))
            .unwrap();
        let rule = json!({"apiGroups": ["discovery.k8s.io"], "resourceNames": ["kubernetes"], "resources": ["endpointslices"], "verbs": ["get"]});
        assert!(role.body.contains(&rule.to_string()), "{}", role.body);
        assert!(all.iter().any(|request| {
            request
                .line
                .contains("/default/rolebindings/slipway:api-servers?")
        }));
        // The token is made once, also where the rest of the journal is lost to a change of all objects.
        let again = run(
            &world,
            &api,
            &bootstrap,
            &mut Journal::read(&world).unwrap().unwrap(),
            false,
        );
        assert_eq!(again.unwrap(), 0);
        journal.applied.clear();
        assert_eq!(
            run(&world, &api, &bootstrap, &mut journal, false).unwrap(),
            sent - 1
        );
        assert!(
            !requests
                .try_iter()
                .any(|request| request.line.contains(TOKEN))
        );
    }

    /// A power cut came between the token and the journal's entry: its end stays what it was.
    #[test]
    fn a_token_that_is_there_is_not_made_again_and_one_with_another_secret_is() {
        for (secret, made) in [("MDEyMzQ1Njc4OWFiY2RlZg==", 0), ("b3RoZXI=", 1)] {
            let folder = tempfile::tempdir().unwrap();
            let (world, bootstrap, mut journal) = begun(folder.path());
            let token = json!({"data": {"token-secret": secret}}).to_string();
            let (url, requests) = server(move |_| (200, token.clone()));
            let api = Api::plain(&url).unwrap();
            run(&world, &api, &bootstrap, &mut journal, false).unwrap();
            let written = requests.try_iter().filter(|request| {
                request.line.starts_with("PATCH ") && request.line.contains(TOKEN)
            });
            assert_eq!(written.count(), made, "{secret}");
            assert!(journal.tokens.contains("abcdef"));
        }
    }

    /// What an earlier object had is deleted if it is still this program's alone to delete.
    #[test]
    fn what_the_object_has_no_more_is_deleted_unless_others_have_a_part_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let (world, bootstrap, mut journal) = begun(folder.path());
        let (ours, theirs) = (
            "/apis/apps/v1/namespaces/kube-flannel/daemonsets/kube-flannel-ds",
            "/apis/apps/v1/namespaces/kube-system/daemonsets/other",
        );
        let (namespace, absent) = (
            "/api/v1/namespaces/kube-flannel",
            "/api/v1/namespaces/kube-flannel/configmaps/x",
        );
        let account = "/api/v1/namespaces/kube-flannel/serviceaccounts/flannel";
        let answer = move |request: &Request| {
            let with = |kind: &str, manager: &str| {
                let fields = json!([{"manager": manager, "operation": "Apply"}]);
                json!({"kind": kind, "metadata": {"uid": "u1", "managedFields": fields}})
            };
            let object = match request.line.as_str() {
                line if line == format!("GET {ours}") => with("DaemonSet", "slipway"),
                line if line == format!("GET {theirs}") => with("DaemonSet", "helm"),
                line if line == format!("GET {namespace}") => with("Namespace", "slipway"),
                line if line == format!("GET {absent}") => return (404, "{}".to_owned()),
                line if line == format!("GET {account}") => {
                    json!({"kind": "ServiceAccount", "metadata": {"uid": "u2"}})
                }
                _ => json!({}),
            };
            (200, object.to_string())
        };
        let (url, requests) = server(answer);
        let api = Api::plain(&url).unwrap();
        run(&world, &api, &bootstrap, &mut journal, false).unwrap();
        // The upload of the shared keys has an entry, and is nobody's object.
        for path in [ours, theirs, namespace, absent, account, SHARED] {
            journal.applied.insert(path.to_owned(), "0".repeat(64));
        }
        journal.write(&world).unwrap();
        let before = journal.clone();
        let _ = requests.try_iter().count();
        assert_eq!(
            run(&world, &api, &bootstrap, &mut journal, false).unwrap(),
            5
        );
        let deleted: Vec<Request> = requests
            .try_iter()
            .filter(|request| request.line.starts_with("DELETE "))
            .collect();
        let [other, request] = &deleted[..] else {
            panic!("{deleted:#?}");
        };
        assert_eq!(other.line, format!("DELETE {account}"));
        assert_eq!(request.line, format!("DELETE {ours}"));
        assert!(request.body.contains("\"uid\":\"u1\""), "{}", request.body);
        assert_eq!(Journal::read(&world).unwrap().unwrap(), journal);
        assert!(!journal.applied.contains_key(ours));
        assert!(journal.applied.contains_key(SHARED));
        // What another node applied is only forgotten.
        journal = before;
        assert_eq!(
            run(&world, &api, &bootstrap, &mut journal, true).unwrap(),
            5
        );
        assert!(
            requests
                .try_iter()
                .all(|request| !request.line.starts_with("DELETE "))
        );
    }

    #[test]
    fn nodes_may_read_each_other_where_their_routes_come_from_that() {
        for (cni, expected) in [("bridge", 2), ("none", 0)] {
            let folder = tempfile::tempdir().unwrap();
            let world = machine(folder.path(), &format!("cni = \"{cni}\"\n{OBJECT}"));
            let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
            control_plane::prepare(&world, &bootstrap, |_| Ok(())).unwrap();
            let objects = objects(&world, &bootstrap).unwrap();
            let ours = objects
                .iter()
                .filter(|object| object["metadata"]["name"] == "slipway:pod-routes");
            assert_eq!(ours.count(), expected, "{cni}");
        }
    }

    #[test]
    fn an_object_that_is_refused_for_good_is_named_with_the_servers_words() {
        let folder = tempfile::tempdir().unwrap();
        let (world, bootstrap, mut journal) = begun(folder.path());
        let (url, _requests) =
            server(|_| (422, "{\"message\": \"roleRef: cannot change\"}".to_owned()));
        let api = Api::plain(&url).unwrap();
        let error = run(&world, &api, &bootstrap, &mut journal, false).unwrap_err();
        let error = format!("{error:#}");
        assert!(
            error.contains("clusterrolebindings/kubeadm:cluster-admins"),
            "{error}"
        );
        assert!(
            error.ends_with("422 Unprocessable Entity: roleRef: cannot change"),
            "{error}"
        );
        assert!(journal.applied.is_empty());
    }

    /// As the Service of names, whose address does not change.
    #[test]
    fn what_is_refused_for_good_keeps_nothing_else_from_being_made() {
        let folder = tempfile::tempdir().unwrap();
        let (world, bootstrap, mut journal) = begun(folder.path());
        let refused = "/configmaps/kubelet-config?";
        let (url, requests) = server(move |request| match request.line.contains(refused) {
            true => (422, "{\"message\": \"field is immutable\"}".to_owned()),
            false => (200, "{}".to_owned()),
        });
        let api = Api::plain(&url).unwrap();
        let mut sent = || {
            let error = run(&world, &api, &bootstrap, &mut journal, false).unwrap_err();
            let error = format!("{error:#}");
            assert!(error.ends_with("field is immutable"), "{error}");
            let asked = requests.try_iter().map(|request| request.line);
            let sent: Vec<String> = asked.filter(|line| line.starts_with("PATCH ")).collect();
            sent
        };
        let first = sent();
        // The next attempt sends this one alone.
        let again = sent();
        assert!(again.len() == 1 && again[0].contains(refused), "{again:#?}");
        assert!(journal.tokens.contains("abcdef"));
        // The others, this one and the token.
        assert_eq!(first.len(), journal.applied.len() + 2);
        assert_eq!(Journal::read(&world).unwrap().unwrap(), journal);
    }

    /// The unit of the addons may not write beside `/run`, and asks which objects are the cluster's own.
    #[test]
    fn who_asks_which_objects_there_are_makes_no_certificate_for_one() {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(folder.path(), OBJECT);
        let file = world.in_run(image::paths::RUN_MANIFEST);
        let mut manifest: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        let image = "slipway.local/metrics-server:v0.9.0";
        manifest["kubernetes"]["images"]["metrics-server"] = image.into();
        fs::write(&file, manifest.to_string()).unwrap();
        let text = format!("{OBJECT}[addons]\nmetrics-server = true\n");
        fs::write(world.in_initrd(image::paths::CLUSTER), text).unwrap();
        let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
        control_plane::prepare(&world, &bootstrap, |_| Ok(())).unwrap();
        let known = objects(&world, &bootstrap).unwrap();
        let certificate = world.in_initrd("/var/lib/slipway/metrics-server.pem");
        assert!(!certificate.exists());
        // They are those that are applied.
        let made = metrics_server::objects(&world, &bootstrap.object).unwrap();
        assert!(certificate.exists() && !made.is_empty());
        for object in made {
            let own = identity(&object.value);
            assert!(known.iter().any(|known| identity(known) == own), "{own:?}");
        }
    }

    #[test]
    fn marks_are_added_to_what_a_node_has_and_none_is_taken_away() {
        let folder = tempfile::tempdir().unwrap();
        let (_, bootstrap, _) = begun(folder.path());
        let other = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
        let node = json!({
            "metadata": {"resourceVersion": "7", "labels": {"node-role.kubernetes.io/control-plane": ""}},
            "spec": {"taints": [other]},
        });
        let taint = json!({"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"});
        let expected = json!({
            "metadata": {
                "resourceVersion": "7",
                "labels": {"node.kubernetes.io/exclude-from-external-load-balancers": "", "zone": "a"},
            },
            "spec": {"taints": [other, taint]},
        });
        assert_eq!(marks(&bootstrap.object, &node), Some(expected.clone()));
        let mut marked = expected;
        marked["metadata"]["labels"]["node-role.kubernetes.io/control-plane"] = "".into();
        assert_eq!(marks(&bootstrap.object, &marked), None);
    }
}
