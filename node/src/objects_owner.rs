//! Which control plane applies the cluster's own objects: the one that began the cluster, and once its node is gone another one at its
//! next start. So what a later image or object has (CoreDNS, kube-proxy, flannel, metrics-server) reaches a cluster whose first node was
//! replaced.
//!
//! A record in the cluster names that node, what it applied last, and for which version of Kubernetes. A control plane of an older version
//! leaves the objects as they are, as long as there is one of a newer version than its own: in the middle of an upgrade older objects would
//! take the place of newer ones. A cluster without a record was begun by kubeadm: its objects are its.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use api::{Api, is_temporary, status};
use cluster::release::Version;
use linux::world::World;
use serde_json::{Value, json};

use crate::apply;
use crate::journal::{Journal, SHARED};
use crate::object::Bootstrap;
use crate::own_node;
use crate::waiting::{Limits, wait};

/// Where the records of this system are.
const MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";
/// The record's name.
const NAME: &str = "slipway-objects";
/// The node's name in it.
const NODE: &str = "node";
/// The objects that it applied, by their paths in the API, to SHA-256 of each, as JSON.
const APPLIED: &str = "applied";
/// The version of Kubernetes that they are for.
const KUBERNETES: &str = "kubernetes";
/// The nodes of control planes.
const CONTROL_PLANES: &str = "/api/v1/nodes?labelSelector=node-role.kubernetes.io%2Fcontrol-plane";

/// The record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Record {
    node: String,
    applied: BTreeMap<String, String>,
    /// None of a program that did not record it.
    kubernetes: Option<String>,
    /// The version that the API server has; none if there is no record yet.
    version: Option<String>,
}

impl Record {
    /// Reads a `ConfigMap`.
    fn read(map: &Value) -> Result<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let data = &map["data"];
        let applied = data[APPLIED].as_str().unwrap_or("{}");
        Ok(Self {
            node: text(&data[NODE]).with_context(|| format!("ConfigMap {NAME} names no node"))?,
            applied: serde_json::from_str(applied)
                .with_context(|| format!("reading ConfigMap {NAME}"))?,
            kubernetes: text(&data[KUBERNETES]),
            version: text(&map["metadata"]["resourceVersion"]),
        })
    }

    /// The `ConfigMap`.
    fn map(&self) -> Result<Value> {
        let mut metadata = json!({"name": NAME, "namespace": "kube-system"});
        if let Some(version) = &self.version {
            metadata["resourceVersion"] = version.as_str().into();
        }
        let mut data = json!({
            NODE: self.node,
            APPLIED: serde_json::to_string(&self.applied).context("writing as JSON")?,
        });
        if let Some(kubernetes) = &self.kubernetes {
            data[KUBERNETES] = kubernetes.as_str().into();
        }
        Ok(json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": data,
        }))
    }
}

/// Who applies the objects of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The name of the node that did so last.
    pub(crate) node: String,
    /// Why this node, whose turn it is, leaves them as they are; none if it does not.
    pub(crate) left: Option<String>,
}

/// Who applies the objects of the cluster; none in a cluster that kubeadm began.
///
/// # Errors
/// If the API server does not answer, or the record cannot be read.
pub(crate) fn owner(api: &Api, bootstrap: &Bootstrap) -> Result<Option<Owner>> {
    let Some(map) = api.get(&format!("{MAPS}/{NAME}"))? else {
        return Ok(None);
    };
    let record = Record::read(&map)?;
    let left = match turn(api, bootstrap, &record)? {
        Turn::Left(reason) => Some(reason),
        Turn::Own | Turn::Other => None,
    };
    Ok(Some(Owner {
        node: record.node,
        left,
    }))
}

/// Whose turn it is to apply the objects of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Turn {
    /// This node's.
    Own,
    /// The node's that did so last.
    Other,
    /// This node's, and it leaves them as they are, for this reason.
    Left(String),
}

