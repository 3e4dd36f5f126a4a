//! Comparison with real Ignition's results for 1,576 configs and 140 pairs of configs, one JSON object a line: verdict,
//! kind and path of every finding, the translated and the merged config.
//!
//! `more_validation_cases.jsonl` has what 80,000 random configs were answered otherwise than by Ignition 2.27.0, each in all versions.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::path::Path;

use ignition::{Config, Kind};
use serde_json::Value;

fn cases(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name);
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn verdicts_findings_and_translations_are_ignitions() {
    let mut wrong = Vec::new();
    let mut cases = cases("validation_cases.jsonl");
    assert_eq!(cases.len(), 1488);
    cases.extend(self::cases("more_validation_cases.jsonl"));
    assert_eq!(cases.len(), 1576);
    for case in &cases {
        let raw = case["raw"].as_str().unwrap();
        let (accept, report, translated) = match Config::parse(raw.as_bytes(), "case") {
            Ok((config, report)) => (true, report, config.to_json()),
            Err(report) => (false, report, Value::Null),
        };
        let found: BTreeSet<(String, String)> = report
            .entries
            .iter()
            .map(|entry| {
                let kind = match entry.kind {
                    Kind::Error => "error",
                    Kind::Warning => "warning",
                };
                (kind.to_owned(), entry.path.clone())
            })
            .collect();
        let expected: BTreeSet<(String, String)> = case["entries"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| {
                let text = |name: &str| entry[name].as_str().unwrap().to_owned();
                (text("kind"), text("path"))
            })
            .collect();
        let name = format!("{} {}", case["name"], case["version"]);
        if accept != case["accept"].as_bool().unwrap() || found != expected {
            wrong.push(format!(
                "{name}: expected {expected:?}, found {accept} {report}"
            ));
        } else if accept && translated != case["translated"] {
            wrong.push(format!(
                "{name}: {translated}\n  expected {}",
                case["translated"]
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn merges_are_ignitions() {
    let mut wrong = Vec::new();
    let cases = cases("merge_cases.jsonl");
    assert_eq!(cases.len(), 140);
    for case in &cases {
        // The pairs are merged unchanged, valid or not.
        let read = |name: &str| {
            Config::read(case[name].to_string().as_bytes(), name)
                .unwrap()
                .0
        };
        let merged = read("parent").over(&read("child")).to_json();
        if merged != case["merged"] {
            wrong.push(format!(
                "{}: {merged}\n  expected {}",
                case["name"], case["merged"]
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn the_configs_of_the_pairs_are_valid() {
    // The pairs consist of configs that Ignition accepts.
    let mut wrong = Vec::new();
    for case in &cases("merge_cases.jsonl") {
        for name in ["parent", "child"] {
            if let Err(report) = Config::parse(case[name].to_string().as_bytes(), name) {
                wrong.push(format!("{}: {report}", case["name"]));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Found by Ignition's own blackbox suite, in which files with an empty source overwrite links: 3.0 accepts an empty
/// source in every pointer, as every later version does for files.
#[test]
fn an_empty_source_is_none_but_for_an_authority() {
    let file = |rest: &str| format!(r#""storage": {{"files": [{{"path": "/a", {rest}}}]}}"#);
    let config = |rest: &str| format!(r#""config": {{{rest}}}"#);
    let authority = |rest: &str| {
        format!(r#""security": {{"tls": {{"certificateAuthorities": [{{{rest}}}]}}}}"#)
    };
    for (minor, inside, outside, accept) in [
        (
            0,
            String::new(),
            file(r#""overwrite": true, "contents": {"source": ""}"#),
            true,
        ),
        (
            0,
            String::new(),
            file(r#""append": [{"source": ""}]"#),
            true,
        ),
        (
            6,
            String::new(),
            file(r#""overwrite": true, "contents": {"source": ""}"#),
            true,
        ),
        (
            0,
            config(r#""merge": [{"source": ""}]"#),
            String::new(),
            true,
        ),
        (0, config(r#""merge": [{}]"#), String::new(), true),
        (
            1,
            config(r#""merge": [{"source": ""}]"#),
            String::new(),
            false,
        ),
        (1, config(r#""merge": [{}]"#), String::new(), false),
        (
            0,
            config(r#""replace": {"source": ""}"#),
            String::new(),
            true,
        ),
        (0, authority(r#""source": """#), String::new(), false),
        (0, authority(""), String::new(), false),
        (1, authority(r#""source": """#), String::new(), false),
    ] {
        let comma = |text: &str| {
            if text.is_empty() {
                String::new()
            } else {
                format!(", {text}")
            }
        };
        let text = format!(
            r#"{{"ignition": {{"version": "3.{minor}.0"{}}}{}}}"#,
            comma(&inside),
            comma(&outside)
        );
        assert_eq!(
            Config::parse(text.as_bytes(), "t").is_ok(),
            accept,
            "{text}"
        );
    }
}

/// `clevis.custom` of 3.2.0 had texts, not optional ones: translated, what was not given is there and empty, and replaces what
/// a parent says (Ignition's translation from 3.2 to 3.3).
#[test]
fn texts_that_a_custom_pin_of_3_2_leaves_out_are_empty_in_later_versions() {
    let config = |version: &str, custom: &str| {
        let text = format!(
            r#"{{"ignition": {{"version": "{version}"}}, "storage": {{"luks": [
                {{"name": "a", "device": "/dev/a", "clevis": {{"custom": {custom}}}}}]}}}}"#
        );
        Config::parse(text.as_bytes(), "case").unwrap().0
    };
    let custom =
        |config: &Config| config.to_json()["storage"]["luks"][0]["clevis"]["custom"].clone();
    let given = serde_json::json!({ "pin": "tang", "config": "{}", "needsNetwork": true });
    for version in ["3.2.0", "3.3.0"] {
        assert_eq!(custom(&config(version, &given.to_string())), given);
    }
    let network = r#"{"needsNetwork": true}"#;
    let old = config("3.2.0", network);
    assert_eq!(
        custom(&old),
        serde_json::json!({ "pin": "", "config": "", "needsNetwork": true })
    );
    assert_eq!(custom(&config("3.3.0", "{}")), serde_json::json!({}));
    let merged = config("3.3.0", &given.to_string()).over(&old);
    assert_eq!(custom(&merged), custom(&old));
}
