//! The fields of an object of a control plane, and their mistakes.

use std::collections::BTreeMap;

use cluster::host::Host;
use cluster::object::{Cni, Image, Role, read};
use serde_json::json;

use crate::samples::{WHOLE, host, image, joining, pods, refused, taken, worker};
#[test]
fn an_empty_object_is_a_cluster_of_the_images_version() {
    let object = taken("");
    let cluster = &object.config.cluster;
    assert_eq!(object.name(), "kubernetes");
    assert_eq!(object.cni, Cni::Bridge);
    assert_eq!(cluster.kubernetes_version, "v1.36.3");
    assert_eq!(cluster.image_repository, "slipway.local");
    assert_eq!(cluster.networking.pod_subnet, "10.244.0.0/16");
    assert_eq!(cluster.encryption_algorithm, "ECDSA-P256");
    // A token is made for nobody.
    assert!(object.config.init.bootstrap_tokens.is_empty());
    assert!(cluster.dns.disabled && !cluster.proxy.disabled);
    let note = "coredns is left out: the image does not bring it";
    assert_eq!(object.notes, [note]);
    let subnets: Vec<String> = object
        .first_pod_subnets()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(subnets, ["10.244.0.0/24"]);
    assert!(object.has_usual_pod_subnets());
    let files = pods(&object);
    let etcd = &files["/etc/kubernetes/manifests/etcd.yaml"];
    assert!(
        etcd.contains("image: slipway.local/etcd:3.5.16-0\n"),
        "{etcd}"
    );
    // etcd 3.5 refuses the flags of 3.6, which kubeadm 1.36 gives it in any case.
    assert!(
        etcd.contains("--experimental-initial-corrupt-check=true\n"),
        "{etcd}"
    );
    assert!(!etcd.contains("--feature-gates"), "{etcd}");
    let kubelet = &files["/var/lib/kubelet/config.yaml"];
    assert!(kubelet.contains("volumePluginDir: /plugins\n"), "{kubelet}");
    // Without it the kubelet asks name servers for the node's name.
    let flags = "KUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.5\"\n";
    assert_eq!(files["/var/lib/kubelet/kubeadm-flags.env"], flags);
    let object = taken("[kubelet]\nargs = { node-ip = \"10.0.0.5,fd00::5\" }\n");
    let flags = "KUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.5,fd00::5\"\n";
    assert_eq!(pods(&object)["/var/lib/kubelet/kubeadm-flags.env"], flags);
}

/// The bring-up gives the first node its subnet only where the controller manager would give it the same.
#[test]
fn other_sizes_of_pod_subnets_are_the_controller_managers() {
    for arguments in [
        "node-cidr-mask-size = 26",
        "node-cidr-mask-size-ipv4 = 26",
        "allocate-node-cidrs = false",
    ] {
        let object = taken(&format!("[controller-manager]\nargs = {{ {arguments} }}\n"));
        assert!(!object.has_usual_pod_subnets(), "{arguments}");
    }
    let other = taken("[controller-manager]\nargs = { v = 3 }\n");
    assert!(other.has_usual_pod_subnets());
}

#[test]
fn every_field_arrives() {
    let object = taken(WHOLE);
    let (init, cluster) = (&object.config.init, &object.config.cluster);
    assert_eq!((object.name(), object.cni), ("blue", Cni::None));
    assert_eq!(
        object.labels,
        BTreeMap::from([("zone".to_owned(), "a".to_owned())])
    );
    assert_eq!(init.node_registration.name, "one");
    assert!(init.node_registration.taints.is_empty());
    assert_eq!(init.local_api_endpoint.host_and_port(), "10.0.0.7:8443");
    assert_eq!(init.bootstrap_tokens[0].token, "abcdef.0123456789abcdef");
    assert_eq!(cluster.control_plane_endpoint, "api.example.test:8443");
    assert_eq!(cluster.networking.pod_subnet, "10.5.0.0/16,fd00:5::/48");
    assert_eq!(
        cluster.networking.service_subnet,
        "10.6.0.0/16,fd00:6::/112"
    );
    assert_eq!(cluster.networking.dns_domain, "blue.test");
    assert_eq!(object.config.kube_proxy.value["mode"], "nftables");
    assert_eq!(object.config.kubelet.value["maxPods"], 50);
    let gates = json!({"InPlacePodVerticalScaling": true});
    assert_eq!(object.config.kubelet.value["featureGates"], gates);
    let files = pods(&object);
    let server = &files["/etc/kubernetes/manifests/kube-apiserver.yaml"];
    for argument in [
        "--audit-log-maxage=7",
        "--tls-sni-cert-key=a,b",
        "--tls-sni-cert-key=c,d",
        "--feature-gates=InPlacePodVerticalScaling=true",
        "--secure-port=8443",
    ] {
        assert!(server.contains(argument), "{argument}: {server}");
    }
    // Ten minutes are 60 probes.
    assert!(server.contains("failureThreshold: 60"), "{server}");
    let etcd = &files["/etc/kubernetes/manifests/etcd.yaml"];
    assert!(etcd.contains("--quota-backend-bytes=8589934592"), "{etcd}");
}