/// Whose turn it is, by the record.
fn turn(api: &Api, bootstrap: &Bootstrap, record: &Record) -> Result<Turn> {
    let config = &bootstrap.object.config;
    let (own, version) = (&config.init.node_registration.name, &config.kubernetes);
    if record.node != *own && api.get(&own_node::path(&record.node))?.is_some() {
        return Ok(Turn::Other);
    }
    let recorded = record.kubernetes.as_deref().and_then(Version::parse);
    let Some(recorded) = recorded.filter(|recorded| version.is_older_than(recorded)) else {
        return Ok(Turn::Own);
    };
    let mut newer = None;
    api.list(CONTROL_PLANES, |node| {
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        let kubelet = node["status"]["nodeInfo"]["kubeletVersion"].as_str();
        let kubelet = kubelet.and_then(Version::parse);
        // The kubelet of a control plane is not newer than its API server.
        if name != own && kubelet.is_some_and(|kubelet| version.is_older_than(&kubelet)) {
            newer = Some(name.to_owned());
        }
    })?;
    let node = &record.node;
    Ok(match newer {
        Some(newer) => Turn::Left(format!(
            "node {node} applied them for Kubernetes {recorded}, and this node is of {version}; they stay as they are while node {newer} \
             is of a newer version"
        )),
        None => Turn::Own,
    })
}

/// Applies what has changed if it is this node's turn. Returns how many objects were sent and deleted; none if another node has them, or
/// if this one leaves them as they are.
///
/// # Errors
/// If the API server does not answer, or refuses an object. One that is refused for good keeps no other from being applied and recorded.
pub(crate) fn run(
    world: &World,
    limits: Limits,
    api: &Api,
    bootstrap: &Bootstrap,
    journal: &mut Journal,
) -> Result<Option<usize>> {
    let own = &bootstrap.object.config.init.node_registration.name;
    let path = format!("{MAPS}/{NAME}");
    let what = "who applies the objects of the cluster";
    let found = wait(world, limits, what, || {
        let Some(map) = api.get(&path)? else {
            return Ok(None);
        };
        let record = Record::read(&map)?;
        let turn = turn(api, bootstrap, &record)?;
        Ok(Some((record, turn)))
    })?;
    let before = match found {
        None if bootstrap.object.further.is_some() => return Ok(None),
        None => Record::default(),
        Some((record, Turn::Other)) => {
            tracing::info!("node {} applies the objects of the cluster", record.node);
            return Ok(None);
        }
        Some((record, Turn::Left(reason))) => {
            tracing::warn!("the objects of the cluster are left: {reason}");
            // Those of another node's object are not this one's to make.
            if record.node == *own {
                apply::tokens(world, api, bootstrap, journal)?;
            }
            return Ok(None);
        }
        Some((record, Turn::Own)) => record,
    };
    let takes_over = before.version.is_some() && before.node != *own;
    if takes_over {
        tracing::info!(
            "node {}, which applied the objects of the cluster, is gone: this one does",
            before.node
        );
    } else if before.version.is_some() {
        let mut applied = before.applied.clone();
        // The upload of the shared keys is noted here first, and made once.
        if let Some(hash) = journal.applied.get(SHARED) {
            applied.insert(SHARED.to_owned(), hash.clone());
        }
        if applied != journal.applied {
            tracing::info!(
                "the cluster does not have the objects that this node applied last, as after a snapshot was restored: what it has counts"
            );
            journal.applied = applied;
        }
    }
    let changed = match apply::run(world, api, bootstrap, journal, takes_over) {
        Err(error) if is_temporary(&error) => return Err(error),
        changed => changed,
    };
    let record = Record {
        node: own.clone(),
        applied: journal.applied.clone(),
        kubernetes: Some(bootstrap.object.config.kubernetes.to_string()),
        version: before.version.clone(),
    };
    if record != before {
        write(world, limits, api, &record)?;
    }
    changed.map(Some)
}

