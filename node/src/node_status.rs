//! The status of this node: what runs on it, what it waits for, and what has failed.

use std::fs;
use std::time::Duration;

use anyhow::Result;
use cluster::object::Join;
use image::kubelet::UNIT;
use image::manifest::ImageId;
use image::paths::{RUN_ADDONS, RUN_CLUSTER, RUN_ETCD_GATE};
use linux::world::World;
use serde::Serialize;

use crate::administrator::api;
use crate::balancer::record::{self, Record};
use crate::disk_room::{self, Disk};
use crate::object::{self, Bootstrap, Refused};
use crate::own_node::{self, node, readiness};
use crate::remedies::{Trouble, remedy};
use crate::systemd::{self, Unit, Units};
use crate::this_boot::{self, BootEntry, FailedBoot, WallClock};
use crate::{bundle, credential_providers, gate, identity, pinned_kubelet, worker};
use api::Api;

/// The kubelet's health check (its default).
const KUBELET: (&str, &str) = ("http://127.0.0.1:10248", "/healthz");
/// etcd's health check, as its static pod has it.
const ETCD: (&str, &str) = ("http://127.0.0.1:2381", "/readyz");

/// Why the kubelet of an image without one is not healthy.
const NO_KUBELET: &str = "this image has none";

/// How long each question may take: somebody waits for the answer, and a server that is not well may never give one.
const SOON: Duration = Duration::from_secs(5);

/// The status of this node. The keys of the JSON stay: programs read them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    pub(crate) name: String,
    pub(crate) state: State,
    pub(crate) addresses: Vec<String>,
    /// None if the manifest cannot be read.
    pub(crate) image: Option<ImageId>,
    /// The slot of the root, `a` or `b`; none if the root is on no disk.
    pub(crate) slot: Option<&'static str>,
    /// None without UEFI.
    pub(crate) boot_entry: Option<BootEntry>,
    pub(crate) uptime_seconds: u64,
    pub(crate) clock: WallClock,
    /// The node's own file systems.
    pub(crate) disks: Vec<Disk>,
    /// The name of the cluster object's cluster; none without an object.
    pub(crate) cluster: Option<String>,
    /// The API server of a node that no object made one, as `kubeadm join` does: that of the kubelet's kubeconfig.
    pub(crate) joined: Option<String>,
    pub(crate) kubernetes: Option<String>,
    pub(crate) kubelet: Health,
    /// The kubelet's container that the cluster object pins; none if it pins none.
    pub(crate) pinned_kubelet: Option<PinnedKubelet>,
    /// None on a node without a control plane.
    pub(crate) etcd: Option<Health>,
    /// None on a node without a cluster, as the node's own readiness.
    pub(crate) api_server: Option<Health>,
    pub(crate) node: Option<Health>,
    /// What the balancer knows of the API servers; none on a node without one.
    pub(crate) balancer: Option<Record>,
    pub(crate) waits_for: Option<String>,
    /// What to do about it, if that is known.
    pub(crate) remedy: Option<String>,
    /// What the cluster's addons wait for.
    pub(crate) addons: Option<String>,
    /// Units that have failed, or fail again and again; none if systemd does not answer.
    pub(crate) failed_units: Option<Vec<Unit>>,
    /// The last boot that failed before this one.
    pub(crate) last_failure: Option<FailedBoot>,
    /// Terminals that ask for a login; none if systemd does not answer.
    #[serde(skip)]
    pub(crate) gettys: Option<Vec<String>>,
}

/// The kubelet's container that the cluster object pins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PinnedKubelet {
    pub(crate) image: String,
    /// Why the image's own kubelet runs in its place; none if the pinned one does.
    pub(crate) refused: Option<String>,
}

/// The sum of a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum State {
    /// All parts are healthy.
    Ready,
    /// Some part is not healthy yet, or not any more.
    Waiting,
    /// The node does not become Ready until somebody does something.
    Failed,
}

