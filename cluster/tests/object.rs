//! Cluster objects: what they come to, and what is wrong with them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;

use cluster::host::Host;
use cluster::kubelet;
use cluster::metrics_server::{self, Credentials};
use cluster::object::{Cni, Image, Object, Role, read};
use cluster::release::Version;
use cluster::render::render;
use serde_json::json;

const WHOLE: &str = r#"
name = "blue"
version = "1.36.3"
endpoint = "api.example.test"
cni = "none"
start-timeout = "10m"
tokens = ["abcdef.0123456789abcdef"]
feature-gates = { InPlacePodVerticalScaling = true }

[networks]
pods = ["10.5.0.0/16", "fd00:5::/48"]
services = ["10.6.0.0/16", "fd00:6::/112"]
domain = "blue.test"

[node]
name = "one"
address = "10.0.0.7"
taints = []
labels = { zone = "a" }

[api-server]
port = 8443
sans = ["blue.example.test"]
args = { audit-log-maxage = 7, "tls-sni-cert-key" = ["a,b", "c,d"] }

[controller-manager]
args = { v = "3" }

[etcd]
args = { "quota-backend-bytes" = "8589934592" }

[kubelet.config]
maxPods = 50
evictionHard = { "memory.available" = "1Mi" }

[proxy]
mode = "nftables"

[dns]
enabled = false
"#;

fn image() -> Image {
    let images = [
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kube-proxy",
    ];
    let images = images.map(|name| (name.to_owned(), format!("slipway.local/{name}:v1.36.3")));
    let etcd = ("etcd".to_owned(), "slipway.local/etcd:3.5.16-0".to_owned());
    Image {
        version: "v1.36.3".to_owned(),
        has_kubelet: false,
        images: images.into_iter().chain([etcd]).collect(),
        known: false,
        kubelet: json!({"volumePluginDir": "/plugins"})
            .as_object()
            .unwrap()
            .clone(),
        flexvolume: "/plugins".to_owned(),
    }
}

/// The same with a name server.
fn image_with_coredns() -> Image {
    let mut image = image();
    let reference = "slipway.local/coredns:v1.14.2".to_owned();
    image.images.insert("coredns".to_owned(), reference);
    image
}

fn host() -> Host {
    let mut host = Host::debian("node1");
    host.address = Some([10, 0, 0, 5].into());
    host
}

fn taken(text: &str) -> Object {
    let object = read(text, &image(), &host(), Role::ControlPlane);
    object.unwrap_or_else(|report| panic!("{:?}", report.mistakes))
}

fn worker(text: &str) -> Object {
    let object = read(text, &image(), &host(), Role::Worker);
    object.unwrap_or_else(|report| panic!("{:?}", report.mistakes))
}

fn refused(text: &str) -> Vec<String> {
    refused_of(Role::ControlPlane, text)
}

fn refused_of(role: Role, text: &str) -> Vec<String> {
    let report = read(text, &image(), &host(), role).unwrap_err();
    report.mistakes.iter().map(ToString::to_string).collect()
}

/// A moment of which nothing is asked but constants.
struct Moment;

impl cluster::objects::Moment for Moment {
    fn authority(&self) -> String {
        "X".to_owned()
    }
    fn expiry(&self, _: cluster::duration::Duration) -> String {
        "X".to_owned()
    }
    fn token(&self) -> String {
        panic!("every token is named")
    }
}

/// The manifests by the names of their pods.
fn pods(object: &Object) -> BTreeMap<String, String> {
    let files = render(&object.config, &host(), &Moment).files.into_iter();
    files.map(|file| (file.path, file.text)).collect()
}