/// Writes the record, unless another node has written it meanwhile: that one has the objects then.
fn write(world: &World, limits: Limits, api: &Api, record: &Record) -> Result<()> {
    let map = record.map()?;
    let what = format!("ConfigMap {NAME} to be written");
    wait(world, limits, &what, || {
        let written = match record.version {
            Some(_) => api.put(&format!("{MAPS}/{NAME}"), &map),
            None => api.post(MAPS, &map),
        };
        match written {
            Err(error) if status(&error).is_some_and(|status| status.as_u16() == 409) => {
                tracing::info!("another node has written ConfigMap {NAME} meanwhile");
                Ok(Ok(()))
            }
            Err(error) if !is_temporary(&error) => Ok(Err(error)),
            result => result.map(|_| Ok(())),
        }
    })?
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;
    use crate::control_plane;
    use crate::object;
    use crate::samples::{Request, machine, server};

    const LIMITS: Limits = Limits {
        patience: Duration::from_secs(20),
        every: Duration::from_millis(10),
    };
    const OBJECT: &str =
        "tokens = [\"abcdef.0123456789abcdef\"]\n[node]\nname = \"one\"\naddress = \"10.0.0.7\"\n";

    /// A cluster: its record, the nodes that it has, and its control planes with the versions of their kubelets.
    #[derive(Clone, Default)]
    struct Cluster(Arc<Mutex<State>>);

    type State = (
        Option<Value>,
        Vec<&'static str>,
        Vec<(&'static str, &'static str)>,
    );

    impl Cluster {
        /// One whose objects a node applied: nothing yet but the record.
        fn with(node: &str, applied: &BTreeMap<String, String>, nodes: &[&'static str]) -> Self {
            let record = Record {
                node: node.to_owned(),
                applied: applied.clone(),
                kubernetes: None,
                version: Some("7".to_owned()),
            };
            let cluster = Self::default();
            *cluster.0.lock().unwrap() = (Some(record.map().unwrap()), nodes.to_vec(), Vec::new());
            cluster
        }

        /// The same with this version in the record, and these control planes.
        fn recorded(self, kubernetes: &str, planes: &[(&'static str, &'static str)]) -> Self {
            let mut state = self.0.lock().unwrap();
            state.0.as_mut().unwrap()["data"][KUBERNETES] = kubernetes.into();
            state.2 = planes.to_vec();
            drop(state);
            self
        }

        fn record(&self) -> Option<Record> {
            let state = self.0.lock().unwrap();
            state.0.as_ref().map(|map| Record::read(map).unwrap())
        }

        fn answer(&self, request: &Request) -> (u16, String) {
            let mut state = self.0.lock().unwrap();
            let found = match request.line.split_once(' ').unwrap() {
                ("GET", path) if path == format!("{MAPS}/{NAME}") => state.0.clone(),
                ("GET", path) if path.starts_with(CONTROL_PLANES) => {
                    let plane = |(name, kubelet): &(&str, &str)| {
                        let info = json!({"kubeletVersion": kubelet});
                        json!({"metadata": {"name": name}, "status": {"nodeInfo": info}})
                    };
                    let items: Vec<Value> = state.2.iter().map(plane).collect();
                    Some(json!({"items": items}))
                }
                ("GET", path) => match path.strip_prefix("/api/v1/nodes/") {
                    Some(node) => state.1.contains(&node).then(|| json!({})),
                    None => None,
                },
                ("POST" | "PUT", _) => {
                    let mut map: Value = serde_json::from_str(&request.body).unwrap();
                    map["metadata"]["resourceVersion"] = "8".into();
                    state.0 = Some(map);
                    Some(json!({}))
                }
                _ => Some(json!({})),
            };
            match found {
                Some(found) => (200, found.to_string()),
                None => (404, "{}".to_owned()),
            }
        }
    }

    /// One run of node `one`, as the first control plane or as a further one; what it sent, and how many objects.
    fn run_once(
        cluster: &Cluster,
        first: bool,
        world: &World,
    ) -> (Vec<String>, Option<usize>, Journal) {
        let mut bootstrap = object::read(world, Duration::ZERO).unwrap().unwrap();
        if Journal::read(world).unwrap().is_none() {
            control_plane::prepare(world, &bootstrap, |_| Ok(())).unwrap();
        }
        if !first {
            bootstrap.object.further = Some(cluster::object::Further { fetched: None });
        }
        let mut journal = Journal::read(world).unwrap().unwrap();
        let answers = cluster.clone();
        let (url, requests) = server(move |request| answers.answer(request));
        let api = Api::plain(&url).unwrap();
        let changed = run(world, LIMITS, &api, &bootstrap, &mut journal).unwrap();
        let sent = requests.try_iter().map(|request| request.line);
        let sent = sent.filter(|line| !line.starts_with("GET ")).collect();
        (sent, changed, journal)
    }

    #[test]
    fn another_control_plane_goes_on_once_the_node_that_applied_the_objects_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(folder.path(), OBJECT);
        // The first control plane: all objects, and the record.
        let cluster = Cluster::default();
        let (sent, changed, journal) = run_once(&cluster, true, &world);
        assert_eq!(sent.len(), changed.unwrap() + 1);
        assert_eq!(sent.last().unwrap(), &format!("POST {MAPS}"));
        let record = cluster.record().unwrap();
        assert_eq!(
            (record.node.as_str(), &record.applied),
            ("one", &journal.applied)
        );
        // Again: nothing has changed.
        let (sent, changed, _) = run_once(&cluster, true, &world);
        assert_eq!((&sent[..], changed), (&[][..], Some(0)));

        // The cluster is of an earlier snapshot, with another object and one that is gone since: not what the journal says counts.
        let mut earlier = record.applied.clone();
        let (kubelet, _) = earlier
            .iter_mut()
            .find(|(path, _)| path.ends_with("/configmaps/kubelet-config"))
            .map(|(path, hash)| (path.clone(), std::mem::replace(hash, "0".repeat(64))))
            .unwrap();
        earlier.insert(
            "/api/v1/namespaces/x/configmaps/y".to_owned(),
            "1".repeat(64),
        );
        let restored = Cluster::with("one", &earlier, &["one"]);
        let (sent, changed, again) = run_once(&restored, true, &world);
        assert_eq!(changed, Some(2), "{sent:#?}");
        assert!(
            sent[0].starts_with(&format!("PATCH {kubelet}?")),
            "{sent:#?}"
        );
        assert_eq!(again.applied, journal.applied);
        assert_eq!(restored.record().unwrap().applied, journal.applied);
        let (sent, changed, _) = run_once(&restored, true, &world);
        assert_eq!((&sent[..], changed), (&[][..], Some(0)));

        // The same objects are applied by another node, as a first and as a further control plane: it is there, or it is gone.
        let other = tempfile::tempdir().unwrap();
        let world = machine(other.path(), OBJECT);
        let mut applied = record.applied;
        let (changed_path, _) = applied
            .iter()
            .find(|(path, _)| path.ends_with("/configmaps/kubelet-config"))
            .unwrap();
        let changed_path = changed_path.clone();
        applied.insert(changed_path.clone(), "0".repeat(64));
        applied.insert(
            "/api/v1/namespaces/x/configmaps/y".to_owned(),
            "1".repeat(64),
        );
        for first in [true, false] {
            let there = Cluster::with("zero", &applied, &["zero", "one"]);
            let (sent, changed, _) = run_once(&there, first, &world);
            assert_eq!((&sent[..], changed), (&[][..], None));
        }
        let gone = Cluster::with("zero", &applied, &["one"]);
        let (sent, changed, journal) = run_once(&gone, false, &world);
        assert!(changed.unwrap() >= 2);
        assert!(
            sent.iter()
                .any(|line| line.starts_with(&format!("PATCH {changed_path}?"))),
            "{sent:#?}"
        );
        assert!(
            sent.iter()
                .all(|line| !line.starts_with("DELETE ") && !line.contains("bootstrap-token")),
            "{sent:#?}"
        );
        let record = gone.record().unwrap();
        assert_eq!(
            (record.node.as_str(), &record.applied),
            ("one", &journal.applied)
        );
        assert!(
            !record
                .applied
                .contains_key("/api/v1/namespaces/x/configmaps/y")
        );
    }

    #[test]
    fn an_object_that_is_refused_for_good_is_not_recorded_and_all_others_are() {
        const REFUSED: &str = "/configmaps/kubelet-config";
        let folder = tempfile::tempdir().unwrap();
        let world = machine(folder.path(), OBJECT);
        let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
        control_plane::prepare(&world, &bootstrap, |_| Ok(())).unwrap();
        let mut journal = Journal::read(&world).unwrap().unwrap();
        let cluster = Cluster::default();
        let answers = cluster.clone();
        let (url, requests) = server(move |request| match request.line.split_once('?') {
            Some((line, _)) if line.ends_with(REFUSED) => (422, "{}".to_owned()),
            _ => answers.answer(request),
        });
        let api = Api::plain(&url).unwrap();
        let mut sent = || {
            let refused = run(&world, LIMITS, &api, &bootstrap, &mut journal).unwrap_err();
            assert!(format!("{refused:#}").contains(REFUSED), "{refused:#}");
            let lines = requests.try_iter().map(|request| request.line);
            let sent = lines.filter(|line| !line.starts_with("GET "));
            sent.collect::<Vec<_>>()
        };
        assert!(sent().len() > 5);
        // It alone is sent again, with the rest known by the record.
        let again = sent();
        assert!(again.len() == 1 && again[0].contains(REFUSED), "{again:#?}");
        let record = cluster.record().unwrap();
        assert_eq!(record.applied, journal.applied);
        assert!(!record.applied.keys().any(|path| path.ends_with(REFUSED)));
    }

    /// kubeadm's cluster, which this node joined: nothing says that its objects are of this system.
    #[test]
    fn a_cluster_without_a_record_keeps_its_objects() {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(folder.path(), OBJECT);
        let (sent, changed, _) = run_once(&Cluster::default(), false, &world);
        assert_eq!((&sent[..], changed), (&[][..], None));
    }

    #[test]
    fn a_control_plane_of_an_older_version_leaves_the_objects_while_there_is_a_newer_one() {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(folder.path(), OBJECT);
        let first = Cluster::default();
        run_once(&first, true, &world);
        let record = first.record().unwrap();
        assert_eq!(record.kubernetes.as_deref(), Some("v1.36.3"));
        let older = &["one"][..];
        let (rolled_back, newer) = ([("one", "v1.36.3"), ("two", "v1.36.3")], ("two", "v1.37.0"));
        for (kubernetes, planes, leaves) in [
            ("v1.37.0", &[rolled_back[0], newer][..], true),
            ("v1.36.4", &[rolled_back[0], newer], true),
            // None of a newer version is left: somebody wants the older one.
            ("v1.37.0", &rolled_back, false),
            ("v1.37.0", &[], false),
            ("v1.36.3", &[newer], false),
            ("v1.35.9", &[newer], false),
            ("nonsense", &[newer], false),
        ] {
            let about = format!("{kubernetes} {planes:?}");
            let other = tempfile::tempdir().unwrap();
            let world = machine(other.path(), OBJECT);
            let gone = Cluster::with("zero", &BTreeMap::new(), older);
            let gone = gone.recorded(kubernetes, planes);
            let before = gone.record();
            let (sent, changed, _) = run_once(&gone, false, &world);
            assert_eq!(
                (sent.is_empty(), changed.is_none()),
                (leaves, leaves),
                "{about}"
            );
            if leaves {
                assert_eq!(gone.record(), before, "{about}");
            } else {
                let found = gone.record().unwrap();
                assert_eq!(found.kubernetes.as_deref(), Some("v1.36.3"), "{about}");
            }
        }
    }

    /// A node that applied the objects and was rolled back alone: its own tokens are still its to make.
    #[test]
    fn an_owner_of_an_older_version_makes_its_tokens_and_the_status_says_that_it_leaves_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(folder.path(), OBJECT);
        let own = Cluster::with("one", &BTreeMap::new(), &["one", "two"]);
        let own = own.recorded("v1.37.0", &[("one", "v1.36.3"), ("two", "v1.37.0")]);
        let before = own.record();
        let (sent, changed, journal) = run_once(&own, true, &world);
        let [token] = &sent[..] else {
            panic!("{sent:#?}");
        };
        assert!(
            token.contains("/secrets/bootstrap-token-abcdef?"),
            "{token}"
        );
        assert!(changed.is_none() && journal.applied.is_empty());
        assert_eq!(own.record(), before);
        let (sent, changed, _) = run_once(&own, true, &world);
        assert_eq!((&sent[..], changed), (&[][..], None));
        let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
        let asked = |cluster: &Cluster| {
            let cluster = cluster.clone();
            let (url, _requests) = server(move |request| cluster.answer(request));
            owner(&Api::plain(&url).unwrap(), &bootstrap).unwrap()
        };
        let left = asked(&own).unwrap().left.unwrap();
        let expected = "node one applied them for Kubernetes v1.37.0, and this node is of v1.36.3; they stay as they are while node two \
                        is of a newer version";
        assert_eq!(left, expected);
        // Another node's turn is no concern of this one.
        let other = Cluster::with("zero", &BTreeMap::new(), &["zero"]);
        let other = other.recorded("v1.37.0", &[("two", "v1.37.0")]);
        assert_eq!(asked(&other).unwrap().left, None);
    }

    #[test]
    fn the_record_says_who_applies_the_objects() {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(folder.path(), OBJECT);
        let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
        let of = |cluster: Cluster| {
            let (url, _requests) = server(move |request| cluster.answer(request));
            let owner = owner(&Api::plain(&url).unwrap(), &bootstrap).unwrap();
            owner.map(|owner| owner.node)
        };
        let applied = BTreeMap::new();
        let zero = of(Cluster::with("zero", &applied, &[]));
        assert_eq!(zero.as_deref(), Some("zero"));
        assert_eq!(of(Cluster::default()), None);
    }
}
