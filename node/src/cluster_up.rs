//! `cluster-up`: waits until the node is Ready. On a control plane it waits for the API server and applies the objects of
//! the cluster before, on a worker it waits for the node's certificate.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use image::paths::{NODE_MARKED, SENTINEL};
use linux::atomic_file;
use linux::mount::folder;
use linux::world::World;

use cluster::object::Cni;

use crate::administrator::api;
use crate::journal::Journal;
use crate::object::{self, Bootstrap};
use crate::own_node::{self, node};
use crate::steps::step;
use crate::waiting::{self, Limits, wait};
use crate::{
    apply, control_plane, etcd_member, etcd_place, key_upload, objects_owner, token_ends, worker,
};
use api::{Api, is_temporary};

/// How long one run waits for the API server, and for the node. systemd starts the unit anew afterwards, without limit.
const LIMITS: Limits = Limits {
    patience: Duration::from_secs(600),
    every: Duration::from_millis(200),
};

/// How long the API server of this node may be silent before others are asked why.
const SOME: Duration = Duration::from_secs(20);

/// How long the objects of a cluster wait for the node to be Ready.
const FIRST: Limits = Limits {
    patience: Duration::from_secs(10),
    every: Duration::from_millis(50),
};

/// Brings the cluster up, if this node has a cluster object.
///
/// # Errors
/// What was waited for, and the last reason why it is not there.
pub(crate) fn run(world: &World) -> Result<()> {
    let Some(bootstrap) = object::read(world, object::PATIENCE)? else {
        tracing::info!("no cluster to bring up on this node");
        return Ok(());
    };
    match &bootstrap.object.join {
        Some(join) => worker::bring_up(world, &bootstrap, join, LIMITS)?,
        None => bring_up(world, &bootstrap)?,
    }
    if bootstrap.object.sentinel {
        succeeded(world)?;
    }
    waiting::done(world)
}

/// Tells Cluster API that this node is in its cluster, as kubeadm's script does. A bring-up that fails leaves no file.
fn succeeded(world: &World) -> Result<()> {
    let file = world.in_run(SENTINEL);
    let about = || format!("writing {}", file.display());
    folder(file.parent().with_context(about)?, 0o755)?;
    atomic_file::write(&file, b"success\n", 0o644).with_context(about)
}

fn bring_up(world: &World, bootstrap: &Bootstrap) -> Result<()> {
    let object = &bootstrap.object;
    let journal = Journal::read(world)?;
    // What keeps the keys from being written is said here too: this unit is the one that people look at.
    control_plane::refuse_another(world, object, journal.as_ref())?;
    control_plane::refuse_another_version(world, object)?;
    let mut journal = journal
        .filter(|journal| journal.authority.is_some())
        .context("the keys of this control plane are not written yet: kubelet-prepare does it")?;
    if object.further.is_some()
        || journal.member.is_some()
        || etcd_place::is_lost(world, object, &journal)
    {
        step(world, "etcd-member", || {
            etcd_place::promote(world, bootstrap, &mut journal, LIMITS)
        })?;
    }
    let api = api(world, bootstrap)?;
    // What this program and the kubelet ask for needs no role, so that it need not wait for those that the server makes first.
    step(world, "api-server", || {
        let mut ask = Instant::now() + SOME;
        let mut refusal = None;
        wait(world, LIMITS, "the API server", || {
            api.healthy("/livez/ping").map_err(|error| {
                if Instant::now() >= ask {
                    refusal = etcd_place::refusal(world, object);
                    ask = Instant::now() + SOME;
                }
                match &refusal {
                    Some(refusal) => error.context(refusal.clone()),
                    None => error,
                }
            })
        })
    })?;
    behind_server(world, &api, bootstrap, &mut journal)
}

