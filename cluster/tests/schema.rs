//! The JSON Schema of a cluster object against what reads one.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;

use cluster::host::Host;
use cluster::object::{Image, Role, json_schema, read};
use serde_json::{Value, json};

/// Every field of a control plane.
const CONTROL_PLANE: &str = r#"
name = "blue"
version = "v1.36.3"
endpoint = "api.example.test"
image-repository = "registry.example.test/k8s"
start-timeout = "1h30m"
cni = "none"
certificate-key = "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f"
sentinel = true
tokens = ["abcdef.0123456789abcdef", { token = "abcdef.0123456789abcdef", ttl = "2h" }]
feature-gates = { InPlacePodVerticalScaling = true }

[balancer]
enabled = true
port = 7500
servers = ["10.0.0.6"]

[networks]
pods = ["10.5.0.0/16", "fd00:5::/56"]
services = "10.6.0.0/16,fd00:6::/112"
domain = "blue.test"

[certificates]
algorithm = "RSA-2048"
validity = "8760h"
ca-validity = "87600h0m0s"

[node]
name = "CP-1"
address = "10.0.0.7"
taints = [{ key = "a", value = "b", effect = "NoSchedule" }]
labels = { zone = "a" }

[api-server]
port = 8443
sans = ["blue.example.test", "10.0.0.9"]
args = { audit-log-maxage = 7, tls-sni-cert-key = ["a,b", "c,d"] }

[controller-manager]
args = { v = "3" }

[scheduler]
args = { profiling = false }

[etcd]
args = { quota-backend-bytes = 8589934592 }
sans = ["etcd.example.test"]
image-repository = "registry.example.test"
image-tag = "3.6.8-0"

[kubelet]
args = { v = 3 }
image = "r.example/kubelet@sha256:0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f"
config = { maxPods = 50, evictionHard = { "memory.available" = "1Mi" }, cpuManagerPolicy = "", logging = { flushFrequency = 5, format = "json" } }

[proxy]
enabled = true
mode = "nftables"
config = { clusterCIDR = "10.5.0.0/16", conntrack = { maxPerCore = 3 } }

[dns]
enabled = true
addresses = ["10.6.0.53", "fd00:6::35"]
image-repository = "registry.example.test/coredns"
image-tag = "v1.14.2"

[addons]
metrics-server = true

[cloud]
provider = "aws"
config = "[Global]\nZone=eu-central-1a\n"
"#;

/// Fields that only a node which joins has.
const FURTHER: &str = r#"
endpoint = "api.example.test:6443"
[join]
token = "abcdef.0123456789abcdef"
ca-hashes = ["sha256:7c2e69131a36ae2a042a339b33381c6d0d43887e2de83720eff5359e26aec866"]
certificate-key = "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f"
[networks]
services = ["10.6.0.0/16"]
[dns]
addresses = "10.6.0.53"
"#;

/// Objects that both refuse, each for one value.
const WRONG: [&str; 30] = [
    "nmae = \"x\"",
    "name = 5",
    "cni = \"calico\"",
    "cni = \"\"",
    "sentinel = \"yes\"",
    "start-timeout = 4",
    "tokens = \"abcdef.0123456789abcdef\"",
    "tokens = [{ tokn = \"abcdef.0123456789abcdef\" }]",
    "feature-gates = { InPlacePodVerticalScaling = \"on\" }",
    "balancer.port = 443",
    "balancer.servers = \"10.0.0.6\"",
    "networks.pods = 5",
    "networks.pod = \"10.5.0.0/16\"",
    "certificates.algorithm = \"DSA\"",
    "node.labels = { a = 1 }",
    "node.taints = [{ key = \"a\", effect = \"Never\" }]",
    "api-server.port = 70000",
    "api-server.args = 3",
    "api-server.args = { v = { a = 1 } }",
    "kubelet.config = { maxPodz = 5 }",
    "kubelet.config = { imageGCHighThresholdPercent = 850 }",
    "kubelet.config = { memorySwap = { swapBehavior = \"All\" } }",
    "proxy.mode = \"ipables\"",
    "proxy.enabled = \"no\"",
    "dns.addresses = 10",
    "addons.metrics-server = \"yes\"",
    "addons.metrics = true",
    "cloud.provider = \"azure\"",
    "cloud.provider = true",
    "cloud.config = 5",
];

fn tree(text: &str) -> Value {
    let table: toml::Table = toml::from_str(text).unwrap();
    serde_json::to_value(table).unwrap()
}

/// What the reader says.
fn mistakes(text: &str) -> Vec<String> {
    let image = Image {
        version: "v1.36.3".to_owned(),
        ..Image::default()
    };
    let read = read(text, &image, &Host::of_documentation(), Role::ControlPlane);
    let report = read.err().unwrap_or_default();
    report.mistakes.iter().map(ToString::to_string).collect()
}

