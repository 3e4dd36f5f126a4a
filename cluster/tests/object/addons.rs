//! CoreDNS, flannel and metrics-server of an object.

use std::collections::BTreeMap;

use cluster::metrics_server::{self, Credentials};
use cluster::object::{Cni, Image, Role, read};
use cluster::render::render;
use serde_json::json;

use crate::samples::{Moment, host, image, image_with_coredns, paths};
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

/// What runs on all nodes names no version: nodes of two images are in a cluster in the middle of its update.
#[test]
fn kube_proxy_and_flannel_run_by_each_nodes_own_image() {
    let names = ["kube-proxy", "flannel"];
    let baked = |name: &str| format!("slipway.local/{name}:baked");
    let mut image = image();
    let flannel = "slipway.local/flannel:v0.28.10".to_owned();
    image.images.insert("flannel".to_owned(), flannel);
    let of_daemon_sets = |text: &str, image: &Image| {
        let object = read(text, image, &host(), Role::ControlPlane).unwrap();
        let mut objects = render(&object.config, &host(), &Moment).objects;
        let flannel = cluster::flannel::objects(&object.config, &object.flannel_image);
        objects.extend(flannel);
        names.map(|name| {
            let mut all = objects.iter().map(|object| &object.value);
            let found = all.find(|value| {
                value["kind"] == "DaemonSet" && value.to_string().contains(&format!("/{name}:"))
            });
            let containers = &found.unwrap()["spec"]["template"]["spec"]["containers"];
            containers[0]["image"].as_str().unwrap().to_owned()
        })
    };
    let text = "cni = \"flannel\"\n[node]\naddress = \"10.0.0.7\"\n";
    let versions = [
        "slipway.local/kube-proxy:v1.36.3",
        "slipway.local/flannel:v0.28.10",
    ];
    assert_eq!(of_daemon_sets(text, &image), versions);
    image.baked = names
        .map(|name| (name.to_owned(), baked(name)))
        .into_iter()
        .collect();
    assert_eq!(of_daemon_sets(text, &image), names.map(baked));
    // Another repository's are no node's own.
    let other = format!("image-repository = \"r.example/k8s\"\n{text}");
    assert_eq!(
        of_daemon_sets(&other, &image)[0],
        "r.example/k8s/kube-proxy:v1.36.3"
    );
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
    let paths = paths(&objects);
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
