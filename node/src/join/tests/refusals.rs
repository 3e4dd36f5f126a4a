//! Joins that are refused: a cluster that is not proven, a name or a version that does not fit, another cluster's node.

use data_encoding::BASE64;

use super::*;
use crate::samples::machine;

/// What an object has in place of its right value, how a request of a path is answered, and what the error says.
type Case<'a> = (
    Option<(&'a str, &'a str)>,
    Option<(&'static str, u16, String)>,
    &'static str,
);

/// Joins, and wants it to be refused with nothing written, and the token sent nowhere but to the verified server.
fn refuse((wrong, answer, expected): Case<'_>) {
    let (object, requests) = serving(move |_, request, _| {
        let (path, status, body) = answer.as_ref()?;
        let asked = request.line.contains(path);
        asked.then(|| Answer::Full(*status, body.clone()))
    });
    let object = match wrong {
        Some((right, wrong)) => object.replace(right, wrong),
        None => object,
    };
    let folder = tempfile::tempdir().unwrap();
    let world = worker(folder.path(), &object);
    let error = refused(&world, folder.path());
    assert!(error.contains(expected), "{expected}: {error}");
    let seen = seen(&requests);
    assert!(!seen.is_empty(), "{expected}");
    for (line, token) in seen {
        let is_last = [KUBELET, NODE, VERSION]
            .iter()
            .any(|path| line.contains(path));
        assert_eq!(is_last, token, "{expected}: {line}");
    }
}

#[test]
fn a_cluster_that_is_not_proven_is_named_and_nothing_is_written() {
    let said = |message: &str| json!({"kind": "Status", "message": message}).to_string();
    let map = |text: &str| json!({"data": {"kubelet": text}}).to_string();
    let cases: [Case<'_>; 8] = [
        (
            Some((TOKEN, "abcdef.0000000000000000")),
            None,
            "but not with the secret in join.token",
        ),
        (
            Some((TOKEN, "zzzzzz.0123456789abcdef")),
            None,
            "not signed for the token \"zzzzzz\": it is not a token of this cluster, or expired (signed for abcdef)",
        ),
        (
            None,
            Some((INFO, 403, said("no reader"))),
            "403 Forbidden: no reader",
        ),
        (
            None,
            Some((KUBELET, 401, said("Unauthorized"))),
            "401 Unauthorized: Unauthorized",
        ),
        (
            None,
            Some((INFO, 404, String::new())),
            "no map kube-public/cluster-info",
        ),
        (
            None,
            Some((KUBELET, 404, String::new())),
            "no map kube-system/kubelet-config",
        ),
        (
            None,
            Some((INFO, 200, "x".repeat(9 << 20))),
            "is larger than",
        ),
        (
            None,
            Some((KUBELET, 200, map("kind: X\n"))),
            "expected KubeletConfiguration",
        ),
    ];
    cases.into_iter().for_each(refuse);
}

/// With a token a machine would get the certificate of any node by its name.
#[test]
fn a_name_that_a_ready_node_has_is_refused_until_it_is_ready_no_more() {
    let node = |ready: &str| {
        let other = json!({"type": "MemoryPressure", "status": "True"});
        let ready = json!({"type": "Ready", "status": ready});
        json!({"status": {"conditions": [other, ready]}}).to_string()
    };
    refuse((
        None,
        Some((NODE, 200, node("True"))),
        "the cluster has a node \"node1\" that is Ready",
    ));
    refuse((
        None,
        Some((NODE, 403, String::new())),
        "asking whether there is a node \"node1\"",
    ));
    for ready in ["False", "Unknown"] {
        let answers = [node("True"), node(ready)];
        let (object, requests) = serving(move |_, request, number| {
            request.line.contains(NODE).then(|| {
                let at = usize::from(number > 5);
                Answer::Full(200, answers[at].clone())
            })
        });
        let folder = tempfile::tempdir().unwrap();
        let world = worker(folder.path(), &object);
        prepared(&world).unwrap_or_else(|error| panic!("{error:#}"));
        assert_eq!(seen(&requests).len(), 9, "{ready}");
    }
}

