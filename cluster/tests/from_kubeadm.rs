//! Nodes by kubeadm's own documents: what they come to, and what is refused.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use cluster::from_kubeadm::{Asked, is, read};
use cluster::host::Host;
use cluster::kubelet;
use cluster::object::{Cni, Image, Role};
use serde_json::json;

const PIN: &str = "sha256:27f078b18e8ac51fd4f5e975c9c5ca2b3c087fb55d946efdd2fc405111419f05";
const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

fn image() -> Image {
    let images = ["kube-apiserver", "kube-proxy", "coredns", "etcd"];
    let images = images.map(|name| (name.to_owned(), format!("slipway.local/{name}:1.2.3")));
    Image {
        version: "v1.36.3".to_owned(),
        images: images.into_iter().collect(),
        baked: std::collections::BTreeMap::new(),
        has_kubelet: true,
        known: true,
        kubelet: [("shutdownGracePeriod".to_owned(), json!("30s"))]
            .into_iter()
            .collect(),
        flexvolume: String::new(),
    }
}

fn asked(text: &str, role: Role) -> Asked {
    read(text, &image(), &Host::of_documentation(), role).unwrap_or_else(|report| {
        let all: Vec<String> = report.mistakes.iter().map(ToString::to_string).collect();
        panic!("{}", all.join("\n"))
    })
}

fn refused(text: &str, role: Role) -> Vec<String> {
    let report = read(text, &image(), &Host::of_documentation(), role).unwrap_err();
    report.mistakes.iter().map(ToString::to_string).collect()
}

/// As the provider writes it: a comment, every table, and empty values.
fn worker() -> String {
    format!(
        "---
apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
caCertPath: \"\"
discovery:
  bootstrapToken:
    apiServerEndpoint: api.example.test:6443
    caCertHashes:
    - {PIN}
    token: abcdef.0123456789abcdef
    unsafeSkipCAVerification: false
  tlsBootstrapToken: abcdef.0123456789abcdef
nodeRegistration:
  criSocket: unix:///var/run/containerd/containerd.sock
  imagePullPolicy: IfNotPresent
  kubeletExtraArgs:
  - name: node-labels
    value: pool=a
  name: one
  taints:
  - effect: NoSchedule
    key: special
timeouts:
  discovery: 90s
  tlsBootstrap: 2m
"
    )
}

#[test]
fn the_first_node_is_what_kubeadm_init_makes_with_the_images_of_the_image() {
    let text = "---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
clusterName: blue
controlPlaneEndpoint: api.example.test:6443
kubernetesVersion: v1.36.3
networking: { podSubnet: 10.5.0.0/16 }
apiServer: { extraArgs: [{ name: cloud-provider, value: external }] }
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
nodeRegistration: { name: one }
skipPhases: [addon/kube-proxy]
";
    for role in [Role::ControlPlane, Role::Worker] {
        let asked = asked(text, role);
        let object = &asked.object;
        assert!(asked.discovery.is_none() && object.join.is_none() && object.further.is_none());
        assert_eq!(object.name(), "blue");
        assert_eq!(object.cni, Cni::None);
        assert!(!object.balancer.enabled && !object.sentinel);
        let config = &object.config;
        assert_eq!(config.init.node_registration.name, "one");
        assert_eq!(config.cluster.image_repository, "slipway.local");
        // kubeadm's, not a cluster object's.
        assert_eq!(config.cluster.encryption_algorithm, "RSA-2048");
        assert!(config.init.bootstrap_tokens.is_empty());
        assert!(config.skips("addon/kube-proxy") && !config.skips("addon/coredns"));
        assert_eq!(config.init.node_registration.taints.len(), 1);
        assert_eq!(config.kubelet.value["shutdownGracePeriod"], "30s");
    }
    // Images of a repository that the documents name are pulled.
    let other = text.replace("clusterName: blue", "imageRepository: mirror.example.test");
    let config = asked(&other, Role::Worker).object.config;
    assert_eq!(config.cluster.image_repository, "mirror.example.test");
    assert_ne!(config.cluster.dns.image_tag, "1.2.3");
}

#[test]
fn a_worker_joins_by_its_document() {
    let asked = asked(&worker(), Role::Worker);
    let join = asked.object.join.as_ref().unwrap();
    assert_eq!(join.token.text(), "abcdef.0123456789abcdef");
    assert_eq!(join.pins[0].to_string(), PIN);
    assert!(asked.discovery.is_some() && asked.object.further.is_none() && !asked.has_cluster);
    let config = &asked.object.config;
    assert_eq!(config.control_plane_url(), "https://api.example.test:6443");
    let seconds = config.init.timeouts.discovery.unwrap().seconds();
    assert_eq!(seconds, 90);
    let arguments = kubelet::arguments(config, &Host::of_documentation()).text;
    for argument in [
        "--node-labels=pool=a",
        "--register-with-taints=special:NoSchedule",
        "--hostname-override=one",
    ] {
        assert!(arguments.contains(argument), "{arguments}");
    }
}

