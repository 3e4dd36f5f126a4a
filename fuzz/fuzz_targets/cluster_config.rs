//! A cluster's configuration: any text is rendered, or refused with mistakes; what the YAML writer writes of it is read as
//! the same value.
#![no_main]

use cluster::report::Report;
use cluster::yaml;

libfuzzer_sys::fuzz_target!(|text: &str| {
    for (before, document) in yaml::split(text) {
        let Some(node) = yaml::document(&document, before, &mut Report::default()) else {
            continue;
        };
        let value = node.content.value();
        let written = yaml::write(&value);
        let mut report = Report::default();
        let again = yaml::document(&written, 0, &mut report);
        assert_eq!(again.map(|node| node.content.value()), Some(value), "{written}");
    }
    let case = serde_json::json!({"name": "fuzz", "kubeadm": "1.35.4", "config": text});
    let answer = cluster::answer::answer(&case.to_string()).expect("a case");
    let answer: serde_json::Value = serde_json::from_str(&answer.line).expect("JSON");
    assert!(answer["rc"] == 0 || answer["error"].as_array().is_some_and(|errors| !errors.is_empty()));
});