#[test]
fn json_is_the_same_object() {
    let value: toml::Value = toml::from_str::<toml::Table>(WHOLE).unwrap().into();
    let text = serde_json::to_string_pretty(&value).unwrap();
    let (one, other) = (taken(WHOLE), taken(&text));
    assert_eq!(one.config.uploaded, other.config.uploaded);
    assert_eq!(pods(&one), pods(&other));
    assert_eq!(one.labels, other.labels);
}

#[test]
fn all_mistakes_are_named_at_once_by_the_objects_own_fields() {
    let text = "nmae = \"x\"
cni = \"flanel\"
[networks]
pods = [\"10.5.0.0/16\", \"x\"]
[networks.more]
a = 1
[api-server]
sans = [\"A_b\"]
args = 3
[node]
labels = { a = 1 }
";
    let mistakes = refused(text);
    for expected in [
        "nmae: unknown field; did you mean \"name\"? (line 1, column 8)",
        "cni: expected \"bridge\", \"flannel\" or \"none\" (line 2, column 7)",
        "networks.more: unknown field (line 5, column 11)",
        "api-server.args: expected a table of arguments (line 9, column 8)",
        "node.labels.a: expected text (line 11, column 16)",
    ] {
        assert!(
            mistakes.iter().any(|mistake| mistake == expected),
            "{expected}: {mistakes:#?}"
        );
    }
}

/// The API server would refuse them again and again, and with them all marks of the node.
#[test]
fn labels_and_taints_that_no_node_may_have_are_mistakes() {
    let text = "[node]
labels = { zone = \"eu west\", \"a/b/c\" = \"x\", rack = \"\", \"example.test/r\" = \"1.a\" }
taints = [
  { key = \"a b\", value = \"c,d\" },
  { effect = \"NoSchedule\" },
  { key = \"a\", effect = \"Never\" },
  { key = \"example.test/a\", value = \"\", effect = \"NoExecute\" },
]
";
    let mistakes = refused(text);
    let found: Vec<&str> = mistakes
        .iter()
        .map(|mistake| mistake.split(':').next().unwrap())
        .collect();
    let expected = [
        "node.labels.zone",
        "node.labels.a/b/c",
        "node.taints.2.effect",
        "node.taints.0.key",
        "node.taints.0.value",
        "node.taints.0.effect",
        "node.taints.1.key",
    ];
    assert_eq!(found, expected, "{mistakes:#?}");
    assert!(
        mistakes[0].ends_with("(line 2, column 19)"),
        "{mistakes:#?}"
    );
    assert!(
        mistakes[3].ends_with("(line 4, column 11)"),
        "{mistakes:#?}"
    );
}

#[test]
fn kubeadms_rules_name_the_objects_fields_and_positions() {
    let wrong = |text: &str, expected: &str| {
        let mistakes = refused(text);
        assert!(
            mistakes.iter().any(|mistake| mistake.starts_with(expected)),
            "{expected}: {mistakes:#?}"
        );
    };
    wrong("[networks]\npods = \"10.5.0.0/40\"\n", "networks.pods: ");
    wrong(
        "[networks]\nservices = 5\n",
        "networks.services: expected text, found a number",
    );
    wrong(
        "tokens = [\"secret\"]\n",
        "tokens.0.token: not a bootstrap token",
    );
    wrong("[node]\naddress = \"127.0.0.1\"\n", "node.address: ");
    wrong("[api-server]\nport = 70000\n", "api-server.port: ");
    wrong(
        "[kubelet.config]\nmaxPodz = 5\n",
        "kubelet.config.maxPodz: unknown field",
    );
    wrong(
        "[kubelet.config]\ntopologyManagerPolicy = \"best_effort\"\n",
        "kubelet.config.topologyManagerPolicy: \"best_effort\" is not known; expected none, best-effort, restricted or single-numa-node; did you mean \"best-effort\"? (line 2, column 25)",
    );
    wrong(
        "[kubelet.config]\nimageGCHighThresholdPercent = 850\n",
        "kubelet.config.imageGCHighThresholdPercent: expected a whole number from 0 to 100",
    );
    wrong(
        "[proxy]\nmode = \"ipables\"\n",
        "proxy.mode: \"ipables\" is not known; expected iptables, ipvs or nftables; did you mean \"iptables\"? (line 2, column 8)",
    );
    wrong(
        "version = \"1.35.4\"\n",
        "version: v1.35.4 is not in the image, which brings v1.36.3",
    );
    wrong(
        "version = \"1.20.0\"\n",
        "version: \"1.20.0\" is not a known version",
    );
    wrong("name = [\n", "not valid TOML");
    wrong("{\"name\": \"a\", \"name\": \"b\"}", "duplicate key");
}

#[test]
fn etcds_arguments_are_held_against_the_etcd_that_runs() {
    let mistakes = |text: &str, image: &Image| -> Vec<String> {
        let read = read(text, image, &Host::of_documentation(), Role::ControlPlane);
        let report = read.err().unwrap_or_default();
        report.mistakes.iter().map(ToString::to_string).collect()
    };
    let args =
        "[etcd]\nargs = { compaction-batch-limit = 10, quota-backend-bytes = [\"1\", \"8Gi\"] }\n";
    // The image has etcd 3.5.
    assert_eq!(
        mistakes(args, &image()),
        [
            "etcd.args.compaction-batch-limit: etcd 3.5 has no flag --compaction-batch-limit yet; in its place: \
             --experimental-compaction-batch-limit (line 2, column 35)",
            "etcd.args.quota-backend-bytes: --quota-backend-bytes of etcd 3.5 is of type int64, which \"8Gi\" is not \
             (line 2, column 67)",
        ]
    );
    let one = "[etcd]\nargs = { enable-v2 = true }\n";
    assert_eq!(mistakes(one, &image()), [""; 0]);
    // The official image of this version has 3.6, and a tag may name another.
    let gone = "etcd.args.enable-v2: etcd 3.6 has no flag --enable-v2 any more";
    for own in ["image-repository = \"registry.k8s.io\"\n", ""] {
        let tag = if own.is_empty() {
            "image-tag = \"3.6.8-0\"\n"
        } else {
            ""
        };
        let found = mistakes(&format!("{own}{one}{tag}"), &image());
        assert!(found.len() == 1 && found[0].starts_with(gone), "{found:?}");
    }
    // A recipe does not know its etcd before it is locked: what no version has is refused.
    let unknown = Image {
        images: BTreeMap::new(),
        ..image()
    };
    assert_eq!(mistakes(one, &unknown), [""; 0]);
    let found = mistakes("[etcd]\nargs = { quota = 1 }\n", &unknown);
    assert!(
        found[0].contains("etcd 3.6 has no flag --quota"),
        "{found:?}"
    );
}

/// Its pod has one folder of the node: all else is gone with the container.
#[test]
fn etcd_keeps_its_data_in_the_folder_of_its_volume() {
    let below = Some("expected a folder below /var/lib/etcd, ");
    for (args, expected) in [
        ("data-dir = \"/var/lib/etcd/\"", None),
        ("wal-dir = \"/var/lib/etcd/wal\"", None),
        ("wal-dir = \"\"", None),
        ("data-dir = \"/data\"", Some("expected /var/lib/etcd, ")),
        (
            "data-dir = \"/var/lib/etcd/a\"",
            Some("expected /var/lib/etcd, "),
        ),
        ("wal-dir = \"/var/lib/etcd-wal\"", below),
        ("wal-dir = \"/var/lib/etcd/../wal\"", below),
    ] {
        let text = format!("[etcd]\nargs = {{ {args} }}\n");
        let Some(words) = expected else {
            drop(taken(&text));
            continue;
        };
        let mistakes = refused(&text);
        let is_named = mistakes[0].starts_with("etcd.args: ")
            && mistakes[0].contains(words)
            && mistakes[0].contains("(line 2, ");
        assert!(mistakes.len() == 1 && is_named, "{mistakes:#?}");
    }
}

#[test]
fn a_token_is_not_repeated_in_a_message() {
    let mistakes = refused("tokens = [\"abcdef.0123456789abcdeG\"]\n");
    assert!(!mistakes.concat().contains("0123456789"), "{mistakes:?}");
}

#[test]
fn a_repository_of_the_objects_own_takes_any_version() {
    let object = taken("version = \"v1.35.4\"\nimage-repository = \"registry.example.test\"\n");
    let files = pods(&object);
    let etcd = &files["/etc/kubernetes/manifests/etcd.yaml"];
    assert!(
        etcd.contains("image: registry.example.test/etcd:3.6.6-0\n"),
        "{etcd}"
    );
    assert!(!object.config.cluster.dns.disabled);
    // `/usr` cannot be written.
    let manager = &files["/etc/kubernetes/manifests/kube-controller-manager.yaml"];
    assert!(manager.contains("path: /plugins\n"), "{manager}");
}

/// Another version than the image's is the API server's alone: the kubelet is the image's.
#[test]
fn a_version_that_is_older_than_the_images_kubelet_is_refused() {
    let text = |version: &str, more: &str| {
        format!(
            "version = \"{version}\"\nimage-repository = \"r.example\"\n[node]\naddress = \"10.0.0.7\"\n{more}"
        )
    };
    let found = |own: &str, text: &str, role: Role| {
        let image = Image {
            version: own.to_owned(),
            has_kubelet: true,
            ..image()
        };
        let report = read(text, &image, &host(), role).err();
        let mistakes = report.into_iter().flat_map(|report| report.mistakes);
        mistakes.map(|one| one.to_string()).collect::<Vec<_>>()
    };
    let none = [""; 0];
    for (own, version) in [
        ("v1.36.3", "v1.36.0"),
        ("v1.34.9", "v1.36.3"),
        ("v1.33.0", "v1.36.3"),
    ] {
        assert_eq!(found(own, &text(version, ""), Role::ControlPlane), none);
    }
    assert_eq!(
        found("v1.36.3", &text("1.35.4", ""), Role::ControlPlane),
        [
            "version: the kubelet v1.36.3 is newer than the API server, v1.35.4; expected the same minor version or an older one; \
          what works: an image, or kubelet.image, with a kubelet of 1.32 to 1.35, or API servers of 1.36 to 1.39 with this image \
          (line 1, column 11)"
        ]
    );
    let older = found("v1.32.9", &text("1.36.3", ""), Role::ControlPlane);
    assert!(
        older[0].contains("v1.32.9 is more than 3 minor versions older"),
        "{older:?}"
    );
    // A worker's object says its cluster's version.
    let worker = joining("").replace(
        "endpoint",
        "version = \"1.35.4\"\nimage-repository = \"r.example\"\nendpoint",
    );
    let worker = found("v1.36.3", &worker, Role::Worker);
    assert!(
        worker.iter().any(|one| one.contains("v1.36.3 is newer")),
        "{worker:?}"
    );
    // The version of a pinned one is known once it is there, and nobody knows an object's image on a workstation.
    let pinned = format!(
        "[kubelet]\nimage = \"r.example/kubelet@sha256:{}\"\n",
        "a1".repeat(32)
    );
    assert_eq!(
        found("v1.36.3", &text("1.35.4", &pinned), Role::ControlPlane),
        none
    );
    assert!(read(&text("1.35.4", ""), &image(), &host(), Role::ControlPlane).is_ok());
}

/// The example of the page has every field at its place.
#[test]
fn the_example_of_the_documentation_is_read() {
    let page = include_str!("../../../docs/cluster.md");
    let (_, rest) = page.split_once("```toml\n").unwrap();
    let object = taken(rest.split("```").next().unwrap());
    assert_eq!(object.name(), "demo");
    assert_eq!(object.config.cluster.image_repository, "registry.k8s.io");
    assert_eq!(object.config.kube_proxy.value["mode"], "nftables");
    let (_, rest) = rest.split_once("```toml\n").unwrap();
    let object = worker(rest.split("```").next().unwrap());
    assert_eq!(object.join.unwrap().pins.len(), 1);
}