/// The image's kubelet is 1.36.3.
#[test]
fn a_kubelet_that_the_control_planes_version_does_not_allow_does_not_join() {
    let version = |text: &str| (VERSION, 200, json!({"gitVersion": text}).to_string());
    for (served, expected) in [
        (
            "v1.35.2",
            "the kubelet v1.36.3 is newer than the API server, v1.35.2",
        ),
        ("v1.40.0", "more than 3 minor versions older"),
    ] {
        refuse((None, Some(version(served)), expected));
    }
    // An upgraded control plane, one that says nothing, and one that forbids to ask.
    for (status, body) in [
        (200, json!({"gitVersion": "v1.39.1"}).to_string()),
        (200, json!({}).to_string()),
        (403, String::new()),
    ] {
        let (object, _requests) = serving(move |_, request, _| {
            let asked = request.line.contains(VERSION);
            asked.then(|| Answer::Full(status, body.clone()))
        });
        let folder = tempfile::tempdir().unwrap();
        let world = worker(folder.path(), &object);
        prepared(&world).unwrap_or_else(|error| panic!("{error:#}"));
    }
}

/// A machine without a battery begins in the past; one whose clock was set wrong may be years ahead.
#[test]
fn a_clock_by_which_the_cluster_is_not_valid_is_named() {
    for (year, expected) in [
        (2020, "certificate expired"),
        (2200, "certificate not valid yet"),
    ] {
        let plane = ControlPlane::new();
        let (object, pair) = (plane.worker(), plane.certificate_of(year));
        let requests = serve_by_tls(
            plane.listener(),
            move || pair.clone(),
            move |request| plane.answer(request),
        );
        let folder = tempfile::tempdir().unwrap();
        let world = worker(folder.path(), &object);
        let error = refused(&world, folder.path());
        assert!(error.contains(expected), "{error}");
        assert!(error.contains("; the machine's clock says "), "{error}");
        let remedy = crate::remedies::remedy(crate::remedies::Trouble::Join(&error));
        assert!(
            remedy.is_some_and(|text| text.contains("timedatectl")),
            "{error}"
        );
        assert!(seen(&requests).iter().all(|(_, token)| !token));
    }
}

#[test]
fn an_authority_that_is_not_pinned_is_named_with_its_public_key() {
    let (object, requests) = serving(|_, _, _| None);
    let mut texts = object.split('"');
    let right = texts.find(|text| text.starts_with("sha256:")).unwrap();
    let wrong = format!("sha256:{}", "0".repeat(64));
    let folder = tempfile::tempdir().unwrap();
    let world = worker(folder.path(), &object.replace(right, &wrong));
    let error = refused(&world, folder.path());
    let expected = format!(
        "the cluster's authority has the public key {right}, expected {wrong} (join.ca-hashes)"
    );
    assert!(error.ends_with(&expected), "{error}");
    let expected = vec![(format!("GET {INFO}"), false); ATTEMPTS];
    assert_eq!(seen(&requests), expected);
}

#[test]
fn another_authority_or_another_answer_behind_the_first_request_is_refused() {
    // An attacker on the way passes the first request on, which is signed, and cannot prove to be of the pinned authority.
    let (plane, other) = (ControlPlane::new(), ControlPlane::new());
    let folder = tempfile::tempdir().unwrap();
    let world = worker(folder.path(), &plane.worker());
    let pairs = [plane.certificate(), other.certificate()];
    let listener = plane.listener();
    let mut number = 0;
    let requests = serve_by_tls(
        listener,
        move || {
            number += 1;
            pairs[(number + 1) % 2].clone()
        },
        move |request| plane.answer(request),
    );
    let error = refused(&world, folder.path());
    assert!(error.contains("invalid peer certificate"), "{error}");
    let all = seen(&requests);
    assert_eq!(all.len(), ATTEMPTS, "{all:?}");
    assert!(
        all.iter()
            .all(|(line, token)| line.contains(INFO) && !token)
    );
    // The signed answers to both requests differ.
    let (object, requests) = serving(move |plane, request, number| {
        let changed = request.line.contains(INFO) && number % 2 == 0;
        changed.then(|| {
            Answer::Full(
                200,
                plane
                    .signed(&format!("{}\n# x\n", plane.info()))
                    .to_string(),
            )
        })
    });
    let world = worker(folder.path(), &object);
    let error = refused(&world, folder.path());
    assert!(
        error.contains("cluster-info is another one by TLS"),
        "{error}"
    );
    assert!(seen(&requests).iter().all(|(_, token)| !token));
}

