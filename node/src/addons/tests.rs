//! Addons against an API server on loopback that keeps objects as the real one does.

mod fake;

use std::path::Path;
use std::sync::atomic::AtomicI64;

use cluster::manifests::record::Image;
use cluster::manifests::{self, ADDON, File, Folder, Source};
use image::paths::RUN_ADDONS;
use linux::world::Clock;
use serde_json::json;

use super::*;
use crate::addon_commands::seen;
use crate::addon_states::keep;
use crate::samples::put;
use api::Api;
use fake::Fake;

const MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";
const CRD: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.example.com";
const THING: &str = "/apis/example.com/v1/namespaces/default/things/one";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/metrics/deployments/server";
/// Longer than any request is tried again.
const LONG: usize = 4000;

/// A machine whose clock is the test's.
fn machine(root: &Path) -> World {
    let world = World::below(root, Clock::Fake(AtomicI64::new(0)));
    put(&world.dev.join("console"), "");
    put(&world.in_run(RUN_ADDONS), "");
    world
}

fn addon(name: &str, objects: &[Value], settings: &str) -> Folder {
    let file = |name: &str, content: String| File {
        name: name.to_owned(),
        path: format!("/{name}"),
        content: content.into_bytes(),
    };
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    Folder {
        name: name.to_owned(),
        source: Source::Image,
        path: format!("/{name}"),
        files: vec![
            file("all.json", list.to_string()),
            file("addon.toml", settings.to_owned()),
        ],
    }
}

fn object(version: &str, kind: &str, namespace: &str, name: &str) -> Value {
    let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}});
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = namespace.into();
    }
    object
}

fn map(name: &str) -> Value {
    object("v1", "ConfigMap", "kube-system", name)
}

/// An addon whose files stand in the worst order.
fn metrics() -> Folder {
    let mut definition = object(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "",
        "things.example.com",
    );
    definition["spec"] = json!({
        "group": "example.com",
        "names": {"kind": "Thing", "plural": "things"},
        "scope": "Namespaced",
        "versions": [{"name": "v1"}],
    });
    let objects = [
        object("example.com/v1", "Thing", "", "one"),
        object("apps/v1", "Deployment", "metrics", "server"),
        object("v1", "ServiceAccount", "metrics", "server"),
        definition,
        object("v1", "Namespace", "", "metrics"),
    ];
    addon("metrics", &objects, "")
}

fn image(version: &str) -> Image {
    Image {
        name: "cp".to_owned(),
        version: version.to_owned(),
        epoch: 1,
    }
}

/// One run of node `a`, with this version of its image.
struct Node<'a> {
    world: &'a World,
    api: &'a Api,
    version: &'static str,
    options: Options,
}

impl<'a> Node<'a> {
    fn new(world: &'a World, api: &'a Api) -> Self {
        Self {
            world,
            api,
            version: "1",
            options: Options::default(),
        }
    }

    fn run(&self) -> Run<'a> {
        Run {
            world: self.world,
            server: Server::new(self.world, self.api),
            by: Applier {
                node: "a".to_owned(),
                image: image(self.version),
            },
            kubernetes: Version::parse("v1.36.3").unwrap(),
            own: vec![map("kubeadm-config")],
            options: self.options,
            lines: Vec::new(),
        }
    }

    fn apply(&self, folders: Vec<Folder>) -> Result<Vec<Outcome>> {
        self.run().apply(&manifests::read(folders))
    }

    /// Applies these; all must come out well.
    fn applied(&self, folders: Vec<Folder>) {
        for outcome in self.apply(folders).unwrap() {
            assert_eq!(outcome.state, State::Applied, "{outcome:?}");
        }
    }
}

fn reason<'a>(outcomes: &'a [Outcome], name: &str) -> (State, &'a str) {
    let found = outcomes
        .iter()
        .find(|outcome| outcome.name == name)
        .unwrap();
    (found.state, found.reason.as_deref().unwrap_or_default())
}