/// Whether something is well, and why not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Health {
    pub(crate) healthy: bool,
    pub(crate) reason: Option<String>,
}

impl Health {
    fn of(result: Result<()>) -> Self {
        Self {
            healthy: result.is_ok(),
            reason: result.err().map(|error| format!("{error:#}")),
        }
    }

    fn not(reason: String) -> Self {
        Self {
            healthy: false,
            reason: Some(reason),
        }
    }
}

/// The status now. `known` is an earlier one, whose answers of the API server still count: it is not asked again.
///
/// # Errors
/// If the machine does not give its name or its addresses.
pub(crate) fn status(world: &World, known: Option<&Status>) -> Result<Status> {
    let bootstrap = object::read(world, Duration::ZERO);
    let refused = bootstrap.as_ref().err().map(Refusal::of);
    let bootstrap = bootstrap.ok().flatten();
    let joins = bootstrap
        .as_ref()
        .is_some_and(|bootstrap| bootstrap.object.join.is_some());
    let (api_server, node) = match known {
        Some(known) => (known.api_server.clone(), known.node.clone()),
        None => match &bootstrap {
            Some(bootstrap) => Some(server(world, bootstrap)),
            None if refused.is_none() && bundle::has_identity(world) => Some(joined(world)),
            None => None,
        }
        .unzip(),
    };
    let manifest = this_boot::manifest(world).ok();
    let kubelet = match &manifest {
        Some(manifest) if manifest.kubernetes.is_none() => None,
        _ => Some(Health::of(plain_health(KUBELET))),
    };
    let config = bootstrap.as_ref().map(|bootstrap| &bootstrap.object.config);
    let etcd = config
        .filter(|config| config.cluster.etcd.local.is_some() && !joins)
        .map(|_| Health::of(plain_health(ETCD)));
    let balanced = bootstrap
        .as_ref()
        .is_some_and(|bootstrap| bootstrap.object.balancer.enabled);
    let units = systemd::units(world).ok();
    let disks = disk_room::disks(world);
    let full = disks.iter().find(|disk| disk.is_full());
    let waiting = waiting(world, full, refused, joins, node.as_ref(), units.as_ref());
    let parts = [&kubelet, &etcd, &api_server, &node];
    let healthy = parts.into_iter().flatten().all(|part| part.healthy);
    Ok(Status {
        name: object::name(world)?,
        state: match (waiting.failed, healthy && waiting.line.is_none()) {
            (true, _) => State::Failed,
            (false, true) => State::Ready,
            (false, false) => State::Waiting,
        },
        addresses: addresses()?,
        image: manifest.map(|manifest| manifest.image),
        slot: this_boot::slot(world),
        boot_entry: this_boot::entry(world),
        uptime_seconds: u64::try_from(world.micros() / 1_000_000).unwrap_or(0),
        clock: this_boot::clock(world),
        disks,
        cluster: config.map(|config| config.cluster.cluster_name.clone()),
        joined: bootstrap
            .is_none()
            .then(|| identity::server(world))
            .flatten(),
        kubernetes: config.map(|config| config.cluster.kubernetes_version.clone()),
        kubelet: kubelet.unwrap_or_else(|| Health::not(NO_KUBELET.to_owned())),
        pinned_kubelet: pinned_kubelet::record(world).map(|record| PinnedKubelet {
            image: record.image,
            refused: record.refused,
        }),
        etcd,
        api_server,
        node,
        balancer: balanced.then(|| record::read(world)).flatten(),
        waits_for: waiting.line,
        remedy: waiting.remedy,
        addons: line(world, RUN_ADDONS),
        failed_units: units.as_ref().map(|units| units.failed.clone()),
        last_failure: this_boot::failed_boot(world),
        gettys: units.map(|units| units.gettys),
    })
}

/// Why a cluster object cannot be used.
struct Refusal {
    line: String,
    /// Whether it is so until somebody changes the object: an address may still come.
    stays: bool,
}

