//! Vendors' YAML and JSON: the scalars of NoCloud's `meta-data`, of a vendor's cloud-config and of metadata services. A
//! text that does not parse is noted and counts as absent, since a machine without its metadata still boots.

use std::collections::BTreeMap;

use ignition::read::json::{self, Json, Value};
use ignition::read::yaml;

/// A document; none if it is neither JSON nor YAML, with a note of the syntax error's position. The note never holds
/// the content.
pub(crate) fn parse(text: &[u8], name: &str, notes: &mut Vec<String>) -> Option<Json> {
    let parsed = match text.trim_ascii_start().first() {
        Some(b'{') => json::parse(text, name),
        _ => yaml::parse(text, name),
    };
    parsed
        .map_err(|report| {
            let place = report.entries.first().and_then(|entry| entry.at.clone());
            let place =
                place.map_or_else(String::new, |at| format!(" at {}:{}", at.line, at.column));
            notes.push(format!("ignoring {name}: not YAML{place}"));
        })
        .ok()
}

/// The top-level keys of a mapping, each with its scalar, or the scalars of its list or of the values of its mapping: KubeVirt
/// writes SSH keys by name.
pub(crate) fn top(document: Option<Json>) -> BTreeMap<String, Vec<String>> {
    match document.map(|document| document.value) {
        Some(Value::Object(entries)) => entries
            .into_iter()
            .map(|(key, _, value)| (key, of_key(value)))
            .collect(),
        _ => BTreeMap::new(),
    }
}

fn of_key(node: Json) -> Vec<String> {
    match node.value {
        Value::Object(entries) => entries
            .into_iter()
            .flat_map(|(_, _, value)| scalars(value))
            .collect(),
        value => scalars(Json { value, ..node }),
    }
}

/// The scalars of a key, at whatever depth, in their order.
pub(crate) fn values(document: Option<Json>, key: &str) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(document) = document {
        collect(document, key, &mut out);
    }
    out
}

fn collect(node: Json, key: &str, out: &mut Vec<String>) {
    match node.value {
        Value::List(items) => items.into_iter().for_each(|item| collect(item, key, out)),
        Value::Object(entries) => {
            for (name, _, value) in entries {
                match name == key {
                    true => out.extend(scalars(value)),
                    false => collect(value, key, out),
                }
            }
        }
        _ => {}
    }
}

/// A scalar, or those of a list; none for a mapping.
fn scalars(node: Json) -> Vec<String> {
    match node.value {
        Value::Plain(text) if yaml::is_null(&text) => Vec::new(),
        Value::Text(text) | Value::Plain(text) | Value::Number(text) => vec![text],
        Value::List(items) => items.into_iter().flat_map(scalars).collect(),
        Value::Null | Value::Bool(_) | Value::Object(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> BTreeMap<String, Vec<String>> {
        let mut notes = Vec::new();
        let read = top(parse(text.as_bytes(), "x", &mut notes));
        assert_eq!(notes, [""; 0]);
        read
    }

    #[test]
    fn the_top_is_read_from_yaml_and_json() {
        let yaml = read(
            "---\n#cloud-config\ninstance-id: 'i-1'  # mine\nlocal-hostname: \"web\\x2d1\"\n\
             network:\n  version: 2\nssh_authorized_keys:\n  - ssh-ed25519 AAAA me\n  - {a: b}\n\
             keys:\n- one\n- 'two'\nanchor: &x text\nalias: *x\nempty:\n",
        );
        let one = |key: &str| yaml.get(key).map(Vec::as_slice).unwrap_or_default();
        assert_eq!(one("instance-id"), ["i-1"]);
        assert_eq!(one("local-hostname"), ["web-1"]);
        assert_eq!(one("ssh_authorized_keys"), ["ssh-ed25519 AAAA me"]);
        assert_eq!(one("keys"), ["one", "two"]);
        assert_eq!(one("alias"), ["text"]);
        assert!(one("version").is_empty() && one("empty").is_empty());
        let json =
            read(r#"{"instance-id": 7, "keys": ["a", "b"], "deep": {"a": 1, "b": {"c": 2}}}"#);
        assert_eq!(json["instance-id"], ["7"]);
        assert_eq!(json["keys"], ["a", "b"]);
        assert_eq!(json["deep"], ["1"]);
    }

    #[test]
    fn values_are_found_at_any_depth() {
        let text = b"- ip: 10.0.0.2\n  alias_ips: [10.0.0.3]\n- {ip: '10.128.0.2', more: [{ip: 10.1.0.1}]}\n";
        let document = parse(text, "x", &mut Vec::new());
        let found = values(document, "ip");
        assert_eq!(found, ["10.0.0.2", "10.128.0.2", "10.1.0.1"]);
    }

    #[test]
    fn what_is_not_yaml_is_named_by_its_place_and_not_used() {
        let mut notes = Vec::new();
        assert_eq!(parse(b"a: 1\nb: *SECRET\n", "x", &mut notes), None);
        assert_eq!(notes.len(), 1);
        assert!(
            notes[0].starts_with("ignoring x: not YAML at 2:"),
            "{notes:?}"
        );
        assert!(!notes[0].contains("SECRET"), "{notes:?}");
        assert!(parse(b"", "x", &mut notes).is_some(), "empty is absent");
    }
}
