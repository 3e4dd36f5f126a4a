//! Which control plane applies the cluster's own objects: the one that began the cluster, and once its node is gone another one at its
//! next start. So what a later image or object has (CoreDNS, kube-proxy, flannel, metrics-server) reaches a cluster whose first node was
//! replaced.
//!
//! A record in the cluster names that node and what it applied last. A cluster without one was begun by kubeadm: its objects are its.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use api::{Api, is_temporary, status};
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

/// The record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Record {
    node: String,
    applied: BTreeMap<String, String>,
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
            version: text(&map["metadata"]["resourceVersion"]),
        })
    }

    /// The `ConfigMap`.
    fn map(&self) -> Result<Value> {
        let mut metadata = json!({"name": NAME, "namespace": "kube-system"});
        if let Some(version) = &self.version {
            metadata["resourceVersion"] = version.as_str().into();
        }
        Ok(json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {
                NODE: self.node,
                APPLIED: serde_json::to_string(&self.applied).context("writing as JSON")?,
            },
        }))
    }
}

/// The node that applies the objects of the cluster; none in a cluster that kubeadm began.
///
/// # Errors
/// If the API server does not answer, or the record cannot be read.
pub(crate) fn owner(api: &Api) -> Result<Option<String>> {
    let map = api.get(&format!("{MAPS}/{NAME}"))?;
    let record = map.map(|map| Record::read(&map)).transpose()?;
    Ok(record.map(|record| record.node))
}

/// Applies what has changed if it is this node's turn. Returns how many objects were sent and deleted; none if another node has them.
///
/// # Errors
/// If the API server does not answer, or refuses an object.
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
        let there = record.node == *own || api.get(&own_node::path(&record.node))?.is_some();
        Ok(Some((record, there)))
    })?;
    let before = match found {
        None if bootstrap.object.further.is_some() => return Ok(None),
        None => Record::default(),
        Some((record, true)) if record.node != *own => {
            tracing::info!("node {} applies the objects of the cluster", record.node);
            return Ok(None);
        }
        Some((record, _)) => record,
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
    let changed = apply::run(world, api, bootstrap, journal, takes_over)?;
    let record = Record {
        node: own.clone(),
        applied: journal.applied.clone(),
        version: before.version.clone(),
    };
    if record != before {
        write(world, limits, api, &record)?;
    }
    Ok(Some(changed))
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

    /// A cluster: its record, and the nodes that it has.
    #[derive(Clone, Default)]
    struct Cluster(Arc<Mutex<(Option<Value>, Vec<&'static str>)>>);

    impl Cluster {
        /// One whose objects a node applied: nothing yet but the record.
        fn with(node: &str, applied: &BTreeMap<String, String>, nodes: &[&'static str]) -> Self {
            let record = Record {
                node: node.to_owned(),
                applied: applied.clone(),
                version: Some("7".to_owned()),
            };
            let cluster = Self::default();
            *cluster.0.lock().unwrap() = (Some(record.map().unwrap()), nodes.to_vec());
            cluster
        }

        fn record(&self) -> Option<Record> {
            let state = self.0.lock().unwrap();
            state.0.as_ref().map(|map| Record::read(map).unwrap())
        }

        fn answer(&self, request: &Request) -> (u16, String) {
            let mut state = self.0.lock().unwrap();
            let found = match request.line.split_once(' ').unwrap() {
                ("GET", path) if path == format!("{MAPS}/{NAME}") => state.0.clone(),
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

    /// kubeadm's cluster, which this node joined: nothing says that its objects are of this system.
    #[test]
    fn a_cluster_without_a_record_keeps_its_objects() {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(folder.path(), OBJECT);
        let (sent, changed, _) = run_once(&Cluster::default(), false, &world);
        assert_eq!((&sent[..], changed), (&[][..], None));
    }

    #[test]
    fn the_record_says_who_applies_the_objects() {
        let of = |cluster: Cluster| {
            let (url, _requests) = server(move |request| cluster.answer(request));
            owner(&Api::plain(&url).unwrap()).unwrap()
        };
        let applied = BTreeMap::new();
        let zero = of(Cluster::with("zero", &applied, &[]));
        assert_eq!(zero.as_deref(), Some("zero"));
        assert_eq!(of(Cluster::default()), None);
    }
}