impl Refusal {
    fn of(error: &anyhow::Error) -> Self {
        let refused = error.downcast_ref::<Refused>();
        match refused.is_some_and(|refused| refused.lacks_address) {
            true => Self {
                line: "an address: this machine has no default route".to_owned(),
                stays: false,
            },
            false => Self {
                line: format!("{error:#}"),
                stays: true,
            },
        }
    }
}

/// What a node waits for.
struct Waiting {
    line: Option<String>,
    remedy: Option<String>,
    /// Whether it waits in vain until somebody does something.
    failed: bool,
}

/// The first cause of all that a node waits for.
fn waiting(
    world: &World,
    full: Option<&Disk>,
    refused: Option<Refusal>,
    joins: bool,
    node: Option<&Health>,
    units: Option<&Units>,
) -> Waiting {
    // The record is slipway-init's; where there is none, nothing is known of a volume.
    let gate = world.in_run(RUN_ETCD_GATE).exists();
    let volume = || {
        let refusal = gate
            .then(|| gate::prove_in_sandbox(world).err())
            .flatten()?;
        Some(format!("{refusal:#}"))
    };
    // The bring-up begins after the kubelet has its certificate: what a worker waits for before is nobody's line.
    let reason = || node.filter(|_| joins)?.reason.clone();
    let fails = units.is_some_and(|units| units.failed.iter().any(|unit| unit.name == UNIT));
    let of_object = refused.as_ref().is_some_and(|refusal| refusal.stays);
    let of_volume = refused.is_none().then(volume).flatten();
    let of_providers = credential_providers::check(world).err();
    let of_providers = of_providers.map(|error| format!("{error:#}"));
    let trouble = match (full, of_object, &of_volume, &of_providers) {
        (Some(disk), ..) => Some(Trouble::Disk(disk.path)),
        (_, true, ..) => Some(Trouble::Object),
        (_, _, Some(_), _) => Some(Trouble::Volume),
        (.., Some(_)) => Some(Trouble::CredentialProviders),
        _ => None,
    };
    let line = full
        .map(|disk| format!("room: {}", disk.text()))
        .or(refused.map(|refusal| refusal.line))
        .or(of_volume)
        .or(of_providers)
        .or_else(|| line(world, RUN_CLUSTER))
        .or_else(reason)
        .map(|line| line.trim().to_owned());
    let failed = trouble.is_some() || fails;
    let trouble = trouble.or_else(|| match (&line, joins, fails) {
        (Some(line), true, _) => Some(Trouble::Join(line)),
        (Some(line), false, _) => Some(Trouble::Begin(line)),
        (None, _, true) => Some(Trouble::Kubelet),
        (None, _, false) => None,
    });
    let known = trouble.and_then(remedy);
    let remedy = known.or_else(|| fails.then(|| remedy(Trouble::Kubelet)).flatten());
    Waiting {
        line,
        remedy,
        failed,
    }
}

/// The line of a file below `/run`, if there is one.
fn line(world: &World, path: &str) -> Option<String> {
    let text = fs::read_to_string(world.in_run(path)).ok()?;
    // It is empty for a moment while it is written.
    Some(text.trim().to_owned()).filter(|line| !line.is_empty())
}

fn plain_health((server, path): (&str, &str)) -> Result<()> {
    Api::plain(server)?.within(SOON).healthy(path)
}

/// The health of the API server, and the readiness of this node.
fn server(world: &World, bootstrap: &Bootstrap) -> (Health, Health) {
    let name = &bootstrap.object.config.init.node_registration.name;
    let api = match &bootstrap.object.join {
        None => api(world, bootstrap),
        Some(join) => match identity::read(world, name) {
            Ok(Ok(identity)) => identity.api(),
            // Until the node has a certificate its token is the only way to ask.
            Ok(Err(reason)) => return joining(world, name, join, &reason),
            Err(error) => Err(error),
        },
    };
    ask(api, name)
}

