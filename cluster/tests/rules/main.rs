//! kubeadm's rules beyond the cases of `tests/kubeadm.rs`, each from its documentation or its source.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod refusals;

use cluster::answer::answer;
use serde_json::{Value, json};

/// The parts of an InitConfiguration that a batch needs.
const INIT: &str = "apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: 10.0.0.5}
nodeRegistration: {name: node1}
bootstrapTokens: [{token: abcdef.0123456789abcdef}]
";
const CLUSTER: &str = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n";
const KUBELET: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
const PROXY: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

fn by(kubeadm: &str, config: &str) -> Value {
    let case = json!({"name": "case", "kubeadm": kubeadm, "config": config});
    serde_json::from_str(&answer(&case.to_string()).unwrap().line).unwrap()
}

/// What the newest version makes of a configuration; it is no refusal.
fn rendered(config: &str) -> Value {
    let answer = by("1.36.3", config);
    assert_eq!(answer["rc"], 0, "{}", answer["error"]);
    answer
}

fn errors(config: &str) -> Vec<String> {
    let answer = by("1.36.3", config);
    let errors = answer["error"].as_array().cloned().unwrap_or_default();
    errors
        .iter()
        .map(|error| error.as_str().unwrap().to_owned())
        .collect()
}

/// The fields that are refused.
fn refused(config: &str) -> Vec<String> {
    let field = |error: String| error.split(": ").next().unwrap().to_owned();
    let mut fields: Vec<String> = errors(config).into_iter().map(field).collect();
    fields.dedup();
    fields
}

fn cluster(fields: &str) -> String {
    format!("{INIT}---\n{CLUSTER}{fields}\n")
}

/// An InitConfiguration with other fields in place of those of the same name.
fn init(fields: &str) -> String {
    let name = |line: &str| line.split(':').next().unwrap().to_owned();
    let new: Vec<String> = fields.lines().map(name).collect();
    let kept = INIT.lines().filter(|line| !new.contains(&name(line)));
    let kept: String = kept.map(|line| format!("{line}\n")).collect();
    format!("{kept}{fields}\n")
}

fn file(answer: &Value, name: &str) -> String {
    answer["files"][name].as_str().unwrap().to_owned()
}

fn manifest(answer: &Value, name: &str) -> String {
    file(answer, &format!("/etc/kubernetes/manifests/{name}.yaml"))
}

fn object(answer: &Value, kind: &str, name: &str) -> Option<String> {
    let objects = answer["objects"].as_array().unwrap().iter();
    let texts = objects.map(|object| object["object"].as_str().unwrap());
    let found = texts.filter(|text| text.contains(&format!("\nkind: {kind}\n")));
    let mut named = found.filter(|text| text.contains(&format!("\n  name: {name}\n")));
    named.next().map(str::to_owned)
}

#[test]
fn documents_are_read_as_by_kubeadm() {
    let refusals = |config: &str| refused(config).len();
    assert_eq!(refusals(""), 1);
    assert_eq!(refusals(KUBELET), 1);
    assert_eq!(refusals(&format!("{INIT}---\n{INIT}")), 1);
    assert_eq!(refusals("a: [1"), 1);
    assert_eq!(
        refusals(&format!("{INIT}---\n# nothing\n---\n{CLUSTER}")),
        1
    );
    assert_eq!(refusals(&INIT.replace("v1beta4", "v1beta2")), 1);
    assert_eq!(refusals(&INIT.replace("v1beta4", "v2")), 1);
    assert_eq!(
        refusals(&format!(
            "{INIT}---\n{}",
            KUBELET.replace("v1beta1", "v1alpha1")
        )),
        1
    );
    // Numbers and truth values are no text: kubeadm's reader does not guess.
    assert_eq!(
        refused(&cluster("apiServer: {extraArgs: [{name: v, value: 4}]}")),
        ["apiServer.extraArgs.0.value"]
    );
    assert_eq!(refused(&cluster("clusterName: yes")), ["clusterName"]);
    // Unknown fields, duplicate keys and other kinds are passed over.
    let other = "apiVersion: apps/v1\nkind: Deployment\n";
    let config = cluster("noSuchField: 1\nclusterName: a\nclusterName: b\nClusterName: c");
    let answer = rendered(&format!("---\n{config}--- # other\n{other}---\n"));
    let uploaded = object(&answer, "ConfigMap", "kubeadm-config").unwrap();
    assert!(
        uploaded.contains("clusterName: b") && !uploaded.contains("noSuchField"),
        "{uploaded}"
    );
    // One document is enough.
    assert!(errors(INIT).is_empty());
}