#[test]
fn the_images_coredns_answers_in_the_cluster() {
    let mut host = host();
    host.resolved = true;
    let object = read("", &image_with_coredns(), &host, Role::ControlPlane).unwrap();
    assert!(object.notes.is_empty(), "{:?}", object.notes);
    // The stub on the loopback interface would be CoreDNS itself in its pod.
    let kubelet = &object.config.kubelet.value;
    assert_eq!(kubelet["resolvConf"], "/run/systemd/resolve/resolv.conf");
    assert_eq!(kubelet["clusterDNS"], json!(["10.96.0.10"]));
    let objects = render(&object.config, &host, &Moment).objects;
    let mut deployments = objects
        .iter()
        .filter(|object| object.value["kind"] == "Deployment");
    let container = &deployments.next().unwrap().value["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], "slipway.local/coredns:v1.14.2");
    assert_eq!(container["imagePullPolicy"], "IfNotPresent");
    assert!(deployments.next().is_none());
    let off = read(
        "[dns]\nenabled = false\n",
        &image_with_coredns(),
        &host,
        Role::ControlPlane,
    );
    let objects = render(&off.unwrap().config, &host, &Moment).objects;
    assert!(
        objects
            .iter()
            .all(|object| object.value["kind"] != "Deployment")
    );
}

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

/// flannel has the subnets of both versions, and an image without it is refused where the object names it.
#[test]
fn flannel_has_the_clusters_subnets_and_needs_its_image() {
    let text = "cni = \"flannel\"\n[node]\naddress = \"10.0.0.7\"\n[networks]\npods = [\"10.5.0.0/16\", \"fd00:5::/48\"]\nservices = [\"10.6.0.0/16\", \"fd00:6::/112\"]\n";
    // Where the image is not known it may bring flannel.
    let unknown = Image {
        images: BTreeMap::new(),
        ..image()
    };
    assert!(read(text, &unknown, &host(), Role::ControlPlane).is_ok());
    let mut image = Image {
        known: true,
        ..image()
    };
    let report = read(text, &image, &host(), Role::ControlPlane).unwrap_err();
    let said = report.mistakes[0].to_string();
    assert!(
        said.starts_with("cni: the image brings no flannel")
            && said.ends_with("(line 1, column 7)"),
        "{said}"
    );
    let reference = "slipway.local/flannel:v0.28.10";
    image
        .images
        .insert("flannel".to_owned(), reference.to_owned());
    let object = read(text, &image, &host(), Role::ControlPlane).unwrap();
    assert_eq!(object.cni, Cni::Flannel);
    let objects = cluster::flannel::objects(&object.config, &object.flannel_image);
    let named = |name: &str| {
        let found = objects
            .iter()
            .find(|object| object.value["metadata"]["name"] == name);
        &found.unwrap().value
    };
    let network = named("kube-flannel-cfg")["data"]["net-conf.json"].as_str();
    let network: serde_json::Value = serde_json::from_str(network.unwrap()).unwrap();
    assert_eq!(
        network,
        json!({
            "Backend": {"Type": "vxlan"},
            "EnableIPv4": true,
            "EnableIPv6": true,
            "EnableNFTables": true,
            "IPv6Network": "fd00:5::/48",
            "Network": "10.5.0.0/16",
        })
    );
    let pod = &named("kube-flannel-ds")["spec"]["template"]["spec"];
    assert_eq!(pod["containers"][0]["image"], reference);
    let env = pod["containers"][0]["env"].as_array().unwrap();
    let server: Vec<_> = env.iter().filter_map(|one| one["value"].as_str()).collect();
    assert_eq!(server, ["10.0.0.7", "6443"]);
}

/// metrics-server checks kubelets, which request certificates for it, and an image without it is refused where the object names it.
#[test]
fn metrics_server_checks_kubelets_and_needs_its_image() {
    let text = "[node]\naddress = \"10.0.0.7\"\n[addons]\nmetrics-server = true\n";
    let mut image = Image {
        known: true,
        ..image()
    };
    let refused = |text: &str, image: &Image| {
        let report = read(text, image, &host(), Role::ControlPlane).unwrap_err();
        let said = report.mistakes.iter().map(ToString::to_string);
        said.collect::<Vec<_>>()
    };
    let said = refused(text, &image);
    assert!(
        said.len() == 1
            && said[0].starts_with("addons.metrics-server: the image brings no metrics-server")
            && said[0].ends_with("(line 4, column 18)"),
        "{said:?}"
    );
    let reference = "slipway.local/metrics-server:v0.9.0";
    image
        .images
        .insert("metrics-server".to_owned(), reference.to_owned());
    let object = read(text, &image, &host(), Role::ControlPlane).unwrap();
    assert_eq!(object.metrics_server.as_deref(), Some(reference));
    assert_eq!(object.config.kubelet.value["serverTLSBootstrap"], true);
    let off = text.replace("true", "false");
    let object = read(&off, &image, &host(), Role::ControlPlane).unwrap();
    assert_eq!(object.metrics_server, None);
    assert_eq!(
        object.config.kubelet.value["serverTLSBootstrap"],
        json!(null)
    );
    let own =
        |value: &str| format!("{text}[kubelet]\nconfig = {{ serverTLSBootstrap = {value} }}\n");
    assert!(read(&own("true"), &image, &host(), Role::ControlPlane).is_ok());
    let said = refused(&own("false"), &image);
    assert!(
        said.len() == 1
            && said[0]
                .starts_with("kubelet.config.serverTLSBootstrap: metrics-server asks kubelets")
            && said[0].ends_with("(line 6, column 33)"),
        "{said:?}"
    );
    let said = refused(&text.replace("true", "1"), &image);
    assert_eq!(
        said,
        ["addons.metrics-server: expected true or false (line 4, column 18)"]
    );
}

/// Nothing of metrics-server's manifest lets somebody else answer for it or for a kubelet.
#[test]
fn metrics_server_is_asked_and_asks_by_certificates_that_are_checked() {
    let credentials = Credentials {
        certificate: "Y2VydA==",
        key: "a2V5",
    };
    let objects = metrics_server::objects("r.example/metrics-server:v1", credentials);
    let paths: Vec<String> = objects
        .iter()
        .map(|object| {
            let name = object.value["metadata"]["name"].as_str().unwrap();
            format!("{}/{name}", object.resource())
        })
        .collect();
    assert_eq!(
        paths,
        [
            "serviceaccounts/metrics-server",
            "clusterroles/system:aggregated-metrics-reader",
            "clusterroles/system:metrics-server",
            "rolebindings/metrics-server-auth-reader",
            "clusterrolebindings/metrics-server:system:auth-delegator",
            "clusterrolebindings/system:metrics-server",
            "secrets/metrics-server-tls",
            "services/metrics-server",
            "deployments/metrics-server",
            "apiservices/v1beta1.metrics.k8s.io",
        ]
    );
    assert!(
        objects
            .iter()
            .all(|object| object.value["metadata"]["labels"]["k8s-app"] == "metrics-server")
    );
    let named = |path: &str| {
        let place = paths.iter().position(|found| found == path).unwrap();
        &objects[place].value
    };
    let labels = &named("clusterroles/system:aggregated-metrics-reader")["metadata"]["labels"];
    assert_eq!(
        labels["rbac.authorization.k8s.io/aggregate-to-view"],
        "true"
    );
    let service = &named("apiservices/v1beta1.metrics.k8s.io")["spec"];
    assert_eq!(service["caBundle"], "Y2VydA==");
    assert_eq!(service.get("insecureSkipTLSVerify"), None);
    let pod = &named("deployments/metrics-server")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["image"], "r.example/metrics-server:v1");
    let args = container["args"].to_string();
    for expected in [
        "--kubelet-certificate-authority=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt",
        "--tls-private-key-file=/etc/metrics-server/tls.key",
        "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
    ] {
        assert!(args.contains(expected), "{args}");
    }
    assert!(!args.contains("insecure"), "{args}");
    assert_eq!(
        pod["volumes"][0]["secret"]["secretName"],
        "metrics-server-tls"
    );
    // Of the service that the certificate is for.
    assert_eq!(metrics_server::HOST, "metrics-server.kube-system.svc");
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

/// A pin, made of one digit.
fn pin(digit: char) -> String {
    format!("sha256:{}", String::from(digit).repeat(64))
}

fn joining(rest: &str) -> String {
    format!(
        "endpoint = \"api.example.test\"\n[join]\ntoken = \"abcdef.0123456789abcdef\"\nca-hashes = [\"{}\", \"{}\"]\n{rest}",
        pin('0'),
        pin('a')
    )
}

#[test]
fn a_worker_has_its_token_its_pins_and_what_its_kubelet_registers() {
    let object = worker(&joining(
        "[node]\ntaints = [{key = \"gpu\", value = \"a\", effect = \"NoSchedule\"}, {key = \"b\", effect = \"NoExecute\"}]\n\
         labels = { zone = \"a\", \"node.kubernetes.io/pool\" = \"p\" }\n[kubelet.config]\nmaxPods = 50\n",
    ));
    let join = object.join.as_ref().unwrap();
    assert_eq!(join.token.text(), "abcdef.0123456789abcdef");
    assert!(!format!("{join:?}").contains("0123456789abcdef"));
    let pins: Vec<String> = join.pins.iter().map(ToString::to_string).collect();
    assert_eq!(pins, [pin('0'), pin('a')]);
    assert_eq!(
        object.config.control_plane_url(),
        "https://api.example.test:6443"
    );
    assert!(object.notes.is_empty());
    let flags = "KUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.5 --register-with-taints=gpu=a:NoSchedule,b:NoExecute \
                 --node-labels=node.kubernetes.io/pool=p,zone=a\"\n";
    assert_eq!(kubelet::arguments(&object.config, &host()).text, flags);
    // A worker has no taint of kubeadm's.
    let plain = worker(&joining(""));
    let flags = "KUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.5\"\n";
    assert_eq!(kubelet::arguments(&plain.config, &host()).text, flags);
}

#[test]
fn a_joined_kubelet_has_the_clusters_configuration_with_what_its_node_needs_and_its_object_says() {
    let object = worker(&joining("[kubelet.config]\nmaxPods = 50\n"));
    let join = object.join.as_ref().unwrap();
    let joined = |text: &str| kubelet::joined(&object.config, join, text);
    let cluster = "apiVersion: kubelet.config.k8s.io/v1beta1\nclusterDNS:\n- 10.96.0.10\nkind: KubeletConfiguration\nmaxPods: 110\nvolumePluginDir: \"\"\n";
    let file = joined(cluster).unwrap();
    assert_eq!(file.path, "/var/lib/kubelet/config.yaml");
    for line in [
        "maxPods: 50\n",
        "volumePluginDir: /plugins\n",
        "- 10.96.0.10\n",
    ] {
        assert!(file.text.contains(line), "{line}: {}", file.text);
    }
    let own = cluster.replace("\"\"", "/its/own");
    let file = joined(&own).unwrap();
    assert!(
        file.text.contains("volumePluginDir: /its/own\n"),
        "{}",
        file.text
    );
    for wrong in ["", "kind: X\n", "- a\n", "a: [\n"] {
        let report = joined(wrong).unwrap_err();
        assert_eq!(report.mistakes.len(), 1, "{wrong}: {report:?}");
    }
}

#[test]
fn a_kubelet_that_finds_pods_gives_them_the_time_of_their_startup_probe() {
    let gate = "ChangeContainerStatusOnKubeletRestart";
    let on = format!("featureGates:\n  {gate}: true\n");
    let files = |object: &Object, kubelet: Option<&str>| {
        let version = kubelet.map(|text| Version::parse(text).unwrap());
        kubelet::files_beside_pods(&object.config, &host(), version.as_ref())
    };
    let object = taken("");
    for (kubelet, has) in [
        (Some("v1.34.9"), false),
        (Some("v1.35.0"), true),
        (Some("v1.36.3"), true),
        // A kubelet does not start with the name of a gate that it does not know.
        (Some("v1.37.0"), false),
        (None, false),
    ] {
        let found = files(&object, kubelet);
        assert_eq!(found[0].text.contains(&on), has, "{kubelet:?}");
        let kubeadms = &kubelet::files(&object.config, &host())[0];
        assert!(!kubeadms.text.contains(gate));
    }
    for (set, expected) in [("false", "false"), ("true", "true")] {
        let own = taken(&format!(
            "[kubelet.config]\nfeatureGates = {{ {gate} = {set}, InPlacePodVerticalScaling = true }}\n"
        ));
        let text = &files(&own, Some("v1.36.3"))[0].text;
        assert!(text.contains(&format!("  {gate}: {expected}\n")), "{text}");
        assert!(
            text.contains("  InPlacePodVerticalScaling: true\n"),
            "{text}"
        );
    }
}

#[test]
fn all_mistakes_of_a_join_are_named_at_once() {
    let text = "tokens = [\"abcdef.0123456789abcdef\"]
[join]
token = \"abcdef.0123456789abcdeG\"
ca-hashes = [\"sha256:00\", 3]
cahash = 1
[node]
labels = { \"node-role.kubernetes.io/worker\" = \"\" }
[api-server]
port = 6443
";
    let form = "expected sha256: and 64 hexadecimal digits, the hash of an authority's public key";
    let expected = [
        "join.cahash: unknown field; did you mean \"ca-hashes\"? (line 5, column 10)".to_owned(),
        "tokens: a control plane's; expected no such field on a worker (line 1, column 10)".to_owned(),
        "api-server: a control plane's; expected no such field on a worker (line 8, column 2)".to_owned(),
        "node.labels.node-role.kubernetes.io/worker: a kubelet may not give its node this label; \
         expected an administrator to (line 7, column 47)".to_owned(),
        "endpoint: expected HOST:PORT of the control plane that [join] leads to (line 2, column 2)".to_owned(),
        "join.token: not a bootstrap token; expected 6 lower-case letters or digits, a dot, and 16 more (line 3, column 9)".to_owned(),
        format!("join.ca-hashes: {form} (line 4, column 14)"),
        format!("join.ca-hashes: {form} (line 4, column 27)"),
    ];
    assert_eq!(refused_of(Role::Worker, text), expected);
    // A join that nothing pins is refused, and an empty table names both fields.
    let without = joining("")
        .lines()
        .filter(|line| !line.starts_with("ca-"))
        .collect::<Vec<_>>()
        .join("\n");
    let mistakes = refused_of(Role::Worker, &without);
    let unpinned = format!(
        "join.ca-hashes: {form}; without it any server would be trusted (line 2, column 2)"
    );
    assert_eq!(mistakes, [unpinned.as_str()]);
    let mistakes = refused_of(Role::Worker, "endpoint = \"a:1\"\n[join]\n");
    assert_eq!(
        mistakes,
        [
            "join.token: expected a bootstrap token (line 2, column 2)",
            &unpinned
        ]
    );
    let empty = joining("").replace(&format!("[\"{}\", \"{}\"]", pin('0'), pin('a')), "[]");
    assert_eq!(
        refused_of(Role::Worker, &empty),
        [format!(
            "join.ca-hashes: expected a list of {} (line 4, column 13)",
            &form[9..]
        )]
    );
}

#[test]
fn a_role_that_does_not_fit_the_object_is_named() {
    let mistakes = refused(&joining(""));
    let expected = "on a control plane it goes with certificate-key; expected both, or neither and the authorities' keys in the node's config";
    assert_eq!(
        mistakes,
        [
            format!("join.token: {expected} (line 3, column 9)"),
            format!("join.ca-hashes: {expected} (line 4, column 13)"),
        ]
    );
    let mistakes = refused_of(Role::Worker, "name = \"blue\"\n");
    let expected = "join: expected [join] with token and ca-hashes: the role of this node is worker (line 1, column 1)";
    assert_eq!(mistakes, [expected]);
    let mistakes = refused_of(Role::Worker, "join = 3\n");
    assert!(
        mistakes[0].starts_with("join: expected a table"),
        "{mistakes:?}"
    );
}

#[test]
fn a_further_control_plane_brings_its_keys_or_fetches_them() {
    let brought = taken("name = \"blue\"\nendpoint = \"api.example.test\"\n[join]\n");
    assert!(brought.join.is_none());
    assert!(
        brought
            .further
            .is_some_and(|further| further.fetched.is_none())
    );
    assert!(taken("name = \"blue\"\n").further.is_none());
    let key = "0f".repeat(32);
    let fetched = taken(&joining(&format!("certificate-key = \"{key}\"\n")));
    let (join, _) = fetched.further.unwrap().fetched.unwrap();
    assert_eq!(join.token.id(), "abcdef");
    let mistakes = refused(&joining("certificate-key = \"0f\"\n"));
    let expected = "join.certificate-key: not a certificate key; expected 64 hexadecimal digits (line 5, column 19)";
    assert_eq!(mistakes, [expected]);
    let mistakes = refused("[join]\n");
    let expected =
        "endpoint: expected HOST:PORT of the control plane that [join] leads to (line 1, column 2)";
    assert_eq!(mistakes, [expected]);
    let mistakes = refused_of(
        Role::Worker,
        &joining(&format!("certificate-key = \"{key}\"\n")),
    );
    let expected = "join.certificate-key: a control plane's; expected no such field on a worker (line 5, column 19)";
    assert_eq!(mistakes, [expected]);
}

#[test]
fn a_certificate_key_is_a_control_planes_and_has_kubeadms_form() {
    let key = "0f".repeat(32);
    let first = taken(&format!("certificate-key = \"{key}\"\n"));
    assert_eq!(first.config.init.certificate_key, key);
    // It is secret: what nodes read of the configuration does not have it.
    let uploaded = cluster::yaml::write(&first.config.uploaded);
    assert!(!uploaded.contains(&key), "{uploaded}");
    let mistakes = refused("certificate-key = \"0f\"\n");
    let expected =
        "certificate-key: not a key of AES-256; expected 64 hexadecimal digits (line 1, column 19)";
    assert_eq!(mistakes, [expected]);
    let mistakes = refused_of(
        Role::Worker,
        &format!("certificate-key = \"{key}\"\n{}", joining("")),
    );
    let expected = "certificate-key: a control plane's; expected no such field on a worker (line 1, column 19)";
    assert_eq!(mistakes, [expected]);
}

/// The example of the page has every field at its place.
#[test]
fn the_example_of_the_documentation_is_read() {
    let page = include_str!("../../docs/cluster.md");
    let (_, rest) = page.split_once("```toml\n").unwrap();
    let object = taken(rest.split("```").next().unwrap());
    assert_eq!(object.name(), "demo");
    assert_eq!(object.config.cluster.image_repository, "registry.k8s.io");
    assert_eq!(object.config.kube_proxy.value["mode"], "nftables");
    let (_, rest) = rest.split_once("```toml\n").unwrap();
    let object = worker(rest.split("```").next().unwrap());
    assert_eq!(object.join.unwrap().pins.len(), 1);
}

#[test]
fn a_worker_has_a_balancer_and_a_control_plane_none_unless_the_object_says_otherwise() {
    let of_worker = worker(&joining("")).balancer;
    assert!(of_worker.enabled);
    assert_eq!(of_worker.url(), "https://127.0.0.1:7443");
    assert!(!taken("").balancer.enabled);
    let table = "[balancer]\nenabled = ENABLED\nport = 7500\nservers = [\"10.0.0.6\", \"[fd00::6]:8443\", \"api.example.test:6443\"]\n";
    let with = |enabled: &str| table.replace("ENABLED", enabled);
    assert!(!worker(&joining(&with("false"))).balancer.enabled);
    let own = taken(&format!(
        "endpoint = \"api.example.test\"\n{}",
        with("true")
    ));
    assert!(own.balancer.enabled);
    assert_eq!(own.balancer.url(), "https://127.0.0.1:7500");
    let known: Vec<String> = own
        .known_servers()
        .iter()
        .map(ToString::to_string)
        .collect();
    let expected = ["api.example.test:6443", "10.0.0.6:6443", "[fd00::6]:8443"];
    assert_eq!(known, expected);
    let wrong = "[balancer]\nenabled = \"no\"\nport = 443\nserver = []\nservers = [\"API.example.test\", 7]\n";
    assert_eq!(
        refused(wrong),
        [
            "balancer.server: unknown field; did you mean \"servers\"? (line 4, column 10)",
            "balancer.enabled: expected true or false (line 2, column 11)",
            "balancer.port: expected a port, 1024 to 65535 (line 3, column 8)",
            "balancer.servers: \"API.example.test\" is neither an address nor a name in lower case (line 5, column 12)",
            "balancer.servers: expected HOST:PORT (line 5, column 32)",
        ]
    );
}