#[test]
fn what_others_need_is_applied_first_and_a_second_run_sends_nothing() {
    let root = tempfile::tempdir().unwrap();
    let (world, fake) = (machine(root.path()), Fake::default());
    fake.with(|fake| (fake.unserved, fake.unready) = (3, 4));
    let api = fake.serve();
    let node = Node::new(&world, &api);
    node.applied(vec![metrics()]);
    let patched: Vec<String> = fake.log("PATCH ");
    let expected = [
        "/api/v1/namespaces/metrics",
        CRD,
        "/api/v1/namespaces/metrics/serviceaccounts/server",
        DEPLOYMENT,
        THING,
    ];
    assert_eq!(patched, expected);
    let thing = fake.object(THING);
    assert_eq!(thing["metadata"]["labels"][ADDON], "metrics");
    // The waits were those of a definition that is served late and of pods that start.
    assert!(world.micros() >= 6_000_000, "{}", world.micros());
    fake.clear();
    node.applied(vec![metrics()]);
    let sent: Vec<String> = fake
        .log("")
        .into_iter()
        .filter(|line| !line.starts_with("GET "))
        .collect();
    assert_eq!(sent, [""; 0]);
}

#[test]
fn an_administrators_change_stays_and_what_is_gone_comes_again() {
    let root = tempfile::tempdir().unwrap();
    let (world, fake) = (machine(root.path()), Fake::default());
    let api = fake.serve();
    let node = Node::new(&world, &api);
    let path = |name: &str| format!("{MAPS}/{name}");
    let both = || addon("x", &[map("a"), map("b")], "");
    node.applied(vec![both()]);
    fake.with(|fake| fake.objects.get_mut(&path("a")).unwrap()["data"] = json!({"x": "y"}));
    node.applied(vec![both()]);
    assert_eq!(fake.object(&path("a"))["data"]["x"], "y");
    fake.with(|fake| fake.objects.remove(&path("b")));
    node.applied(vec![both()]);
    assert_eq!(fake.object(&path("b"))["metadata"]["name"], "b");
    // Then the whole addon is applied: the change goes.
    assert!(fake.object(&path("a")).get("data").is_none());
}

/// The cluster removes a job with a time to live once that is over.
#[test]
fn a_job_that_is_over_and_gone_is_not_run_again() {
    let root = tempfile::tempdir().unwrap();
    let (world, fake) = (machine(root.path()), Fake::default());
    let api = fake.serve();
    let node = Node::new(&world, &api);
    let job = |name: &str| object("batch/v1", "Job", "kube-system", name);
    let mut short = job("short");
    short["spec"]["ttlSecondsAfterFinished"] = 0.into();
    let path = |name: &str| format!("/apis/batch/v1/namespaces/kube-system/jobs/{name}");
    let both = || addon("x", &[short.clone(), job("long"), map("a")], "");
    node.applied(vec![both()]);
    fake.clear();
    fake.with(|fake| fake.objects.remove(&path("short")));
    node.applied(vec![both()]);
    assert_eq!(fake.log("PATCH "), [""; 0]);
    // Nobody but a person removes the other one.
    fake.with(|fake| fake.objects.remove(&path("long")));
    node.applied(vec![both()]);
    assert!(!fake.object(&path("long")).is_null());
}

#[test]
fn what_an_addon_has_no_more_is_deleted_and_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let (world, fake) = (machine(root.path()), Fake::default());
    let api = fake.serve();
    let node = Node::new(&world, &api);
    let path = |name: &str| format!("{MAPS}/{name}");
    let old = [map("kept"), map("dropped"), map("taken"), map("moved")];
    let namespace = object("v1", "Namespace", "", "metrics");
    let first = [&old[..], &[namespace]].concat();
    node.applied(vec![addon("x", &first, ""), addon("y", &[map("gone")], "")]);
    // Somebody took it over, and took the label off.
    fake.with(|fake| {
        fake.objects.get_mut(&path("taken")).unwrap()["metadata"]["labels"] = json!({})
    });
    node.applied(vec![
        addon("x", &[map("kept")], ""),
        addon("z", &[map("moved")], ""),
    ]);
    for (name, there) in [
        ("kept", true),
        ("dropped", false),
        ("taken", true),
        ("moved", true),
        ("gone", false),
    ] {
        assert_eq!(!fake.object(&path(name)).is_null(), there, "{name}");
    }
    assert_eq!(
        fake.object(&path("moved"))["metadata"]["labels"][ADDON],
        "z"
    );
    // A namespace may have other contents.
    assert!(!fake.object("/api/v1/namespaces/metrics").is_null());
    assert!(fake.object(&path("slipway-addon-y")).is_null());
    assert!(!fake.object(&path("slipway-addon-x")).is_null());
}