/// The same of a node that no cluster object made one.
fn joined(world: &World) -> (Health, Health) {
    let name = identity::node(world).unwrap_or_default();
    let found = identity::read(world, &name);
    let found = found.and_then(|found| found.map_err(anyhow::Error::msg));
    ask(found.and_then(|identity| identity.api()), &name)
}

/// What an API server says of itself and of this node.
fn ask(api: Result<Api>, name: &str) -> (Health, Health) {
    let api = match api {
        Ok(api) => api.within(SOON),
        Err(error) => {
            let reason = format!("{error:#}");
            return (Health::not(reason.clone()), Health::not(reason));
        }
    };
    let node = node(&api, &own_node::path(name))
        .and_then(|node| readiness(&node).map_or(Ok(()), |reason| Err(anyhow::Error::msg(reason))));
    (Health::of(api.healthy("/readyz")), Health::of(node))
}

/// The same of a worker without a certificate: what becomes of its request for one.
fn joining(world: &World, name: &str, join: &Join, reason: &str) -> (Health, Health) {
    let server =
        worker::bootstrap_api(world, join).and_then(|api| api.within(SOON).healthy("/readyz"));
    let request = match worker::requested(world, name, join) {
        Ok(state) => format!("{reason}: {state}"),
        Err(_) => reason.to_owned(),
    };
    (Health::of(server), Health::not(request))
}

