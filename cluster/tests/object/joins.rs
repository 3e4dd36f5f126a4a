//! Workers and further control planes.

use cluster::kubelet;
use cluster::object::{Object, Role, read};
use cluster::release::Version;
use serde_json::json;

use crate::samples::{host, image, joining, pin, refused, refused_of, taken, worker};

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

/// Without the rest of the table the kubelet would not know whose certificate the API server has: no logs and no exec.
#[test]
fn a_table_of_the_objects_is_merged_into_the_clusters() {
    let object = worker(&joining(
        "[kubelet.config]\nauthentication = { webhook = { cacheTTL = \"30s\" } }\nevictionHard = { \"memory.available\" = \"1Mi\" }\n\
         crashLoopBackOff = { maxContainerRestartPeriod = \"9s\" }\n",
    ));
    let join = object.join.as_ref().unwrap();
    let cluster = "authentication:\n  anonymous:\n    enabled: false\n  webhook:\n    cacheTTL: 0s\n    enabled: true\n  x509:\n    \
                   clientCAFile: /etc/kubernetes/pki/ca.crt\nevictionHard:\n  nodefs.available: 5%\nkind: KubeletConfiguration\n";
    let text = kubelet::joined(&object.config, join, cluster).unwrap().text;
    for part in [
        "authentication:\n  anonymous:\n    enabled: false\n  webhook:\n    cacheTTL: 30s\n    enabled: true\n  x509:\n    \
         clientCAFile: /etc/kubernetes/pki/ca.crt\n",
        "crashLoopBackOff:\n  maxContainerRestartPeriod: 9s\n",
        "evictionHard:\n  memory.available: 1Mi\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("nodefs"), "{text}");
}

/// The kubelet ends at its start with fields that do not go with each other: the object's count, and the system's are left out.
#[test]
fn what_the_system_says_of_a_shutdown_goes_with_what_the_object_and_the_cluster_say() {
    const WHOLE: &str = "shutdownGracePeriod";
    const CRITICAL: &str = "shutdownGracePeriodCriticalPods";
    let by_priority =
        "shutdownGracePeriodByPodPriority = [{ priority = 0, shutdownGracePeriodSeconds = 70 }]";
    let system = json!({WHOLE: "45s", CRITICAL: "30s"});
    let mut image = image();
    image.kubelet = system.as_object().unwrap().clone();
    let own = |config: &str, role: Role, joins: &str| {
        let text = format!("{joins}[kubelet.config]\n{config}\n");
        read(&text, &image, &host(), role).unwrap()
    };
    for (config, whole, critical) in [
        ("", Some("45s"), Some("30s")),
        (by_priority, None, None),
        ("shutdownGracePeriod = \"90s\"", Some("1m30s"), Some("30s")),
        ("shutdownGracePeriod = \"20s\"", Some("20s"), None),
        ("shutdownGracePeriod = \"0s\"", Some("0s"), None),
        (
            "shutdownGracePeriodCriticalPods = \"10s\"",
            Some("45s"),
            Some("10s"),
        ),
    ] {
        let value = own(config, Role::ControlPlane, "").config.kubelet.value;
        // Zero, as kubeadm writes what nobody has set.
        let is = |name: &str, expected: Option<&str>| {
            let found = value[name].as_str().unwrap_or("0s");
            found == expected.unwrap_or("0s")
        };
        assert!(
            is(WHOLE, whole) && is(CRITICAL, critical),
            "{config}: {value}"
        );
    }
    let zero = format!("kind: KubeletConfiguration\n{WHOLE}: 0s\n{CRITICAL}: 0s\n");
    let short = zero.replacen("0s", "20s", 1);
    let listed = format!(
        "{zero}shutdownGracePeriodByPodPriority:\n- priority: 0\n  shutdownGracePeriodSeconds: 70\n"
    );
    for (config, cluster, whole, critical) in [
        ("", &zero, "45s", "30s"),
        ("", &short, "20s", "0s"),
        ("", &listed, "0s", "0s"),
        (by_priority, &zero, "0s", "0s"),
        ("shutdownGracePeriod = \"0s\"", &zero, "0s", "0s"),
    ] {
        let object = own(config, Role::Worker, &joining(""));
        let join = object.join.as_ref().unwrap();
        let text = kubelet::joined(&object.config, join, cluster).unwrap().text;
        for (name, value) in [(WHOLE, whole), (CRITICAL, critical)] {
            let line = format!("{name}: {value}\n");
            assert!(text.contains(&line), "{config}, {cluster}: {text}");
        }
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

/// The balancer of such a node ended at each start, and its kubelet reached no API server.
#[test]
fn a_balancer_has_a_port_that_nothing_else_of_its_node_has() {
    let on = |port: u16, rest: &str| format!("[balancer]\nenabled = true\nport = {port}\n{rest}");
    let moved = "[api-server]\nport = 8443\n[scheduler]\nargs = { secure-port = \"10359\" }\n\
                 [kubelet.config]\nport = 10350\nhealthzPort = 0\n\
                 [proxy]\nconfig = { metricsBindAddress = \"0.0.0.0:10349\" }\n\
                 [etcd]\nargs = { listen-metrics-urls = \"http://127.0.0.1:2391,http://[::1]:2392/\" }\n";
    for (port, rest, whose) in [
        (6443, "", "the API server"),
        (8443, moved, "the API server"),
        (2379, "", "etcd's clients"),
        (2380, "", "etcd's other members"),
        (2381, "", "etcd's metrics"),
        (2391, moved, "etcd's metrics"),
        (2392, moved, "etcd's metrics"),
        (10250, "", "the kubelet"),
        (10350, moved, "the kubelet"),
        (10248, "", "the kubelet's health check"),
        (10257, "", "the controller manager"),
        (10259, "", "the scheduler"),
        (10359, moved, "the scheduler"),
        (10256, "", "kube-proxy's health check"),
        (10249, "", "kube-proxy's metrics"),
        (10349, moved, "kube-proxy's metrics"),
    ] {
        let expected = format!(
            "balancer.port: {port} is the port of {whose} on the same node; expected one that nothing else has \
             (line 3, column 8)"
        );
        assert_eq!(refused(&on(port, rest)), [expected]);
    }
    for port in [2381, 6443, 10248, 10249, 10250, 10259] {
        assert_eq!(taken(&on(port, moved)).balancer.port, port);
    }
    let without_proxy = on(10249, "[proxy]\nenabled = false\n");
    assert_eq!(taken(&without_proxy).balancer.port, 10249);
    // On a worker there is no control plane, and the same object is that of control planes without a balancer.
    let port = |port: u16| format!("[balancer]\nport = {port}\n");
    assert_eq!(worker(&joining(&port(6443))).balancer.port, 6443);
    assert_eq!(taken(&port(6443)).balancer.port, 6443);
    let of_worker = refused_of(Role::Worker, &joining(&port(10250)));
    for mistakes in [of_worker, refused(&port(10250))] {
        assert_eq!(mistakes.len(), 1, "{mistakes:?}");
        let expected = "balancer.port: 10250 is the port of the kubelet";
        assert!(mistakes[0].starts_with(expected), "{mistakes:?}");
    }
    let off = "[balancer]\nenabled = false\nport = 10250\n";
    assert_eq!(taken(off).balancer.port, 10250);
    // The default may be taken too.
    let default = refused("[api-server]\nport = 7443\n[balancer]\nenabled = true\n");
    let expected = "balancer.port: 7443 is the port of the API server";
    assert!(
        default.len() == 1 && default[0].starts_with(expected),
        "{default:?}"
    );
}