/// Whether a schema allows a value: those of JSON Schema's words that the schema has, but `pattern`.
fn allows(schema: &Value, value: &Value) -> bool {
    for (word, rule) in schema.as_object().unwrap() {
        let fits =
            match word.as_str() {
                "type" => match rule {
                    Value::Array(kinds) => kinds.iter().any(|kind| is(kind, value)),
                    kind => is(kind, value),
                },
                "enum" => rule.as_array().unwrap().contains(value),
                "minimum" => value
                    .as_i64()
                    .is_none_or(|number| number >= rule.as_i64().unwrap()),
                "maximum" => value
                    .as_i64()
                    .is_none_or(|number| number <= rule.as_i64().unwrap()),
                "minLength" => value.as_str().is_none_or(|text| !text.is_empty()),
                "items" => {
                    let items = value.as_array().into_iter().flatten();
                    items.clone().all(|item| allows(rule, item))
                }
                "anyOf" => rule
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|one| allows(one, value)),
                "propertyNames" => {
                    let names = value.as_object().into_iter().flat_map(|map| map.keys());
                    names.into_iter().all(|name| allows(rule, &json!(name)))
                }
                "properties" => rule.as_object().unwrap().iter().all(|(name, schema)| {
                    value.get(name).is_none_or(|value| allows(schema, value))
                }),
                "additionalProperties" => {
                    let known = |name: &str| schema["properties"].get(name).is_some();
                    let mut others = value.as_object().into_iter().flatten();
                    others.all(|(name, value)| {
                        known(name) || (rule != &json!(false) && allows(rule, value))
                    })
                }
                "description" | "title" | "$schema" | "pattern" => true,
                other => panic!("the schema has {other}"),
            };
        if !fits {
            return false;
        }
    }
    true
}

fn is(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap() {
        "string" => value.is_string(),
        "integer" => value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no type of JSON: {other}"),
    }
}

/// The fields of the object: at the top, and in its tables.
fn fields(
    of: &Value,
    inner: impl Fn(&Value) -> Option<&serde_json::Map<String, Value>>,
) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (name, value) in inner(of).unwrap() {
        match inner(value) {
            // Gates are names of Kubernetes'.
            Some(table) if name != "feature-gates" => {
                all.extend(table.keys().map(|field| format!("{name}.{field}")));
            }
            _ => drop(all.insert(name.clone())),
        }
    }
    all
}

/// Regenerate the file with `slipway schema --cluster > recipes/cluster.schema.json` after a change of the words.
#[test]
fn the_schema_that_is_checked_in_is_that_of_the_words() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../recipes/cluster.schema.json"
    );
    assert!(
        std::fs::read_to_string(path).unwrap_or_default() == json_schema::text(),
        "recipes/cluster.schema.json is not what the words give: run `slipway schema --cluster > recipes/cluster.schema.json`"
    );
}

#[test]
fn every_field_of_the_reader_is_in_the_schema_and_the_reverse() {
    let schema = json_schema::schema();
    let (one, other) = (tree(CONTROL_PLANE), tree(FURTHER));
    for (text, tree) in [(CONTROL_PLANE, &one), (FURTHER, &other)] {
        assert_eq!(mistakes(text), [""; 0]);
        assert!(allows(&schema, tree));
    }
    let mut read = fields(&one, Value::as_object);
    read.extend(fields(&other, Value::as_object));
    let known = fields(&schema, |schema| schema["properties"].as_object());
    assert_eq!(known, read);
    // A name that only the schema has would be unknown to the reader.
    for field in &known {
        let text = format!("{field} = \"?\"\n");
        let unknown = |mistake: &String| mistake.contains("unknown field");
        assert!(!mistakes(&text).iter().any(unknown), "{field}");
    }
}

#[test]
fn the_examples_of_the_page_and_of_a_new_object_are_allowed() {
    let schema = json_schema::schema();
    let page = include_str!("../../docs/cluster.md");
    let examples: Vec<&str> = page
        .split("```toml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert!(examples.len() >= 3);
    let new = include_str!("../../src/cluster/template.toml");
    for example in examples.into_iter().chain([new]) {
        assert!(allows(&schema, &tree(example)), "{example}");
    }
}

#[test]
fn the_schema_refuses_what_the_reader_refuses() {
    let schema = json_schema::schema();
    for text in WRONG {
        assert!(!mistakes(text).is_empty(), "{text}");
        assert!(!allows(&schema, &tree(text)), "{text}");
    }
}

#[test]
fn every_field_says_what_it_is_and_what_it_holds() {
    fn check(path: &str, schema: &Value) {
        assert!(
            schema["description"]
                .as_str()
                .is_some_and(|text| text.ends_with('.')),
            "{path} has no description"
        );
        let holds = ["type", "enum", "anyOf"]
            .iter()
            .any(|word| schema.get(word).is_some());
        // What kubeadm passes on as it is may be anything.
        assert!(holds || path.ends_with(".valueFrom"), "{path} has no type");
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            check(&format!("{path}.{name}"), inner);
        }
    }
    check("", &json_schema::schema());
}