/// The addresses of this machine, without those of loopback and link-local ones.
fn addresses() -> Result<Vec<String>> {
    let all = object::addresses()?.into_iter();
    let mut addresses: Vec<String> = all.map(|(_, address)| address.to_string()).collect();
    addresses.dedup();
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use image::kubelet::{BOOTSTRAP_KUBECONFIG, CREDENTIAL_PROVIDERS, KUBECONFIG};
    use image::paths::{CLUSTER, STATE, STATE_LEDGER};
    use serde_json::{Value, json};

    use super::*;
    use crate::join;
    use crate::samples::{Answer, ControlPlane, machine, put, serve_by_tls, worker};
    use crate::waiting::Limits;

    const ONCE: Limits = Limits {
        patience: Duration::from_secs(1),
        every: Duration::from_secs(1),
    };

    /// What a worker waits for, and whether its API server is well.
    fn waits(world: &World) -> (String, Option<String>) {
        let status = status(world, None).unwrap();
        assert!(status.etcd.is_none());
        // No kubelet listens here.
        assert_eq!(status.state, State::Waiting);
        assert_eq!(status.cluster.as_deref(), Some("blue"));
        let server = status.api_server.unwrap();
        (status.waits_for.unwrap_or_default(), server.reason)
    }

    #[test]
    fn a_worker_says_what_it_waits_for() {
        let plane = ControlPlane::new();
        let identity = plane.file("/etc/kubernetes/kubelet.conf");
        let folder = tempfile::tempdir().unwrap();
        let world = worker(folder.path(), &plane.worker());
        let absent = "/etc/kubernetes/kubelet.conf does not exist";
        let (waits_for, server) = waits(&world);
        assert_eq!(waits_for, absent);
        assert!(server.unwrap().contains("bootstrap-kubelet.conf"));
        let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
        let join_of = bootstrap.object.join.as_ref().unwrap();
        // The endpoint is the fixture's and nobody answers behind it: the line of the wait says it.
        let (listener, pair) = (plane.listener(), plane.certificate());
        let server = format!("https://{}", listener.local_addr().unwrap());
        let prepared = || {
            join::prepare(
                &world,
                &bootstrap,
                join_of,
                ONCE,
                Duration::from_millis(100),
            )
        };
        prepared().unwrap_err();
        let (waits_for, _) = waits(&world);
        assert!(
            waits_for.starts_with("the cluster at https://127.0.0.1:"),
            "{waits_for}"
        );
        let mut ready = json!({"type": "Ready", "status": "False", "reason": "NotReady", "message": "no network"});
        let _requests = serve_by_tls(
            listener,
            move || pair.clone(),
            move |request| {
                let full = |value: Value| Answer::Full(200, value.to_string());
                match request.line.as_str() {
                    "GET /readyz" => Answer::Full(200, "ok".to_owned()),
                    "GET /api/v1/nodes/node1" => {
                        let node = full(json!({"status": {"conditions": [ready]}}));
                        ready["status"] = "True".into();
                        node
                    }
                    line if line.contains("certificatesigningrequests") => {
                        full(json!({"items": []}))
                    }
                    _ => plane.answer(request),
                }
            },
        );
        prepared().unwrap();
        let well = |waits_for: &str| (waits_for.to_owned(), None);
        let expected = format!("{absent}: the kubelet has not requested one");
        assert_eq!(waits(&world), well(&expected));
        put(
            &world.in_initrd("/etc/kubernetes/kubelet.conf"),
            &fits(&world, &identity),
        );
        assert_eq!(waits(&world), well("NotReady: no network"));
        assert_eq!(waits(&world), well(""));

        // Without the object it is a node as kubeadm leaves it, whatever the host's name is.
        fs::remove_file(world.in_initrd(CLUSTER)).unwrap();
        put(&world.proc.join("sys/kernel/hostname"), "ip-10-0-0-8\n");
        let joined = status(&world, None).unwrap();
        assert_eq!((joined.cluster, joined.joined), (None, Some(server)));
        assert_eq!(joined.api_server, Some(Health::of(Ok(()))));
        assert_eq!(joined.node, Some(Health::of(Ok(()))));
        assert_eq!(joined.name, "ip-10-0-0-8");
        for path in [KUBECONFIG, BOOTSTRAP_KUBECONFIG] {
            drop(fs::remove_file(world.in_initrd(path)));
        }
        let alone = status(&world, None).unwrap();
        assert_eq!((alone.joined, alone.node), (None, None));
    }

    /// A control plane's kubeconfig of its kubelet, which leads to its own address, with the endpoint of this worker.
    fn fits(world: &World, identity: &str) -> String {
        let bootstrap = object::read(world, Duration::ZERO).unwrap().unwrap();
        let server = bootstrap.object.config.control_plane_url();
        identity.replace("https://10.0.0.7:6443", &server)
    }

    /// The keys of the JSON that earlier releases have.
    const KEYS: [&str; 9] = [
        "name",
        "addresses",
        "cluster",
        "kubernetes",
        "kubelet",
        "etcd",
        "apiServer",
        "node",
        "waitsFor",
    ];

    #[test]
    fn the_status_has_image_clock_and_failures_beside_its_earlier_keys() {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(
            folder.path(),
            "name = \"blue\"\nendpoint = \"10.0.0.7\"\n[node]\naddress = \"10.0.0.7\"\n",
        );
        let gate = world.in_run(RUN_ETCD_GATE);
        put(
            &gate,
            r#"{"required": true, "reason": "no disk has the serial number etcd"}"#,
        );
        let ledger = world.in_initrd(STATE).join(STATE_LEDGER);
        put(
            &ledger,
            r#"{"time":1790000000,"report":{"step":"var","what":"mounting /var"}}"#,
        );
        let missing = status(&world, None).unwrap();
        assert_eq!(missing.state, State::Failed);
        let json = serde_json::to_value(&missing).unwrap();
        for key in KEYS {
            assert!(json.get(key).is_some(), "{key}");
        }
        assert_eq!(
            json["waitsFor"],
            "the etcd volume was not mounted: no disk has the serial number etcd"
        );
        assert_eq!(json["state"], "failed");
        let remedy = json["remedy"].as_str().unwrap();
        assert!(remedy.starts_with("attach the volume"), "{remedy}");
        assert_eq!(json["image"], json!({"name": "demo", "version": "1.2.3"}));
        assert_eq!(json["clock"]["synchronized"], Value::Null);
        assert_eq!(json["lastFailure"]["what"], "mounting /var");
        // No systemd answers here.
        assert_eq!(json["failedUnits"], Value::Null);
        assert_eq!(json.get("gettys"), None);
        // With the volume the API server counts: its answer is the earlier one's.
        put(&gate, r#"{"required": false}"#);
        put(&world.in_run(RUN_CLUSTER), "the API server: not yet\n");
        let mut known = status(&world, None).unwrap();
        known.api_server = Some(Health::of(Ok(())));
        let later = status(&world, Some(&known)).unwrap();
        assert_eq!(later.api_server, known.api_server);
        assert_ne!(status(&world, None).unwrap().api_server, known.api_server);
    }

    /// The network may still bring the address: the page would tell people to correct what is right.
    #[test]
    fn an_address_that_is_not_there_yet_is_no_failure() {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(folder.path(), "name = \"blue\"\n");
        put(&world.in_run(RUN_ETCD_GATE), r#"{"required": false}"#);
        let of = |lacks_address| {
            let text = "x is refused".to_owned();
            let error = anyhow::Error::new(Refused {
                text,
                lacks_address,
            });
            let waiting = waiting(&world, None, Some(Refusal::of(&error)), false, None, None);
            (
                waiting.line.unwrap(),
                waiting.failed,
                waiting.remedy.is_some(),
            )
        };
        let line = "an address: this machine has no default route".to_owned();
        assert_eq!(of(true), (line, false, false));
        assert_eq!(of(false), ("x is refused".to_owned(), true, true));
    }

    #[test]
    fn a_cluster_object_with_mistakes_and_a_kubelet_that_fails_are_failures() {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(folder.path(), "nme = \"blue\"\n");
        put(&world.in_run(RUN_CLUSTER), "the API server\n");
        let refused = status(&world, None).unwrap();
        assert_eq!(refused.state, State::Failed);
        let line = refused.waits_for.unwrap();
        assert!(
            line.starts_with("/etc/slipway/cluster.toml is refused"),
            "{line}"
        );
        let of = |units: Option<&Units>, line: Option<&str>| {
            put(&world.in_run(RUN_ETCD_GATE), r#"{"required": false}"#);
            put(&world.in_run(RUN_CLUSTER), line.unwrap_or_default());
            let waiting = waiting(&world, None, None, false, None, units);
            (waiting.failed, waiting.remedy)
        };
        let unit = |name: &str| Units {
            failed: vec![Unit::failed(name)],
            gettys: Vec::new(),
        };
        let remedy = Some("`journalctl -u kubelet.service` says why".to_owned());
        assert_eq!(of(Some(&unit(UNIT)), None), (true, remedy.clone()));
        let api = Some("the API server: Connection refused");
        assert_eq!(of(Some(&unit(UNIT)), api), (true, remedy));
        assert_eq!(of(Some(&unit("other.service")), api), (false, None));
        assert_eq!(of(None, api), (false, None));
    }

    #[test]
    fn a_credential_provider_without_its_program_is_a_failure_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(folder.path(), "");
        put(&world.in_run(RUN_ETCD_GATE), r#"{"required": false}"#);
        let text = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: login\n";
        put(&world.in_initrd(CREDENTIAL_PROVIDERS), text);
        let waiting = waiting(&world, None, None, false, None, None);
        let line = waiting.line.unwrap();
        assert!(line.contains("no executable \"login\""), "{line}");
        assert!(waiting.failed);
        assert!(waiting.remedy.unwrap().contains(CREDENTIAL_PROVIDERS));
    }

    #[test]
    fn a_full_disk_is_what_a_node_waits_for() {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(folder.path(), "");
        put(&world.in_run(RUN_CLUSTER), "the API server\n");
        let disk = Disk {
            path: "/var",
            size: 4 << 30,
            free: 4096,
        };
        let waiting = waiting(&world, Some(&disk), None, false, None, None);
        let line = "room: /var has 0 of 4096 MiB left";
        assert_eq!(waiting.line.as_deref(), Some(line));
        assert!(waiting.failed && waiting.remedy.unwrap().contains("du -xh -d 3 /var"));
    }
}
