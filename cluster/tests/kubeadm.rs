//! Compares what is rendered with what kubeadm itself made of the same configurations.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;

use cluster::answer::answer;
use cluster::report::Report;
use cluster::yaml;
use serde_json::{Map, Value};

/// The cases, and what kubeadm answered: `tests/kubeadm/README.md`.
const CASES: &[u8] = include_bytes!("kubeadm/cases.jsonl.xz");
/// Those of versions that no cluster object may have.
const OLDER: &[u8] = include_bytes!("kubeadm/older.jsonl.xz");

/// Those of wide combinations of fields, and the smallest ones of what these have shown.
const WIDER: &[u8] = include_bytes!("kubeadm/wider.jsonl.xz");

fn cases() -> Vec<Value> {
    let read = |packed: &[u8]| {
        let mut text = String::new();
        let mut reader = liblzma::read::XzDecoder::new(packed);
        reader.read_to_string(&mut text).unwrap();
        text
    };
    let texts = [CASES, OLDER, WIDER].map(read).concat();
    texts
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Everything of a case that is compared, by its name; text byte for byte.
fn parts(case: &Value) -> BTreeMap<String, String> {
    let mut parts = BTreeMap::from([("rc".to_owned(), case["rc"].to_string())]);
    for (number, object) in case["objects"].as_array().into_iter().flatten().enumerate() {
        for (key, value) in object.as_object().unwrap() {
            let text = value.as_str().unwrap();
            parts.insert(format!("objects.{number:02}.{key}"), text.to_owned());
        }
    }
    for key in ["files", "certs", "kubeconfigs"] {
        for (name, value) in case[key].as_object().unwrap_or(&Map::new()) {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            parts.insert(format!("{key}.{name}"), text);
        }
    }
    parts
}

/// What is refused: the field before the first colon of kubeadm's message, or kubeadm's sentence about a version.
fn refused(case: &Value) -> Vec<String> {
    let errors = case["error"].as_array().into_iter().flatten();
    let field = |error: &Value| {
        let error = error.as_str().unwrap();
        if error.contains("control plane version >=") {
            return "kubernetesVersion".to_owned();
        }
        error.split(": ").next().unwrap().to_owned()
    };
    errors.map(field).collect()
}

fn differences(case: &Value) -> Vec<String> {
    let ours: Value = serde_json::from_str(&answer(&case.to_string()).unwrap().line).unwrap();
    assert_eq!(ours["name"], case["name"]);
    let (theirs, ours_parts) = (parts(case), parts(&ours));
    let mut names: Vec<&String> = theirs.keys().chain(ours_parts.keys()).collect();
    names.sort();
    names.dedup();
    let mut found: Vec<String> = names
        .into_iter()
        .filter_map(|name| {
            let (theirs, ours) = (theirs.get(name), ours_parts.get(name));
            (theirs != ours).then(|| {
                format!(
                    "{name}\n--- kubeadm\n{}\n+++ ours\n{}",
                    shown(theirs),
                    shown(ours)
                )
            })
        })
        .collect();
    if refused(case) != refused(&ours) {
        found.push(format!(
            "error: kubeadm {}, ours {}",
            case["error"], ours["error"]
        ));
    }
    found
}

fn shown(text: Option<&String>) -> &str {
    text.map_or("(nothing)", String::as_str)
}

#[test]
fn what_is_rendered_is_kubeadms() {
    let cases = cases();
    assert_eq!(cases.len(), 358);
    let mut wrong = 0;
    for case in &cases {
        let differences = differences(case);
        if !differences.is_empty() {
            wrong += 1;
            println!("== {}: {} differences", case["name"], differences.len());
            differences
                .iter()
                .take(3)
                .for_each(|difference| println!("{difference}"));
        }
    }
    assert_eq!(wrong, 0, "of 358 cases differ");
}

/// The comparison itself finds a difference in each part.
#[test]
fn a_difference_in_any_part_is_found() {
    let case = cases().into_iter().find(|case| case["rc"] == 0).unwrap();
    assert!(differences(&case).is_empty());
    for pointer in [
        "/objects/0/object",
        "/files/~1var~1lib~1kubelet~1config.yaml",
        "/certs/ca.crt/key",
        "/kubeconfigs/admin.conf/server",
    ] {
        let mut changed = case.clone();
        *changed.pointer_mut(pointer).unwrap() = "other".into();
        assert_eq!(differences(&changed).len(), 1, "{pointer}");
    }
    let mut refused = case;
    refused["error"] = serde_json::json!(["etcd: wrong"]);
    assert_eq!(differences(&refused).len(), 1);
}

/// The reader and the writer of YAML agree with kubeadm's on all that it wrote.
#[test]
fn yaml_of_kubeadms_is_read_and_written_the_same() {
    let mut texts = BTreeSet::new();
    for case in cases().iter().filter(|case| case["rc"] == 0) {
        let objects = case["objects"].as_array().unwrap().iter();
        texts.extend(objects.map(|object| format!("{}\n", object["object"].as_str().unwrap())));
        let files = case["files"].as_object().unwrap().iter();
        let manifests = files.filter(|(path, _)| path.ends_with(".yaml"));
        texts.extend(manifests.map(|(_, text)| text.as_str().unwrap().to_owned()));
    }
    assert!(texts.len() > 500, "{}", texts.len());
    for text in &texts {
        let mut report = Report::default();
        let node = yaml::document(text, 0, &mut report).unwrap();
        assert_eq!(yaml::write(&node.content.value()), *text);
        assert_eq!(report, Report::default());
        assert_eq!(yaml::split(text), [(0, text.clone())]);
    }
}
