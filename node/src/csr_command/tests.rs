//! The command against an API server on loopback.

use image::kubelet::ADMIN_KUBECONFIG;

use super::*;
use crate::control_plane;
use crate::samples::{machine, put};
use crate::serving_requests::tests::{OBJECT, control_plane as node, plane, request};

#[test]
fn requests_are_listed_with_their_verdicts_and_one_is_approved_by_the_same_rules() {
    let folder = tempfile::tempdir().unwrap();
    let (_, bootstrap) = node(folder.path());
    let (api, kept, _asked) = plane(vec![
        request("csr-1", "node1", &["node1", "10.0.0.8"]),
        request("csr-other", "node1", &["node2"]),
    ]);
    let config = config(&bootstrap);
    let listed = list(&api, config, false).unwrap();
    let expected = "csr-1             right: the node node1 is \"node1\", 10.0.0.8\n\
                    csr-other         left: \"node2\" is not an address of its node\n";
    assert_eq!(listed, expected);
    let listed: Value = serde_json::from_str(&list(&api, config, true).unwrap()).unwrap();
    assert_eq!(
        listed,
        json!([
            {
                "name": "csr-1",
                "requester": "system:node:node1",
                "right": true,
                "names": ["node1", "10.0.0.8"],
                "reason": null,
            },
            {
                "name": "csr-other",
                "requester": "system:node:node1",
                "right": false,
                "names": [],
                "reason": "\"node2\" is not an address of its node",
            },
        ])
    );
    let decided = |name: &str, dry_run: bool| {
        let decided = decide(&api, config, name, dry_run, SystemTime::now());
        decided.map_err(|error| format!("{error:#}"))
    };
    let error = decided("csr-other", false).unwrap_err();
    assert!(
        error.starts_with("csr-other is not right: \"node2\""),
        "{error}"
    );
    let error = decided("csr-9", false).unwrap_err();
    assert!(
        error.contains("waits as \"csr-9\"; there are\ncsr-1 "),
        "{error}"
    );
    assert!(
        decided("csr-1", true)
            .unwrap()
            .contains("would be approved")
    );
    assert!(kept.lock().unwrap().approved().is_empty());
    assert!(decided("csr-1", false).unwrap().contains("is approved"));
    assert_eq!(kept.lock().unwrap().approved().len(), 1);
    assert!(decided("csr-1", false).is_err());
    kept.lock().unwrap().requests.clear();
    let listed = list(&api, config, false).unwrap();
    assert!(listed.starts_with("no kubelet's request"), "{listed}");
}

/// Without the administrator's kubeconfig a run that would ask fails.
#[test]
fn requests_are_approved_only_where_the_object_asks_kubelets_for_them() {
    let off = OBJECT.replace("true", "false");
    let without = OBJECT.split("[kubelet]").next().unwrap();
    let hash = "0".repeat(64);
    let worker = format!(
        "{OBJECT}[join]\ntoken = \"abcdef.0123456789abcdef\"\nca-hashes = [\"sha256:{hash}\"]\n"
    )
    .replace(
        "name = \"blue\"",
        "name = \"blue\"\nendpoint = \"api.example.test\"",
    );
    for (object, control_plane, asks) in [
        (OBJECT, true, true),
        (&off, true, false),
        (without, true, false),
        (&worker, false, false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(folder.path(), object);
        if !control_plane {
            let gate = world.in_run(image::paths::RUN_ETCD_GATE);
            put(&gate, "{\"required\": false}");
        }
        assert_eq!(run(&world).is_err(), asks, "{object}");
    }
    // An API server that does not answer is asked again by the next run.
    let folder = tempfile::tempdir().unwrap();
    let (world, bootstrap) = node(folder.path());
    control_plane::prepare(&world, &bootstrap, |_| Ok(())).unwrap();
    assert!(world.in_initrd(ADMIN_KUBECONFIG).exists());
    let (api, kept, _asked) = plane(Vec::new());
    kept.lock().unwrap().faults.insert(0, 503);
    let error = approve_all(&world, &api, config(&bootstrap), SystemTime::now()).unwrap_err();
    assert!(is_temporary(&error), "{error:#}");
}

#[test]
fn a_request_that_comes_while_the_unit_waits_is_approved_by_the_next_look() {
    let folder = tempfile::tempdir().unwrap();
    let (world, bootstrap) = node(folder.path());
    let (api, kept, asked) = plane(vec![request("csr-1", "node1", &["node1"])]);
    kept.lock().unwrap().coming = vec![
        request("csr-2", "node2", &["node2"]),
        request("csr-other", "node1", &["node2"]),
    ];
    for (approved, seconds) in [(1, 30), (1, 3), (2, 30)] {
        follow(&world, &api, config(&bootstrap)).unwrap();
        assert_eq!(kept.lock().unwrap().approved().len(), approved);
        let all: Vec<String> = asked.try_iter().map(|request| request.line).collect();
        let waits = all.iter().find(|line| line.contains("watch=true")).unwrap();
        assert!(
            waits.ends_with(&format!("timeoutSeconds={seconds}")),
            "{waits}"
        );
    }
}
