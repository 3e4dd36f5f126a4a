//! YAML: any text is a tree of bounded depth and size, or refused with a place in it.
#![no_main]

use ignition::read::json::{Json, Value};

fn depth(json: &Json) -> usize {
    match &json.value {
        Value::List(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(entries) => 1 + entries.iter().map(|(_, _, value)| depth(value)).max().unwrap_or(0),
        _ => 0,
    }
}

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    match ignition::read::yaml::parse(text, "fuzz") {
        Ok(json) => assert!(depth(&json) <= 64),
        Err(report) => {
            let at = report.entries[0].at.as_ref().expect("a place");
            let lines = text.iter().filter(|byte| matches!(byte, b'\n' | b'\r')).count() + 2;
            assert!(at.line >= 1 && at.column >= 1 && usize::try_from(at.line).unwrap() <= lines);
        }
    }
});