/// The bring-up once the API server of this node answers.
fn behind_server(
    world: &World,
    api: &Api,
    bootstrap: &Bootstrap,
    journal: &mut Journal,
) -> Result<()> {
    let object = &bootstrap.object;
    let name = &object.config.init.node_registration.name;
    own_node::registered(world, LIMITS, api, name)?;
    if object.further.is_none()
        && object.cni.has_subnets()
        && let Err(error) = own_node::give_first_subnets(api, object)
    {
        tracing::info!("the controller manager gives this node its subnets: {error:#}");
    }
    if object.further.is_none() && object.cni == Cni::Bridge {
        // The kubelet has the API server to itself for this moment: on two processors a hundred requests beside its own would
        // cost it half a second. It needs none of the objects.
        own_node::soon(world, FIRST, api, &own_node::path(name));
    }
    let made = objects(world, api, bootstrap, journal);
    if let Err(error) = &made {
        tracing::warn!("not all objects of the cluster are made: {error:#}");
    }
    // What an earlier boot made by a clock that was not set; the unit that does it when the clock is set may have come too early.
    if let Err(error) = token_ends::follow_clock(world, api, bootstrap) {
        tracing::warn!("the ends of bootstrap tokens stay as they are for now: {error:#}");
    }
    mark_once(world, LIMITS, api, bootstrap, journal)?;
    step(world, "api-roles", || {
        let what = "the API server to have made its roles";
        wait(world, LIMITS, what, || api.healthy("/livez"))
    })?;
    if let Err(error) = etcd_member::follow_address(world, &object.config) {
        tracing::warn!(
            "whether etcd's other members know this node's address is not known: {error:#}"
        );
    }
    if !control_plane::serves(world)
        && let Err(error) =
            object::name(world).and_then(|host| own_node::give_leases_back(api, &host))
    {
        tracing::info!("the leases from before the restart end by themselves: {error:#}");
    }
    control_plane::served(world, bootstrap, journal)?;
    // The controller manager and the scheduler run first: an object may wait for the pods of a webhook, which nobody else brings back.
    // What is refused for good waits for a person, and the node does not.
    match made {
        Err(error) if is_temporary(&error) => Err(error),
        made => own_node::up(world, LIMITS, api, object).and(made),
    }
}

/// Makes what this node has to make in the cluster.
///
/// # Errors
/// What the API server refuses for good, once all else is made, or for longer than the limits.
fn objects(world: &World, api: &Api, bootstrap: &Bootstrap, journal: &mut Journal) -> Result<()> {
    let object = &bootstrap.object;
    let made = step(world, "objects", || {
        objects_owner::run(world, LIMITS, api, bootstrap, journal)
    });
    if let Ok(Some(changed)) = &made {
        tracing::info!("{changed} objects of the cluster were applied or deleted");
    }
    if made.as_ref().is_err_and(is_temporary) {
        return made.map(drop);
    }
    if object.further.is_none() && !object.config.init.certificate_key.is_empty() {
        step(world, "shared-keys", || {
            key_upload::once(world, api, bootstrap, journal, LIMITS)
        })?;
    }
    made.map(drop)
}