#[test]
fn an_api_server_that_is_away_for_some_requests_is_waited_for() {
    let root = tempfile::tempdir().unwrap();
    let (world, fake) = (machine(root.path()), Fake::default());
    let api = fake.serve();
    Node::new(&world, &api).applied(vec![metrics()]);
    let (requests, whole) = (fake.log("").len(), fake.paths());
    assert!(requests > 15, "{requests}");
    for first in 0..requests {
        let fake = Fake::default();
        fake.with(|fake| fake.away = Some(first..first + 9));
        let api = fake.serve();
        Node::new(&world, &api).applied(vec![metrics()]);
        assert_eq!(fake.paths(), whole, "away from request {first} on");
    }
}

/// The record of an addon names every object that was sent.
#[test]
fn whatever_a_cut_leaves_is_known_and_is_completed_or_deleted() {
    let root = tempfile::tempdir().unwrap();
    let (world, fake) = (machine(root.path()), Fake::default());
    let api = fake.serve();
    Node::new(&world, &api).applied(vec![metrics()]);
    let (requests, whole) = (fake.log("").len(), fake.paths());
    for completed in [true, false] {
        for first in 0..requests {
            let fake = Fake::default();
            fake.with(|fake| fake.away = Some(first..LONG));
            let api = fake.serve();
            let node = Node::new(&world, &api);
            let begun = world.micros();
            // The wait for pods that are ready ends with a reason.
            if let Ok(outcomes) = node.apply(vec![metrics()]) {
                assert_eq!(outcomes[0].state, State::Waiting, "{first}");
            }
            assert!(world.micros() - begun < 800_000_000);
            fake.with(|fake| fake.away = None);
            if completed {
                node.applied(vec![metrics()]);
                assert_eq!(fake.paths(), whole, "cut at request {first}");
            } else {
                node.applied(vec![]);
                let mut left = fake.paths();
                left.retain(|path| path != CRD && path != "/api/v1/namespaces/metrics");
                assert_eq!(left, [""; 0], "cut at request {first}");
            }
        }
    }
}

#[test]
fn an_addon_that_is_refused_or_out_of_range_keeps_no_other_from_being_applied() {
    let root = tempfile::tempdir().unwrap();
    let (world, fake) = (machine(root.path()), Fake::default());
    fake.with(|fake| fake.refused = Some((format!("{MAPS}/bad"), 422)));
    let api = fake.serve();
    let node = Node::new(&world, &api);
    let folders = || {
        vec![
            addon("good", &[map("good")], ""),
            addon("bad", &[map("bad")], ""),
            addon("behind", &[map("behind")], "depends = [\"bad\"]"),
            addon("old", &[map("old")], "kubernetes = \"<1.36\""),
            addon("own", &[map("kubeadm-config")], ""),
            addon("wrong", &[json!({"kind": 1})], ""),
            addon("nothing", &[object("example.com/v1", "Thing", "", "x")], ""),
        ]
    };
    let outcomes = node.apply(folders()).unwrap();
    keep(&world, &outcomes).unwrap();
    let seen = seen(&mut node.run(), &manifests::read(folders())).unwrap();
    for outcomes in [outcomes, seen] {
        assert_eq!(reason(&outcomes, "good").0, State::Applied);
        let (state, why) = reason(&outcomes, "bad");
        assert_eq!(state, State::Refused);
        assert!(why.ends_with("422 Unprocessable Entity: no"), "{why}");
        let behind = (State::NotApplied, "it depends on bad, which is refused");
        assert_eq!(reason(&outcomes, "behind"), behind);
        let old = (
            State::OutOfRange,
            "it is for Kubernetes <1.36, this node's is v1.36.3",
        );
        assert_eq!(reason(&outcomes, "old"), old);
        let (state, why) = reason(&outcomes, "own");
        assert_eq!(state, State::Refused);
        assert!(why.contains("one of the cluster's own objects"), "{why}");
        let (state, why) = reason(&outcomes, "wrong");
        assert_eq!(state, State::Refused);
        assert!(why.contains("/all.json:1:"), "{why}");
        let (state, why) = reason(&outcomes, "nothing");
        assert_eq!(state, State::NotApplied);
        assert!(why.contains("no kind Thing in example.com/v1"), "{why}");
    }
    assert!(fake.object(&format!("{MAPS}/behind")).is_null());
}