/// The names of v1beta3: arguments are a mapping, and the limit belongs to the discovery.
#[test]
fn a_document_of_v1beta3_is_read() {
    let text = worker()
        .replace("v1beta4", "v1beta3")
        .replace(
            "  - name: node-labels\n    value: pool=a\n",
            "    node-labels: pool=a\n",
        )
        .replace("  tlsBootstrapToken", "  timeout: 70s\n  tlsBootstrapToken");
    let (text, _) = text.split_once("timeouts:").unwrap();
    let config = asked(text, Role::Worker).object.config;
    assert_eq!(config.init.timeouts.discovery.unwrap().seconds(), 70);
    let arguments = &config.init.node_registration.kubelet_extra_args;
    assert!(arguments.iter().any(|argument| argument.value == "pool=a"));
}

#[test]
fn without_hashes_whoever_signs_with_the_token_is_trusted_only_if_the_document_says_so() {
    let hashes = format!("    caCertHashes:\n    - {PIN}\n");
    let open = worker().replace(&hashes, "");
    let refused = refused(&open, Role::Worker);
    assert_eq!(refused.len(), 1);
    assert!(
        refused[0].starts_with("discovery.bootstrapToken.caCertHashes: expected a list of sha256:")
    );
    assert!(refused[0].ends_with("(line 7, column 5)"), "{}", refused[0]);
    let open = open.replace("Verification: false", "Verification: true");
    assert!(
        asked(&open, Role::Worker)
            .discovery
            .unwrap()
            .pins
            .is_empty()
    );
}

/// Beside it are the cluster's own documents, which its control planes show to nodes that join.
#[test]
fn a_further_control_plane_has_the_clusters_own_configuration() {
    let plane = format!(
        "{}controlPlane:\n  certificateKey: {KEY}\n  localAPIEndpoint: {{ advertiseAddress: 10.0.0.8, bindPort: 6444 }}\n",
        worker()
    );
    let cluster = "---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
clusterName: blue
controlPlaneEndpoint: other.example.test:6443
imageRepository: slipway.local
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
maxPods: 50
shutdownGracePeriod: 0s
";
    let asked = asked(&format!("{plane}{cluster}"), Role::ControlPlane);
    assert!(asked.has_cluster && asked.object.join.is_none());
    assert!(asked.object.further.as_ref().unwrap().fetched.is_some());
    let config = &asked.object.config;
    assert_eq!(config.cluster.cluster_name, "blue");
    assert_eq!(
        config.control_plane_url(),
        "https://other.example.test:6443"
    );
    assert_eq!(
        config.init.local_api_endpoint.host_and_port(),
        "10.0.0.8:6444"
    );
    assert_eq!(config.kubelet.value["maxPods"], 50);
    assert_eq!(config.kubelet.value["shutdownGracePeriod"], "30s");
    // Without a key its config brings the shared keys.
    let brings = plane.replace(&format!("  certificateKey: {KEY}\n"), "");
    let brings = self::asked(&brings, Role::Worker);
    assert!(brings.object.further.as_ref().unwrap().fetched.is_none());
    assert!(brings.discovery.is_some());
    let open = cluster.replace("controlPlaneEndpoint: other.example.test:6443\n", "");
    let refused = refused(&format!("{plane}{open}"), Role::ControlPlane);
    assert!(
        refused[0].contains("the cluster has no controlPlaneEndpoint"),
        "{refused:?}"
    );
}

