//! The cluster's objects sent to a server on loopback, refusals included.

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
        let written = requests
            .try_iter()
            .filter(|request| request.line.starts_with("PATCH ") && request.line.contains(TOKEN));
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