#[test]
fn an_addon_that_does_not_become_ready_is_named_with_its_reason_and_holds_back_what_depends_on_it()
{
    let root = tempfile::tempdir().unwrap();
    let (world, fake) = (machine(root.path()), Fake::default());
    fake.with(|fake| fake.unready = usize::MAX);
    let api = fake.serve();
    let node = Node::new(&world, &api);
    let slow = |settings: &str| {
        addon(
            "slow",
            &[object("apps/v1", "Deployment", "kube-system", "s")],
            settings,
        )
    };
    let next = addon("z-next", &[map("next")], "depends = [\"slow\"]");
    let outcomes = node
        .apply(vec![slow("deadline = \"1m\""), next.clone()])
        .unwrap();
    let (state, why) = reason(&outcomes, "slow");
    assert_eq!(state, State::Waiting);
    let expected = "waiting for addon slow for 60 s: Deployment kube-system/s: 0 of 1 pods are of the current version";
    assert_eq!(why, expected);
    assert_eq!(
        reason(&outcomes, "z-next"),
        (State::NotApplied, "it depends on slow, which is waiting")
    );
    let console = std::fs::read_to_string(world.dev.join("console")).unwrap();
    assert!(
        console.contains("slipway: waiting for addon slow: Deployment kube-system/s: 0 of 1"),
        "{console}"
    );
    // Once, though two wait for it.
    assert_eq!(world.micros() / 1_000_000, 60);
    let outcomes = node.apply(vec![slow("wait = false"), next]).unwrap();
    assert!(
        outcomes
            .iter()
            .all(|outcome| outcome.state == State::Applied),
        "{outcomes:?}"
    );
}

#[test]
fn nodes_with_different_images_do_not_undo_each_others_addons() {
    let root = tempfile::tempdir().unwrap();
    let (world, fake) = (machine(root.path()), Fake::default());
    let api = fake.serve();
    let old = Node::new(&world, &api);
    let new = Node {
        version: "2",
        ..Node::new(&world, &api)
    };
    let (first, second) = (
        || addon("x", &[map("a"), map("b")], ""),
        || addon("x", &[map("a")], ""),
    );
    old.applied(vec![first()]);
    new.applied(vec![second(), addon("y", &[map("c")], "")]);
    fake.clear();
    let outcomes = old.apply(vec![first()]).unwrap();
    let (state, why) = reason(&outcomes, "x");
    assert_eq!(state, State::Kept);
    assert_eq!(
        why,
        "the newer image cp 2, of node a, applied it; this node's image is cp 1"
    );
    assert_eq!(reason(&outcomes, "y").0, State::Kept);
    assert!(fake.log("").iter().all(|line| line.starts_with("GET ")));
    let forced = Node {
        options: Options {
            replace_newer: true,
            dry_run: false,
        },
        ..Node::new(&world, &api)
    };
    let outcomes = forced.apply(vec![first()]).unwrap();
    assert_eq!(reason(&outcomes, "x").0, State::Applied);
    assert!(!fake.object(&format!("{MAPS}/b")).is_null());
}

#[test]
fn a_record_that_another_node_writes_meanwhile_ends_the_addon_and_a_dry_run_sends_nothing() {
    let root = tempfile::tempdir().unwrap();
    let (world, fake) = (machine(root.path()), Fake::default());
    let api = fake.serve();
    let node = Node::new(&world, &api);
    let dry = Node {
        options: Options {
            dry_run: true,
            replace_newer: false,
        },
        ..Node::new(&world, &api)
    };
    node.applied(vec![addon("x", &[map("a")], "")]);
    fake.clear();
    let mut run = dry.run();
    run.apply(&manifests::read(vec![
        addon("x", &[map("b")], ""),
        metrics(),
    ]))
    .unwrap();
    let expected = [
        "apply Namespace metrics",
        "apply CustomResourceDefinition things.example.com",
        "apply ServiceAccount metrics/server",
        "apply Deployment metrics/server",
        "apply Thing one",
        "apply ConfigMap kube-system/b",
        "delete ConfigMap kube-system/a",
    ];
    assert_eq!(run.lines, expected);
    assert!(fake.log("").iter().all(|line| line.starts_with("GET ")));
    fake.with(|fake| fake.refused = Some((format!("{MAPS}/slipway-addon-x"), 409)));
    let outcomes = node.apply(vec![addon("x", &[map("b")], "")]).unwrap();
    let (state, why) = reason(&outcomes, "x");
    assert_eq!(state, State::NotApplied);
    assert!(
        why.contains("writing the record") && why.contains("409"),
        "{why}"
    );
    assert!(fake.object(&format!("{MAPS}/b")).is_null());
}