#[test]
fn documents_of_v1beta3_are_taken_as_kubeadm_converts_them() {
    let init = INIT.replace("v1beta4", "v1beta3").replace(
        "{name: node1}",
        "{name: node1, kubeletExtraArgs: {v: '4', a: b}}",
    );
    let config = "apiVersion: kubeadm.k8s.io/v1beta3
kind: ClusterConfiguration
encryptionAlgorithm: ECDSA-P256
apiServer:
  timeoutForControlPlane: 90s
  extraArgs: {v: '2', audit-log-path: /log}
";
    let answer = rendered(&format!("{init}---\n{config}"));
    let flags = file(&answer, "/var/lib/kubelet/kubeadm-flags.env");
    assert_eq!(
        flags,
        "KUBELET_KUBEADM_ARGS=\"--hostname-override=node1 --a=b --v=4\"\n"
    );
    let server = manifest(&answer, "kube-apiserver");
    assert!(
        server.contains("    - --audit-log-path=/log\n    - --v=2\n    image:"),
        "{server}"
    );
    assert!(server.contains("failureThreshold: 9\n"), "{server}");
    let uploaded = object(&answer, "ConfigMap", "kubeadm-config").unwrap();
    assert!(
        uploaded.contains("apiVersion: kubeadm.k8s.io/v1beta4") && uploaded.contains("RSA-2048"),
        "{uploaded}"
    );
}