#[test]
fn what_is_not_done_is_refused_with_its_position() {
    let bad = worker()
        .replace(PIN, "sha256:00")
        .replace("    token: abcdef.0123456789abcdef", "    token: short")
        .replace(
            "  tlsBootstrapToken: abcdef.0123456789abcdef",
            "  tlsBootstrapToken: bbbbbb.0123456789abcdef\n  file: { kubeConfigPath: /run/a }",
        )
        .replace("caCertPath: \"\"", "caCertPath: /etc/other.crt")
        + "patches: { directory: /run/patches }\nskipPhases: [preflight, kubelet-start]\n";
    let expected = [
        "caCertPath: Slipway writes the cluster's authority to /etc/kubernetes/pki/ca.crt; expected that (line 4, column 13)",
        "discovery.file: discovery by a kubeconfig is not done; expected discovery.bootstrapToken (line 13, column 9)",
        "discovery.tlsBootstrapToken: another token for the kubelet's certificate is not used; expected none, or that of discovery.bootstrapToken (line 12, column 22)",
        "discovery.bootstrapToken.token: not a bootstrap token; expected 6 lower-case letters or digits, a dot, and 16 more (line 10, column 12)",
        "discovery.bootstrapToken.caCertHashes: expected sha256: and 64 hexadecimal digits, the hash of an authority's public key (line 9, column 7)",
    ];
    assert_eq!(refused(&bad, Role::Worker), expected);
    let bad = worker()
        .replace("name: one", "name: '{{ ds.meta_data.local_hostname }}'")
        .replace("pool=a", "pool=${POOL}")
        .replace("containerd/containerd.sock", "crio/crio.sock")
        + "patches: { directory: /run/patches }\nskipPhases: [preflight, kubelet-start]\ndryRun: true\n";
    let open =
        "is not filled in; expected preKubeadmCommands that do it (envsubst, with /run/metadata)";
    let expected = [
        "patches: patches of manifests are not applied; expected extraArgs, extraVolumes and extraEnvs (line 26, column 10)"
            .to_owned(),
        "dryRun: not done; expected false (line 28, column 9)".to_owned(),
        "skipPhases: the phase \"kubelet-start\" is not left out; expected preflight (line 27, column 25)"
            .to_owned(),
        format!("nodeRegistration.kubeletExtraArgs.value: \"pool=${{POOL}}\" {open} (line 18, column 12)"),
        format!("nodeRegistration.name: \"{{{{ ds.meta_data.local_hostname }}}}\" {open} (line 19, column 9)"),
        "nodeRegistration.criSocket: the image's container runtime is at unix:///var/run/containerd/containerd.sock; expected that, or nothing (line 14, column 14)"
            .to_owned(),
    ];
    assert_eq!(refused(&bad, Role::Worker), expected);
}

/// The pod of etcd has `dataDir` alone of the node.
#[test]
fn a_log_of_etcds_outside_of_its_folder_is_refused() {
    let text = |log: &str| {
        format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\netcd:\n  local:\n    dataDir: /data\n    \
             extraArgs: [{{ name: wal-dir, value: {log} }}]\n"
        )
    };
    assert!(asked(&text("/data/log"), Role::Worker).discovery.is_none());
    let mistakes = refused(&text("/var/lib/etcd/log"), Role::Worker);
    let expected = "etcd.local.extraArgs: what etcd writes to \"/var/lib/etcd/log\" (--wal-dir) is gone with its container; \
                    expected a folder below /data, ";
    assert!(
        mistakes.len() == 1 && mistakes[0].starts_with(expected),
        "{mistakes:#?}"
    );
}

/// The kubelet would end at its start.
#[test]
fn a_taint_that_no_node_may_have_is_refused() {
    let bad = worker().replace(
        "  - effect: NoSchedule\n    key: special",
        "  - value: b\n    key: for special",
    );
    let mistakes = refused(&bad, Role::Worker);
    let found: Vec<&str> = mistakes
        .iter()
        .map(|mistake| mistake.split(':').next().unwrap())
        .collect();
    let item = "nodeRegistration.taints.0";
    assert_eq!(found, [format!("{item}.key"), format!("{item}.effect")]);
}

#[test]
fn a_worker_on_a_machine_of_a_control_plane_and_documents_that_do_not_go_together_are_refused() {
    let expected =
        "expected controlPlane: the role of this node is control-plane (line 2, column 1)";
    assert_eq!(refused(&worker(), Role::ControlPlane), [expected]);
    let both = format!(
        "{}---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n",
        worker()
    );
    let refused_both = refused(&both, Role::Worker);
    assert!(
        refused_both[0].contains("beside JoinConfiguration"),
        "{refused_both:?}"
    );
    let nothing = "apiVersion: apps/v1\nkind: Deployment\n";
    assert!(refused(nothing, Role::Worker)[0].contains("JoinConfiguration"));
    let version = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v1.35.1\n";
    let expected = "kubernetesVersion: v1.35.1 is not in the image, which brings v1.36.3; expected that, or imageRepository (line 3, column 20)";
    assert_eq!(refused(version, Role::Worker), [expected]);
}

#[test]
fn documents_are_told_from_cluster_objects() {
    for (text, expected) in [
        (worker().as_str(), true),
        ("# a comment\n\nkind: JoinConfiguration\n", true),
        ("apiVersion: kubeadm.k8s.io/v1beta4\n", true),
        ("name = \"blue\"\n", false),
        ("{\"name\": \"blue\"}\n", false),
        ("", false),
    ] {
        assert_eq!(is(text), expected, "{text}");
    }
}