#[test]
fn a_worker_of_another_cluster_is_named_and_nobody_is_asked() {
    let plane = ControlPlane::new();
    let other = ControlPlane::new();
    let identity = plane.file("/etc/kubernetes/kubelet.conf");
    let (object, authority) = (plane.worker(), plane.file(AUTHORITY));
    let foreign = (
        other.file("/etc/kubernetes/kubelet.conf"),
        other.file(AUTHORITY),
    );
    let requests = serving_plane(plane);
    let begun = |name: &str| serde_json::to_string(&Journal::new(name)).unwrap();
    let joined = |name: &str| serde_json::to_string(&Journal::of_worker(name)).unwrap();
    let kubeconfig = "/etc/kubernetes/kubelet.conf";
    let cases = [
        (
            vec![(journal::FILE, joined("red"))],
            "belongs to the cluster \"red\"",
        ),
        (
            vec![(journal::FILE, begun("blue"))],
            "is a control plane of the cluster \"blue\"",
        ),
        (
            vec![(AUTHORITY, foreign.1.clone())],
            "ca.crt is another cluster's: the cluster's authority has the public key sha256:",
        ),
        (
            vec![(AUTHORITY, "x".to_owned())],
            "ca.crt is another cluster's: cluster-info has no certificate",
        ),
        (
            vec![
                (AUTHORITY, authority.clone()),
                (kubeconfig, identity.clone()),
            ],
            "is the certificate of \"system:node:node1\", and this is node \"other\"",
        ),
    ];
    for (there, expected) in cases {
        let folder = tempfile::tempdir().unwrap();
        let object = match expected.contains("\"other\"") {
            true => object.replace("[node]", "[node]\nname = \"other\""),
            false => object.clone(),
        };
        let world = worker(folder.path(), &object);
        for (path, text) in there {
            put(&world.in_initrd(path), &text);
        }
        let error = refused(&world, folder.path());
        assert!(error.contains(expected), "{expected}: {error}");
    }
    // A certificate that the pinned authority has not signed, in a kubeconfig that says it has.
    let folder = tempfile::tempdir().unwrap();
    let world = worker(folder.path(), &object);
    put(&world.in_initrd(AUTHORITY), &authority);
    let right = BASE64.encode(authority.as_bytes());
    let wrong = BASE64.encode(foreign.1.as_bytes());
    put(
        &world.in_initrd(kubeconfig),
        &foreign.0.replace(&wrong, &right),
    );
    let error = refused(&world, folder.path());
    assert!(
        error.contains("is not signed by this cluster's authority"),
        "{error}"
    );
    assert_eq!(seen(&requests), []);
    // The other way round: a worker does not begin a control plane.
    let world = machine(
        folder.path(),
        "name = \"blue\"\n[node]\naddress = \"10.0.0.7\"\n",
    );
    fs::remove_dir_all(world.in_initrd("/etc/kubernetes")).unwrap();
    Journal::of_worker("blue").write(&world).unwrap();
    let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
    let error = crate::control_plane::prepare(&world, &bootstrap, |_| Ok(())).unwrap_err();
    assert!(
        format!("{error:#}").contains("is a worker of the cluster \"blue\""),
        "{error:#}"
    );
    assert!(!world.in_initrd("/etc/kubernetes").exists());
}