/// Gives the node the labels and taints of a control plane, once: an administrator may change them. A Node that was deleted and registered
/// anew is another one, which has none.
fn mark_once(
    world: &World,
    limits: Limits,
    api: &Api,
    bootstrap: &Bootstrap,
    journal: &mut Journal,
) -> Result<()> {
    let name = &bootstrap.object.config.init.node_registration.name;
    let path = own_node::path(name);
    // Not in the journal, which an earlier image may have to read again.
    let file = world.in_initrd(NODE_MARKED);
    let about = || format!("reading {}", file.display());
    let known = atomic_file::read(&file).with_context(about)?;
    let known = known.map(|text| String::from_utf8_lossy(&text).trim().to_owned());
    wait(world, limits, &format!("the marks of node {name}"), || {
        let node = node(api, &path)?;
        let uid = node["metadata"]["uid"].as_str().unwrap_or_default();
        // Of a node that an earlier version marked the Node is not known.
        let is_marked = journal.marked && known.as_ref().is_none_or(|known| known == uid);
        if !is_marked && let Some(change) = apply::marks(&bootstrap.object, &node) {
            api.merge(&path, &change)?;
        }
        if known.as_deref() != Some(uid) {
            atomic_file::write_line(&file, uid)?;
        }
        Ok(())
    })?;
    journal.marked = true;
    journal.write(world)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI64;
    use std::sync::{Arc, Mutex};

    use cluster::kubeconfigs;
    use image::kubelet::KUBECONFIG;
    use image::paths::{ETCD, ETCD_IDENTITY, KUBEADM_CONFIG};
    use image::timeline::READY;
    use linux::world::Clock;
    use serde_json::{Value, json};

    use super::*;
    use crate::samples::{Answer, ControlPlane, machine, put, serve_by_tls, server, worker};
    use crate::{join, steps};

    /// The unit that people look at names the reason for which the keys are not there.
    #[test]
    fn a_bring_up_says_what_keeps_the_keys_from_being_written() {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(
            folder.path(),
            "name = \"blue\"\n[node]\naddress = \"10.0.0.7\"\n",
        );
        let error = format!("{:#}", run(&world).unwrap_err());
        assert!(error.contains("kubelet-prepare"), "{error}");
        put(
            &world.in_initrd(ETCD).join(ETCD_IDENTITY),
            "{\"version\": 1, \"cluster\": \"red\", \"filesystem\": \"x\", \"created\": 1, \"machineId\": \"y\"}",
        );
        let error = format!("{:#}", run(&world).unwrap_err());
        assert!(error.contains("belongs to the cluster \"red\""), "{error}");
    }

    /// The object of a worker whose node the server on this plane's address says to be Ready.
    #[test]
    fn cluster_api_has_its_sentinel_once_the_node_is_ready_and_only_if_the_object_asks() {
        for asks in [true, false] {
            let plane = ControlPlane::new();
            let folder = tempfile::tempdir().unwrap();
            let text = format!("sentinel = {asks}\n{}", plane.worker());
            let world = worker(folder.path(), &text);
            let sentinel = world.in_run(SENTINEL);
            // A bring-up that fails: the node has not joined yet.
            assert!(run(&world).is_err());
            assert!(!sentinel.exists());
            let identity = plane.file("/etc/kubernetes/kubelet.conf");
            let own = kubeconfigs::read(&identity).unwrap().server;
            let listener = plane.listener();
            let here = format!("https://{}", listener.local_addr().unwrap());
            let pair = plane.certificate();
            let _requests = serve_by_tls(
                listener,
                move || pair.clone(),
                move |request| match request.line.as_str() {
                    "GET /api/v1/nodes/node1" if request.authorization.is_empty() => {
                        let node = json!({
                            "spec": {"podCIDRs": ["10.244.3.0/24"]},
                            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
                        });
                        Answer::Full(200, node.to_string())
                    }
                    _ => plane.answer(request),
                },
            );
            let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
            let join = bootstrap.object.join.as_ref().unwrap();
            join::prepare(&world, &bootstrap, join, LIMITS, join::REQUEST).unwrap();
            put(&world.in_initrd(KUBECONFIG), &identity.replace(&own, &here));
            run(&world).unwrap_or_else(|error| panic!("{error:#}"));
            let found = std::fs::read_to_string(&sentinel).ok();
            assert_eq!(found.as_deref(), asks.then_some("success\n"));
        }
    }

    #[test]
    fn an_object_beside_the_kubeadm_providers_config_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(folder.path(), "[node]\naddress = \"10.0.0.7\"\n");
        put(
            &world.in_initrd(KUBEADM_CONFIG),
            "kind: JoinConfiguration\n",
        );
        let error = format!("{:#}", run(&world).unwrap_err());
        assert!(
            error.contains("/etc/kubeadm.yml: expected one of them"),
            "{error}"
        );
    }

    /// A webhook that holds up an object may have no pods before the controller manager runs, and an object may never be taken.
    #[test]
    fn an_object_that_is_not_taken_keeps_no_controller_manager_from_running() {
        // Its member of etcd is not asked where it is.
        const OBJECT: &str = "[node]\naddress = \"10.0.0.7\"\n[etcd]\nargs = { initial-advertise-peer-urls = \"https://10.0.0.7:2380\" }\n";
        for (status, is_ready) in [(422, true), (500, false)] {
            let folder = tempfile::tempdir().unwrap();
            machine(folder.path(), OBJECT);
            // Its clock is the test's: waits cost no time.
            let world = World::below(folder.path(), Clock::Fake(AtomicI64::new(0)));
            let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
            control_plane::prepare(&world, &bootstrap, |_| Ok(())).unwrap();
            let mut journal = Journal::read(&world).unwrap().unwrap();
            let node = json!({
                "metadata": {"uid": "1"},
                "spec": {"podCIDRs": ["10.244.0.0/24"]},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            });
            let (url, _requests) = server(move |request| match request.line.as_str() {
                "GET /api/v1/nodes/node1" => (200, node.to_string()),
                line if line.ends_with("/configmaps/slipway-objects") => (404, "{}".to_owned()),
                line if line.contains("/configmaps/kubelet-config?") => (status, "{}".to_owned()),
                _ => (200, "{}".to_owned()),
            });
            let api = Api::plain(&url).unwrap();
            let error = behind_server(&world, &api, &bootstrap, &mut journal).unwrap_err();
            let error = format!("{error:#}");
            assert!(error.contains("/configmaps/kubelet-config"), "{error}");
            for name in ["kube-controller-manager", "kube-scheduler"] {
                let manifest = format!("/etc/kubernetes/manifests/{name}.yaml");
                assert!(world.in_initrd(&manifest).exists(), "{status}: {name}");
            }
            assert!(journal.marked, "{status}");
            let ended = steps::ended(&world).unwrap();
            assert_eq!(ended.iter().any(|step| step.name == READY), is_ready);
        }
    }

    /// The requests other than reads of one run on a Node with this uid, labels and taints.
    fn changes(world: &World, journal: &mut Journal, uid: &str) -> Vec<Value> {
        let bootstrap = object::read(world, Duration::ZERO).unwrap().unwrap();
        let sent = Arc::new(Mutex::new(Vec::new()));
        let (node, seen) = (json!({"metadata": {"uid": uid}}), Arc::clone(&sent));
        let (url, _requests) = server(move |request| {
            if request.line.starts_with("PATCH ") {
                let change: Value = serde_json::from_str(&request.body).unwrap();
                seen.lock().unwrap().push(change);
            }
            (200, node.to_string())
        });
        let api = Api::plain(&url).unwrap();
        mark_once(world, LIMITS, &api, &bootstrap, journal).unwrap();
        let sent = sent.lock().unwrap();
        sent.clone()
    }

    #[test]
    fn a_node_is_marked_once_and_again_when_it_is_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(
            folder.path(),
            "name = \"blue\"\n[node]\naddress = \"10.0.0.7\"\n",
        );
        let mut journal = Journal::new("blue");
        journal.write(&world).unwrap();
        let first = changes(&world, &mut journal, "1");
        assert_eq!(first.len(), 1);
        assert!(journal.marked && first[0]["spec"]["taints"].is_array());
        // An administrator has taken the marks away.
        assert_eq!(changes(&world, &mut journal, "1"), [json!(null); 0]);
        assert_eq!(changes(&world, &mut journal, "2"), first);
        assert_eq!(changes(&world, &mut journal, "2"), [json!(null); 0]);
        // Marked by an earlier version, which did not note the Node.
        std::fs::remove_file(world.in_initrd(NODE_MARKED)).unwrap();
        assert_eq!(changes(&world, &mut journal, "3"), [json!(null); 0]);
        assert_eq!(changes(&world, &mut journal, "4"), first);
    }
}