#[test]
fn arguments_environment_and_probes_follow_the_configuration() {
    let answer = rendered(&cluster("apiServer:
  extraArgs:
  - {name: authorization-mode, value: 'Node,Unknown'}
  - {name: api-audiences, value: a}
  - {name: api-audiences, value: b}
  extraEnvs: [{name: B, value: '1'}, {name: A, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}, {name: B, value: '2'}]
scheduler:
  extraArgs: [{name: bind-address, value: '::'}]
controllerManager:
  extraArgs: [{name: bind-address, value: 10.0.0.5}, {name: flex-volume-plugin-dir, value: /var/flex}]
etcd:
  local:
    extraArgs:
    - {name: listen-metrics-urls, value: 'https://10.0.0.5:4444,http://127.0.0.1:2381'}
    - {name: advertise-client-urls, value: 'https://10.9.9.9:2379'}
    extraEnvs: [{name: ETCD_X, value: 'y'}]"));
    let server = manifest(&answer, "kube-apiserver");
    assert!(server.contains("    - --authorization-mode=Node,Unknown\n    - --api-audiences=a\n    - --api-audiences=b\n"), "{server}");
    assert!(
        server.contains("--etcd-servers=https://10.9.9.9:2379\n"),
        "{server}"
    );
    let env = "    env:\n    - name: A\n      valueFrom:\n        fieldRef:\n          apiVersion: v1\n          fieldPath: spec.nodeName\n    - name: B\n      value: \"2\"\n";
    assert!(server.contains(env), "{server}");
    assert!(!manifest(&answer, "kube-scheduler").contains("host: "));
    let manager = manifest(&answer, "kube-controller-manager");
    assert!(manager.contains("host: 10.0.0.5") && !manager.contains("flexvolume-dir"));
    let etcd = manifest(&answer, "etcd");
    assert!(
        etcd.contains("host: 10.0.0.5\n")
            && etcd.contains("scheme: HTTPS")
            && etcd.contains("containerPort: 4444")
    );
    assert!(
        etcd.contains("    - name: ETCD_X\n      value: \"y\"\n"),
        "{etcd}"
    );
}

#[test]
fn structured_authorization_replaces_the_mode() {
    let answer = rendered(&cluster(
        "apiServer: {extraArgs: [{name: authorization-config, value: /a}]}",
    ));
    assert!(!manifest(&answer, "kube-apiserver").contains("authorization-mode"));
}

#[test]
fn old_flags_of_etcd_follow_the_tag_of_its_image() {
    let config = cluster("etcd: {local: {imageTag: 3.5.24-0}}\nkubernetesVersion: v1.36.0");
    for (kubeadm, old) in [("1.34.4", true), ("1.35.4", true), ("1.36.3", false)] {
        let etcd = manifest(&by(kubeadm, &config), "etcd");
        assert_eq!(
            etcd.contains("experimental-initial-corrupt-check=true"),
            old,
            "{kubeadm}"
        );
        assert_eq!(
            etcd.contains("feature-gates=InitialCorruptCheck=true"),
            !old,
            "{kubeadm}"
        );
    }
}

#[test]
fn gates_of_older_versions_change_what_is_written() {
    let fields = "kubernetesVersion: v1.34.4\ncontrolPlaneEndpoint: api.example.test:443
featureGates: {ControlPlaneKubeletLocalMode: false, NodeLocalCRISocket: false}";
    let answer = by("1.34.4", &cluster(fields));
    assert_eq!(answer["rc"], 0, "{}", answer["error"]);
    assert_eq!(
        answer["kubeconfigs"]["kubelet.conf"]["server"],
        "https://api.example.test:443"
    );
    assert_eq!(
        answer["kubeconfigs"]["scheduler.conf"]["server"],
        "https://10.0.0.5:6443"
    );
    let flags = file(&answer, "/var/lib/kubelet/kubeadm-flags.env");
    assert!(
        flags.contains("--container-runtime-endpoint=unix:///var/run/containerd/containerd.sock"),
        "{flags}"
    );
    assert!(
        file(&answer, "/var/lib/kubelet/config.yaml").contains("containerRuntimeEndpoint: \"\"")
    );
    let patches = answer["objects"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|object| object["action"] == "PATCH");
    assert_eq!(patches.count(), 2);
}

#[test]
fn phases_that_are_skipped_leave_out_what_they_write() {
    let config = init(
        "skipPhases: [addon/kube-proxy, certs/etcd-peer, control-plane/scheduler, kubeconfig/super-admin, upload-config]",
    );
    let answer = rendered(&config);
    assert!(object(&answer, "DaemonSet", "kube-proxy").is_none());
    assert!(object(&answer, "Deployment", "coredns").is_some());
    assert!(object(&answer, "ConfigMap", "kubeadm-config").is_none());
    assert!(
        answer["certs"].get("etcd/peer.crt").is_none()
            && answer["certs"].get("etcd/server.crt").is_some()
    );
    assert!(answer["kubeconfigs"].get("super-admin.conf").is_none());
    assert!(
        answer["files"]
            .get("/etc/kubernetes/manifests/kube-scheduler.yaml")
            .is_none()
    );
}

#[test]
fn component_configs_are_merged_and_signed_only_if_kubeadm_made_them() {
    let kubelet = format!(
        "{KUBELET}clusterDNS: [10.0.0.10]\nauthentication: {{anonymous: {{enabled: true}}}}\nevictionHard: {{memory.available: 5%}}\nlogging: {{flushFrequency: 5s, verbosity: 2}}\nunknownField: x\n"
    );
    let proxy = format!(
        "{PROXY}bindAddress: 10.0.0.5\nconntrack: {{maxPerCore: 0}}\nclientConnection: {{qps: 50.0}}\n"
    );
    let answer = rendered(&format!("{INIT}---\n{kubelet}---\n{proxy}"));
    let map = object(&answer, "ConfigMap", "kubelet-config").unwrap();
    for line in [
        "    - 10.0.0.10\n",
        "      anonymous:\n        enabled: true\n",
        "    evictionHard:\n      memory.available: 5%\n",
        "      flushFrequency: 5s\n",
        "      verbosity: 2\n",
    ] {
        assert!(map.contains(line), "{line}{map}");
    }
    assert!(!map.contains("component-config.hash") && !map.contains("unknownField"));
    let map = object(&answer, "ConfigMap", "kube-proxy").unwrap();
    for line in [
        "    bindAddress: 10.0.0.5\n",
        "      maxPerCore: 0\n",
        "      qps: 50\n",
    ] {
        assert!(map.contains(line), "{line}{map}");
    }
    assert!(!map.contains("component-config.hash"));
    let empty = rendered(&format!("{INIT}---\n{KUBELET}clusterDNS: []\n"));
    assert!(!file(&empty, "/var/lib/kubelet/config.yaml").contains("clusterDNS"));
    let alone = rendered(INIT);
    assert!(
        object(&alone, "ConfigMap", "kubelet-config")
            .unwrap()
            .contains("component-config.hash: sha256:")
    );
}

/// kubeadm passes on what the kubelet and kube-proxy would end for; only what their types cannot hold it refuses.
#[test]
fn words_and_numbers_of_components_are_theirs_to_refuse() {
    let kubelet = format!(
        "{KUBELET}cgroupDriver: other\nimageGCHighThresholdPercent: 850\nlogging: {{format: xml}}\nmaxPods: -1\n"
    );
    let proxy = format!("{PROXY}iptables: {{masqueradeBit: 99}}\nmode: kernelspace\n");
    let answer = rendered(&format!("{INIT}---\n{kubelet}---\n{proxy}"));
    for (name, lines) in [
        (
            "kubelet-config",
            &[
                "    cgroupDriver: other\n",
                "    imageGCHighThresholdPercent: 850\n",
                "      format: xml\n",
                "    maxPods: -1\n",
            ][..],
        ),
        (
            "kube-proxy",
            &["      masqueradeBit: 99\n", "    mode: kernelspace\n"],
        ),
    ] {
        let map = object(&answer, "ConfigMap", name).unwrap();
        for line in lines {
            assert!(map.contains(line), "{line}{map}");
        }
    }
    let taints = "nodeRegistration: {name: node1, taints: [{key: a, effect: Never}]}";
    assert!(errors(&init(taints)).is_empty());
    let large = format!("{INIT}---\n{KUBELET}maxPods: 2147483648\n");
    assert_eq!(refused(&large), ["maxPods"]);
}

#[test]
fn names_and_addresses_are_brought_into_their_common_form() {
    let config = cluster(
        "controlPlaneEndpoint: 'fd00::10'
apiServer: {certSANs: [API.Example.Test, 010.0.0.7, 'FD00::0:9']}",
    )
    .replace("name: node1", "name: ' Node1 '")
    .replace("10.0.0.5", "'FD00:0::5'");
    let answer = rendered(&config);
    let names = answer["certs"]["apiserver.crt"]["sans"].to_string();
    for name in [
        "api.example.test",
        "10.0.0.7",
        "fd00::9",
        "fd00::10",
        "fd00::5",
        "node1",
    ] {
        assert!(names.contains(&format!("\"{name}\"")), "{name}: {names}");
    }
    assert_eq!(
        answer["kubeconfigs"]["admin.conf"]["server"],
        "https://[fd00::10]:6443"
    );
    assert_eq!(
        answer["kubeconfigs"]["kubelet.conf"]["server"],
        "https://[fd00::5]:6443"
    );
    let etcd = manifest(&answer, "etcd");
    assert!(
        etcd.contains("--listen-client-urls=https://[::1]:2379,https://[fd00::5]:2379"),
        "{etcd}"
    );
    assert!(etcd.contains("host: ::1\n"), "{etcd}");
}

#[test]
fn validity_and_keys_are_the_configurations() {
    let answer = rendered(&cluster(
        "encryptionAlgorithm: ECDSA-P384\ncertificateValidityPeriod: 100h\ncaCertificateValidityPeriod: 200h30m",
    ));
    let certificates = &answer["certs"];
    assert_eq!(certificates["ca.crt"]["hours"], 200);
    assert_eq!(certificates["apiserver.crt"]["hours"], 100);
    assert_eq!(certificates["etcd/peer.crt"]["key"], "ecsecp384r1");
    assert_eq!(answer["kubeconfigs"]["admin.conf"]["cert"]["hours"], 100);
}

#[test]
fn a_version_that_is_a_label_is_kubeadms_own() {
    for fields in [
        "",
        "kubernetesVersion: stable-1",
        "kubernetesVersion: 1.36.3",
    ] {
        let server = manifest(&rendered(&cluster(fields)), "kube-apiserver");
        assert!(
            server.contains("registry.k8s.io/kube-apiserver:v1.36.3\n"),
            "{fields}"
        );
    }
    let unknown = by("1.30.0", INIT);
    assert_eq!(unknown["rc"], 1);
    assert!(
        unknown["error"][0]
            .as_str()
            .unwrap()
            .contains("1.34, 1.35 or 1.36")
    );
}

/// No text makes the reader panic: each of these is a case's text with one thing cut out or put in.
#[test]
fn damaged_configurations_are_answered() {
    let fields = "apiServer:\n  certSANs: [a, '10.0.0.1']\nnetworking: {podSubnet: 10.244.0.0/16}\netcd: {local: {dataDir: /d}}";
    let whole = format!(
        "{}---\n{KUBELET}logging: {{flushFrequency: 5}}\n",
        cluster(fields)
    );
    let pieces = [
        "", "\0", ": ", "- ", "[", "{", "\n", "&a ", "*a", "9", "é", "---\n", "null",
    ];
    let mut refusals = 0;
    for at in 0..whole.len() {
        for piece in [pieces[at % 13], pieces[(at * 5 + 3) % 13]] {
            let text = format!("{}{piece}{}", &whole[..at], &whole[(at + 1)..]);
            refusals += usize::from(by("1.35.4", &text)["rc"] == 1);
        }
    }
    assert!(refusals > whole.len(), "{refusals}");
}

#[test]
fn probes_of_etcd_ask_loopback_where_go_takes_no_url() {
    let config =
        cluster("etcd: {local: {extraArgs: [{name: listen-metrics-urls, value: 'https://a:b'}]}}");
    let etcd = manifest(&rendered(&config), "etcd");
    let loopback = "        host: 127.0.0.1\n";
    assert!(
        etcd.contains(loopback) && !etcd.contains("scheme: HTTPS"),
        "{etcd}"
    );
}
